"""Struct-of-arrays state: one numpy array per quantity, one row per GPU or node.

Detectors declare the arrays that they need; the table grows them together, resets rows, and
hands them to snapshots. Nothing here knows what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BoolArray", "Field", "FloatArray", "IntArray", "StateTable", "filled"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]  # state arrays have many dtypes

_FIRST_CAPACITY = 64


@dataclass(frozen=True, slots=True)
class Field:
    """Declaration of one state array: its dtype, the value of a fresh row, columns per row."""

    dtype: str = "f8"
    fresh: float = float("nan")
    width: int = 1

    def make(self, rows: int) -> AnyArray:
        """Return ``rows`` fresh rows."""
        shape = rows if self.width == 1 else (rows, self.width)
        return np.full(shape, self.fresh, dtype=np.dtype(self.dtype))


class StateTable:
    """Named arrays that grow together.

    Parameters
    ----------
    fields
        Name to declaration.

    Examples
    --------
    >>> table = StateTable({"level": Field()})
    >>> table.grow(2)
    >>> table.scatter(np.array([1]), {"level": np.array([5.0])})
    >>> table.gather(np.array([0, 1]))["level"]
    array([nan,  5.])
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = dict(fields)
        self.rows = 0
        self._arrays = {name: spec.make(0) for name, spec in self.fields.items()}

    @property
    def busy(self) -> bool:
        """Whether there are rows at all: any of them may be in use."""
        return self.rows > 0

    def __getitem__(self, name: str) -> AnyArray:
        """Return the live rows of one array, as a view."""
        return self._arrays[name][: self.rows]

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` rows; new ones are fresh. Capacity doubles."""
        if rows > self._capacity():
            capacity = max(_FIRST_CAPACITY, 1 << (rows - 1).bit_length())
            for name, spec in self.fields.items():
                array = spec.make(capacity)
                array[: self.rows] = self._arrays[name][: self.rows]
                self._arrays[name] = array
        self.rows = max(self.rows, rows)

    def _capacity(self) -> int:
        return min((len(array) for array in self._arrays.values()), default=self.rows)

    def gather(self, rows: IntArray | slice) -> dict[str, AnyArray]:
        """Copy the given rows of every array."""
        if isinstance(rows, slice):
            return {name: array[rows].copy() for name, array in self._arrays.items()}
        return {name: array[rows] for name, array in self._arrays.items()}

    def scatter(self, rows: IntArray | slice, values: Mapping[str, AnyArray]) -> None:
        """Write back rows; ``rows`` must not hold one row twice."""
        for name, value in values.items():
            self._arrays[name][rows] = value

    def reset(self, rows: IntArray) -> None:
        """Make the given rows fresh."""
        for name, spec in self.fields.items():
            self._arrays[name][rows] = spec.fresh

    def dump(self) -> dict[str, AnyArray]:
        """Return every array, live rows only, for a snapshot."""
        return {name: array[: self.rows] for name, array in self._arrays.items()}

    def load(self, arrays: Mapping[str, AnyArray], rows: int) -> list[str]:
        """Take over saved arrays that fit; return the names of those that did not."""
        self.rows = 0
        self._arrays = {name: spec.make(0) for name, spec in self.fields.items()}
        self.grow(rows)
        dropped = []
        for name, spec in self.fields.items():
            saved = arrays.get(name)
            target = self._arrays[name][:rows]
            if saved is None or saved.shape != target.shape or saved.dtype != np.dtype(spec.dtype):
                dropped.append(name)
            else:
                target[...] = saved
        return dropped

    def bytes_per_row(self) -> int:
        """Size of one row over all arrays, in bytes."""
        return sum(np.dtype(spec.dtype).itemsize * spec.width for spec in self.fields.values())


def filled(values: FloatArray, fill: float = 0.0) -> FloatArray:
    """Put a number where one is missing. What ``nan_to_num`` does, without its care for infinity.

    Examples
    --------
    >>> filled(np.array([1.0, np.nan]))
    array([1., 0.])
    """
    return np.where(np.isnan(values), fill, values)


def prefixed(prefix: str, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Put ``prefix/`` before every name."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def unprefixed(prefix: str, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Select the names under ``prefix/`` and cut it off."""
    start = f"{prefix}/"
    return {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}


def union(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Merge name lists, each name once, in order of first appearance."""
    return tuple(dict.fromkeys(name for group in names for name in group))
