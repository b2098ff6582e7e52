"""Recursive least squares of temperature on power, for many rows at once.

``T = b0 + b1 * P + b2 * EW(P)``: air, the fast pole of the heat path, and the slow one. Three
coefficients and their covariance per row. What was never excited stays as uncertain as at the
start: the covariance forgets, up to the prior and no further, so the model knows what it does
not know. After Ljung (1999), "System Identification", chapter 11.2, with a forgetting factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detector.arrays import Field, FloatArray

__all__ = ["HECTOWATT", "ThermalModel", "ThermalPrior"]

#: Watts of one unit of power in the model: it keeps the coefficients of like size.
HECTOWATT = 100.0
_Triple = tuple[FloatArray, FloatArray, FloatArray]
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
    """Coefficients and covariances of n rows, (n,) each.

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
        self._b = tuple(state[f"b{i}"] for i in range(3))
        self._c = {pair: state[f"c{pair[0]}{pair[1]}"] for pair in _PAIRS}

    def dump(self) -> dict[str, FloatArray]:
        """Return the arrays under their declared names."""
        found = {f"b{i}": value for i, value in enumerate(self._b)}
        return found | {f"c{i}{j}": value for (i, j), value in self._c.items()}

    def predict(self, watts: FloatArray, slow_watts: FloatArray) -> FloatArray:
        """Return the temperature that the model expects, °C."""
        return self._expect(watts / HECTOWATT, slow_watts / HECTOWATT)

    def uncertainty(self, watts: FloatArray, slow_watts: FloatArray) -> FloatArray:
        """Return the standard deviation of that expectation, °C."""
        fast, slow = watts / HECTOWATT, slow_watts / HECTOWATT
        spread: FloatArray = np.sqrt(np.maximum(_along(self._gain(fast, slow), fast, slow), 0.0))
        return spread

    def _expect(self, fast: FloatArray, slow: FloatArray) -> FloatArray:
        expected: FloatArray = self._b[0] + self._b[1] * fast + self._b[2] * slow
        return expected

    def _gain(self, fast: FloatArray, slow: FloatArray) -> _Triple:
        """Covariance times the regressors (1, fast, slow).

        Written out by component: three by three matrices per row cost several times as much.
        """
        c = self._c
        return (
            c[0, 0] + c[0, 1] * fast + c[0, 2] * slow,
            c[0, 1] + c[1, 1] * fast + c[1, 2] * slow,
            c[0, 2] + c[1, 2] * fast + c[2, 2] * slow,
        )

    def learn(
        self, heat: FloatArray, watts: FloatArray, slow_watts: FloatArray, seconds: FloatArray
    ) -> ThermalModel:
        """Return the model after one reading per row that speaks for so many seconds.

        Rows with 0 seconds, or without a value, stay as they are.
        """
        fast, slow = watts / HECTOWATT, slow_watts / HECTOWATT
        error = heat - self._expect(fast, slow)
        use = (seconds > 0.0) & np.isfinite(error)
        if not np.count_nonzero(use):
            return self
        time = np.where(use, seconds, 1.0)
        along = self._gain(fast, slow)
        noise = self._prior.noise_celsius2_seconds / time
        total = noise + _along(along, fast, slow)
        gain = tuple(part / total for part in along)
        state = {
            f"b{i}": np.where(use, value + gain[i] * error, value)
            for i, value in enumerate(self._b)
        }
        shrunk = self._forget(gain, along, np.exp(time / self._prior.memory_seconds))
        state |= {
            f"c{i}{j}": np.where(use, shrunk[i, j], value) for (i, j), value in self._c.items()
        }
        return ThermalModel(self._prior, state)

    def _forget(
        self, gain: Sequence[FloatArray], along: _Triple, growth: FloatArray
    ) -> dict[tuple[int, int], FloatArray]:
        """Return the covariance after a reading, grown by forgetting, up to that of the prior."""
        c = {(i, j): (value - gain[i] * along[j]) * growth for (i, j), value in self._c.items()}
        shrink = [
            np.minimum(1.0, deviation / np.sqrt(np.maximum(c[i, i], 1e-12)))
            for i, deviation in enumerate(self._prior.deviations)
        ]
        return {(i, j): value * (shrink[i] * shrink[j]) for (i, j), value in c.items()}


def _along(gain: _Triple, fast: FloatArray, slow: FloatArray) -> FloatArray:
    """Multiply with the regressors (1, fast, slow) and add up."""
    return gain[0] + gain[1] * fast + gain[2] * slow
