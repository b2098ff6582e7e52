"""Who has not been heard of: arrival times of a partition's nodes, and what silence means.

The one place where the time of arrival counts, because a node that says nothing has no event
time. Whoever calls it answers for the reader having no lag; a replay never calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray, IntArray, StateTable
from detector.frame import Frame
from schemas.metrics import METRIC_INDEX
from schemas.sample import CollectorState, CollectorStatus, NodeSample

__all__ = ["NO_WALL_CLOCK", "Silence", "node_frame"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes

#: Sources whose event time is not that of the wall clock, or that end with their input.
NO_WALL_CLOCK = frozenset({"replay", "simulated"})
#: A node is reported by itself only so long after its time was up: others may follow it.
_TOGETHER_SECONDS = 5.0
#: Seconds of silence that are allowed, of the seconds between messages.
Allowed = Callable[[FloatArray], FloatArray]

_FIELDS = {
    "arrived": Field("i8", 0),
    "every": Field("f4"),
    "watched": Field("?", 0),
    "covered": Field("?", 0),
}


class Silence:
    """Arrivals of the nodes of one partition; rows are those of the fleet's nodes.

    Parameters
    ----------
    share, nodes
        So large a part of the nodes, 0 to 1, and so many of them, falling silent at once are
        one fault of the pipeline or the network and not so many faults of nodes.

    Examples
    --------
    >>> silence = Silence(share=0.1, nodes=3)
    >>> sample = NodeSample(node="n1", boot_id="b", seq=0, ts=(1_790_000_000_000,), gpu=(), m={})
    >>> silence.hear(0, sample, 1_790_000_000_500)
    >>> thirty = lambda every: np.maximum(3.0 * every, 30.0)
    >>> silence.look(1_790_000_030_000, np.zeros(1, dtype=bool), thirty).tolist()
    []
    >>> silence.look(1_790_000_040_000, np.zeros(1, dtype=bool), thirty).tolist()
    [0]
    """

    def __init__(self, share: float, nodes: float) -> None:
        self._share = share
        self._nodes = nodes
        self.table = StateTable(_FIELDS)
        #: What nodes last said of their collector, and arrivals not yet in the table: a node says
        #: the same in every message, and the table is asked once a second.
        self._last: dict[int, CollectorStatus] = {}
        self._news: dict[int, int] = {}

    def hear(self, row: int, sample: NodeSample, arrived_ms: int) -> None:
        """Note that a node has spoken. One that stops, or is replayed, is not listened for."""
        table, status = self.table, sample.collector
        if self._last.get(row) is status:
            self._news[row] = max(arrived_ms, self._news.get(row, 0))
            return
        self._last[row] = status
        self._take_in()
        table.grow(row + 1)
        table["arrived"][row] = max(int(table["arrived"][row]), arrived_ms)
        table["every"][row] = max(status.interval_seconds, status.flush_seconds)
        stops = status.state == CollectorState.STOPPING
        table["watched"][row] = not stops and status.source not in NO_WALL_CLOCK
        table["covered"][row] = False

    def _take_in(self) -> None:
        """Write the arrivals that wait into the table."""
        if self._news:
            rows = np.fromiter(self._news, dtype=np.int64)
            arrived = np.fromiter(self._news.values(), dtype=np.int64)
            self.table["arrived"][rows] = np.maximum(self.table["arrived"][rows], arrived)
            self.table["covered"][rows] = False
            self._news.clear()

    def seconds(self, now_ms: int) -> FloatArray:
        """(nodes,) seconds since each was heard; NaN for those not listened for."""
        self._take_in()
        since = (now_ms - self.table["arrived"]) / 1000.0
        return np.where(self.table["watched"], np.maximum(since, 0.0), np.nan)

    def look(self, now_ms: int, reported: BoolArray, allowed: Allowed) -> IntArray:
        """Return the rows of nodes to report one by one, after setting apart what fell together.

        Parameters
        ----------
        now_ms
            Unix milliseconds by the wall clock.
        reported
            (nodes,) an alert of the node's silence is open.
        allowed
            Seconds of silence that are allowed.
        """
        table, seconds = self.table, self.seconds(now_ms)
        over = seconds - allowed(table["every"].astype(np.float64))
        fresh = (over > 0.0) & ~reported & ~table["covered"]
        ripe = fresh & (over > _TOGETHER_SECONDS)
        if not ripe.any():
            return np.zeros(0, dtype=np.int64)
        many = fresh.sum() >= self._nodes and fresh.sum() > self._share * self.known()
        if many:
            table["covered"][fresh] = True
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(ripe).astype(np.int64)

    def known(self) -> int:
        """Count the nodes that are listened for."""
        return int(self.table["watched"].sum())

    def together(self) -> IntArray:
        """Return the rows of nodes that fell silent at once and are still silent."""
        self._take_in()
        return np.flatnonzero(self.table["covered"]).astype(np.int64)

    def release(self, now_ms: int) -> None:
        """Count those still silent anew from now: most are back, these have their own reason."""
        self._take_in()
        late = self.table["covered"].copy()
        self.table["arrived"][late] = now_ms
        self.table["covered"][late] = False

    def unheard(self, now_ms: int, since_ms: float) -> IntArray:
        """Return the rows of nodes that were heard once, and not for so long."""
        self._take_in()
        arrived = self.table["arrived"]
        return np.flatnonzero((arrived > 0) & (now_ms - arrived > since_ms)).astype(np.int64)

    def forget(self, rows: IntArray) -> None:
        """Begin anew with these nodes."""
        self._take_in()
        self.table.reset(rows)
        for row in rows.tolist():
            self._last.pop(row, None)

    def dump(self) -> dict[str, AnyArray]:
        """Return the arrays for a snapshot."""
        self._take_in()
        return self.table.dump()

    def load(self, arrays: Mapping[str, AnyArray], rows: int) -> list[str]:
        """Take over saved arrays; return the names of those that start fresh."""
        self._last.clear()
        self._news.clear()
        saved = len(arrays.get("arrived", ()))
        return self.table.load(arrays, saved if saved <= rows else 0) if arrays else []


def node_frame(rows: IntArray, ts: IntArray, extra: dict[str, FloatArray]) -> Frame:
    """Build a frame of nodes that sent nothing: only ``extra`` is known."""
    size = len(rows)
    unset, unknown = np.zeros(size, dtype=bool), np.full(size, -1, dtype=np.int64)
    return Frame(
        rows=rows,
        ts=ts,
        dt=np.full(size, np.nan),
        interval=np.full(size, np.nan),
        x=np.full((len(METRIC_INDEX), size), np.nan),
        offered=np.zeros(0, dtype=np.int64),
        blocks=np.arange(size).reshape(size, 1),
        lost=unset,
        absent=unset,
        gone=unset,
        mig_parent=unset,
        mig_instance=unset,
        model=unknown,
        job=unknown,
        extra=extra,
    )
