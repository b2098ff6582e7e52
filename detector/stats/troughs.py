"""The trend of the troughs: what memory that comes and goes never gives back.

A job that allocates and frees all the time has a line through its samples only by chance. The
lowest value of every few minutes is calmer, and a leak raises it. Twelve troughs are kept per
row; their slope is the median of the slopes of all pairs, which a third of odd troughs cannot
move: Theil (1950) and Sen (1968), "Estimates of the regression coefficient based on Kendall's
tau", JASA 63(324).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray

__all__ = ["KEPT", "Trend", "Troughs", "trend_of"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
#: Troughs kept per row.
KEPT = 12
_EARLIER, _LATER = np.triu_indices(KEPT, 1)
_GAPS = (_LATER - _EARLIER).astype(np.float64)
_HALF = KEPT // 2
_FIRST, _LAST = _LATER < _HALF, _EARLIER >= _HALF
_SWING_WEIGHT = 0.2  # of the newest swing where it is smaller: it fades in about five troughs


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """What the troughs of m rows say; all (m,).

    Parameters
    ----------
    slope
        Median of the slopes of all pairs, per trough.
    now
        The line through the troughs at the newest one.
    count
        Troughs known.
    accord
        Share of the pairs that rise minus the share that falls, -1 to 1 (Kendall's tau).
    steadiness
        The lower of the slopes of the older and the newer half, as a share of the slope: a step
        rises in one half only.
    """

    slope: FloatArray
    now: FloatArray
    count: AnyArray
    accord: FloatArray
    steadiness: FloatArray


def trend_of(troughs: FloatArray) -> Trend:
    """Judge troughs, (m, KEPT), oldest first, NaN where not known.

    Examples
    --------
    >>> found = trend_of(np.array([50.0 + 0.5 * np.arange(12)]))
    >>> found.slope, found.now, found.accord, found.steadiness
    (array([0.5]), array([55.5]), array([1.]), array([1.]))
    >>> step = trend_of(np.array([[50.0] * 8 + [60.0] * 4]))
    >>> float(step.steadiness[0])
    0.0
    """
    rise = troughs[:, _LATER] - troughs[:, _EARLIER]
    slopes = rise / _GAPS
    known = np.isfinite(slopes)
    pairs = np.maximum(known.sum(axis=1), 1)
    slope = _median(slopes)
    half = np.minimum(_median(slopes[:, _FIRST]), _median(slopes[:, _LAST]))
    signs = np.where(known, np.sign(rise), 0.0).sum(axis=1)
    offsets = troughs - slope[:, None] * np.arange(1 - KEPT, 1)
    positive = slope > 0.0
    return Trend(
        slope=slope,
        now=_median(offsets),
        count=np.isfinite(troughs).sum(axis=1),
        accord=signs / pairs,
        steadiness=np.divide(half, slope, out=np.zeros(len(slope)), where=positive),
    )


def _median(values: FloatArray) -> FloatArray:
    """(m,) medians of the known values of each row; 0 where there is none."""
    ordered = np.sort(values, axis=1)  # missing ones come last
    count = np.isfinite(ordered).sum(axis=1)
    each = np.arange(len(ordered))
    low, high = ordered[each, np.maximum(count - 1, 0) // 2], ordered[each, count // 2]
    return np.where(count > 0, 0.5 * (low + high), 0.0)


class Troughs:
    """The troughs of n rows, the one that is being filled, and how far the values swing.

    Examples
    --------
    >>> state = {name: field.make(1) for name, field in Troughs.fields().items()}
    >>> troughs = Troughs(state)
    >>> for value in [5.0, 3.0, 8.0, 6.0, 4.0]:
    ...     troughs, closed = troughs.add(
    ...         np.array([value]), np.array([10.0]), np.array([20.0]), np.array([False])
    ...     )
    >>> troughs.kept[0, -2:], troughs.swing
    (array([5., 3.]), array([5.]))
    """

    def __init__(self, state: Mapping[str, AnyArray]) -> None:
        self.kept, self.low, self.high, self.filled, self.swing, self.newest, self.least = (
            state[f"trough_{name}"].astype(np.float64) for name in _NAMES
        )

    @staticmethod
    def fields() -> dict[str, Field]:
        """Declare the state: troughs; lowest, highest and seconds of the open one; swings.

        ``swing`` is how far the values usually rise above their troughs, ``newest`` of the last
        one, ``least`` the smaller of the last two: one step is no swing.
        """
        return {
            "trough_kept": Field("f4", width=KEPT),
            "trough_low": Field("f4"),
            "trough_high": Field("f4"),
            "trough_filled": Field("f4", 0.0),
            "trough_swing": Field("f4"),
            "trough_newest": Field("f4"),
            "trough_least": Field("f4"),
        }

    def dump(self) -> dict[str, AnyArray]:
        """Return the arrays under their declared names."""
        swings = (self.swing, self.newest, self.least)
        parts = (self.kept, self.low, self.high, self.filled, *swings)
        named = zip(_NAMES, parts, strict=True)
        return {f"trough_{name}": part.astype(np.float32) for name, part in named}

    def add(
        self, value: FloatArray, dt: FloatArray, length: FloatArray, anew: BoolArray
    ) -> tuple[Troughs, BoolArray]:
        """Take one value per row, ``dt`` seconds after the one before.

        Parameters
        ----------
        value
            (n,); rows without a value stay as they are.
        dt, length
            (n,) seconds since the previous value, and that a trough lasts.
        anew
            (n,) forget everything first.

        Returns
        -------
        Troughs
        ndarray
            (n,) a trough was closed by this value, which begins the next one.
        """
        usable = np.isfinite(value)
        filled = np.where(anew, 0.0, self.filled + np.where(usable, dt, 0.0))
        closed = usable & (filled >= length) & np.isfinite(self.low)
        after = object.__new__(Troughs)
        after.kept, after.swing = self.kept, self.swing
        after.newest, after.least = self.newest, self.least
        if closed.any() or anew.any():
            moved = np.concatenate([self.kept[:, 1:], self.low[:, None]], axis=1)
            after.kept = np.where(closed[:, None], moved, self.kept)
            after.kept = np.where(anew[:, None], np.nan, after.kept)
            swing = self.high - self.low
            mixed = self.swing + _SWING_WEIGHT * (swing - self.swing)
            newest = np.where(np.isnan(self.swing), swing, np.maximum(swing, mixed))
            after.swing = np.where(anew, np.nan, np.where(closed, newest, self.swing))
            after.newest = np.where(anew, np.nan, np.where(closed, swing, self.newest))
            least = np.fmin(swing, self.newest)
            after.least = np.where(anew, np.nan, np.where(closed, least, self.least))
        begin = closed | anew
        after.low = np.where(begin, value, np.fmin(self.low, value))
        after.high = np.where(begin, value, np.fmax(self.high, value))
        after.filled = np.where(closed, 0.0, filled)
        return after, closed


_NAMES = ("kept", "low", "high", "filled", "swing", "newest", "least")
