"""Finds the GPU that holds its job back, by power and clock, not by utilisation.

The question is "who is everybody waiting for?". Utilisation does not answer it: GPUs that wait
for a slow partner spin in the collective at 100 %. What betrays the slow one is that its clock
is lower and its power differs, in either direction: a little slow it draws less than its peers,
very slow it draws more, because the peers only spin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
from detector.base import (
    Explanation,
    Judgement,
    KindSpec,
    RowView,
    Step,
    require_positive,
    uniform_severity,
)
from detector.frame import Frame
from detector.stats.ewma import ewma
from detector.stats.groups import Groups, working_groups
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "Straggler"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_FLOATS = ("watts", "hertz", "busy", "power_offset", "clock_offset", "unrest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """Persistent lag behind the median of the job's GPUs on the node.

    Parameters
    ----------
    gap_ratio
        Clock, or power of a rank that is late, below the group's median by this share of it
        makes a straggler, 0 to 1. Healthy ranks of one job lie within 1.2 % of each other in
        speed; 7.5 % finds those of 10 %.
    power_gap_ratio
        The same for power where no clock is measured. Healthy peers at one load differ by 3 to
        4 % in training and 7 % in inference (99th percentile of 30 s means).
    witness_ratio, certain_ratio
        A lower clock counts with a power that differs by the first, or alone from the second on.
    seen_ratio
        Share of the gap by which the reading itself must be below the group's median. An offset
        excuses; it never makes a straggler of a rank that stands where its peers stand.
    capped_ratio
        Share of its power limit from which a GPU is at its cap. One that draws more than its
        peers there has more work than they, and its clock is what the cap leaves it: the last
        stage of a pipeline.
    late_ratio
        Utilisation below the group's by so much means that the rank is late rather than early:
        who is early spins at 100 %.
    spread_ratio
        Groups whose power differs by more than this (median absolute residual, now or on average
        over ``offset_seconds``) do not run in step: replicas that serve independent requests are
        no straggler's peers.
    busy_ratio, working_ratio
        Utilisation of the group's median, and of a single row, from which it is judged.
    min_group
        GPUs that must work in the group. Of two, nobody can say which is the odd one.
    min_age_seconds, min_age_intervals
        Time under load before a judgement, s, and in readings: at a slow sampling a minute is a
        single reading, and no offset is learned from that.
    smooth_seconds
        Time constant of power, clock and utilisation, s; at least the time between readings.
    offset_seconds
        Time constant of the learned offset of a rank, s: the last stage of a pipeline and rank 0
        differ by design. It is frozen while the rank is suspected.
    clock_offset_ratio, power_offset_ratio
        Largest offset that is believed to be by design where the job is known. Clocks of healthy
        chips at the power cap differ by less than 5 %; roles differ by up to 62 % in work.
    enter_seconds, exit_seconds
        How long the lag must hold, or have ended, s.

    Notes
    -----
    ``residual = value / median of the group - 1 - offset``; score: ``-residual / gap``, 0 where the
    value is not itself below the median by ``seen_ratio`` of the gap. The group
    is the job, within one node, model and power limit; without a job's name it is inferred from
    the memory held, and then only a change of a rank's own offset counts.

    References
    ----------
    .. [1] Thresholds after the rank statistics of ByteDance-Seed/StragglerAnalysis (persistent
       worker 2.35x, sequence imbalance at most 1.07x on average, last stage 1.62x).

    Examples
    --------
    Three GPUs spin, the fourth works at a third of the clock:

    >>> watch = Straggler()
    >>> state = {name: spec.make(4) for name, spec in watch.fields().items()}
    >>> for second in range(90):
    ...     frame = Frame.of(
    ...         metrics={
    ...             "power_watts": [135, 134, 250, 135],
    ...             "sm_clock_hertz": [1.98e9, 1.98e9, 0.765e9, 1.98e9],
    ...             "gpu_utilization_ratio": [1.0] * 4,
    ...         },
    ...         ts=[second * 1000] * 4,
    ...         dt=1.0,
    ...     )
    ...     frame.job[:] = 0
    ...     step = watch.step(frame, state, {"straggler": np.zeros(4, dtype=bool)})
    ...     state = step.state
    >>> step.judgements["straggler"].score.round(1)
    array([0. , 0. , 7.5, 0. ])
    """

    gap_ratio: float = 0.075
    power_gap_ratio: float = 0.10
    witness_ratio: float = 0.03
    certain_ratio: float = 0.15
    seen_ratio: float = 0.5
    capped_ratio: float = 0.97
    late_ratio: float = 0.10
    spread_ratio: float = 0.08
    busy_ratio: float = 0.8
    working_ratio: float = 0.3
    min_group: int = 3
    min_age_seconds: float = 60.0
    min_age_intervals: float = 4.0
    smooth_seconds: float = 15.0
    offset_seconds: float = 600.0
    clock_offset_ratio: float = 0.05
    power_offset_ratio: float = 0.65
    enter_seconds: float = 25.0
    exit_seconds: float = 60.0

    name: ClassVar[str] = "straggler"
    version: ClassVar[str] = "2"
    family: ClassVar[str] = "load_imbalance"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("power_watts", "gpu_utilization_ratio")
    helps: ClassVar[tuple[str, ...]] = (
        "sm_clock_hertz",
        "memory_utilization_ratio",
        "power_limit_watts",
    )

    def __post_init__(self) -> None:
        require_positive(
            gap_ratio=self.gap_ratio,
            power_gap_ratio=self.power_gap_ratio,
            smooth_seconds=self.smooth_seconds,
            offset_seconds=self.offset_seconds,
        )
        if self.min_group < 2:
            raise ValueError(f"min_group must be at least 2, got {self.min_group}")

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
        """Smoothed readings (W, Hz, ratio), offsets and spread (ratio), time (s), job."""
        floats = {name: Field("f4") for name in _FLOATS}
        return {**floats, "age": Field("f4", 0.0), "job": Field("i4", -2)}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by its lag behind its group."""
        present, groups = working_groups(frame)
        new = self._smooth(frame, state, present, groups)
        working = present & (new["busy"] >= self.working_ratio)
        columns = _against_group(frame, new, groups, working)
        loaded = (columns["group_size"] >= self.min_group) & (
            columns["group_busy_ratio"] >= self.busy_ratio
        )
        usable = working & loaded
        new["age"] = new["age"] + np.where(usable, frame.elapsed, 0.0)
        lag = self._lag(frame, new, groups, usable, columns)
        young = new["age"] < np.fmax(self.min_age_seconds, self.min_age_intervals * frame.interval)
        score = np.where(usable & ~young, lag, 0.0)
        calm = young | (score < self.kinds[0].exit)
        self._learn(frame, new, columns, usable & calm & ~firing["straggler"])
        alone = (groups.number >= 0) & (groups.size(present) < self.min_group)
        score = np.where(present & ~alone, score, np.nan)
        return Step(
            judgements={
                "straggler": Judgement(
                    score=score, severity=uniform_severity(score, Severity.WARNING)
                )
            },
            state={
                name: np.where(present, new[name], state[name]).astype(spec.dtype)
                for name, spec in self.fields().items()
            },
            columns=columns,
        )

    def _smooth(
        self, frame: Frame, state: Mapping[str, AnyArray], present: BoolArray, groups: Groups
    ) -> dict[str, AnyArray]:
        """Move the smoothed readings; a row begins anew with another job or without one."""
        other = present & ((state["job"] != frame.job) | (groups.number < 0))
        new: dict[str, AnyArray] = {
            name: np.where(other, np.nan, state[name].astype(np.float64)) for name in _FLOATS
        }
        for name, metric in (
            ("watts", "power_watts"),
            ("hertz", "sm_clock_hertz"),
            ("busy", "gpu_utilization_ratio"),
        ):
            new[name] = ewma(new[name], frame[metric], frame.elapsed, self._tau(frame))
        new["age"] = np.where(other, 0.0, state["age"].astype(np.float64))
        new["job"] = np.where(present, frame.job, state["job"])
        return new

    def _tau(self, frame: Frame) -> FloatArray:
        """(n,) time constant of the means, s: never so short that one reading is the mean."""
        return np.fmax(self.smooth_seconds, frame.interval)

    def _lag(
        self,
        frame: Frame,
        new: dict[str, AnyArray],
        groups: Groups,
        usable: BoolArray,
        columns: Mapping[str, AnyArray],
    ) -> FloatArray:
        """(n,) lag in units of the threshold, 0 where the group does not run in step."""
        power = columns["power_deviation"] - self._by_design(
            frame, new["power_offset"], self.power_offset_ratio
        )
        clock = columns["clock_deviation"] - self._by_design(
            frame, new["clock_offset"], self.clock_offset_ratio
        )
        low_clock = columns["clock_deviation"] <= -self.seen_ratio * self.gap_ratio
        low_power = columns["power_deviation"] <= -self.seen_ratio * self.gap_ratio
        seen = (np.abs(power) >= self.witness_ratio) | (-clock >= self.certain_ratio)
        seen &= low_clock & ~self._strained(frame, new, columns)
        by_clock = np.where(seen, -clock / self.gap_ratio, 0.0)
        peers = columns["group_busy_ratio"]
        late = low_power & (peers >= 0.95) & (peers - new["busy"] >= self.late_ratio)
        by_host = np.where(late, -power / self.gap_ratio, 0.0)
        by_watts = np.where(low_power, -power / self.power_gap_ratio, 0.0)
        by_power = np.where(np.isnan(clock), by_watts, by_host)
        lag: FloatArray = np.maximum(np.nan_to_num(np.fmax(by_clock, by_power)), 0.0)
        spread, _ = groups.median(np.abs(power), usable)
        new["unrest"] = ewma(new["unrest"], spread, frame.elapsed, self.offset_seconds)
        # Replicas may be alike for a moment; what they were counts as well.
        restless = ~(np.fmax(spread, new["unrest"]) <= self.spread_ratio)
        return np.where(restless, 0.0, lag)

    def _strained(
        self, frame: Frame, new: Mapping[str, AnyArray], columns: Mapping[str, AnyArray]
    ) -> BoolArray:
        """(n,) at its power cap, and drawing more than its peers."""
        at_cap = new["watts"] >= self.capped_ratio * frame["power_limit_watts"]
        strained: BoolArray = at_cap & (columns["power_deviation"] >= self.witness_ratio)
        return strained

    def _by_design(self, frame: Frame, offset: FloatArray, most: float) -> FloatArray:
        """(n,) learned offset, bounded where the job is known; 0 where nothing was learned."""
        bound = np.where(frame.job >= 0, most, np.inf)
        bounded: FloatArray = np.clip(np.nan_to_num(offset), -bound, bound)
        return bounded

    def _learn(
        self,
        frame: Frame,
        new: dict[str, AnyArray],
        columns: Mapping[str, AnyArray],
        learning: BoolArray,
    ) -> None:
        """Move the offsets, at first quickly: they are wanted after a minute."""
        tau = np.fmax(np.fmax(new["age"] / 3.0, self.smooth_seconds), 2.0 * frame.interval)
        tau = np.minimum(tau, self.offset_seconds)
        for offset, deviation in (
            ("power_offset", "power_deviation"),
            ("clock_offset", "clock_deviation"),
        ):
            value = np.where(learning, columns[deviation], np.nan)
            new[offset] = ewma(new[offset], value, frame.elapsed, tau)

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the lag: power, clock and utilisation against the group."""
        del kind
        count = int(np.nan_to_num(row["group_size"]))
        slow_chip = -np.nan_to_num(row["clock_deviation"]) >= 0.5 * self.gap_ratio
        cause, action, steps = _CHIP if slow_chip else _HOST
        return Explanation(
            summary=(
                f"holds its job back: {_compared(row)}; {count} GPUs of the group are compared, "
                f"for {self.enter_seconds:.0f} s or longer"
            ),
            evidence=(
                Evidence(
                    metric="power_watts",
                    value=row.value("smoothed_watts"),
                    unit="W",
                    peers=row.value("group_watts"),
                    window_seconds=self.smooth_seconds,
                ),
                Evidence(
                    metric="memory_utilization_ratio",
                    value=row.value("memory_utilization_ratio"),
                    unit="",
                ),
                Evidence(
                    metric="sm_clock_hertz",
                    value=row.value("smoothed_hertz"),
                    unit="Hz",
                    peers=row.value("group_hertz"),
                    window_seconds=self.smooth_seconds,
                ),
                Evidence(
                    metric="gpu_utilization_ratio",
                    value=row.value("smoothed_busy_ratio"),
                    unit="",
                    peers=row.value("group_busy_ratio"),
                    window_seconds=self.smooth_seconds,
                ),
            ),
            likely_cause=cause,
            action=action,
            next_steps=steps,
        )


_Words = tuple[str, Action, tuple[str, ...]]
_CHIP: _Words = (
    "The chip itself runs slower than its peers: throttling by heat or power, a locked or stuck "
    "clock, a lower power limit, or a failing board.",
    Action.WATCH,
    (
        "Look at clock event reasons, temperature and power limit of this GPU beside its peers.",
        "The whole job runs at the pace of this GPU: move the rank to a spare GPU if it stays.",
        "Run a GEMM benchmark on it after the job; if it is still slow, have it examined.",
    ),
)
_HOST: _Words = (
    "The rank comes late to the collective: slow input data, a busy CPU core or NUMA node, a "
    "degraded PCIe or network link, or more work than its peers have.",
    Action.WATCH,
    (
        "Look at the rank's data loader, its CPU affinity and the host's load.",
        "Compare PCIe link width and network counters with the peers'.",
        "Profile one step of this rank beside a fast one to see where it waits.",
    ),
)


def _against_group(
    frame: Frame, new: Mapping[str, AnyArray], groups: Groups, working: BoolArray
) -> dict[str, AnyArray]:
    """Medians of the working rows of each group, and the distance of each row from them."""
    watts, size = groups.median(new["watts"], working)
    hertz, _ = groups.median(
        np.where(np.isfinite(frame["sm_clock_hertz"]), new["hertz"], np.nan), working
    )
    busy, _ = groups.median(new["busy"], working)
    clocked = np.where(np.isfinite(frame["sm_clock_hertz"]), new["hertz"], np.nan)
    return {
        "group_watts": watts,
        "group_hertz": hertz,
        "group_busy_ratio": busy,
        "group_size": size,
        "smoothed_watts": new["watts"],
        "smoothed_hertz": clocked,
        "smoothed_busy_ratio": new["busy"],
        "power_deviation": _relative(new["watts"], watts),
        "clock_deviation": _relative(clocked, hertz),
    }


def _relative(value: FloatArray, median: FloatArray) -> FloatArray:
    known = np.isfinite(value) & (median > 0.0)
    ratio: FloatArray = np.divide(value, median, out=np.full(len(value), np.nan), where=known)
    return ratio - 1.0


def _compared(row: RowView) -> str:
    """Say power, clock and utilisation against the group, as far as they are known."""
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


DETECTOR = Straggler
