"""Finds what holds a job on several nodes back, where no node can see it by itself.

The question is "which node is everybody waiting for?". On the slow node all GPUs are alike, so
its own detectors are silent; beside the job's other nodes it stands out by clock and power.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, KindSpec, RowView, Step
from detector.detectors.straggler import Straggler
from detector.frame import Frame
from schemas.alert import Action, Evidence, Scope

__all__ = ["JobStraggler"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStraggler:
    """Persistent lag of a member of a job behind the median of the job's members.

    Parameters
    ----------
    gap_ratio
        Clock, or power of a member that is late, below the job's median by this share of it
        makes a straggler, 0 to 1.
    power_gap_ratio
        The same for power where no clock is measured.
    spread_ratio
        Jobs whose members' power differs by more than this do not run in step: replicas that
        serve independent requests are no straggler's peers.
    min_group
        Members that must work. Of two, nobody can say which is the odd one.
    min_age_seconds
        Time under load before a judgement, s.
    smooth_seconds
        Time constant of the window means, s.
    offset_seconds
        Time constant of the learned offset of a member, s: pipeline stages and the node of rank
        0 differ by design, up to 1.62 times in work.
    enter_seconds, exit_seconds
        How long the lag must hold, or have ended, s.

    Notes
    -----
    Members are described in :mod:`detector.cohort.members`, the score in
    :class:`detector.detectors.straggler.Straggler`: here it is applied to means over ten seconds
    of members that may sit on any node, read by any detector.

    References
    ----------
    .. [1] Thresholds after the rank statistics of ByteDance-Seed/StragglerAnalysis (persistent
       worker 2.35x, sequence imbalance at most 1.07x on average, last stage 1.62x).

    Examples
    --------
    Four nodes of one job; after five minutes the second one's clock falls by 15 %:

    >>> watch = JobStraggler()
    >>> state = {name: spec.make(4) for name, spec in watch.fields().items()}
    >>> for window in range(40):
    ...     slow = window >= 30
    ...     frame = Frame.of(
    ...         metrics={
    ...             "power_watts": [600, 540 if slow else 602, 601, 599],
    ...             "sm_clock_hertz": [1.7e9, 1.445e9 if slow else 1.7e9, 1.7e9, 1.7e9],
    ...             "gpu_utilization_ratio": [1.0] * 4,
    ...         },
    ...         ts=[window * 10_000] * 4,
    ...         dt=10.0,
    ...     )
    ...     frame.job[:] = 0
    ...     step = watch.step(frame, state, {"straggler": np.zeros(4, dtype=bool)})
    ...     state = step.state
    >>> (step.judgements["straggler"].score >= 1.0).tolist()
    [False, True, False, False]
    """

    gap_ratio: float = 0.075
    power_gap_ratio: float = 0.10
    spread_ratio: float = 0.08
    min_group: int = 3
    min_age_seconds: float = 120.0
    smooth_seconds: float = 20.0
    offset_seconds: float = 1800.0
    enter_seconds: float = 60.0
    exit_seconds: float = 120.0

    name: ClassVar[str] = "job_straggler"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "load_imbalance"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("power_watts", "gpu_utilization_ratio")
    helps: ClassVar[tuple[str, ...]] = ("sm_clock_hertz", "power_limit_watts")

    def __post_init__(self) -> None:
        self._inner()  # refuses what it cannot work with

    def _inner(self) -> Straggler:
        return Straggler(
            gap_ratio=self.gap_ratio,
            power_gap_ratio=self.power_gap_ratio,
            spread_ratio=self.spread_ratio,
            min_group=self.min_group,
            min_age_seconds=self.min_age_seconds,
            smooth_seconds=self.smooth_seconds,
            offset_seconds=self.offset_seconds,
        )

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; a score of 1 is a lag of the threshold."""
        return (
            KindSpec(
                kind="straggler",
                enter=1.0,
                exit=0.6,
                enter_seconds=self.enter_seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """Those of the straggler detector: smoothed readings, offsets, spread, time."""
        return self._inner().fields()

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every member by its lag behind the job."""
        return self._inner().step(frame, state, firing)

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the lag: power, clock and utilisation against the job's other members."""
        del kind
        gpus, count = row["member_gpus"], row["group_size"]
        whole = f", median of its {gpus:.0f} GPUs" if gpus > 1.0 else ""
        return Explanation(
            summary=(
                f"holds its job back: {_compared(row)}{whole}; {count:.0f} members of the job on "
                f"all its nodes are compared, for {self.enter_seconds:.0f} s or longer"
            ),
            evidence=tuple(
                Evidence(
                    metric=metric,
                    value=row.value(own),
                    unit=unit,
                    peers=row.value(group),
                    window_seconds=self.smooth_seconds,
                )
                for metric, own, group, unit in (
                    ("power_watts", "smoothed_watts", "group_watts", "W"),
                    ("sm_clock_hertz", "smoothed_hertz", "group_hertz", "Hz"),
                    ("gpu_utilization_ratio", "smoothed_busy_ratio", "group_busy_ratio", ""),
                )
            ),
            likely_cause=(
                "Something that all GPUs of the node share is slower than on the job's other "
                "nodes: cooling, power supply or a power limit, clocks locked by an operator, "
                "the host's processors, its input data or its network."
                if gpus > 1.0
                else "The GPU runs slower than the job's others, or its rank comes late: heat, "
                "power, a locked clock, slow input data, a busy host or a degraded link."
            ),
            action=Action.WATCH,
            next_steps=(
                "Look at clock event reasons, temperatures and power limits there beside another "
                "node of the job.",
                "Look at the host's load, its data loader and its network counters.",
                "The whole job runs at this pace: move it off the node if it stays.",
            ),
        )


def _compared(row: RowView) -> str:
    said = [
        f"{label} {row[own] / scale:.0f} {unit} against {row[group] / scale:.0f} {unit}"
        for label, own, group, scale, unit in (
            ("power", "smoothed_watts", "group_watts", 1.0, "W"),
            ("SM clock", "smoothed_hertz", "group_hertz", 1e6, "MHz"),
            ("utilisation", "smoothed_busy_ratio", "group_busy_ratio", 0.01, "%"),
        )
        if np.isfinite(row[own]) and np.isfinite(row[group])
    ]
    return ", ".join(said) if said else "it is no longer compared"
