"""What a cohort looks like in one window: at most five numbers, each about 0 to 1.

Few and bounded on purpose: a half-space forest on 20 features does not notice one metric at
+12 standard deviations (measured), and a running min-max scaler is spoilt for ever by one extreme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from detector.arrays import FloatArray
from schemas.window import WindowBatch

__all__ = ["FEATURES", "FEATURE_WORDS", "LIMITS", "braked_ratio", "cohort_features"]

#: Range of each feature over which the forest cuts; values outside are clipped to it.
LIMITS: dict[str, tuple[float, float]] = {
    "power_ratio": (0.0, 1.2),
    "gpu_utilization_ratio": (0.0, 1.0),
    "memory_utilization_ratio": (0.0, 1.0),
    "sm_clock_ratio": (0.0, 1.0),
    "temperature_spread_ratio": (0.0, 1.0),
}
FEATURES = tuple(LIMITS)
#: What the features are called in sentences.
FEATURE_WORDS: dict[str, str] = {
    "power_ratio": "power of its limit",
    "gpu_utilization_ratio": "utilisation",
    "memory_utilization_ratio": "memory-bus activity",
    "sm_clock_ratio": "clock of its maximum",
    "temperature_spread_ratio": "temperature spread of 50 °C",
}
# Where the limit is unknown, the power is seen against a board of this class.
_FALLBACK_LIMIT_WATTS = 700.0
_SPREAD_CELSIUS = 50.0


def cohort_features(batches: Sequence[WindowBatch]) -> FloatArray:
    """Summarise the windows of one cohort and one start.

    Parameters
    ----------
    batches
        One per node; at least one.

    Returns
    -------
    FloatArray
        (5,) in the order of :data:`FEATURES`, clipped to the limits; NaN where nothing is known.
    """
    power = _means(batches, "power_watts")
    limit = _means(batches, "power_limit_watts")
    limit = np.where(np.isfinite(limit) & (limit > 0.0), limit, _FALLBACK_LIMIT_WATTS)
    clock_max = _means(batches, "sm_clock_max_hertz")
    clock_max = np.where(clock_max > 0.0, clock_max, np.nan)
    heat = _means(batches, "temperature_celsius")
    raw = np.array(
        [
            _over(np.mean, power / limit),
            _over(np.mean, _means(batches, "gpu_utilization_ratio")),
            _over(np.mean, _means(batches, "memory_utilization_ratio")),
            _over(np.mean, _means(batches, "sm_clock_hertz") / clock_max),
            _over(np.ptp, heat) / _SPREAD_CELSIUS,
        ]
    )
    low, high = np.array(list(LIMITS.values())).T
    clipped: FloatArray = np.clip(raw, low, high)
    return clipped


#: Event reasons that are faults: software and hardware thermal slowdown, power brake.
_BRAKES = 0x20 | 0x40 | 0x80


def braked_ratio(batches: Sequence[WindowBatch]) -> float:
    """Share of the GPUs of a window whose clocks were cut by heat or a power brake, 0 to 1."""
    reasons = [bits for batch in batches for bits in batch.clock_event_reasons]
    return sum(bits & _BRAKES != 0 for bits in reasons) / max(len(reasons), 1)


def _means(batches: Iterable[WindowBatch], metric: str) -> FloatArray:
    """(GPUs,) window means of one metric over all nodes, NaN where missing."""
    parts = [
        np.array(batch.m[metric].mean, dtype=np.float64)
        if metric in batch.m
        else np.full(len(batch.gpu), np.nan)
        for batch in batches
    ]
    return np.concatenate(parts)


def _over(reduce: Callable[[FloatArray], float], values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(reduce(finite)) if len(finite) else float("nan")
