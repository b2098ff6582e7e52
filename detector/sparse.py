"""Sparse state: a table whose rows cost one byte each while nothing happens to them.

There are dozens of kinds of alerts and nearly no GPU is in an episode of any of them, so keeping
every number of every episode for every GPU would be most of the engine's memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from detector.arrays import AnyArray, BoolArray, Field, IntArray

__all__ = ["SparseTable"]

_FIRST_CAPACITY = 64


class SparseTable:
    """Named arrays of which only rows in use are kept; with the methods of a ``StateTable``.

    Parameters
    ----------
    fields
        Name to declaration, one column each.
    key
        The field that tells whether a row is in use: it is, while the field is not fresh. This
        one is kept for every row. A row that is not in use is fresh in all fields.

    Examples
    --------
    >>> table = SparseTable({"phase": Field("i1", 0), "held": Field("f4", 0)}, key="phase")
    >>> table.grow(1000)
    >>> table.scatter(np.array([7]), {"phase": np.array([1]), "held": np.array([2.5])})
    >>> table.gather(np.array([6, 7]))["held"]
    array([0. , 2.5], dtype=float32)
    >>> table.bytes_per_row()
    2
    """

    def __init__(self, fields: Mapping[str, Field], *, key: str) -> None:
        self.fields = dict(fields)
        self.rows = 0
        self._key = key
        self._dense = self.fields[key].make(0)
        self._clear()

    def _clear(self) -> None:
        self._used: IntArray = np.zeros(0, dtype=np.int64)  # rows in use, ascending
        self._kept = {name: spec.make(0) for name, spec in self.fields.items()}

    @property
    def busy(self) -> bool:
        """Whether any row is in use."""
        return len(self._used) > 0

    def __getitem__(self, name: str) -> AnyArray:
        """Return the live rows of one array: a view of the key, a copy of any other."""
        if name == self._key:
            return self._dense[: self.rows]
        full = self.fields[name].make(self.rows)
        full[self._used] = self._kept[name]
        return full

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` rows; new ones are fresh. Capacity doubles."""
        if rows > len(self._dense):
            capacity = max(_FIRST_CAPACITY, 1 << (rows - 1).bit_length())
            dense = self.fields[self._key].make(capacity)
            dense[: self.rows] = self._dense[: self.rows]
            self._dense = dense
        self.rows = max(self.rows, rows)

    def _find(self, rows: IntArray) -> tuple[IntArray, BoolArray]:
        """Places of rows among those in use, and whether they are there."""
        at = np.searchsorted(self._used, rows)
        inside = at < len(self._used)
        inside[inside] = self._used[at[inside]] == rows[inside]
        return at, inside

    def gather(self, rows: IntArray) -> dict[str, AnyArray]:
        """Copy the given rows of every array."""
        at, inside = self._find(rows)
        out = {name: spec.make(len(rows)) for name, spec in self.fields.items()}
        for name, array in out.items():
            array[inside] = self._kept[name][at[inside]]
        return out

    def scatter(self, rows: IntArray, values: Mapping[str, AnyArray]) -> None:
        """Write back rows, every field of them; ``rows`` must not hold one row twice."""
        self._dense[rows] = values[self._key]
        in_use = np.asarray(values[self._key]) != self.fields[self._key].fresh
        at, inside = self._find(rows)
        if np.array_equal(in_use, inside):
            for name, kept in self._kept.items():
                kept[at[inside]] = values[name][inside]
            return
        stay = np.ones(len(self._used), dtype=bool)
        stay[at[inside]] = False
        used = np.concatenate([self._used[stay], rows[in_use]])
        order = np.argsort(used)
        for name, kept in self._kept.items():
            merged = np.concatenate([kept[stay], values[name][in_use].astype(kept.dtype)])
            self._kept[name] = merged[order]
        self._used = used[order]

    def reset(self, rows: IntArray) -> None:
        """Make the given rows fresh."""
        self.scatter(rows, {name: spec.make(len(rows)) for name, spec in self.fields.items()})

    def dump(self) -> dict[str, AnyArray]:
        """Return the rows in use for a snapshot: their numbers and every field."""
        return {"rows": self._used, **self._kept}

    def load(self, arrays: Mapping[str, AnyArray], rows: int) -> list[str]:
        """Take over saved arrays if they fit together; else start fresh and name them all.

        A field that an older version did not save begins fresh in every row, and is named.
        """
        self.rows = 0
        self._dense = self.fields[self._key].make(0)
        self._clear()
        self.grow(rows)
        if not self._fits(arrays, rows):
            return ["rows", *self.fields]
        self._used = arrays["rows"].copy()
        new = [name for name in self.fields if name not in arrays]
        self._kept = {
            name: spec.make(len(self._used)) if name in new else arrays[name].copy()
            for name, spec in self.fields.items()
        }
        self._dense[self._used] = self._kept[self._key]
        return new

    def _fits(self, arrays: Mapping[str, AnyArray], rows: int) -> bool:
        used = arrays.get("rows")
        if used is None or used.dtype != np.int64 or used.ndim != 1:
            return False
        ordered = bool((np.diff(used) > 0).all()) and bool(((used >= 0) & (used < rows)).all())
        return (self._key in arrays and ordered) and all(
            arrays[name].shape == used.shape and arrays[name].dtype == np.dtype(spec.dtype)
            for name, spec in self.fields.items()
            if name in arrays
        )

    def bytes_per_row(self) -> int:
        """Size of one row in bytes: the key, and its share of the rows in use, rounded up."""
        key = np.dtype(self.fields[self._key].dtype).itemsize
        record = 8 + sum(np.dtype(spec.dtype).itemsize for spec in self.fields.values())
        return key + -(-record * len(self._used) // max(self.rows, 1))
