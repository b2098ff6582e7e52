"""Lines of plain or compressed files, one at a time, whatever their encoding.

A recording may be larger than memory and may end in the middle of a line or of a compressed
block; both are met where they happen and reported, and what came before is used.
"""

from __future__ import annotations

import io
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from collector.replay.packed import GZIP_MAGIC, Unpacked
from collector.replay.stats import ReplayStats
from schemas.errors import SourceError

__all__ = ["MAX_LINE_CHARS", "Line", "open_error", "read_lines", "short_lines"]

#: A message of gpu.samples has at most 1 MiB; a longer line is no line but a foreign file.
MAX_LINE_CHARS = 8 * 2**20
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_TELL_EVERY = 64
_MOST_SCREEN_CHARS = 2000


class Line(NamedTuple):
    """One line without its end, and its number from 1."""

    number: int
    text: str


def open_error(path: Path, exc: OSError) -> SourceError:
    """Say that a file cannot be used, in a sentence."""
    return SourceError(f"Cannot read {path}: {exc.strerror or exc}.")


def read_lines(path: Path, stats: ReplayStats) -> Iterator[Line]:
    """Iterate over the lines of one file, in constant memory.

    Parameters
    ----------
    path
        Plain or gzip, recognised by its first bytes, not by its name. UTF-8, or UTF-16 with a
        byte order mark, as PowerShell writes it. Bytes that are no text become U+FFFD.
    stats
        Receives ``bytes_read`` (bytes on disk), and the damage of a compressed file.

    Raises
    ------
    SourceError
        If the file cannot be opened or read.
    """
    start = stats.bytes_read
    try:
        _require_file(path)
        with path.open("rb") as raw:
            packed = Unpacked(raw) if raw.peek(2).startswith(GZIP_MAGIC) else None
            with _text(raw if packed is None else io.BufferedReader(packed)) as text:
                for line in _numbered(text, path, stats, packed):
                    if line.number % _TELL_EVERY == 0:
                        stats.bytes_read = start + raw.tell()
                    yield line
                stats.bytes_read = start + raw.tell()
    except OSError as exc:
        raise open_error(path, exc) from exc


def _require_file(path: Path) -> None:
    """Refuse what can be read only once: a recording is looked at before it is replayed."""
    kind = None if str(path) == "-" else path.stat().st_mode
    if kind is None or stat.S_ISFIFO(kind) or stat.S_ISCHR(kind) or stat.S_ISSOCK(kind):
        raise SourceError(
            f"Cannot read {path}: it is no file, and a recording is read twice, the first time to "
            "find out what it is. Save it to a file."
        )


def short_lines(lines: Iterable[Line]) -> Iterator[Line]:
    """Leave out lines that are longer than any of a screen: patterns would search them for ever."""
    return (line for line in lines if len(line.text) <= _MOST_SCREEN_CHARS)


def _numbered(
    text: io.TextIOWrapper, path: Path, stats: ReplayStats, packed: Unpacked | None
) -> Iterator[Line]:
    number = 0
    while True:
        number += 1
        line = text.readline(MAX_LINE_CHARS)
        fault = None if packed is None else packed.fault
        # Where the data ends early, so does its last line: a number may have lost its end.
        if fault is not None and not line.endswith("\n"):
            stats.damage(path, number, fault)
            return
        if not line:
            return
        yield Line(number, line.rstrip("\r\n"))


def _text(data: io.BufferedReader) -> io.TextIOWrapper:
    encoding = "utf-16" if data.peek(2)[:2] in _UTF16_MARKS else "utf-8-sig"
    return io.TextIOWrapper(data, encoding=encoding, errors="replace")
