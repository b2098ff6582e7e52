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
from detector.frame import MISSING_CODE, Frame
from detector.stats.crests import Crests
from detector.stats.regression import Regression, regression_fields
from detector.stats.troughs import Troughs, trend_of
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "Leak"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_GIB = float(2**30)
#: Shares of the capacity: below the first a job has ended, above the second it died of it.
_BARE, _FULL = 0.1, 0.97
_EVER = 1e9  # s; no trend is asked to be older than that
_ENOUGH = 8.0  # samples that make a line
_LATE = 0.9  # share of the capacity above which nobody waits to know a job better


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Time to exhaustion from a step-reset regression, and from the troughs of churning memory.

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
    first_seconds
        Added to that for a job that was in the middle of its work when it was first seen, s:
        its past is not known. Not where 90 % are used.
    loading_fill, loading_seconds
        A rise that began below this share of the capacity may be a job loading its weights and
        is believed only after so many seconds.
    idle_loading_seconds, working_ratio
        The same while the GPU was not used above this utilisation, 0 to 1, since the rise began:
        weights that come from a shared filesystem may take a quarter of an hour and compute
        nothing.
    min_rise_bytes
        Rise since the last step before anything is said, bytes.
    min_fill
        Share of the capacity that must be used, 0 to 1.
    step_bytes, step_ratio
        A change from one sample to the next beyond the larger of the two is a step (a model
        loaded, a job ended), not growth: everything begins anew.
    continuing
        Slope of the fast regression, as a share of the slow one's, above which the rise goes on.
    min_certainty
        Slope over its standard error: few samples are on a line by chance.
    min_share
        Age of the rise as a share of the time that is left: a trend is believed only as far as
        it was seen.
    calm_ratio, calm_swings
        Swing of the memory within a few minutes, beyond what the rise explains, as a share of
        the rise within ``slow_seconds``, and how many swings high the rise must be: else a line
        through the samples is chance.
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
    settled_seconds, sudden_seconds, sudden_bytes_per_second, sudden_fill
        A job that had been on its plateau for so long is believed a faster rise, up to this
        rate, once it has lasted so long, s, and this share of the capacity is used.
    crest_bytes, crest_ratio, crest_seconds
        By how much a rise must exceed the level from which the memory came back by itself,
        bytes, and as a share of how far it came back, 0 to 1; and for how long that is
        remembered, s: a saw-tooth is no leak.
    trough_seconds
        How long a trough is, s; at least five sampling intervals. Twelve are kept.
    trough_count
        Troughs before their trend is judged.
    trough_accord
        Kendall's tau of the troughs at least, 0 to 1: share of the pairs that rise minus share
        that falls.
    trough_steadiness
        Slope of either half of the troughs, as a share of the slope: a step rises in one half.
    enter_seconds, exit_seconds
        How long the forecast must hold, or have ended, s.

    Notes
    -----
    ``leak`` forecasts from the slow regression, and where the memory churns from the trend of
    its troughs, which must then rise until the usual swing above them meets the end; from
    troughs it is never more than a warning. ``fast_growth`` forecasts from the fast regression,
    for growth that fills the memory before the slow one has seen a straight line. Capacity is
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
    first_seconds: float = 600.0
    loading_fill: float = 0.5
    loading_seconds: float = 600.0
    idle_loading_seconds: float = 3600.0
    working_ratio: float = 0.2
    min_rise_bytes: float = _GIB
    min_fill: float = 0.6
    step_bytes: float = 2 * _GIB
    step_ratio: float = 0.04
    continuing: float = 0.3
    min_certainty: float = 8.0
    min_share: float = 0.25
    calm_ratio: float = 0.25
    calm_swings: float = 1.5
    lag_ratio: float = 0.05
    rapid_horizon_seconds: float = 600.0
    rapid_r_squared: float = 0.9
    rapid_weight: float = 6.0
    rapid_enter_seconds: float = 30.0
    rapid_bytes_per_second: float = 0.15 * _GIB
    settled_seconds: float = 600.0
    sudden_seconds: float = 10.0
    sudden_bytes_per_second: float = 1.0 * _GIB
    sudden_fill: float = 0.8
    crest_bytes: float = _GIB
    crest_ratio: float = 0.25
    crest_seconds: float = 43200.0
    trough_seconds: float = 300.0
    trough_count: int = 8
    trough_accord: float = 0.6
    trough_steadiness: float = 0.35
    enter_seconds: float = 30.0
    exit_seconds: float = 300.0

    name: ClassVar[str] = "leak"
    version: ClassVar[str] = "3"
    family: ClassVar[str] = "oom_precursor"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("memory_used_bytes", "memory_total_bytes")
    helps: ClassVar[tuple[str, ...]] = ("memory_reserved_bytes", "gpu_utilization_ratio")

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
        """Declare two regressions, troughs with their trend, crests, and the last step and value.

        Bytes of the state are GiB in what is single precision.
        """
        return {
            **regression_fields("slow"),
            **regression_fields("fast"),
            **Troughs.fields(),
            **Crests.fields("crest"),
            **Crests.fields("swell"),
            "trend_slope": Field("f4", 0.0),
            "trend_now": Field("f4"),
            "run_base": Field("f4"),
            "run_age": Field("f4", 0.0),
            "base": Field("f8"),
            "age": Field("f8", 0.0),
            "wait": Field("f4", 0.0),
            "worked": Field("?", 0),
            "last": Field("f8"),
            "last_ts": Field("i8", -1),
            "job": Field("i4", MISSING_CODE),
        }

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by its time to exhaustion."""
        used, capacity = frame["memory_used_bytes"], _capacity(frame)
        usable = np.isfinite(used) & np.isfinite(capacity) & ~frame.mig_parent
        if not usable.any():
            return _silent(frame, state)
        now = self._now(frame, state, used, capacity, usable)
        slow = self._line("slow", self.slow_seconds, state, now)
        fast = self._line("fast", self.fast_seconds, state, now)
        new, crest = self._steps(frame, state, now)
        slope = slow.slope() * _GIB
        left = _time_left(capacity - used, slope)
        horizon = np.maximum(self.horizon_seconds, now.tick)
        rises = self._rises(new, now, crest)
        swing = np.nan_to_num(state["trough_least"].astype(np.float64))
        per_trough = slow.slope() * np.maximum(self.trough_seconds, 0.5 * now.tick)
        calm = swing - per_trough <= self.calm_ratio * slow.slope() * self.slow_seconds
        # Few samples are straight by chance more often.
        few = np.maximum(1.0, _ENOUGH / np.maximum(slow.weight, 1.0))
        calm &= used - new["base"] >= self.calm_swings * few * swing * _GIB
        straight = (
            (slow.r_squared() >= self.min_r_squared)
            & (slow.certainty() >= self.min_certainty)
            & (slow.weight >= self.min_weight)
            & (new["age"] >= self.min_share * np.minimum(left, _EVER))
            & calm
            & (fast.slope() >= self.continuing * slow.slope())
            & (slow.present() - used / _GIB <= self.lag_ratio * (used - new["base"]) / _GIB)
        )
        score = np.where(rises & straight, horizon / left, 0.0)
        churned, rate, ends = self._churned(state, new, now, firing["leak"])
        churns = churned * horizon / self.horizon_seconds > score
        critical = (left <= self.critical_seconds) & ~churns
        rapid, soon, gain = self._rapid(new, now, fast, rises)
        severity = np.where(critical, Severity.CRITICAL.rank, Severity.WARNING.rank).astype(np.int8)
        urgent = np.full(len(frame), Severity.CRITICAL.rank, dtype=np.int8)
        both = np.where(churns, churned * horizon / self.horizon_seconds, score)
        return Step(
            judgements={
                "leak": Judgement(score=np.where(usable, both, np.nan), severity=severity),
                "fast_growth": Judgement(score=np.where(usable, rapid, np.nan), severity=urgent),
            },
            state=new | slow.dump("slow") | fast.dump("fast"),
            columns={
                "rapid_exhaustion_seconds": soon,
                "rapid_bytes_per_hour": gain * 3600.0,
                "exhaustion_seconds": np.where(churns, ends, left),
                "growth_bytes_per_hour": np.where(churns, rate, slope) * 3600.0,
                "capacity_bytes": capacity,
                "rise_bytes": used - new["base"],
                "age_seconds": new["age"],
                "churns": churns.astype(np.float64),
                "swing_bytes": new["trough_swing"].astype(np.float64) * _GIB,
            },
        )

    def _now(
        self,
        frame: Frame,
        state: Mapping[str, AnyArray],
        used: FloatArray,
        capacity: FloatArray,
        usable: BoolArray,
    ) -> _Now:
        """Gather what this reading says, and since when."""
        # A gap is part of the trend: memory does not stop growing because nobody looked. So time
        # runs from the last reading, not from the last frame, which may have lacked one.
        last_ts = state["last_ts"]
        dt = np.where((last_ts >= 0) & np.isfinite(frame.dt), (frame.ts - last_ts) / 1000.0, 0.0)
        jump = np.maximum(self.step_bytes, self.step_ratio * np.nan_to_num(capacity))
        moved = usable & (frame.job != state["job"])
        stepped = usable & (~(np.abs(used - state["last"]) <= jump) | moved)
        # With the first work the loading is over, and what follows is another trend.
        begins = ~state["worked"] & (frame["gpu_utilization_ratio"] >= self.working_ratio)
        stepped |= usable & begins & (state["age"] > 0.0)
        return _Now(
            used=used,
            capacity=capacity,
            usable=usable,
            dt=np.maximum(dt, 0.0),
            tick=10.0 * np.nan_to_num(frame.interval),
            stepped=stepped,
            moved=moved,
        )

    def _line(self, name: str, tau: float, state: Mapping[str, AnyArray], now: _Now) -> Regression:
        """Move a regression, or begin anew after a step; unusable rows stay as they are."""
        old = Regression.load(name, state)
        begin = Regression.fresh(len(now.used)).where(now.stepped, old)
        since = np.where(now.stepped, 0.0, now.dt)
        value = np.where(now.usable, now.used, 0.0) / _GIB
        return begin.add(value, since, np.maximum(tau, now.tick)).where(now.usable, old)

    def _steps(
        self, frame: Frame, state: Mapping[str, AnyArray], now: _Now
    ) -> tuple[dict[str, AnyArray], FloatArray]:
        """State that follows steps, runs and crests; and the crest to exceed, bytes."""
        used, last, usable, stepped = now.used, state["last"], now.usable, now.stepped
        # What came before the first reading is not known: perhaps the middle of a tooth.
        met = np.isnan(last) & (used >= _BARE * now.capacity)
        rose = (last - state["base"] >= self.min_rise_bytes) & (state["age"] >= self.sudden_seconds)
        rose |= state["age"] < state["wait"]
        over = now.moved | (used < _BARE * now.capacity) | (last >= _FULL * now.capacity)
        crests = Crests("crest", state).after(
            last / _GIB,
            np.where(usable, used, np.nan) / _GIB,
            stepped & (used < last) & rose,
            usable & stepped & over,
            np.where(usable, now.dt, 0.0),
            self.crest_seconds,
        )
        runs = usable & ~stepped & (used > last)
        new: dict[str, AnyArray] = {
            "base": np.where(stepped, used, state["base"]),
            "age": np.where(stepped, 0.0, np.where(usable, state["age"] + now.dt, state["age"])),
            "wait": np.where(stepped, np.where(met, self.first_seconds, 0.0), state["wait"]).astype(
                np.float32
            ),
            # Where nobody reads the utilisation it is taken for work.
            "worked": np.where(stepped, False, state["worked"])
            | (usable & ~(frame["gpu_utilization_ratio"] < self.working_ratio)),
            "last": np.where(usable, used, last),
            "last_ts": np.where(usable, frame.ts, state["last_ts"]),
            "job": np.where(usable, frame.job, state["job"]).astype(np.int32),
            "run_base": np.where(
                runs,
                np.where(state["run_age"] > 0, state["run_base"], last / _GIB),
                np.where(usable, used / _GIB, state["run_base"]),
            ).astype(np.float32),
            "run_age": np.where(
                runs, state["run_age"] + now.dt, np.where(usable, 0.0, state["run_age"])
            ).astype(np.float32),
        }
        higher = crests.exceeded(self.crest_bytes / _GIB, self.crest_ratio)
        return new | crests.dump(), higher * _GIB

    def _rises(self, new: Mapping[str, AnyArray], now: _Now, crest: FloatArray) -> BoolArray:
        """(n,) the memory is past its start, grown, well filled, and higher than it ever was."""
        loading = new["base"] < self.loading_fill * now.capacity
        loads = np.where(new["worked"], self.loading_seconds, self.idle_loading_seconds)
        old_enough = np.where(loading, loads, self.min_age_seconds)
        wait = np.where(now.used >= _LATE * now.capacity, 0.0, new["wait"])
        return (
            (new["age"] >= old_enough + wait)
            & (now.used - new["base"] >= self.min_rise_bytes)
            & (now.used >= self.min_fill * now.capacity)
            & (now.used >= crest)
        )

    def _rapid(
        self,
        new: Mapping[str, AnyArray],
        now: _Now,
        fast: Regression,
        rises: BoolArray,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(n,) score on the fast scale, seconds to exhaustion, and growth in bytes/s."""
        rate = fast.slope() * _GIB
        room = self.lag_ratio * (now.used - new["base"]) / _GIB
        straight = (
            (fast.r_squared() >= self.rapid_r_squared)
            & (fast.certainty() >= self.min_certainty)
            & (fast.weight >= self.rapid_weight)
            & (rate <= self.rapid_bytes_per_second)
            & (fast.present() - now.used / _GIB <= room)
        )
        run = new["run_age"].astype(np.float64)
        grown = now.used - new["run_base"].astype(np.float64) * _GIB
        pace = np.divide(grown, run, out=np.zeros(len(run)), where=run > 0.0)
        sudden = (
            (run >= np.maximum(self.sudden_seconds, 0.5 * now.tick))
            & (new["age"] - run >= self.settled_seconds)
            & (now.used - grown >= self.loading_fill * now.capacity)
            & (now.used >= self.sudden_fill * now.capacity)
            & (pace > self.rapid_bytes_per_second)
            & (pace <= self.sudden_bytes_per_second)
        )
        rate = np.where(sudden, pace, rate)
        left = _time_left(now.capacity - now.used, rate)
        horizon = np.maximum(self.rapid_horizon_seconds, now.tick)
        return np.where(rises & (straight | sudden), horizon / left, 0.0), left, rate

    def _churned(
        self,
        state: Mapping[str, AnyArray],
        new: dict[str, AnyArray],
        now: _Now,
        firing: BoolArray,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(n,) score from the troughs, their growth in bytes/s, seconds until they leave no room.

        Puts the troughs, their trend and their crest into ``new``.
        """
        length = np.maximum(self.trough_seconds, 0.5 * now.tick)
        bare = now.usable & (now.used < _BARE * now.capacity)
        anew = (now.usable & (now.dt > 3.0 * length)) | now.moved | bare
        value = np.where(now.usable, now.used / _GIB, np.nan)
        old = Troughs(state)
        troughs, closed = old.add(value, now.dt, length, anew)
        slope = np.where(anew, 0.0, state["trend_slope"].astype(np.float64))
        reached = np.where(anew, np.nan, state["trend_now"].astype(np.float64))
        swell = Crests("swell", state)
        if closed.any() or anew.any():
            rows = np.flatnonzero(closed & ~anew)
            kept = troughs.kept[rows]
            highest = np.fmax.reduce(kept[:, :-1], axis=1)
            higher = swell.exceeded(self.crest_bytes / _GIB, self.crest_ratio)
            before = slope[rows] > 0.0
            slope[rows], now_at = self._trend(kept, higher[rows], firing[rows] | before)
            slope[rows] /= length[rows]
            # Once may be chance: a trend counts from the second trough on that confirms it.
            reached[rows] = np.where(before, now_at, np.nan)
            fell = np.zeros(len(value), dtype=bool)
            drop = np.maximum(self.crest_bytes, 0.5 * self.step_ratio * now.capacity[rows]) / _GIB
            fell[rows] = kept[:, -1] < kept[:, -2] - drop
            peak = np.zeros(len(value))
            peak[rows] = np.nan_to_num(highest)
            landing = np.where(closed, troughs.kept[:, -1], np.nan)
            swell = swell.after(
                peak, landing, fell, anew, np.where(closed, length, 0.0), self.crest_seconds
            )
        new |= troughs.dump() | swell.dump()
        new["trend_slope"] = slope.astype(np.float32)
        new["trend_now"] = reached.astype(np.float32)
        since = np.where(closed, 0.0, troughs.filled)
        rate = slope * _GIB
        top = (reached + slope * since + np.nan_to_num(troughs.swing)) * _GIB
        left = _time_left(now.capacity - top, rate)
        holds = np.isfinite(reached) & (rate > 0.0) & (top >= self.min_fill * now.capacity)
        return np.where(holds, self.horizon_seconds / left, 0.0), rate, left

    def _trend(
        self, kept: FloatArray, crest: FloatArray, begun: BoolArray
    ) -> tuple[FloatArray, FloatArray]:
        """(m,) growth per trough and where the line stands, GiB; NaN where it is no leak."""
        found = trend_of(kept)
        # What was a trend at the trough before stays one while the troughs rise at all.
        accord = np.where(begun, 0.5, 1.0) * self.trough_accord
        steady = np.where(begun, 0.0, self.trough_steadiness)
        leaks = (
            (found.count >= self.trough_count)
            & (found.accord >= accord)
            & (found.steadiness >= steady)
            & (found.slope * (found.count - 1) >= self.min_rise_bytes / _GIB)
            & (begun | (found.now >= crest))
        )
        return np.where(leaks, found.slope, 0.0), np.where(leaks, found.now, np.nan)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Now:
    """One reading per row: bytes used and at hand, seconds since the last one, what changed."""

    used: FloatArray
    capacity: FloatArray
    usable: BoolArray
    dt: FloatArray
    tick: FloatArray
    stepped: BoolArray
    moved: BoolArray


def _time_left(room: FloatArray, rate: FloatArray) -> FloatArray:
    """(n,) seconds until the room is gone, at least 1; infinite without growth."""
    grows = rate > 0.0
    left = np.where(grows, room / np.where(grows, rate, 1.0), np.inf)
    return np.maximum(left, 1.0)


def _silent(frame: Frame, state: Mapping[str, AnyArray]) -> Step:
    """Say nothing: no GPU of the frame shows its memory."""
    judged = Judgement(
        score=np.full(len(frame), np.nan),
        severity=np.full(len(frame), Severity.WARNING.rank, dtype=np.int8),
    )
    return Step(judgements={"leak": judged, "fast_growth": judged}, state=dict(state))


def _capacity(frame: Frame) -> FloatArray:
    """(n,) bytes that a job can have: total - reserved, or total where reserved is unknown."""
    reserved = np.nan_to_num(frame["memory_reserved_bytes"], nan=0.0)
    return frame["memory_total_bytes"] - reserved


def _duration(seconds: float) -> str:
    """Say a duration in minutes, or in hours and minutes."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


DETECTOR = Leak
