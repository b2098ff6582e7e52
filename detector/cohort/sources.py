"""Which windows of a cohort are complete: those that its slowest source has passed.

Sources run at different speeds in a replay and while a detector catches up, so a window closes at
the minimum of their watermarks, never at the maximum. Three things are known besides:

* A node that speaks for other cohorts and no longer for this one has left it: its own time counts,
  one window behind, because windows of one moment come one after the other.
* A cohort that is new may have more nodes in a partition that is behind. Until every partition
  that was ever heard here has reached the window, it waits; for an hour of windows at most.
* A source without news is left out only while nothing lags.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.window import WINDOW_MS, WindowBatch

__all__ = ["BACK_MS", "Arrivals", "Clocks"]

#: Behind the newest by so much a source is silent, if nothing lags.
_SILENT_MS = 60_000
#: A node whose windows fall behind its own by more had its clock set back.
BACK_MS = 24 * 3600 * 1000
#: A job starts on its nodes within so long; after that no node is waited for that never spoke.
_YOUNG_MS = 10 * 60_000
#: Windows that a new cohort holds back at most: an hour.
_MOST_HELD = 360


@dataclass(slots=True)
class Clocks:
    """How far every node and every partition has got, over all cohorts of a tier.

    ``nodes`` and ``partitions`` hold unix milliseconds; a partition is named by topic and number.
    """

    nodes: dict[str, int] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)

    def hear(self, batch: WindowBatch) -> None:
        """Take in the watermark of a window."""
        mark, place = batch.source.watermark, f"{batch.source.topic}/{batch.source.partition}"
        for marks, name in ((self.nodes, batch.node), (self.partitions, place)):
            known = marks.get(name, 0)
            marks[name] = mark if mark < known - BACK_MS else max(known, mark)

    def leave_out_silent(self) -> None:
        """Forget partitions that are behind although nothing lags: nobody speaks there."""
        newest = max(self.partitions.values(), default=0)
        self.partitions = {
            place: mark for place, mark in self.partitions.items() if mark > newest - _SILENT_MS
        }

    def slowest_partition(self) -> int:
        """Return how far the partition is that is furthest behind."""
        return min(self.partitions.values(), default=0)


@dataclass(slots=True)
class Arrivals:
    """Windows of one cohort that wait, and how far its nodes have got.

    Parameters
    ----------
    sources
        Node to its watermark in this cohort, unix milliseconds.
    waiting
        Start to the windows of that start, one per node.
    closed_until
        End of the last window that was closed.
    began
        Start of the cohort's first window.
    """

    sources: dict[str, int] = field(default_factory=dict)
    waiting: dict[int, list[WindowBatch]] = field(default_factory=dict)
    closed_until: int = 0
    began: int = 0

    def take(self, batch: WindowBatch) -> None:
        """Add a window, unless it is late or came before."""
        if batch.end < self.closed_until - BACK_MS:
            self.closed_until, self.waiting, self.began = 0, {}, 0
        if not self.began or batch.start < self.began:
            self.began = batch.start
        known = self.sources.get(batch.node, 0)
        if batch.source.watermark < known - BACK_MS:
            known = 0
        self.sources[batch.node] = max(known, batch.source.watermark)
        already = [one.node for one in self.waiting.get(batch.start, ())]
        if batch.end > self.closed_until and batch.node not in already:
            self.waiting.setdefault(batch.start, []).append(batch)

    def complete(self, clocks: Clocks, *, caught_up: bool) -> list[int]:
        """Return the starts of the windows that are complete, oldest first.

        Parameters
        ----------
        caught_up
            Whether the readers of all sources have no lag, so that silence means silence.
        """
        if caught_up:
            newest = max(self.sources.values())
            self.sources = {
                node: mark for node, mark in self.sources.items() if mark > newest - _SILENT_MS
            }
        until = min(
            max(mark, clocks.nodes.get(node, 0) - WINDOW_MS) for node, mark in self.sources.items()
        )
        young = self.closed_until < self.began + _YOUNG_MS
        if young and not caught_up and len(self.waiting) <= _MOST_HELD:
            until = min(until, clocks.slowest_partition())
        return [start for start in sorted(self.waiting) if start + WINDOW_MS <= until]

    def close(self, start: int) -> list[WindowBatch]:
        """Hand out the windows of one start, sorted by node."""
        self.closed_until = start + WINDOW_MS
        return sorted(self.waiting.pop(start), key=lambda batch: batch.node)

    def dump(self) -> Mapping[str, Any]:
        """Return the state as JSON values."""
        return {
            "sources": self.sources,
            "waiting": [batch for some in self.waiting.values() for batch in some],
            "closed_until": self.closed_until,
            "began": self.began,
        }
