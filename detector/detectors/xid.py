"""Reports what the driver itself says is wrong with a GPU: Xid events, by what they demand.

The question is "must somebody act, or did a program fail?". The same kind of kernel line stands
for a page fault in a user's code and for a GPU that fell off the bus.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, KindSpec, RowView, Step
from detector.frame import Frame
from detector.resets import RESET_FIELDS, reset_signs, taken_out
from detector.xidwatch import XID_FIELDS, note_xids, word_xid
from schemas.alert import Scope

__all__ = ["DETECTOR", "XidReport"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class XidReport:
    """Xid events of one GPU: one alert at a time, under the gravest code.

    Parameters
    ----------
    quiet_seconds
        A note ends after so long without any Xid, s; the public alert rules look back as far.
    stale_seconds
        An Xid that is older than that when it arrives is only a note, s: nobody knows whether
        the GPU was reset since.

    Notes
    -----
    The table ``detector/xid.py`` gives each code its class: what a program causes (13, 31, 43,
    45, 109 ...) is never more than info, an unknown code is info, what asks for a reset or a
    reboot is critical. Score: 1 while a report is open. Reports of warning and above stand
    until the GPU is reset (its energy counter begins anew, or the collector sees it return),
    or is taken out. A burst is one alert with a count; a graver code raises its severity; a
    sympathetic 45 never takes the place of another code.

    References
    ----------
    .. [1] NVIDIA, Xid catalogue; column ``source`` of the table says what each row rests on.

    Examples
    --------
    >>> from schemas.sample import SampleEvent
    >>> watch = XidReport()
    >>> state = {name: spec.make(1) for name, spec in watch.fields().items()}
    >>> frame = Frame.of(metrics={"power_watts": [70.0]}, ts=[0])
    >>> frame.events = ((0, SampleEvent(ts=0, kind="xid", xid=119, count=5)),)
    >>> step = watch.step(frame, state, {})
    >>> int(step.judgements["xid"].severity[0]), int(step.state["count"][0])
    (3, 5)
    """

    quiet_seconds: float = 600.0
    stale_seconds: float = 3600.0

    name: ClassVar[str] = "xid"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "hardware_error"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    helps: ClassVar[tuple[str, ...]] = ("energy_joules_total",)

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``xid``, at once; how long it stands is decided in the step."""
        return (KindSpec(kind="xid", exit_seconds=0.0),)

    def fields(self) -> Mapping[str, Field]:
        """Keep the open report, and the energy counter that tells a reset."""
        return {**XID_FIELDS, **RESET_FIELDS}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Take in the round's Xids; end what a reset or silence has ended."""
        del firing
        reset, seen = reset_signs(frame, state)
        out = taken_out(frame)
        step = note_xids(
            frame,
            state,
            heard=np.isfinite(frame.x).any(axis=0) | frame.gone | frame.lost | reset,
            ended={"gpu_reset": reset, "gpu_removed": out},
            quiet_seconds=self.quiet_seconds,
            stale_seconds=self.stale_seconds,
        )
        return Step(judgements=step.judgements, state={**step.state, **seen}, columns=step.columns)

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the code and its count."""
        del kind
        return word_xid(row, "reports")


DETECTOR = XidReport
