"""Error counters: growth since the last reading, and whether it is a storm.

Errors come in bunches: one bad cell is read again and again. So a bunch of errors counts as one
event, and the events are tested against the device's own rate by Poisson's law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
from detector.frame import Frame
from detector.stats.poisson import surprise

__all__ = ["Growth", "Storm", "grown", "growth_fields", "storm", "storm_fields"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_FIRST, _SECOND = 1, 2


def growth_fields(name: str) -> dict[str, Field]:
    """Declare the state of one counter: last value, and from which of two metrics."""
    return {f"{name}_last": Field("f8"), f"{name}_from": Field("i1", 0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth of a counter in one round.

    Parameters
    ----------
    delta
        (n,) since the previous reading, >= 0; NaN without one, and over a reset.
    reset
        (n,) the counter went back.
    value
        (n,) its value, NaN if missing.
    state
        New values of :func:`growth_fields`.
    """

    delta: FloatArray
    reset: BoolArray
    value: FloatArray
    state: dict[str, AnyArray]


def grown(
    name: str, state: Mapping[str, AnyArray], counter: FloatArray, fallback: FloatArray
) -> Growth:
    """Difference a counter, or the fallback for as long as the counter was never seen.

    Never both: they count from different times, and their difference is no growth.

    Examples
    --------
    >>> state = {"ecc_last": np.array([5.0]), "ecc_from": np.array([1], dtype=np.int8)}
    >>> grown("ecc", state, np.array([7.0]), np.array([np.nan])).delta
    array([2.])
    """
    last, source = state[f"{name}_last"], state[f"{name}_from"]
    chosen = np.where(np.isfinite(counter), _FIRST, source)
    chosen = np.where((chosen == 0) & np.isfinite(fallback), _SECOND, chosen).astype(np.int8)
    value = np.where(chosen == _FIRST, counter, np.where(chosen == _SECOND, fallback, np.nan))
    delta = np.where(chosen == source, value - last, np.nan)
    reset: BoolArray = delta < 0.0
    return Growth(
        delta=np.where(reset, np.nan, delta),
        reset=reset,
        value=value,
        state={
            f"{name}_last": np.where(np.isfinite(value), value, last),
            f"{name}_from": np.where(np.isfinite(value), chosen, source).astype(np.int8),
        },
    )


def storm_fields(name: str) -> dict[str, Field]:
    """Declare the state of one rate: last reading (ms), recent count, own rate (1/s)."""
    return {
        f"{name}_ts": Field("i8", -1),
        f"{name}_recent": Field("f4", 0.0),
        f"{name}_base": Field("f4", 0.0),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """Parameters of the test for one counter.

    Parameters
    ----------
    window_seconds
        Over which errors are counted, exponentially weighted, s.
    baseline_seconds
        Time constant of the device's own rate, s.
    ratio
        How many times the own rate is still usual.
    floor_per_hour
        Errors an hour that are usual for any device.
    bunch
        Errors that one cause brings; they count as one event.
    log10_chance
        How unlikely the count must be: 6 is one in a million.
    """

    window_seconds: float
    baseline_seconds: float
    ratio: float
    floor_per_hour: float
    bunch: float
    log10_chance: float


def storm(
    name: str,
    rule: Storm,
    frame: Frame,
    state: Mapping[str, AnyArray],
    growth: Growth,
    firing: BoolArray,
) -> tuple[FloatArray, dict[str, AnyArray], dict[str, FloatArray]]:
    """Score a counter's growth: 1 is the threshold, NaN where nothing can be said.

    The own rate is learnt from quiet readings only and stays frozen while the alert is open.

    Returns
    -------
    score, state, columns
        Columns: ``{name}_rate`` over ``{name}_seconds``, and ``{name}_usual``, in 1/s.
    """
    last_ts = state[f"{name}_ts"]
    since = np.where((last_ts >= 0) & np.isfinite(frame.dt), (frame.ts - last_ts) / 1000.0, np.nan)
    known = np.isfinite(growth.delta) & (since > 0.0)
    seconds, count = np.where(known, since, 1.0), np.where(known, growth.delta, 0.0)
    base = state[f"{name}_base"].astype(np.float64)
    recent = state[f"{name}_recent"] * np.exp(-seconds / rule.window_seconds) + count
    # What a steady rate of 1/s adds up to in the window at this distance of readings.
    exposure = seconds / -np.expm1(-seconds / rule.window_seconds)
    usual = np.maximum(rule.ratio * base, rule.floor_per_hour / 3600.0)
    unlikely = surprise(recent / rule.bunch, usual * exposure / rule.bunch)
    score = np.where(known, unlikely / max(rule.log10_chance, 1e-9), np.nan)
    # Without a new error an open storm goes on for a while, and none begins.
    score = np.minimum(score, np.where(count > 0.0, 1e6, 0.9))
    learn = known & ~firing & (score < 0.5)
    gain = np.where(learn, -np.expm1(-seconds / rule.baseline_seconds), 0.0)
    new: dict[str, AnyArray] = {
        f"{name}_ts": np.where(np.isfinite(growth.value), frame.ts, last_ts),
        f"{name}_recent": np.where(known, recent, state[f"{name}_recent"]).astype(np.float32),
        f"{name}_base": (base + gain * (count / seconds - base)).astype(np.float32),
    }
    columns = {
        # What is going on now; without a new error, what the window still holds.
        f"{name}_rate": np.where(count > 0.0, count / seconds, recent / exposure),
        f"{name}_seconds": np.where(count > 0.0, seconds, rule.window_seconds),
        f"{name}_usual": base,
    }
    return score, new, columns
