"""Which GPUs of a recording are there at all: a damaged cell names some that never were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from collector.replay.stats import ReplayStats

__all__ = ["Newcomers"]

#: A node's first ticks and seconds introduce its GPUs, in one tick or each in its own; later ones
#: have to be seen so often in a row.
_FIRST_TICKS = 10
_FIRST_MS = 10_000
#: In a row: so many times the usual time between two rows of one GPU, or this where none is known.
_APART = 3.0
_UNKNOWN_MS = 30_000.0
_SIGHTINGS = 3
_MOST_WAITING = 1000


@dataclass(slots=True, kw_only=True)
class Newcomers:
    """Believes in a GPU that appears in the middle of a recording once it has come again.

    Parameters
    ----------
    stats
        Counts the rows that were left out until then.
    """

    stats: ReplayStats
    _ticks: dict[str, int] = field(default_factory=dict)
    _begun: dict[str, int] = field(default_factory=dict)
    _there: set[str] = field(default_factory=set)
    _early: set[str] = field(default_factory=set)
    _waiting: dict[str, tuple[int, int]] = field(default_factory=dict)

    def admits(self, node: str, gpu: str, ts: int, usual_ms: Mapping[str, float]) -> bool:
        """Tell whether a row counts.

        Parameters
        ----------
        node, gpu, ts
            Of the row; unix milliseconds.
        usual_ms
            GPU to the usual time between two of its rows; not that between ticks, which is short
            where every row has a time of its own.
        """
        if gpu in self._there:
            return True
        times, last = self._waiting.get(gpu, (0, ts))
        usual = [usual_ms[one] for one in self._there if one in usual_ms]
        apart = _APART * median(usual) if usual else _UNKNOWN_MS
        times = times + 1 if 0 <= ts - last <= apart else 1
        if times >= _SIGHTINGS:
            self._waiting.pop(gpu, None)
            self._there.add(gpu)
            return True
        if len(self._waiting) >= _MOST_WAITING:  # noise that never comes again
            self._waiting.clear()
        self._waiting[gpu] = (times, ts)
        early = ts - self._begun.setdefault(node, ts) <= _FIRST_MS
        if gpu in self._early or early or self._ticks.get(node, 0) < _FIRST_TICKS:
            self._early.add(gpu)
            return True
        self.stats.unconfirmed += 1
        return False

    def is_doubtful(self, gpu: str) -> bool:
        """Tell whether a GPU was never seen often enough for its absence to say anything."""
        return gpu not in self._there

    def tick(self, node: str) -> None:
        """Count a reading of a node."""
        self._ticks[node] = min(self._ticks.get(node, 0) + 1, _FIRST_TICKS)
