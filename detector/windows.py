"""Ten-second windows per GPU, for the cohort tier and the live view.

A window of a node closes when the node's own time passes its end: nothing else can add to it,
since ticks of one node come in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray, IntArray, StateTable
from detector.fleet import Fleet
from detector.frame import Frame
from schemas.metrics import CATALOGUE, METRIC_INDEX
from schemas.window import WINDOW_MS, MetricWindow, WindowBatch, WindowSource

__all__ = ["WindowTable"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes

_REASONS = METRIC_INDEX["clock_event_reasons"]
_FRESH = {"sum": 0.0, "min": np.inf, "max": -np.inf, "last": np.nan}


def _fields(width: int) -> dict[str, Field]:
    """Declare the arrays for so many metrics."""
    return {
        **{name: Field("f8", fresh, max(width, 2)) for name, fresh in _FRESH.items()},
        "count": Field("i2", 0, max(width, 2)),
        "samples": Field("i4", 0),
        "reasons": Field("i8", 0),
        "job": Field("i4", -1),
        "start": Field("i8", 0),
    }


class WindowTable:
    """The open window of every GPU.

    Parameters
    ----------
    fleet
        Names, models and jobs of the rows.
    topic, partition
        Source of the samples, named in every window.
    """

    def __init__(self, fleet: Fleet, topic: str, partition: int) -> None:
        self.table = StateTable(_fields(0))
        #: Catalogue indices of the metrics seen so far, in the order of the table's columns.
        self._metrics = np.zeros(0, dtype=np.int64)
        self._fleet = fleet
        self._topic = topic
        self._partition = partition

    def add(self, frame: Frame) -> list[WindowBatch]:
        """Close the windows that this frame leaves behind, then add the frame.

        Returns
        -------
        list of WindowBatch
            In the order of the nodes in the frame.
        """
        rows, ts = frame.rows, frame.ts
        start = ts - ts % WINDOW_MS
        opened = self.table["start"][rows]
        # Also of GPUs that are gone: their last window ends with the node's time.
        leaving = opened != start
        closed: list[WindowBatch] = []
        if leaving.any():
            closed = self._close(rows[leaving], opened[leaving], start[leaving])
            self.table.reset(rows[leaving])
            self.table["start"][rows[leaving]] = start[leaving]
            self.table["job"][rows[leaving]] = frame.job[leaving]
        self._widen(frame.offered)
        here = ~frame.gone
        everything = here.all()
        values = frame.x[self._metrics].T
        reasons = frame.x[_REASONS]
        if everything:
            self._accumulate(rows, values, reasons)
        else:
            self._accumulate(rows[here], values[here], reasons[here])
        return closed

    def _widen(self, offered: IntArray) -> None:
        """Make columns for metrics that were never seen before; most fleets have half of them."""
        new = np.setdiff1d(offered, self._metrics, assume_unique=True)
        if len(new) == 0:
            return
        old, width = self.table.dump(), len(self._metrics)
        self._metrics = np.concatenate([self._metrics, new])
        self.table = StateTable(_fields(len(self._metrics)))
        self.table.grow(len(old["start"]))
        for name, array in old.items():
            if array.ndim == 2:
                self.table[name][:, :width] = array[:, :width]
            else:
                self.table[name][:] = array

    def _accumulate(self, rows: IntArray, values: FloatArray, reasons: FloatArray) -> None:
        """Add (n, metrics) values and (n,) event reasons to the rows' open windows."""
        if len(rows) == 0:  # only heartbeats: perhaps no metric was ever seen
            return
        if len(self._metrics) == 1:
            values = np.column_stack([values, np.full(len(values), np.nan)])
        table, seen = self.table, np.isfinite(values)
        table["sum"][rows] += np.where(seen, values, 0.0)
        table["min"][rows] = np.fmin(table["min"][rows], values)
        table["max"][rows] = np.fmax(table["max"][rows], values)
        table["last"][rows] = np.where(seen, values, table["last"][rows])
        table["count"][rows] += seen
        table["samples"][rows] += 1
        table["reasons"][rows] |= np.nan_to_num(reasons).astype(np.int64)

    def dump(self) -> tuple[list[str], dict[str, AnyArray]]:
        """Return the names of the columns, and the arrays."""
        return [CATALOGUE[number].name for number in self._metrics.tolist()], self.table.dump()

    def load(self, names: Sequence[str], arrays: Mapping[str, AnyArray], rows: int) -> list[str]:
        """Take over dumped windows; return the names of arrays that start fresh instead."""
        known = [METRIC_INDEX[name] for name in names if name in METRIC_INDEX]
        self._metrics = np.array(known, dtype=np.int64)
        self.table = StateTable(_fields(len(known)))
        return self.table.load(arrays, rows)

    def _close(self, rows: IntArray, opened: IntArray, now: IntArray) -> list[WindowBatch]:
        """Build the batches of the rows' windows, one per (node, job, start)."""
        groups: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        watermark: dict[str, int] = {}
        for row, start, next_start in zip(
            rows.tolist(), opened.tolist(), now.tolist(), strict=True
        ):
            if start and self.table["samples"][row]:
                node = self._fleet.gpus[row].node
                groups[node, int(self.table["job"][row]), start].append(row)
                watermark[node] = next_start
        return [
            self._batch(node, job, start, members, watermark[node])
            for (node, job, start), members in groups.items()
        ]

    def _batch(
        self, node: str, job_code: int, start: int, members: list[int], watermark: int
    ) -> WindowBatch:
        fleet, table = self._fleet, self.table
        index = np.array(members, dtype=np.int64)
        count = table["count"][index]
        # In catalogue order, whatever order the metrics were met in.
        order = np.argsort(self._metrics)
        offered = order[count[:, order].any(axis=0)]
        samples = table["samples"][index]
        job = fleet.jobs[job_code][0] if job_code in fleet.jobs else None
        return WindowBatch(
            cohort=job or node,
            node=node,
            job=job,
            start=start,
            end=start + WINDOW_MS,
            source=WindowSource(topic=self._topic, partition=self._partition, watermark=watermark),
            gpu=tuple(fleet.gpus[row].uuid for row in members),
            model=tuple(fleet.gpus[row].model for row in members),
            samples=tuple(samples.tolist()),
            missing=tuple((samples * len(offered) - count[:, offered].sum(axis=1)).tolist()),
            clock_event_reasons=tuple(table["reasons"][index].tolist()),
            m=self._summaries(index, offered, count[:, offered]),
            labels=dict(fleet.nodes[fleet.node_of(node)].labels),
        )

    def _summaries(
        self, index: IntArray, offered: IntArray, count: IntArray
    ) -> dict[str, MetricWindow]:
        """Summarise all metrics at once: a window per node closes every ten seconds."""
        cells = np.ix_(index, offered)
        total, least = self.table["sum"][cells], self.table["min"][cells]
        most, last = self.table["max"][cells], self.table["last"][cells]
        mean = total / np.maximum(count, 1)
        missing = count == 0
        columns = [_columns(part, missing) for part in (mean, least, most, last)]
        return {
            CATALOGUE[number].name: MetricWindow(mean=a, min=b, max=c, last=d)
            for number, a, b, c, d in zip(self._metrics[offered].tolist(), *columns, strict=True)
        }


def _columns(values: FloatArray, missing: BoolArray) -> list[list[float | None]]:
    """(g, metrics) as one list per metric, None where nothing was read."""
    if not missing.any():
        complete: list[list[float | None]] = values.T.tolist()
        return complete
    return [
        [None if absent else value for value, absent in zip(column, gaps, strict=True)]
        for column, gaps in zip(values.T.tolist(), missing.T.tolist(), strict=True)
    ]
