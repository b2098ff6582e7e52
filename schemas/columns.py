"""The numbers of a sample as one block of float64, beside the lists that people read.

The engine wants an array, JSON gives lists; a message is turned into bytes of float64 once, at
the door, and those are what is passed on. The binary body carries the same bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from types import NoneType

from schemas.errors import DecodeError
from schemas.metrics import METRICS

__all__ = ["Columns", "columns_of_block", "columns_of_lists", "packed"]

_NUMBERS = frozenset({int, float, NoneType})
_NAN = float("nan")


class Columns(Mapping[str, list[float | None]]):
    """Metric name to its values, with the same numbers as one block.

    Parameters
    ----------
    names
        Names of the metrics, in the order of the block.
    block
        Little-endian float64, ``len(names) * length`` numbers, metric by metric; NaN = missing.
    length
        Values per metric.
    lists
        The same as lists with None for missing, if they are there already.

    Examples
    --------
    >>> columns = columns_of_lists({"power_watts": [70, None]}, 2)
    >>> columns["power_watts"], len(columns.block)
    ([70, None], 16)
    >>> columns_of_block(("power_watts",), columns.block, 2) == {"power_watts": [70.0, None]}
    True
    """

    __slots__ = ("_lists", "block", "length", "names")

    def __init__(
        self,
        names: tuple[str, ...],
        block: bytes,
        length: int,
        lists: Mapping[str, list[float | None]] | None = None,
    ) -> None:
        self.names = names
        self.block = block
        self.length = length
        self._lists = lists

    def _unpacked(self) -> Mapping[str, list[float | None]]:
        if self._lists is None:
            numbers = struct.unpack(f"<{len(self.names) * self.length}d", self.block)
            values = [None if math.isnan(number) else number for number in numbers]
            self._lists = {
                name: values[at * self.length : (at + 1) * self.length]
                for at, name in enumerate(self.names)
            }
        return self._lists

    def __getitem__(self, name: str) -> list[float | None]:
        return self._unpacked()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return repr(dict(self._unpacked()))


def columns_of_lists(columns: Mapping[str, object], length: int, *, flags: bool = True) -> Columns:
    """Check decoded JSON columns and pack them; metrics outside the catalogue are left out.

    Parameters
    ----------
    length
        Values that each metric must have.
    flags
        Whether the text may hold true or false, which would pass for numbers.

    Raises
    ------
    DecodeError
        ``bad_length`` or ``bad_value``, naming the metric.
    """
    names = tuple(columns)
    if not _all_known(names):
        # They come from a newer minor version.
        columns = {name: column for name, column in columns.items() if name in METRICS}
        names = tuple(columns)
    lists = columns.values()
    if not ({list}.issuperset(map(type, lists)) and {length}.issuperset(map(len, lists))):  # type: ignore[arg-type]  # lists, by the first half
        wrong = next(n for n, c in columns.items() if type(c) is not list or len(c) != length)
        raise DecodeError("bad_length", f"m.{wrong} needs {length} values")
    flat: list[object] = list(chain.from_iterable(lists))  # type: ignore[arg-type]  # lists, see above
    block = None if flags else _pack_complete(flat)
    if block is None:
        if not _NUMBERS.issuperset(map(type, flat)):
            raise DecodeError("bad_value", f"m.{_first_wrong(columns)} must hold numbers or null")
        block = _pack_with_gaps(flat)  # type: ignore[arg-type]  # numbers and None, see above
    return Columns(names, block, length, columns)  # type: ignore[arg-type]  # checked above


def columns_of_block(names: Sequence[str], block: bytes, length: int) -> Columns:
    """Take over a block of float64; metrics outside the catalogue are left out.

    Raises
    ------
    DecodeError
        ``bad_length`` if the block does not hold ``length`` numbers per name.
    """
    if len(block) != 8 * len(names) * length:
        raise DecodeError(
            "bad_length", f"{len(names)} metrics of {length} values are not {len(block)} bytes"
        )
    known = tuple(names)
    if not _all_known(known):
        size = 8 * length
        kept = [
            (n, block[at * size : (at + 1) * size]) for at, n in enumerate(names) if n in METRICS
        ]
        known, block = tuple(name for name, _ in kept), b"".join(part for _, part in kept)
    return Columns(known, block, length)


def packed(columns: Mapping[str, Sequence[float | None]]) -> tuple[tuple[str, ...], bytes]:
    """Return the names and the block of a message's numbers, however they were made.

    Examples
    --------
    >>> names, block = packed({"power_watts": [1.0], "temperature_celsius": [None]})
    >>> names, len(block)
    (('power_watts', 'temperature_celsius'), 16)
    """
    if isinstance(columns, Columns):
        return columns.names, columns.block
    flat = list(chain.from_iterable(columns.values()))
    return tuple(columns), _pack_complete(flat) or _pack_with_gaps(flat)


@lru_cache(maxsize=4096)
def _all_known(names: tuple[str, ...]) -> bool:
    return all(name in METRICS for name in names)


@lru_cache(maxsize=1024)
def _packer(length: int) -> struct.Struct:
    return struct.Struct(f"<{length}d")


def _pack_complete(flat: Sequence[object]) -> bytes | None:
    """Pack numbers; None if one of them is none."""
    try:
        return _packer(len(flat)).pack(*flat)
    except (struct.error, OverflowError):
        return None


def _pack_with_gaps(flat: Sequence[float | None]) -> bytes:
    return _packer(len(flat)).pack(*[_NAN if value is None else value for value in flat])


def _first_wrong(columns: Mapping[str, object]) -> str:
    return next(
        name
        for name, column in columns.items()
        if not _NUMBERS.issuperset(map(type, column))  # type: ignore[call-overload]  # lists, checked before
    )
