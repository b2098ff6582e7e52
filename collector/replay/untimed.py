"""Recordings that carry no time at all: a moment is given to them, and it is said."""

from __future__ import annotations

from pathlib import Path

from collector.replay.stats import ReplayStats
from collector.replay.times import MIN_TS_MS

__all__ = ["Untimed"]

#: Distance that such recordings have where nobody chose another (dmon and dcgmi: one second).
_STEP_MS = 1000


class Untimed:
    """Gives moments a second apart, beginning when the file was last changed.

    Parameters
    ----------
    path
        The file.
    stats
        Where it is said once that times are made up.
    """

    def __init__(self, path: Path, stats: ReplayStats) -> None:
        self._path = path
        self._stats = stats
        self._next: int | None = None

    def next(self) -> str:
        """Return the next moment as text that every reader of times takes."""
        if self._next is None:
            self._next = max(MIN_TS_MS, _changed_ms(self._path))
            self._stats.remarks.append(
                f"{self._path} says no time: its readings are taken as one second apart, from "
                "the moment on when the file was last changed."
            )
        moment, self._next = self._next, self._next + _STEP_MS
        return str(moment)


def _changed_ms(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except OSError:
        return MIN_TS_MS
