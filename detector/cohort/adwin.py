"""The second door to river: tells when the level of a cohort's features has shifted.

ADWIN keeps a window of as many values as agree on one mean and drops the older part once two
parts differ by more than chance allows. It sees means over a minute: on raw, correlated readings
it cries wolf (112 times in 10,000 stationary AR(1) values, measured), and after one NaN it is
silent for ever, so only finite rows enter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from river import drift  # noqa: TID251 - one of the two doors

from detector.arrays import FloatArray
from detector.cohort.forest import ModelError, translated

__all__ = ["LevelShift", "Shifted"]

_MINUTE_MS = 60_000
#: Minutes whose mean is the present level.
_RECENT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifted:
    """What a finished minute says.

    Parameters
    ----------
    level
        (features,) mean of the last minutes.
    before
        (features,) mean of what ADWIN dropped because of a shift that it noticed now; NaN where
        there was none.
    """

    level: FloatArray
    before: FloatArray


class LevelShift:
    """One ADWIN per feature, on means over a minute.

    Parameters
    ----------
    features
        How many; five at most.
    unit
        Size of a shift that matters, in the unit of the features: they are divided by it, since
        ADWIN's bound is made for values from 0 to 1.
    confidence
        ADWIN's delta: smaller cries wolf less often.

    References
    ----------
    .. [1] Bifet and Gavaldà (2007), "Learning from Time-Changing Data with Adaptive Windowing",
       SDM.

    Examples
    --------
    Half an hour at one level, then another one, noticed within 25 minutes:

    >>> shift = LevelShift(features=1, unit=0.1)
    >>> noticed = []
    >>> for window in range(360):
    ...     value = 0.9 if window < 180 else 0.6
    ...     said = shift.feed(window * 10_000, np.array([value]))
    ...     if said is not None and np.isfinite(said.before[0]):
    ...         noticed.append((window, round(float(said.before[0]), 2)))
    >>> noticed[0][0] < 180 + 25 * 6, noticed[0][1]
    (True, 0.9)
    """

    def __init__(self, *, features: int, unit: float, confidence: float = 1e-4) -> None:
        # Any: river is not typed.
        self._windows: list[Any] = [
            drift.ADWIN(  # type: ignore[no-untyped-call]  # river is not typed
                delta=confidence, clock=1, min_window_length=3, grace_period=10
            )
            for _ in range(features)
        ]
        self._unit = unit
        self._minute: int | None = None
        self._rows: list[FloatArray] = []
        self._means: list[FloatArray] = []

    @property
    def level(self) -> FloatArray:
        """(features,) mean of the last minutes; NaN before one has ended."""
        if not self._means:
            return np.full(len(self._windows), np.nan)
        level: FloatArray = np.mean(self._means, axis=0)
        return level

    def feed(self, start_ms: int, row: FloatArray) -> Shifted | None:
        """Take one window's features; return what the minute says that it completes.

        Raises
        ------
        ModelError
            If the row is not finite or river broke.
        """
        if not np.isfinite(row).all():
            raise ModelError(f"the model takes finite rows only, got {row.tolist()}")
        minute, said = start_ms // _MINUTE_MS, None
        if self._rows and minute != self._minute:
            said = self._complete()
        self._minute = minute
        self._rows.append(row)
        return said

    def _complete(self) -> Shifted:
        mean: FloatArray = np.mean(self._rows, axis=0)
        self._rows = []
        self._means = [*self._means, mean][-_RECENT:]
        before = np.full(len(mean), np.nan)
        try:
            for number, (window, value) in enumerate(
                zip(self._windows, (mean / self._unit).tolist(), strict=True)
            ):
                total, width = float(window.total) + value, window.width + 1
                window.update(value)
                dropped = width - window.width
                if window.drift_detected and dropped > 0:
                    before[number] = (total - float(window.total)) / dropped * self._unit
        except BaseException as exc:
            raise translated(exc) from exc
        return Shifted(level=self.level, before=before)
