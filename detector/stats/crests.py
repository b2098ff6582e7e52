"""Remembers the highest level from which a value came back by itself.

Memory that rises for an hour and then falls, again and again, is a saw-tooth; while it rises it
looks like a leak, and only its past tells that it is none. A rise that stays below its last crest
is nothing new.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray

__all__ = ["Crests"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


class Crests:
    """The crest of n rows, and for how long it has stood.

    Examples
    --------
    >>> state = {name: field.make(1) for name, field in Crests.fields("crest").items()}
    >>> no, yes = np.array([False]), np.array([True])
    >>> crests = Crests("crest", state).after(
    ...     np.array([70.0]), np.array([30.0]), yes, no, np.array([1.0]), 3600.0
    ... )
    >>> crests.level, crests.exceeded(least=1.0, ratio=0.25)
    (array([70.]), array([80.]))
    >>> crests.after(np.array([50.0]), np.array([50.0]), no, no, np.array([7200.0]), 3600.0).level
    array([0.])
    """

    def __init__(self, prefix: str, state: Mapping[str, AnyArray]) -> None:
        self._prefix = prefix
        self.level = state[f"{prefix}_level"].astype(np.float64)
        self.depth = state[f"{prefix}_depth"].astype(np.float64)
        self.age = state[f"{prefix}_age"].astype(np.float64)

    @staticmethod
    def fields(prefix: str) -> dict[str, Field]:
        """Declare the state arrays: level, depth of the fall (0 without one), age in seconds."""
        return {f"{prefix}_{name}": Field("f4", 0.0) for name in ("level", "depth", "age")}

    def dump(self) -> dict[str, AnyArray]:
        """Return the arrays under their declared names."""
        return {
            f"{self._prefix}_level": self.level.astype(np.float32),
            f"{self._prefix}_depth": self.depth.astype(np.float32),
            f"{self._prefix}_age": self.age.astype(np.float32),
        }

    def after(
        self,
        peak: FloatArray,
        landing: FloatArray,
        fell: BoolArray,
        forget: BoolArray,
        dt: FloatArray,
        last_seconds: float,
    ) -> Crests:
        """Return the crests ``dt`` seconds later.

        Parameters
        ----------
        peak, fell
            (n,) level from which the value fell just now, where it did.
        landing
            (n,) value now; how far below the crest it gets is remembered.
        forget
            (n,) nothing of the past counts any more: another job.
        last_seconds
            How long a crest is remembered after it was last reached, s.
        """
        age = self.age + dt
        keeps = (age <= last_seconds) & ~forget
        level = np.where(keeps, self.level, 0.0)
        counts = fell & ~forget
        # About as high again: the crest stands, from now on.
        again = counts & (peak >= 0.9 * level)
        after = object.__new__(Crests)
        after._prefix = self._prefix
        after.level = np.where(counts, np.maximum(level, peak), level)
        depth = np.where(keeps, self.depth, 0.0)
        below = np.where(after.level > 0.0, np.nan_to_num(after.level - landing), 0.0)
        after.depth = np.maximum(depth, below)
        after.age = np.where(again | ~keeps, 0.0, age)
        return after

    def exceeded(self, least: float, ratio: float) -> FloatArray:
        """(n,) level from which a rise is new; 0 where there is no crest.

        It is above the crest by so much, or by a share of how far the value came back: teeth of
        one saw differ in height.
        """
        above = self.level + np.maximum(least, ratio * self.depth)
        return np.where(self.level > 0.0, above, 0.0)
