"""The stream tier: every sample of one partition, vectorised over its GPUs, deterministic.

The same messages in the same order give the same alerts and windows, however they are batched,
stopped and resumed. No clock, no I/O, no log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detector.admission import admit
from detector.arrays import prefixed, unprefixed
from detector.base import Detector
from detector.fleet import Fleet, GpuRow
from detector.frame import Frame
from detector.rounds import Block, block_of, rounds
from detector.stage import Stage
from detector.windows import WindowTable
from schemas.alert import AlertEvent, Scope, Subject
from schemas.sample import NodeSample
from schemas.window import WindowBatch

__all__ = ["Engine", "Outcome"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(slots=True)
class Outcome:
    """What came of a batch: alerts and windows in order, and counts of what happened."""

    alerts: list[AlertEvent] = field(default_factory=list)
    windows: list[WindowBatch] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class Engine:
    """All state of one partition of ``gpu.samples``.

    Parameters
    ----------
    detectors
        From ``detector.registry.build``.
    topic, partition
        Source, named in the windows.

    Examples
    --------
    >>> from detector.registry import build
    >>> engine = Engine(build(), topic="gpu.samples", partition=0)
    >>> engine.process([]).alerts
    []
    """

    def __init__(self, detectors: Iterable[Detector], *, topic: str, partition: int) -> None:
        chosen = tuple(detectors)
        self.fleet = Fleet()
        self.gpus = Stage(
            (d for d in chosen if d.scope == Scope.GPU), self._gpu_subject, self._gpu_labels
        )
        self.nodes = Stage(
            (d for d in chosen if d.scope == Scope.NODE), self._node_subject, self._node_labels
        )
        self.windows = WindowTable(self.fleet, topic, partition)

    def process(self, samples: Sequence[NodeSample]) -> Outcome:
        """Take messages in log order.

        Parameters
        ----------
        samples
            Any number of messages of this partition.

        Returns
        -------
        Outcome
            Alerts in the order of event time per node.
        """
        outcome = Outcome()
        pending: list[Block] = []
        for sample in samples:
            item = admit(self.fleet, sample, outcome.counts)
            if item is None:
                continue
            if self.fleet.changes_facts(item.node_row, sample):
                self._run(pending, outcome)
                pending = []
            pending.append(block_of(self.fleet, item))
        self._run(pending, outcome)
        return outcome

    def _run(self, blocks: list[Block], outcome: Outcome) -> None:
        for step in rounds(self.fleet, blocks):
            self._grow()
            self._close_moved(outcome, int(step.nodes.ts[0]))
            outcome.alerts += self.gpus.run(step.gpus)
            step.nodes.members_open = self.gpus.open_now(step.gpus.rows)
            outcome.alerts += self.nodes.run(step.nodes)
            outcome.windows += self.windows.add(step.gpus)
            outcome.counts["gpu_samples"] += int((~step.gpus.gone).sum())

    def _grow(self) -> None:
        self.gpus.grow(len(self.fleet.gpus))
        self.nodes.grow(len(self.fleet.nodes))
        self.windows.table.grow(len(self.fleet.gpus))

    def _close_moved(self, outcome: Outcome, at_ms: int) -> None:
        """End what was open on GPUs that changed their node or slot."""
        if not self.fleet.moved:
            return
        moved, self.fleet.moved = self.fleet.moved, []
        subjects = {row: _subject(was) for row, was in moved}
        rows = np.array(sorted(subjects), dtype=np.int64)
        outcome.alerts += self.gpus.close(rows, subjects, at_ms, "gpu_moved")
        self.windows.table.reset(rows)
        outcome.counts["gpus_moved"] += len(rows)

    def _gpu_subject(self, row: int, position: int, frame: Frame) -> Subject:
        job, project = self.fleet.jobs.get(int(frame.job[position]), (None, None))
        return _subject(self.fleet.gpus[row], job, project)

    def _node_subject(self, row: int, position: int, frame: Frame) -> Subject:
        del position, frame
        return Subject(scope=Scope.NODE, node=self.fleet.nodes[row].name)

    def _gpu_labels(self, row: int) -> dict[str, str]:
        return self._node_labels(self.fleet.node_of(self.fleet.gpus[row].node))

    def _node_labels(self, row: int) -> dict[str, str]:
        return dict(self.fleet.nodes[row].labels)

    def bytes_per_gpu(self) -> dict[str, int]:
        """Size of the state of one GPU, by part, in bytes."""
        return {
            "detectors": self.gpus.bytes_per_row(),
            "fleet": self.fleet.gpu_table.bytes_per_row(),
            "windows": self.windows.table.bytes_per_row(),
        }

    def dump(self) -> tuple[dict[str, Any], dict[str, AnyArray]]:
        """Return the state: names as JSON values, numbers as arrays."""
        metrics, windows = self.windows.dump()
        arrays = {
            **prefixed("gpu", self.gpus.dump()),
            **prefixed("node", self.nodes.dump()),
            **prefixed("windows", windows),
            **prefixed("fleet/gpu", self.fleet.gpu_table.dump()),
            **prefixed("fleet/node", self.fleet.node_table.dump()),
        }
        return {**self.fleet.dump(), "window_metrics": metrics}, arrays

    def load(self, facts: dict[str, Any], arrays: Mapping[str, AnyArray]) -> list[str]:
        """Take over a dumped state; return the names of arrays that start fresh instead."""
        self.fleet.load(facts)
        gpus, nodes = len(self.fleet.gpus), len(self.fleet.nodes)
        dropped = self.gpus.load(unprefixed("gpu", arrays), gpus)
        dropped += self.nodes.load(unprefixed("node", arrays), nodes)
        names = facts.get("window_metrics", [])
        dropped += self.windows.load(names, unprefixed("windows", arrays), gpus)
        dropped += self.fleet.gpu_table.load(unprefixed("fleet/gpu", arrays), gpus)
        dropped += self.fleet.node_table.load(unprefixed("fleet/node", arrays), nodes)
        return dropped


def _subject(gpu: GpuRow, job: str | None = None, project: str | None = None) -> Subject:
    return Subject(
        scope=Scope.GPU,
        node=gpu.node,
        gpu_uuid=gpu.uuid,
        gpu_index=gpu.index,
        pci=gpu.pci,
        model=gpu.model,
        job=job,
        project=project,
    )
