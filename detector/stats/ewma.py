"""Exponentially weighted mean with weights in seconds, not in samples.

Jitter, gaps and another sampling rate then leave the time constant as it is.
"""

from __future__ import annotations

import numpy as np

from detector.arrays import FloatArray

__all__ = ["ewma"]


def ewma(
    mean: FloatArray, value: FloatArray, dt: FloatArray, tau_seconds: float | FloatArray
) -> FloatArray:
    """Move a mean towards a value by ``1 - exp(-dt / tau)``.

    Parameters
    ----------
    mean
        (n,) previous means; NaN where there is none yet: the value is taken as it is.
    value
        (n,) new values; NaN leaves the mean alone.
    dt
        (n,) seconds since the previous value; NaN counts as 0.
    tau_seconds
        Time constant, > 0.

    Returns
    -------
    FloatArray
        (n,) new means.

    Examples
    --------
    >>> ewma(np.array([0.0, np.nan]), np.array([1.0, 3.0]), np.array([10.0, 10.0]), 10.0)
    array([0.63212056, 3.        ])
    """
    weight = -np.expm1(-dt / tau_seconds)
    moved = mean + weight * (value - mean)
    odd = np.isnan(moved)
    if not np.count_nonzero(odd):  # the usual frame, and half of the work
        return moved
    kept = np.where(np.isnan(value), mean, np.where(np.isnan(mean), value, mean))
    return np.where(odd, kept, moved)
