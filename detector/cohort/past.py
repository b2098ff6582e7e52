"""What a cohort was like: its recent windows, and the models that are made of them.

Models are never saved. They are rebuilt at fixed boundaries, once an hour, from the windows of
the hour before; a tier that stopped and one that did not make the same models of the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detector.arrays import FloatArray
from detector.cohort.adwin import LevelShift, Shifted
from detector.cohort.features import FEATURES, LIMITS
from detector.cohort.forest import Forest, ModelError
from schemas.window import WINDOW_MS

__all__ = ["Past", "Verdict"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
#: Rows from which models are rebuilt, and distance of the fixed boundaries: one hour each.
_MEMORY = 360
_BOUNDARY_MS = _MEMORY * WINDOW_MS
_NO_ROWS = np.zeros((0, len(FEATURES) + 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the models say of one window, before it is learned.

    Parameters
    ----------
    rarity, usual
        Score of the forest, and the moving quantile of its past scores; 0 to 1.
    history
        Windows that were learned.
    level, before
        (features,) see :class:`~detector.cohort.adwin.Shifted`; NaN for features not in use.
    """

    rarity: float
    usual: float
    history: float
    level: FloatArray
    before: FloatArray


@dataclass(slots=True)
class Past:
    """History and models of one cohort.

    Parameters
    ----------
    history
        A row per closed window: start, features, 1 if the forest learned it.
    chosen
        Numbers of the features that the cohort has.
    shift_unit
        Size of a shift that matters; see :class:`~detector.cohort.adwin.LevelShift`.
    """

    shift_unit: float = 0.1
    history: AnyArray = field(default_factory=_NO_ROWS.copy)
    chosen: tuple[int, ...] = ()
    _forest: Forest | None = None
    _shift: LevelShift | None = None

    def judge(self, start: int, row: FloatArray) -> Verdict | None:
        """Score a window and note its level; None where features are missing or a model broke.

        Parameters
        ----------
        start
            Of the window, unix milliseconds.
        row
            (features,) NaN where nothing is known.
        """
        self._prepare(start, row)
        picked = row[list(self.chosen)]
        if self._forest is None or self._shift is None or not self.chosen:
            return None
        if not np.isfinite(picked).all():
            return None
        try:
            rarity = self._forest.score(picked)
            said = self._shift.feed(start, picked)
        except ModelError:
            self._begin_anew()
            return None
        shifted = said or Shifted(level=self._shift.level, before=np.full(len(picked), np.nan))
        return Verdict(
            rarity=rarity,
            usual=self._forest.usual,
            history=float(len(self.history)),
            level=self._spread(shifted.level),
            before=self._spread(shifted.before),
        )

    def learn(self, start: int, row: FloatArray, *, usual: bool) -> None:
        """Keep a judged window; the forest learns it only if it is usual."""
        if self._forest is None:
            return
        try:
            if usual:
                self._forest.learn(row[list(self.chosen)])
        except ModelError:
            self._begin_anew()
            return
        self.history = np.vstack([self.history, np.concatenate([[start], row, [float(usual)]])])

    def rebuild(self) -> None:
        """Make the models of a cohort that was loaded."""
        if len(self.history):
            self._rebuild(int(self.history[-1, 0]) // _BOUNDARY_MS * _BOUNDARY_MS)

    def _begin_anew(self) -> None:
        self._forest, self._shift, self.history = None, None, _NO_ROWS.copy()

    def _spread(self, picked: FloatArray) -> FloatArray:
        """(features,) with NaN for those that are not in use."""
        full = np.full(len(FEATURES), np.nan)
        full[list(self.chosen)] = picked
        return full

    def _prepare(self, start: int, row: FloatArray) -> None:
        """Build the models at first sight, and anew when a fixed boundary is crossed."""
        if not self.chosen:
            self.chosen = tuple(np.flatnonzero(np.isfinite(row)).tolist())
            self._forest = None  # one that was made before had no features
        last = int(self.history[-1, 0]) if len(self.history) else start
        if self._forest is None or last // _BOUNDARY_MS != start // _BOUNDARY_MS:
            self.history = self.history[-_MEMORY:]
            self._rebuild(start // _BOUNDARY_MS * _BOUNDARY_MS)

    def _rebuild(self, boundary: int) -> None:
        """Make the models that a tier which never stopped would have.

        Rows before the boundary are learned all of them, so what has lasted for an hour is the
        new normal; rows since then as they were learned at the time.
        """
        limits = [tuple(LIMITS.values())[number] for number in self.chosen]
        self._forest = Forest(limits=limits)
        self._shift = LevelShift(features=len(limits), unit=self.shift_unit)
        columns = [1 + number for number in self.chosen]
        for entry in self.history:
            self._shift.feed(int(entry[0]), entry[columns])
            if entry[0] < boundary or entry[-1] > 0.0:
                self._forest.learn(entry[columns])
