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
    safe = np.maximum(expected, 1e-12)
    ratio = np.maximum(count / safe, 1.0)
    bound = np.where(count > expected, count * (np.log(ratio) - 1.0) + safe, 0.0) / np.log(10.0)
    return np.where(np.isnan(count) | np.isnan(expected), np.nan, np.maximum(bound, 0.0))
