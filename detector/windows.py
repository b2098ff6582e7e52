"""Ten-second windows per GPU, for the cohort tier and the live view.

A window of a node closes when the node's own time passes its end: nothing else can add to it,
since ticks of one node come in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from detector.arrays import Field, FloatArray, IntArray, StateTable
from detector.fleet import Fleet
from detector.frame import Frame
from schemas.metrics import CATALOGUE, METRIC_INDEX
from schemas.window import WINDOW_MS, MetricWindow, WindowBatch, WindowSource

__all__ = ["WindowTable"]

_WIDTH = len(CATALOGUE)
_REASONS = METRIC_INDEX["clock_event_reasons"]
_SUMS = {"sum": 0.0, "min": np.inf, "max": -np.inf, "last": np.nan}
_FIELDS: Mapping[str, Field] = {
    **{name: Field("f8", fresh, _WIDTH) for name, fresh in _SUMS.items()},
    "count": Field("i4", 0, _WIDTH),
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
        self.table = StateTable(_FIELDS)
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
        here = np.flatnonzero(~frame.gone)
        self._accumulate(rows[here], frame.x[:, here].T)
        return closed

    def _accumulate(self, rows: IntArray, values: FloatArray) -> None:
        """Add (n, metrics) values to the rows' open windows."""
        table, seen = self.table, np.isfinite(values)
        table["sum"][rows] += np.where(seen, values, 0.0)
        table["min"][rows] = np.fmin(table["min"][rows], values)
        table["max"][rows] = np.fmax(table["max"][rows], values)
        table["last"][rows] = np.where(seen, values, table["last"][rows])
        table["count"][rows] += seen
        table["samples"][rows] += 1
        bits = np.where(seen[:, _REASONS], values[:, _REASONS], 0.0).astype(np.int64)
        table["reasons"][rows] |= bits

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
        offered = np.flatnonzero(count.any(axis=0))
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
            m={CATALOGUE[column].name: self._summary(index, column) for column in offered.tolist()},
            labels=dict(fleet.nodes[fleet.node_of(node)].labels),
        )

    def _summary(self, index: IntArray, column: int) -> MetricWindow:
        count = self.table["count"][index, column]
        mean = self.table["sum"][index, column] / np.maximum(count, 1)
        return MetricWindow(
            mean=_listed(mean, count),
            min=_listed(self.table["min"][index, column], count),
            max=_listed(self.table["max"][index, column], count),
            last=_listed(self.table["last"][index, column], count),
        )


def _listed(values: FloatArray, count: IntArray) -> list[float | None]:
    """(g,) values as a list, None where nothing was read."""
    return [v if n else None for v, n in zip(values.tolist(), count.tolist(), strict=True)]
