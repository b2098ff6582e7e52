"""Which GPUs of a recording are there at all: a damaged cell names some that never were."""

from __future__ import annotations

from dataclasses import dataclass, field

from collector.replay.stats import ReplayStats

__all__ = ["Newcomers"]

#: A node's first ticks introduce its GPUs; later ones have to be seen so often in a row.
_FIRST_TICKS = 10
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
    _there: set[str] = field(default_factory=set)
    _early: set[str] = field(default_factory=set)
    _waiting: dict[str, tuple[int, int]] = field(default_factory=dict)

    def admits(self, node: str, gpu: str, ts: int, gap_ms: float) -> bool:
        """Tell whether a row counts.

        Parameters
        ----------
        node, gpu, ts
            Of the row; unix milliseconds.
        gap_ms
            Time between two rows of one GPU after which it must begin anew.
        """
        if gpu in self._there:
            return True
        times, last = self._waiting.get(gpu, (0, ts))
        times = times + 1 if 0 <= ts - last <= gap_ms else 1
        if times >= _SIGHTINGS:
            self._waiting.pop(gpu, None)
            self._there.add(gpu)
            return True
        if len(self._waiting) >= _MOST_WAITING:  # noise that never comes again
            self._waiting.clear()
        self._waiting[gpu] = (times, ts)
        if gpu in self._early or self._ticks.get(node, 0) < _FIRST_TICKS:
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
