"""Reports Xid events of a node that belong to no GPU it lists.

A GPU that fell off the bus before it was ever read has no UUID to name; its kernel line is the
only sign of it, so this is an alert of the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, KindSpec, RowView, Step
from detector.frame import Frame
from detector.xid import xid_of
from detector.xidwatch import XID_FIELDS, note_xids, word_xid
from schemas.alert import Scope
from schemas.sample import EventKind

__all__ = ["DETECTOR", "XidUnplaced"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class XidUnplaced:
    """Xid events whose PCI address or UUID is none of the node's GPUs.

    Parameters
    ----------
    quiet_seconds, stale_seconds
        As for the detector ``xid``.

    Notes
    -----
    Graded like the Xids of a listed GPU. Score: 1 while a report is open. It stands until the
    node is rebooted (its uptime begins anew) or the driver changes; a note ends by silence.

    Examples
    --------
    >>> from schemas.sample import SampleEvent
    >>> watch = XidUnplaced()
    >>> state = {name: spec.make(1) for name, spec in watch.fields().items()}
    >>> frame = Frame.of(metrics={}, ts=[0])
    >>> frame.extra = {"uptime_seconds": np.array([90.0]), "known_gpus": np.array([7.0])}
    >>> frame.events = ((0, SampleEvent(ts=0, kind="xid", xid=79, pci="0000:41:00")),)
    >>> float(watch.step(frame, state, {}).judgements["xid"].score[0])
    1.0
    """

    quiet_seconds: float = 600.0
    stale_seconds: float = 3600.0

    name: ClassVar[str] = "xid_unplaced"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "hardware_error"
    scope: ClassVar[Scope] = Scope.NODE
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    helps: ClassVar[tuple[str, ...]] = ()

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``xid``, of the node."""
        return (KindSpec(kind="xid", exit_seconds=0.0),)

    def fields(self) -> Mapping[str, Field]:
        """Keep the open report, and the uptime (s) that tells a reboot."""
        return {**XID_FIELDS, "uptime": Field("f4")}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Take in the round's Xids; end what a reboot or silence has ended."""
        del firing
        uptime = frame["uptime_seconds"].astype(np.float32)  # as it is kept
        reset: BoolArray = uptime < state["uptime"]
        for position, event in frame.events:
            if event.kind == EventKind.DRIVER_CHANGED:
                reset[position] = True
        step = note_xids(
            frame,
            state,
            heard=np.isfinite(frame["known_gpus"]) | reset,
            ended={"gpu_reset": reset},
            quiet_seconds=self.quiet_seconds,
            stale_seconds=self.stale_seconds,
        )
        kept = np.where(np.isfinite(uptime), uptime, state["uptime"])
        return Step(
            judgements=step.judgements,
            state={**step.state, "uptime": kept},
            columns=step.columns,
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the code, its count, and the address if this round named it."""
        del kind
        places = [
            event.pci or event.gpu
            for position, event in row.frame.events
            if position == row.position and xid_of(event) is not None
        ]
        where = next((f" at {place}" for place in places if place), "")
        return word_xid(row, f"reports, for a GPU{where} that it does not list,")


DETECTOR = XidUnplaced
