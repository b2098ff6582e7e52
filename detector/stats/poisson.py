"""How surprising a count of errors is, given the rate that is usual for the device."""

from __future__ import annotations

import numpy as np

from detector.arrays import FloatArray

__all__ = ["surprise"]


def surprise(count: FloatArray, expected: FloatArray) -> FloatArray:
    """Lower bound of ``-log10 P(N >= count)`` for a Poisson count: 6 is one in a million.

    Chernoff's bound: ``P(N >= n) <= exp(-(n ln(n / mu) - n + mu))`` for n > mu.

    Parameters
    ----------
    count
        Events seen, >= 0; need not be whole.
    expected
        Mean, > 0.

    Returns
    -------
    ndarray
        0 where the count is no larger than expected; NaN where either is missing.

    Examples
    --------
    >>> surprise(np.array([3.0, 100.0]), np.array([4.0, 1.0])).round(1)
    array([  0., 157.])
    """
    out = np.where(np.isnan(count) | np.isnan(expected), np.nan, 0.0)
    over = np.flatnonzero(count > expected)
    if over.size:  # hardly ever: most devices count nothing
        seen, mean = count[over], np.maximum(expected[over], 1e-12)
        out[over] = (seen * (np.log(seen / mean) - 1.0) + mean) / np.log(10.0)
    return out
