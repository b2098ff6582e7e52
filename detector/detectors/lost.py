"""Reports a GPU that fell off the bus or left its node. Hard facts: no model, no delay.

The question is "is every GPU that should be here still here?". A GPU can vanish without an Xid
line; seven GPUs where eight are expected is often the only sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, uniform_severity
from detector.frame import Frame
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "Lost"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_WAITS = 0.75  # between the exit and the enter threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """GPUs that the driver calls lost, and GPUs that the node no longer lists.

    Parameters
    ----------
    missing_seconds, missing_samples
        How long a known GPU must be off the list: the list is read anew when its length
        changes, and for one reading it may be short.
    return_seconds
        How long GPUs may take to come back after a gap in which the node did not tell of them,
        s: after a reload of the driver they are listed one by one, some seconds each.
    gap_intervals
        From how many usual intervals on the time since the last reading is such a gap.
    exit_seconds
        How long the GPU must be back, s.

    Notes
    -----
    ``lost`` is NVML return code 15, GPU_IS_LOST: a fact of one sample. ``missing`` counts only
    while the collector itself is well and still sees other GPUs; if none answers, the node is
    blind, which is one event of the node and not eight lost GPUs. The blind time is nobody's
    absence: it counts neither for the hold nor as the start of the alert.

    References
    ----------
    .. [1] NVIDIA, nvml.h 13, nvmlReturn_t.

    Examples
    --------
    >>> frame = Frame.of(metrics={"temperature_celsius": [np.nan, 40.0]}, ts=[0, 0])
    >>> frame.lost[0] = True
    >>> fresh = {"returning": np.zeros(2, dtype=np.float32)}
    >>> Lost().step(frame, fresh, {}).judgements["lost"].score
    array([1., 0.])
    """

    missing_seconds: float = 5.0
    missing_samples: int = 3
    return_seconds: float = 30.0
    gap_intervals: float = 1.5
    exit_seconds: float = 30.0

    name: ClassVar[str] = "lost"
    version: ClassVar[str] = "2"
    family: ClassVar[str] = "gpu_lost"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    helps: ClassVar[tuple[str, ...]] = ()

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``lost`` at once, ``missing`` after a few readings."""
        return (
            KindSpec(kind="lost", exit_seconds=self.exit_seconds),
            KindSpec(
                kind="missing",
                enter_seconds=self.missing_seconds,
                enter_samples=self.missing_samples,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """How much longer the GPU may take to come back, s."""
        return {"returning": Field("f4", 0.0)}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score 1 where the fact holds, 0 where the GPU answers, NaN where neither is known."""
        del firing
        gap = frame.dt > self.gap_intervals * frame.interval
        left = np.where(gap, self.return_seconds, state["returning"] - frame.elapsed)
        returning = np.maximum(left, 0.0)
        answers = np.isfinite(frame.x).any(axis=0)
        replaced = frame.gone & ~frame.absent
        lost = np.where(frame.lost, 1.0, np.where(answers | replaced, 0.0, np.nan))
        # Neither opens an alert nor ends one that was open before the gap.
        missing = np.where(frame.absent, np.where(returning > 0.0, _WAITS, 1.0), 0.0)
        return Step(
            judgements={
                "lost": Judgement(score=lost, severity=uniform_severity(lost, Severity.CRITICAL)),
                "missing": Judgement(
                    score=missing, severity=uniform_severity(missing, Severity.CRITICAL)
                ),
            },
            state={"returning": returning.astype(np.float32)},
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the loss."""
        del row
        if kind == "lost":
            return Explanation(
                summary="is lost: the driver no longer reaches it (NVML error 15, GPU_IS_LOST)",
                evidence=(Evidence(metric="nvml_error", value=15.0, unit="", expected_high=0.0),),
                likely_cause=(
                    "The GPU fell off the PCIe bus: link, power delivery, riser or the GPU itself. "
                    "Jobs that used it have failed or will hang."
                ),
                action=Action.DRAIN_NODE,
                next_steps=(
                    "Drain the node; jobs on this GPU cannot continue.",
                    "Look in the kernel log for Xid 79 and PCIe errors; collect "
                    "nvidia-bug-report.sh before anything else.",
                    "Reboot the node (a GPU reset does not reach a lost device). If it happens "
                    "again within a month, reseat or replace the GPU.",
                ),
            )
        return Explanation(
            summary="is missing: the node no longer lists it while its other GPUs answer",
            evidence=(Evidence(metric="listed", value=0.0, unit="", expected_low=1.0),),
            likely_cause=(
                "The GPU fell off the bus or failed to initialise after a driver reload or reboot."
            ),
            action=Action.DRAIN_NODE,
            next_steps=(
                "Compare lspci with nvidia-smi -L on the node and look in the kernel log.",
                "Drain the node and reboot it; if the GPU does not come back, have it replaced.",
                "If it was taken out on purpose, lower the expected number of GPUs of the node.",
            ),
        )


DETECTOR = Lost
