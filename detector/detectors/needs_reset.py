"""Reports that the driver itself asks for a reset, a reboot or another recovery of a GPU.

The GPU may go on computing and look busy meanwhile. The driver knows what it needs; the question
is only whether somebody hears it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, Judgement, KindSpec, RowView, Step
from detector.frame import Frame
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "NeedsReset"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes

#: NVML field 230: value to what the driver asks for, severity, action.
_ASKS: dict[int, tuple[str, Severity, Action]] = {
    1: ("a reset of the GPU", Severity.CRITICAL, Action.RESET_GPU),
    2: ("a reboot of the node", Severity.CRITICAL, Action.REBOOT_NODE),
    3: ("its peer-to-peer traffic to be drained", Severity.WARNING, Action.DRAIN_NODE),
    4: ("a drain and then a reset of the GPU", Severity.CRITICAL, Action.RESET_GPU),
    5: ("a recovery of the IMEX service", Severity.WARNING, Action.DRAIN_NODE),
    6: ("a reset of its bus", Severity.CRITICAL, Action.RESET_GPU),
    7: ("a reboot of the whole system", Severity.CRITICAL, Action.REBOOT_NODE),
}
_STEPS = {
    Action.RESET_GPU: (
        "Drain the GPU, end its processes and reset it (nvidia-smi --gpu-reset).",
        "If the reset fails, reboot the node; look at the Xid events before it for the cause.",
    ),
    Action.REBOOT_NODE: (
        "Drain the node, collect nvidia-bug-report.sh and reboot it.",
        "If the request comes back after the reboot, have the GPU examined.",
    ),
    Action.DRAIN_NODE: (
        "Drain the node; for IMEX restart the service on all nodes of the domain.",
        "Read nvidia-smi -q for the recovery action and do what it names.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsReset:
    """The recovery action that the driver offers since release 570.

    Parameters
    ----------
    exit_seconds
        How long the driver must ask for nothing, s.

    Notes
    -----
    Score 1 where the action is above 0. The values 1 to 7 are known; one beyond means "act" and
    never "well". Missing (older driver, lost GPU) says nothing and ends nothing.

    References
    ----------
    .. [1] NVIDIA, nvml.h 13, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (230).

    Examples
    --------
    >>> frame = Frame.of(metrics={"recovery_action": [0.0, 1.0, np.nan]}, ts=[0, 0, 0])
    >>> NeedsReset().step(frame, {}, {}).judgements["needs_reset"].score
    array([ 0.,  1., nan])
    """

    exit_seconds: float = 30.0

    name: ClassVar[str] = "needs_reset"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "hardware_error"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("recovery_action",)
    helps: ClassVar[tuple[str, ...]] = ()

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``needs_reset``, at once."""
        return (KindSpec(kind="needs_reset", exit_seconds=self.exit_seconds),)

    def fields(self) -> Mapping[str, Field]:
        """No state: the driver keeps the request."""
        return {}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score 1 where the driver asks for something."""
        del state, firing
        asked = frame["recovery_action"]
        score = np.where(np.isnan(asked), np.nan, (asked > 0.0).astype(np.float64))
        severity = np.full(len(frame), Severity.CRITICAL.rank, dtype=np.int8)
        for value, (_, grade, _) in _ASKS.items():
            severity[asked == value] = grade.rank
        return Step(judgements={"needs_reset": Judgement(score=score, severity=severity)}, state={})

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word what the driver asks for."""
        del kind
        value = int(row["recovery_action"])
        beyond = f"a recovery that is not known here (value {value})"
        unknown = (beyond if value else "nothing any more", None, Action.DRAIN_NODE)
        words, _, action = _ASKS.get(value, unknown)
        return Explanation(
            summary=f"needs recovery: the driver asks for {words}",
            evidence=(
                Evidence(metric="recovery_action", value=float(value), unit="", expected_high=0.0),
            ),
            likely_cause=(
                "The driver found the GPU, its firmware or its links in a state that work cannot "
                "repair; jobs on it fail or will fail."
            ),
            action=action,
            next_steps=_STEPS[action],
        )


DETECTOR = NeedsReset
