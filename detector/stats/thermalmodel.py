"""Recursive least squares of temperature on power, for many rows at once.

``T = b0 + b1 * P + b2 * EW(P)``: air, the fast pole of the heat path, and the slow one. Three
coefficients and their covariance per row. What was never excited stays as uncertain as at the
start: the covariance forgets, up to the prior and no further, so the model knows what it does
not know. After Ljung (1999), "System Identification", chapter 11.2, with a forgetting factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from detector.arrays import Field, FloatArray

__all__ = ["HECTOWATT", "ThermalModel", "ThermalPrior"]

#: Watts of one unit of power in the model: it keeps the coefficients of like size.
HECTOWATT = 100.0
_PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class ThermalPrior:
    """Where every row begins.

    Parameters
    ----------
    coefficients, deviations
        Means and standard deviations of b0 (°C), b1 and b2 (°C per 100 W).
    noise_celsius2_seconds
        Variance of a reading times the time over which its errors are alike, °C² s.
    memory_seconds
        Time constant of forgetting, s.
    """

    coefficients: tuple[float, float, float]
    deviations: tuple[float, float, float]
    noise_celsius2_seconds: float
    memory_seconds: float

    def fields(self) -> dict[str, Field]:
        """Declare the state arrays: three coefficients and six covariances."""
        found = {f"b{i}": Field("f8", value) for i, value in enumerate(self.coefficients)}
        for i, j in _PAIRS:
            fresh = self.deviations[i] ** 2 if i == j else 0.0
            found[f"c{i}{j}"] = Field("f8", fresh)
        return found


class ThermalModel:
    """Coefficients (n, 3) and covariances (n, 3, 3) of n rows.

    Examples
    --------
    >>> prior = ThermalPrior(
    ...     coefficients=(27.0, 2.5, 3.5),
    ...     deviations=(15.0, 3.0, 3.0),
    ...     noise_celsius2_seconds=300.0,
    ...     memory_seconds=14400.0,
    ... )
    >>> model = ThermalModel(prior, {n: f.make(1) for n, f in prior.fields().items()})
    >>> watts = np.array([400.0])
    >>> model.predict(watts, watts)
    array([51.])
    >>> for _ in range(600):
    ...     model = model.learn(np.array([58.0]), watts, watts, np.array([1.0]))
    >>> model.predict(watts, watts).round(1), model.uncertainty(watts, watts).round(1)
    (array([58.]), array([0.7]))

    What was learned at 400 W says little of 700 W:

    >>> model.uncertainty(np.array([700.0]), np.array([700.0])).round(1)
    array([8.7])
    """

    def __init__(self, prior: ThermalPrior, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._prior = prior
        self.b = np.stack([state[f"b{i}"] for i in range(3)], axis=1)
        rows = len(self.b)
        self.c = np.empty((rows, 3, 3))
        for i, j in _PAIRS:
            self.c[:, i, j] = self.c[:, j, i] = state[f"c{i}{j}"]

    def dump(self) -> dict[str, FloatArray]:
        """Return the arrays under their declared names."""
        return _arrays(self.b, self.c)

    def predict(self, watts: FloatArray, slow_watts: FloatArray) -> FloatArray:
        """Return the temperature that the model expects, °C."""
        expected: FloatArray = (self.b * _regressors(watts, slow_watts)).sum(axis=1)
        return expected

    def uncertainty(self, watts: FloatArray, slow_watts: FloatArray) -> FloatArray:
        """Return the standard deviation of that expectation, °C."""
        x = _regressors(watts, slow_watts)
        spread: FloatArray = np.sqrt(np.maximum((x * self._gain(x)).sum(axis=1), 0.0))
        return spread

    def _gain(self, x: FloatArray) -> FloatArray:
        product: FloatArray = (self.c * x[:, None, :]).sum(axis=2)
        return product

    def learn(
        self, heat: FloatArray, watts: FloatArray, slow_watts: FloatArray, seconds: FloatArray
    ) -> ThermalModel:
        """Return the model after one reading per row that speaks for so many seconds.

        Rows with 0 seconds, or without a value, stay as they are.
        """
        use = (seconds > 0.0) & np.isfinite(heat) & np.isfinite(watts) & np.isfinite(slow_watts)
        x = np.where(use[:, None], _regressors(watts, slow_watts), 0.0)
        time = np.where(use, seconds, 1.0)
        along = self._gain(x)
        noise = self._prior.noise_celsius2_seconds / time
        gain = along / (noise + (x * along).sum(axis=1))[:, None]
        error = np.where(use, heat, 0.0) - (self.b * x).sum(axis=1)
        c = self.c - gain[:, :, None] * along[:, None, :]
        c = c * np.exp(time / self._prior.memory_seconds)[:, None, None]
        variance = np.maximum(np.diagonal(c, axis1=1, axis2=2), 1e-12)
        shrink = np.minimum(1.0, np.array(self._prior.deviations) / np.sqrt(variance))
        c = c * shrink[:, :, None] * shrink[:, None, :]
        b = np.where(use[:, None], self.b + gain * error[:, None], self.b)
        return ThermalModel(self._prior, _arrays(b, np.where(use[:, None, None], c, self.c)))


def _arrays(b: FloatArray, c: FloatArray) -> dict[str, FloatArray]:
    found = {f"b{i}": b[:, i].copy() for i in range(3)}
    return found | {f"c{i}{j}": c[:, i, j].copy() for i, j in _PAIRS}


def _regressors(watts: FloatArray, slow_watts: FloatArray) -> FloatArray:
    ones = np.ones(len(watts))
    return np.stack([ones, watts / HECTOWATT, slow_watts / HECTOWATT], axis=1)
