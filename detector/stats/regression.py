"""Exponentially weighted linear regression on time, in six numbers per row.

The origin slides with the present, so that nothing grows: ``mean_time`` is the weighted mean
age, negative. Update of weighted means and co-moments after West (1979), "Updating mean and
variance estimates: an improved method", CACM 22(9), with a forgetting factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from detector.arrays import Field, FloatArray

__all__ = ["Regression", "regression_fields"]

_NAMES = ("weight", "mean_time", "mean_value", "stt", "sty", "syy")


def regression_fields(prefix: str) -> dict[str, Field]:
    """Declare the state arrays of one regression."""
    return {f"{prefix}_{name}": Field("f8", 0.0) for name in _NAMES}


class Regression:
    """The six numbers for n rows. Methods return new objects; nothing is changed in place.

    Examples
    --------
    >>> line = Regression.fresh(1)
    >>> for second in range(5):
    ...     line = line.add(np.array([3.0 * second]), np.array([1.0]), tau_seconds=100.0)
    >>> line.slope()
    array([3.])
    >>> line.r_squared()
    array([1.])
    """

    def __init__(self, **parts: FloatArray) -> None:
        self.weight = parts["weight"]
        self.mean_time = parts["mean_time"]
        self.mean_value = parts["mean_value"]
        self.stt = parts["stt"]
        self.sty = parts["sty"]
        self.syy = parts["syy"]

    @classmethod
    def fresh(cls, rows: int) -> Regression:
        """Return ``rows`` empty regressions."""
        return cls(**{name: np.zeros(rows) for name in _NAMES})

    @classmethod
    def load(cls, prefix: str, state: Mapping[str, np.ndarray[Any, Any]]) -> Regression:
        """Take the arrays declared by :func:`regression_fields`."""
        return cls(**{name: state[f"{prefix}_{name}"] for name in _NAMES})

    def dump(self, prefix: str) -> dict[str, FloatArray]:
        """Return the arrays under their declared names."""
        return {f"{prefix}_{name}": getattr(self, name) for name in _NAMES}

    def where(self, keep: np.ndarray[Any, np.dtype[np.bool_]], other: Regression) -> Regression:
        """Return this regression where ``keep``, else the other, row by row."""
        return Regression(
            **{name: np.where(keep, getattr(self, name), getattr(other, name)) for name in _NAMES}
        )

    def add(self, value: FloatArray, dt: FloatArray, tau_seconds: float | FloatArray) -> Regression:
        """Add one value per row, ``dt`` seconds after the previous one (0 at the first)."""
        fade = np.exp(-dt / tau_seconds)
        weight = self.weight * fade + 1.0
        mean_time = self.mean_time - dt
        from_time = -mean_time
        from_value = value - self.mean_value
        gain = 1.0 / weight
        mean_time = mean_time + gain * from_time
        mean_value = self.mean_value + gain * from_value
        to_time = -mean_time
        to_value = value - mean_value
        return Regression(
            weight=weight,
            mean_time=mean_time,
            mean_value=mean_value,
            stt=fade * self.stt + from_time * to_time,
            sty=fade * self.sty + from_time * to_value,
            syy=fade * self.syy + from_value * to_value,
        )

    def slope(self) -> FloatArray:
        """Return the slope per second; 0 where fewer than two times were seen."""
        return np.divide(self.sty, self.stt, out=np.zeros_like(self.sty), where=self.stt > 0.0)

    def present(self) -> FloatArray:
        """Return the value that the line has at the time of the last value."""
        return self.mean_value - self.slope() * self.mean_time

    def certainty(self) -> FloatArray:
        """Return the slope over its standard error; 0 for a flat series, 1e6 at most."""
        explained = self.r_squared()
        degrees = np.maximum(self.weight - 2.0, 0.0)
        unexplained = np.maximum(1.0 - explained, 1e-12)
        return np.minimum(np.sqrt(degrees * explained / unexplained), 1e6)

    def r_squared(self) -> FloatArray:
        """Return the share of variance explained, 0 to 1; 0 for a flat series."""
        total = self.stt * self.syy
        out = np.zeros_like(self.sty)
        ratio = np.divide(self.sty**2, total, out=out, where=total > 1e-12)
        return np.minimum(ratio, 1.0)
