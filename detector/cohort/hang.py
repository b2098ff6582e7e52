"""Finds the node, or the lone GPU, at which a job on several nodes stopped.

The question is "which node does everybody wait for, for ever?". A node whose ranks all stopped
looks idle to itself, and its partners see only that they all wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, KindSpec, RowView, Step
from detector.detectors.hang import Hang
from detector.frame import Frame
from detector.hangwords import explained
from schemas.alert import Scope

__all__ = ["JobHang"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_KINDS = ("hang", "idle_member")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHang:
    """Members of a job that are idle while the job's others wait for them, or work on.

    Parameters
    ----------
    min_group
        Members needed in the job.
    min_age_seconds
        Time under load before a judgement, s.
    hang_seconds, critical_seconds
        How long a member must be idle beside spinning partners, and from when on it is
        critical, s.
    idle_seconds
        How long a member must be idle while others of its job work, s.
    exit_seconds
        How long the condition must have ended, s.

    Notes
    -----
    Members are described in :mod:`detector.cohort.members`, the conditions in
    :class:`detector.detectors.hang.Hang`; a hang of the whole job is said by its nodes.

    Examples
    --------
    Four nodes train at 600 W; then the third stops and the others spin at 140 W:

    >>> watch = JobHang()
    >>> state = {name: spec.make(4) for name, spec in watch.fields().items()}
    >>> off = {kind.kind: np.zeros(4, dtype=bool) for kind in watch.kinds}
    >>> for window in range(20):
    ...     hung = window >= 15
    ...     frame = Frame.of(
    ...         metrics={
    ...             "power_watts": [140, 140, 80, 140] if hung else [600] * 4,
    ...             "gpu_utilization_ratio": [1, 1, 0, 1] if hung else [1] * 4,
    ...         },
    ...         ts=[window * 10_000] * 4,
    ...         dt=10.0,
    ...     )
    ...     frame.job[:] = 0
    ...     step = watch.step(frame, state, off)
    ...     state = step.state
    >>> step.judgements["hang"].score
    array([0., 0., 1., 0.])
    """

    min_group: int = 3
    min_age_seconds: float = 120.0
    hang_seconds: float = 30.0
    critical_seconds: float = 60.0
    idle_seconds: float = 600.0
    exit_seconds: float = 30.0

    name: ClassVar[str] = "job_hang"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "load_imbalance"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("power_watts", "gpu_utilization_ratio")
    helps: ClassVar[tuple[str, ...]] = ("memory_utilization_ratio", "power_limit_watts")

    def __post_init__(self) -> None:
        self._inner()  # refuses what it cannot work with

    def _inner(self) -> Hang:
        return Hang(
            min_group=self.min_group,
            min_age_seconds=self.min_age_seconds,
            hang_seconds=self.hang_seconds,
            critical_seconds=self.critical_seconds,
            idle_seconds=self.idle_seconds,
            exit_seconds=self.exit_seconds,
        )

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """Two kinds; a score of 1 means that the condition holds."""
        return tuple(spec for spec in self._inner().kinds if spec.kind in _KINDS)

    def fields(self) -> Mapping[str, Field]:
        """Those of the hang detector: usual power, times."""
        return self._inner().fields()

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every member for the two kinds."""
        nobody = np.zeros(len(frame), dtype=bool)
        step = self._inner().step(frame, state, {**firing, "collective_hang": nobody})
        return Step(
            judgements={kind: step.judgements[kind] for kind in _KINDS},
            state=step.state,
            columns=step.columns,
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word who waits for whom, with the powers that show it."""
        return explained(kind, row, idle_seconds=self.idle_seconds)
