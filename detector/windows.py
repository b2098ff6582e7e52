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
from detector.recent import Recent
from schemas.metrics import CATALOGUE, METRIC_INDEX
from schemas.window import WINDOW_MS, WindowBatch, WindowColumns, WindowSource

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
    recent
        Keeps the means of closed windows for a while; None keeps none.
    """

    def __init__(
        self, fleet: Fleet, topic: str, partition: int, recent: Recent | None = None
    ) -> None:
        self._recent = recent
        self.table = StateTable(_fields(0))
        #: Catalogue indices of the metrics seen so far, in the order of the table's columns.
        self.metrics = np.zeros(0, dtype=np.int64)
        self._widened_for = b""
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
        # In rows, as the table has them: one transposed copy makes all that follows cheap.
        values = np.ascontiguousarray(frame.x[self.metrics].T)
        reasons = frame.x[_REASONS]
        if not np.count_nonzero(frame.gone):
            self._accumulate(frame.at, values, reasons)
        else:
            here = ~frame.gone
            self._accumulate(rows[here], values[here], reasons[here])
        return closed

    def _widen(self, offered: IntArray) -> None:
        """Make columns for metrics that were never seen before; most fleets have half of them."""
        known = offered.tobytes()
        if known == self._widened_for:
            return
        self._widened_for = known
        new = np.setdiff1d(offered, self.metrics, assume_unique=True)
        if len(new) == 0:
            return
        old, width = self.table.dump(), len(self.metrics)
        self.metrics = np.concatenate([self.metrics, new])
        self.table = StateTable(_fields(len(self.metrics)))
        self.table.grow(len(old["start"]))
        for name, array in old.items():
            if array.ndim == 2:
                self.table[name][:, :width] = array[:, :width]
            else:
                self.table[name][:] = array

    def _accumulate(self, rows: IntArray | slice, values: FloatArray, reasons: FloatArray) -> None:
        """Add (n, metrics) values and (n,) event reasons to the rows' open windows."""
        if len(values) == 0:  # only heartbeats
            return
        # The table has two columns at least; a GPU may answer nothing at all.
        unused = self.table["sum"].shape[1] - len(self.metrics)
        if unused:
            values = np.column_stack([values, np.full((len(values), unused), np.nan)])
        table, missing = self.table, np.isnan(values)
        table["samples"][rows] += 1
        bits = np.where(np.isnan(reasons), 0.0, reasons).astype(np.int64)
        table["reasons"][rows] |= bits
        if np.count_nonzero(missing):
            self._add_with_gaps(rows, values, missing)
            return
        table["sum"][rows] += values
        table["min"][rows] = np.minimum(table["min"][rows], values)
        table["max"][rows] = np.maximum(table["max"][rows], values)
        table["last"][rows] = values
        table["count"][rows] += 1

    def _add_with_gaps(
        self, rows: IntArray | slice, values: FloatArray, missing: BoolArray
    ) -> None:
        table = self.table
        table["sum"][rows] += np.where(missing, 0.0, values)
        table["min"][rows] = np.fmin(table["min"][rows], values)
        table["max"][rows] = np.fmax(table["max"][rows], values)
        table["last"][rows] = np.where(missing, table["last"][rows], values)
        table["count"][rows] += ~missing

    def newest(self, row: int) -> dict[str, float]:
        """Return metric to the newest reading in a GPU's open window; NaN where there is none."""
        last = self.table["last"][row].tolist()
        return {CATALOGUE[n].name: last[at] for at, n in enumerate(self.metrics.tolist())}

    def dump(self) -> tuple[list[str], dict[str, AnyArray]]:
        """Return the names of the columns, and the arrays."""
        return [CATALOGUE[number].name for number in self.metrics.tolist()], self.table.dump()

    def load(self, names: Sequence[str], arrays: Mapping[str, AnyArray], rows: int) -> list[str]:
        """Take over dumped windows; return the names of arrays that start fresh instead."""
        known = [METRIC_INDEX[name] for name in names if name in METRIC_INDEX]
        self.metrics = np.array(known, dtype=np.int64)
        self._widened_for = b""
        self.table = StateTable(_fields(len(known)))
        return self.table.load(arrays, rows)

    def _close(self, rows: IntArray, opened: IntArray, now: IntArray) -> list[WindowBatch]:
        """Build the batches of the rows' windows, one per (node, job, start)."""
        groups: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        watermark: dict[str, int] = {}
        samples, jobs = self.table["samples"][rows].tolist(), self.table["job"][rows].tolist()
        for row, start, next_start, number, job in zip(
            rows.tolist(), opened.tolist(), now.tolist(), samples, jobs, strict=True
        ):
            if start and number:
                node = self._fleet.gpus[row].node
                groups[node, job, start].append(row)
                watermark[node] = next_start
        if not groups:
            return []
        ordered = np.array([row for members in groups.values() for row in members])
        summary = _Summary(self, ordered)
        if self._recent is not None:
            starts = [start for (_, _, start), members in groups.items() for _ in members]
            self._recent.keep(ordered, np.array(starts), summary.means())
        batches, first = [], 0
        for (node, job, start), members in groups.items():
            part = summary.part(first, first + len(members))
            batches.append(self._batch(node, job, start, members, watermark[node], part))
            first += len(members)
        return batches

    def _batch(
        self,
        node: str,
        job_code: int,
        start: int,
        members: list[int],
        watermark: int,
        part: dict[str, Any],
    ) -> WindowBatch:
        fleet = self._fleet
        job = fleet.jobs[job_code][0] if job_code in fleet.jobs else None
        return WindowBatch(
            cohort=job or node,
            node=node,
            job=job,
            start=start,
            end=start + WINDOW_MS,
            source=WindowSource(topic=self._topic, partition=self._partition, watermark=watermark),
            gpu=tuple([fleet.gpus[row].uuid for row in members]),
            model=tuple([fleet.gpus[row].model for row in members]),
            labels=dict(fleet.nodes[fleet.node_of(node)].labels),
            **part,
        )


class _Summary:
    """The windows of many rows at once: a fleet's windows all close with the same tick.

    Parameters
    ----------
    windows
        The table that they are in.
    rows
        (n,) rows in the order in which :meth:`part` cuts them.
    """

    def __init__(self, windows: WindowTable, rows: IntArray) -> None:
        table = windows.table
        # In catalogue order, whatever order the metrics were met in.
        order = np.argsort(windows.metrics)
        self._numbers = windows.metrics[order]
        self._names = tuple(CATALOGUE[number].name for number in self._numbers.tolist())

        def by_metric(name: str) -> AnyArray:
            return np.ascontiguousarray(table[name][rows][:, order].T)

        self._count = by_metric("count")
        self._samples = table["samples"][rows]
        self._reasons = table["reasons"][rows]
        self._min, self._max, self._last = by_metric("min"), by_metric("max"), by_metric("last")
        self._mean = by_metric("sum") / np.maximum(self._count, 1)
        nothing = self._count == 0
        if np.count_nonzero(nothing):
            for array in (self._min, self._max, self._mean):  # 0 and infinities until then
                array[nothing] = np.nan

    def means(self) -> dict[str, FloatArray]:
        """Return metric to (n,) means, NaN where there was no reading."""
        return dict(zip(self._names, self._mean, strict=True))

    def part(self, first: int, last: int) -> dict[str, Any]:
        """Return the fields of the batch of rows ``first`` to ``last``."""
        count, samples = self._count[:, first:last], self._samples[first:last]
        parts = {"mean": self._mean, "min": self._min, "max": self._max, "last": self._last}
        names, offered = self._names, np.flatnonzero(count.any(axis=1))
        if len(offered) < len(names):
            names = tuple(names[at] for at in offered.tolist())
            parts = {name: array[offered] for name, array in parts.items()}
        return {
            "samples": tuple(samples.tolist()),
            "missing": tuple((samples * len(names) - count.sum(axis=0)).tolist()),
            "clock_event_reasons": tuple(self._reasons[first:last].tolist()),
            "m": WindowColumns(
                names,
                **{name: array[:, first:last] for name, array in parts.items()},
            ),
        }
