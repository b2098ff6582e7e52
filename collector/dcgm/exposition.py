"""Prometheus text, read line by line: a line that is damaged costs itself only.

Pure. The client library's own parser ends at the first damaged line; a recording may hold many.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["Damaged", "Series", "read_series"]

_LINE = re.compile(
    r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)\s*(?:\{(?P<labels>.*)\})?\s*"
    r"(?P<value>[^\s{}]+)(?:\s+(?P<ts>-?\d{1,16}))?\s*$"
)
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_ESCAPED = re.compile(r"\\.")


class Series(NamedTuple):
    """One sample: name, labels, value (may be NaN or infinite), unix ms where the line has it."""

    name: str
    labels: dict[str, str]
    value: float
    ts: int | None = None


class Damaged(NamedTuple):
    """A line that is no sample: its number from 0 among those given, and why."""

    place: int
    reason: str


def read_series(lines: Iterable[str]) -> Iterator[Series | Damaged]:
    """Read samples; comments and empty lines are passed over.

    Examples
    --------
    >>> [one[0] for one in read_series(['a{gpu="0"} 1.5', "# text", "b 2 1700000000000", "{"])]
    ['a', 'b', 3]
    """
    for place, line in enumerate(lines):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        yield _series(text) or Damaged(place, f"is no sample: {text[:60]!r}")


def _series(text: str) -> Series | None:
    match = _LINE.match(text)
    if match is None:
        return None
    labels = _labels(match["labels"] or "")
    if labels is None:
        return None
    try:
        value = float(match["value"])
    except ValueError:
        return None
    ts = match["ts"]
    return Series(match["name"], labels, value, None if ts is None else int(ts))


def _labels(text: str) -> dict[str, str] | None:
    found: dict[str, str] = {}
    place = 0
    while place < len(text):
        match = _LABEL.match(text, place)
        if match is None:
            return None if text[place:].strip() else found
        found[match[1]] = _ESCAPED.sub(lambda esc: _ESCAPES.get(esc[0], esc[0]), match[2])
        place = match.end()
    return found
