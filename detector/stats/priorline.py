"""A straight line that begins at what is usual for its kind and learns where it was seen.

One value against one other, with forgetting: five numbers per line. The slope is drawn to a
prior until the data say otherwise, and the line knows how far it may be wrong: near what it has
seen little, far from there by as much as the prior leaves open. Bayesian linear regression with
a forgetting factor; see Bishop (2006), "Pattern Recognition and Machine Learning", chapter 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray

__all__ = ["PriorLine", "PriorSlope"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_NAMES = ("weight", "mean_x", "mean_y", "sxx", "sxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorSlope:
    """Where every line begins.

    Parameters
    ----------
    slope, deviation
        Mean and standard deviation of the slope, in units of y per unit of x.
    noise
        Standard deviation of one independent reading, in units of y.
    alike_seconds
        Over which time readings are so alike that they count as one, s.
    memory_seconds
        Time constant of forgetting, s.
    """

    slope: float
    deviation: float
    noise: float
    alike_seconds: float
    memory_seconds: float

    @property
    def pull(self) -> float:
        """Spread of x, in readings, at which the data weigh as much as the prior."""
        return (self.noise / self.deviation) ** 2

    @staticmethod
    def fields(width: int = 1) -> dict[str, Field]:
        """Declare the state arrays of ``width`` lines per row."""
        return {f"line_{name}": Field("f4", 0.0, width) for name in _NAMES}


class PriorLine:
    """Lines of any number of rows: arrays of one shape. Methods return new objects.

    Examples
    --------
    >>> prior = PriorSlope(
    ...     slope=40.0, deviation=15.0, noise=1.0, alike_seconds=300.0, memory_seconds=7200.0
    ... )
    >>> state = {name: field.make(1) for name, field in prior.fields().items()}
    >>> line = PriorLine(prior, state)
    >>> for _ in range(120):
    ...     line = line.learn(np.array([0.5]), np.array([45.0]), np.array([10.0]))
    >>> line.predict(np.array([0.5, 1.0])), line.uncertainty(np.array([0.5, 1.0])).round(1)
    (array([45., 65.]), array([0.5, 7.5]))
    """

    def __init__(self, prior: PriorSlope, state: Mapping[str, AnyArray]) -> None:
        self._prior = prior
        self.weight, self.mean_x, self.mean_y, self.sxx, self.sxy = (
            state[f"line_{name}"].astype(np.float64) for name in _NAMES
        )

    def dump(self) -> dict[str, AnyArray]:
        """Return the arrays under their declared names."""
        return {f"line_{name}": getattr(self, name).astype(np.float32) for name in _NAMES}

    def _slope(self) -> FloatArray:
        pull = self._prior.pull
        slope: FloatArray = (self.sxy + pull * self._prior.slope) / (self.sxx + pull)
        return slope

    def predict(self, x: FloatArray) -> FloatArray:
        """Return the value expected at ``x``; meaningless for a line that has seen nothing."""
        return self.mean_y + self._slope() * (x - self.mean_x)

    def uncertainty(self, x: FloatArray) -> FloatArray:
        """Return the standard deviation of that; infinite for a line that has seen nothing."""
        unseen = np.full(self.weight.shape, np.inf)
        level = np.divide(1.0, self.weight, out=unseen, where=self.weight > 0.0)
        tilt = (x - self.mean_x) ** 2 / (self.sxx + self._prior.pull)
        spread: FloatArray = self._prior.noise * np.sqrt(level + tilt)
        return spread

    def learn(self, x: FloatArray, y: FloatArray, seconds: FloatArray) -> PriorLine:
        """Return the lines after one reading each that speaks for so many seconds.

        Lines with 0 seconds, or without both values, stay as they are.
        """
        use = (seconds > 0.0) & np.isfinite(x) & np.isfinite(y)
        time = np.where(use, seconds, 0.0)
        fade = np.exp(-time / self._prior.memory_seconds)
        share = time / self._prior.alike_seconds
        weight = self.weight * fade + share
        gain = np.divide(share, weight, out=np.zeros_like(weight), where=use)
        dx = np.where(use, x - self.mean_x, 0.0)
        dy = np.where(use, y - self.mean_y, 0.0)
        rest = share * (1.0 - gain)
        return PriorLine(
            self._prior,
            {
                "line_weight": weight,
                "line_mean_x": self.mean_x + gain * dx,
                "line_mean_y": self.mean_y + gain * dy,
                "line_sxx": self.sxx * fade + rest * dx * dx,
                "line_sxy": self.sxy * fade + rest * dx * dy,
            },
        )

    def restarted(self, where: BoolArray) -> PriorLine:
        """Return the lines with those named begun anew."""
        keep = np.where(where, 0.0, 1.0)
        names = {f"line_{name}": keep * getattr(self, name) for name in _NAMES}
        return PriorLine(self._prior, names)
