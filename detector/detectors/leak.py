"""Says in time that a GPU's memory is growing towards its end.

The question is "will this job die of out-of-memory, and when?". The level does not answer it:
inference servers and caching allocators hold 90 % for weeks. A steady rise does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, require_positive
from detector.frame import Frame
from detector.stats.regression import Regression, regression_fields
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "Leak"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_GIB = float(2**30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Time to exhaustion from a step-reset, exponentially weighted regression.

    Parameters
    ----------
    slow_seconds, fast_seconds
        Time constants of the two regressions, s; each at least ten sampling intervals. The
        slow one forecasts, the fast one confirms that the rise goes on.
    horizon_seconds
        Time to exhaustion that is worth a warning, s; at least ten sampling intervals.
    critical_seconds
        Time to exhaustion that is critical, s.
    min_r_squared
        How straight the rise must be, 0 to 1.
    min_weight, min_age_seconds
        Effective samples, and seconds since the last step, before anything is said: the
        warm-up staircase of a job is over after about three minutes.
    loading_fill, loading_seconds
        A rise that began below this share of the capacity may be a job loading its weights and
        is believed only after so many seconds.
    min_rise_bytes
        Rise since the last step before anything is said, bytes.
    min_fill
        Share of the capacity that must be used, 0 to 1.
    step_bytes, step_ratio
        A change from one sample to the next beyond the larger of the two is a step (a model
        loaded, a job ended), not growth: everything begins anew.
    continuing
        Slope of the fast regression, as a share of the slow one's, above which the rise goes on.
    lag_ratio
        How far below the fitted line the memory may now be, as a share of the rise. A model that
        was loaded in two minutes lies on its plateau while the line still points upwards.
    rapid_horizon_seconds
        Time to exhaustion on the fast scale that is critical, s; at least ten sampling
        intervals.
    rapid_r_squared, rapid_weight
        How straight the fast rise must be, 0 to 1, over how many effective samples.
    rapid_enter_seconds
        How long the fast forecast must hold, s.
    rapid_bytes_per_second
        A rise faster than this is a model being loaded or a batch being set up: at twice the
        rate 16 GiB are gone within a minute, and no alert would come in time.
    enter_seconds, exit_seconds
        How long the forecast must hold, or have ended, s.

    Notes
    -----
    ``leak`` forecasts from the slow regression; ``fast_growth`` from the fast one, for growth
    that fills the memory before the slow one has seen a straight line. Capacity is
    ``total - reserved`` where the driver tells them apart; ``used`` of the older memory call holds
    the reserved part already. Score: ``horizon / time to exhaustion``.

    References
    ----------
    .. [1] Thresholds after a measurement on 102 pod-days of production memory with injected
       leaks; a static limit at 95 % warns 24 min ahead of a 6 GiB/h leak, the regression 31.

    Examples
    --------
    A leak of 12 GiB/h on an 80 GiB card that is 70 GiB full, one sample a minute:

    >>> watch = Leak()
    >>> state = {name: spec.make(1) for name, spec in watch.fields().items()}
    >>> off = {kind.kind: np.zeros(1, dtype=bool) for kind in watch.kinds}
    >>> for minute in range(20):
    ...     used = (70 + 0.2 * minute) * 2**30
    ...     frame = Frame.of(
    ...         metrics={"memory_used_bytes": [used], "memory_total_bytes": [80 * 2**30]},
    ...         ts=[minute * 60_000],
    ...         dt=60.0,
    ...     )
    ...     step = watch.step(frame, state, off)
    ...     state = step.state
    >>> float(step.columns["exhaustion_seconds"][0]) / 60
    31.0
    """

    slow_seconds: float = 900.0
    fast_seconds: float = 60.0
    horizon_seconds: float = 3600.0
    critical_seconds: float = 600.0
    min_r_squared: float = 0.8
    min_weight: float = 4.0
    min_age_seconds: float = 180.0
    loading_fill: float = 0.5
    loading_seconds: float = 600.0
    min_rise_bytes: float = _GIB
    min_fill: float = 0.6
    step_bytes: float = 2 * _GIB
    step_ratio: float = 0.04
    continuing: float = 0.3
    lag_ratio: float = 0.05
    rapid_horizon_seconds: float = 600.0
    rapid_r_squared: float = 0.9
    rapid_weight: float = 8.0
    rapid_enter_seconds: float = 30.0
    rapid_bytes_per_second: float = 0.15 * _GIB
    enter_seconds: float = 30.0
    exit_seconds: float = 300.0

    name: ClassVar[str] = "leak"
    version: ClassVar[str] = "2"
    family: ClassVar[str] = "oom_precursor"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("memory_used_bytes", "memory_total_bytes")
    helps: ClassVar[tuple[str, ...]] = ("memory_reserved_bytes",)

    def __post_init__(self) -> None:
        require_positive(slow_seconds=self.slow_seconds, fast_seconds=self.fast_seconds)
        if not 0 < self.critical_seconds <= self.horizon_seconds:
            raise ValueError("critical_seconds must be in (0, horizon_seconds]")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """Two scales of time; a score of 1 is exhaustion at the horizon."""
        return (
            KindSpec(
                kind="leak",
                enter=1.0,
                exit=0.5,
                enter_seconds=self.enter_seconds,
                exit_seconds=self.exit_seconds,
            ),
            KindSpec(
                kind="fast_growth",
                enter=1.0,
                exit=0.5,
                enter_seconds=self.rapid_enter_seconds,
                enter_samples=5,
                exit_seconds=2.0 * self.fast_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """Two regressions; level (bytes) and age (s) of the last step; last value (bytes, ms)."""
        return {
            **regression_fields("slow"),
            **regression_fields("fast"),
            "base": Field("f8"),
            "age": Field("f8", 0.0),
            "last": Field("f8"),
            "last_ts": Field("i8", -1),
        }

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by its time to exhaustion."""
        del firing  # the trend itself must go on being followed
        used, capacity = frame["memory_used_bytes"], _capacity(frame)
        usable = np.isfinite(used) & np.isfinite(capacity) & ~frame.mig_parent
        jump = np.maximum(self.step_bytes, self.step_ratio * np.nan_to_num(capacity))
        stepped = usable & ~(np.abs(used - state["last"]) <= jump)
        new, slow, fast = self._follow(frame, state, usable, stepped)
        slope = slow.slope() * _GIB
        left = np.where(slope > 0.0, (capacity - used) / np.where(slope > 0.0, slope, 1.0), np.inf)
        left = np.maximum(left, 1.0)
        horizon = np.maximum(self.horizon_seconds, 10.0 * np.nan_to_num(frame.interval))
        holds = (
            (slow.r_squared() >= self.min_r_squared)
            & (slow.weight >= self.min_weight)
            & (new["age"] >= self._min_age(new["base"], capacity))
            & (used - new["base"] >= self.min_rise_bytes)
            & (used >= self.min_fill * capacity)
            & (fast.slope() >= self.continuing * slow.slope())
            & (slow.present() - used / _GIB <= self.lag_ratio * (used - new["base"]) / _GIB)
        )
        score = np.where(usable, np.where(holds, horizon / left, 0.0), np.nan)
        critical = left <= self.critical_seconds
        severity = np.where(critical, Severity.CRITICAL.rank, Severity.WARNING.rank).astype(np.int8)
        rapid, soon = self._rapid(frame, new, fast, usable)
        urgent = np.full(len(frame), Severity.CRITICAL.rank, dtype=np.int8)
        return Step(
            judgements={
                "leak": Judgement(score=score, severity=severity),
                "fast_growth": Judgement(score=rapid, severity=urgent),
            },
            state=new,
            columns={
                "rapid_exhaustion_seconds": soon,
                "rapid_bytes_per_hour": fast.slope() * _GIB * 3600.0,
                "exhaustion_seconds": left,
                "growth_bytes_per_hour": slope * 3600.0,
                "capacity_bytes": capacity,
                "rise_bytes": used - new["base"],
                "age_seconds": new["age"],
            },
        )

    def _rapid(
        self, frame: Frame, new: Mapping[str, AnyArray], fast: Regression, usable: BoolArray
    ) -> tuple[FloatArray, FloatArray]:
        """(n,) score of the fast forecast and seconds to exhaustion, infinite without growth."""
        used, capacity = frame["memory_used_bytes"], _capacity(frame)
        rate = fast.slope() * _GIB
        grows = rate > 0.0
        left = np.where(grows, (capacity - used) / np.where(grows, rate, 1.0), np.inf)
        left = np.maximum(left, 1.0)
        horizon = np.maximum(self.rapid_horizon_seconds, 10.0 * np.nan_to_num(frame.interval))
        holds = (
            (fast.r_squared() >= self.rapid_r_squared)
            & (fast.weight >= self.rapid_weight)
            & (rate <= self.rapid_bytes_per_second)
            & (new["age"] >= self._min_age(new["base"], capacity))
            & (used - new["base"] >= self.min_rise_bytes)
            & (used >= self.min_fill * capacity)
            & (fast.present() - used / _GIB <= self.lag_ratio * (used - new["base"]) / _GIB)
        )
        return np.where(usable, np.where(holds, horizon / left, 0.0), np.nan), left

    def _min_age(self, base: FloatArray, capacity: FloatArray) -> FloatArray:
        """(n,) seconds since the last step before a rise is believed."""
        loading = base < self.loading_fill * capacity
        return np.where(loading, self.loading_seconds, self.min_age_seconds)

    def _follow(
        self,
        frame: Frame,
        state: Mapping[str, AnyArray],
        usable: BoolArray,
        stepped: BoolArray,
    ) -> tuple[dict[str, AnyArray], Regression, Regression]:
        """Move both regressions, or begin anew after a step; unusable rows stay as they are."""
        used = frame["memory_used_bytes"]
        # A gap is part of the trend: memory does not stop growing because nobody looked. So time
        # runs from the last reading, not from the last frame, which may have lacked one.
        last_ts = state["last_ts"]
        dt = np.where((last_ts >= 0) & np.isfinite(frame.dt), (frame.ts - last_ts) / 1000.0, 0.0)
        dt = np.maximum(dt, 0.0)
        interval = 10.0 * np.nan_to_num(frame.interval)
        since = np.where(stepped, 0.0, dt)
        new: dict[str, AnyArray] = {
            "base": np.where(stepped, used, state["base"]),
            "age": np.where(stepped, 0.0, np.where(usable, state["age"] + dt, state["age"])),
            "last": np.where(usable, used, state["last"]),
            "last_ts": np.where(usable, frame.ts, last_ts),
        }
        lines = []
        for name, tau in (("slow", self.slow_seconds), ("fast", self.fast_seconds)):
            old = Regression.load(name, state)
            begin = Regression.fresh(len(frame)).where(stepped, old)
            value = np.where(usable, used, 0.0) / _GIB
            moved = begin.add(value, since, np.maximum(tau, interval))
            line = moved.where(usable, old)
            new |= line.dump(name)
            lines.append(line)
        return new, lines[0], lines[1]

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the growth: how fast, how full, how long it will last."""
        scale = "" if kind == "leak" else "rapid_"
        used, capacity = row["memory_used_bytes"], row["capacity_bytes"]
        rate_name = "growth_bytes_per_hour" if kind == "leak" else "rapid_bytes_per_hour"
        rate, left = row[rate_name], row[f"{scale}exhaustion_seconds"]
        reserved = np.isfinite(row["memory_reserved_bytes"])
        # At the end of an alert the memory may have stopped growing.
        ends = _duration(left) if np.isfinite(left) else "no foreseeable time"
        return Explanation(
            summary=(
                f"memory grows by {rate / _GIB:.1f} GiB/h and will be full in {ends}: "
                f"{used / _GIB:.1f} of {capacity / _GIB:.1f} GiB used"
            ),
            evidence=(
                Evidence(
                    metric="memory_used_bytes",
                    value=used,
                    unit="bytes",
                    expected_high=used - row["rise_bytes"],
                    window_seconds=row["age_seconds"],
                ),
                Evidence(metric="growth_bytes_per_hour", value=rate, unit="bytes/h"),
                Evidence(
                    metric="exhaustion_seconds",
                    value=row.value(f"{scale}exhaustion_seconds"),
                    unit="s",
                    expected_low=(
                        self.horizon_seconds if kind == "leak" else self.rapid_horizon_seconds
                    ),
                ),
                Evidence(metric="memory_capacity_bytes", value=capacity, unit="bytes"),
            ),
            likely_cause=(
                "The job keeps memory that it no longer needs: tensors held by a list or a graph, "
                "a growing cache, fragmentation, or longer sequences from step to step."
            ),
            action=Action.WATCH,
            next_steps=(
                f"Save a checkpoint within {ends}: a full memory ends the job.",
                "Look for tensors kept across iterations (losses appended without detach) and "
                "caches without a bound; torch.cuda.memory_summary() shows the allocator's view.",
                "Restart the job from the checkpoint if the growth cannot be stopped.",
            ),
            unmeasured=() if reserved else ("memory_reserved_bytes",),
        )


def _capacity(frame: Frame) -> FloatArray:
    """(n,) bytes that a job can have: total - reserved, or total where reserved is unknown."""
    reserved = np.nan_to_num(frame["memory_reserved_bytes"], nan=0.0)
    return frame["memory_total_bytes"] - reserved


def _duration(seconds: float) -> str:
    """Say a duration in minutes, or in hours and minutes."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


DETECTOR = Leak
