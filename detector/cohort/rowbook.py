"""Which name has which row of the tables; rows of names that are gone are used again."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

__all__ = ["RowBook"]


class RowBook:
    """Names and their rows, the lowest free one first.

    Examples
    --------
    >>> book = RowBook()
    >>> book.row("a"), book.row("b"), book.row("a")
    (0, 1, 0)
    >>> book.free("a")
    >>> book.row("c"), book.key(0), book.size
    (0, 'c', 2)
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._keys: dict[int, str] = {}
        self._free: list[int] = []  # a heap of the rows below ``_end`` that nobody has
        self._end = 0

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    @property
    def size(self) -> int:
        """One more than the highest row in use."""
        return max(self._keys, default=-1) + 1

    def row(self, key: str) -> int:
        """Return the row of a name, given on first sight."""
        row = self._rows.get(key)
        if row is None:
            row = heapq.heappop(self._free) if self._free else self._end
            self._end = max(self._end, row + 1)
            self._rows[key], self._keys[row] = row, key
        return row

    def key(self, row: int) -> str:
        """Return the name that has a row. KeyError for a free one."""
        return self._keys[row]

    def free(self, key: str) -> None:
        """Give a row back."""
        row = self._rows.pop(key)
        del self._keys[row]
        heapq.heappush(self._free, row)

    def dump(self) -> dict[str, int]:
        """Return the rows by name."""
        return dict(self._rows)

    def load(self, rows: Mapping[str, int]) -> None:
        """Take over dumped rows."""
        self._rows = dict(rows)
        self._keys = {row: key for key, row in self._rows.items()}
        self._end = self.size
        self._free = [row for row in range(self._end) if row not in self._keys]
