"""The stream tier: every sample of one partition, vectorised over its GPUs, deterministic.

The same messages in the same order give the same alerts and windows, however they are batched,
stopped and resumed. No clock, no I/O, no log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from detector.admission import Admitted, admit
from detector.arrays import IntArray, prefixed, unprefixed
from detector.base import Detector
from detector.blocks import Block, block_of, late_block
from detector.detectors.node_silent import NodeSilent
from detector.detectors.partition_silent import PartitionSilent
from detector.fleet import Fleet, GpuRow
from detector.frame import Frame
from detector.recent import Recent
from detector.rounds import Round, rounds
from detector.silence import NO_WALL_CLOCK, Silence, node_frame
from detector.stage import NODE_CAUSES, Stage
from detector.windows import WindowTable
from schemas.alert import (
    AlertEvent,
    AlertState,
    Scope,
    Subject,
    fingerprint_of,
    parse_time,
    rfc3339,
)
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
    series_minutes
        How far back the lines beside an alert go; 0 for none.

    Examples
    --------
    >>> from detector.registry import build
    >>> engine = Engine(build(), topic="gpu.samples", partition=0)
    >>> engine.process([]).alerts
    []
    """

    def __init__(
        self,
        detectors: Iterable[Detector],
        *,
        topic: str,
        partition: int,
        series_minutes: float = 0.0,
    ) -> None:
        chosen = tuple(detectors)
        self.fleet = Fleet()
        self.gpus = Stage(
            (d for d in chosen if d.scope == Scope.GPU),
            self._gpu_subject,
            self._gpu_labels,
            self._job_subject,
        )
        self.nodes = Stage(
            (d for d in chosen if d.scope == Scope.NODE), self._node_subject, self._node_labels
        )
        self.pipeline = Stage(
            (d for d in chosen if d.scope == Scope.PIPELINE), self._pipeline_subject, lambda _: {}
        )
        self.pipeline.grow(1)
        self._name = f"{topic}/{partition}"
        self._patience = next((d for d in chosen if isinstance(d, NodeSilent)), None)
        together = next((d for d in chosen if isinstance(d, PartitionSilent)), None)
        self.silent = Silence(
            share=together.share if together else 1.0, nodes=together.nodes if together else np.inf
        )
        self._recent = Recent(series_minutes) if series_minutes > 0.0 else None
        self.windows = WindowTable(self.fleet, topic, partition, self._recent)

    def process(
        self, samples: Sequence[NodeSample], arrived_ms: Sequence[int] | None = None
    ) -> Outcome:
        """Take messages in log order.

        Parameters
        ----------
        samples
            Any number of messages of this partition.
        arrived_ms
            When the log took each of them, unix milliseconds; None in a replay, which has no
            arrival and is judged by event time alone.

        Returns
        -------
        Outcome
            Alerts in the order of event time per node.
        """
        outcome = Outcome()
        pending: list[Block] = []
        for number, sample in enumerate(samples):
            arrived = self._hear(sample, None if arrived_ms is None else arrived_ms[number])
            item = admit(self.fleet, sample, outcome.counts)
            if item is None:
                continue
            if item.late:
                self._run(pending, outcome)
                pending = []
                self._hear_late(item, outcome)
                continue
            if self.fleet.changes_facts(item.node_row, sample):
                self._run(pending, outcome)
                pending = []
            pending.append(block_of(self.fleet, item, arrived))
            if self.fleet.moved:  # then the messages before this one are judged already
                self._close_moved(outcome, sample.ts[min(item.first_tick, len(sample.ts) - 1)])
        self._run(pending, outcome)
        return outcome

    def _hear(self, sample: NodeSample, arrived_ms: int | None) -> int | None:
        """Note an arrival; return it if event and arrival are times of one clock."""
        if arrived_ms is None:
            return None
        self.silent.hear(self.fleet.node_of(sample.node), sample, arrived_ms)
        return None if sample.collector.source in NO_WALL_CLOCK else arrived_ms

    def silence(self, now_ms: int) -> list[AlertEvent]:
        """Look for nodes that were not heard of. Only to be called while the reader has no lag.

        Parameters
        ----------
        now_ms
            Unix milliseconds by the clock of the arrivals.

        Returns
        -------
        list of AlertEvent
            Usually empty. Alerts start at the last event time of their node.
        """
        size = len(self.fleet.nodes)
        if self._patience is None or size == 0:
            return []
        self._grow()
        reported = self.nodes.open_now(np.arange(size))["telemetry/node_silent"]
        rows = self.silent.look(now_ms, reported, self._patience.allowed_seconds)
        return [*self._say_together(now_ms), *self._say_single(rows, now_ms)]

    def forget(self, now_ms: int, hours: float) -> list[AlertEvent]:
        """Let go of nodes that were not heard of for long, and of partitions long gone.

        Their alerts end, and their rows are given to others: years of machines that come and go
        must not fill the memory.

        Parameters
        ----------
        now_ms
            Unix milliseconds by the clock of the arrivals.
        hours
            How long is long.

        Returns
        -------
        list of AlertEvent
            The ends of what was open, with the reason ``forgotten``.
        """
        self._grow()
        since_ms = hours * 3_600_000.0
        nodes = self.silent.unheard(now_ms, since_ms)
        ended = self._end_rows(self.fleet.partitions_unheard(round(since_ms)))
        for row in nodes.tolist():
            node = self.fleet.nodes[row]
            subjects = {row: Subject(scope=Scope.NODE, node=node.name)}
            ended += self._end_rows(self.fleet.rows_of(row))
            ended += self.nodes.close(np.array([row]), subjects, node.last_ts, "forgotten")
        self.silent.forget(nodes)
        self.fleet.forget((), nodes.tolist())
        jobs = {int(code) for code in np.unique(self.windows.table["job"])}
        self.fleet.keep_codes(jobs | self.gpus.jobs_known())
        return ended

    def _end_rows(self, rows: list[int]) -> list[AlertEvent]:
        """End what is open on GPUs of one node, or on partitions, and forget them."""
        ended = []
        for row in rows:
            gpu = self.fleet.gpus[row]
            at_ms = self.fleet.nodes[self.fleet.node_of(gpu.node)].last_ts
            ended += self.gpus.close(np.array([row]), {row: _subject(gpu)}, at_ms, "forgotten")
        at = np.array(rows, dtype=np.int64)
        self.windows.table.reset(at)
        if self._recent is not None:
            self._recent.table.reset(at)
        self.fleet.forget(rows)
        return ended

    def _say_single(self, rows: IntArray, now_ms: int) -> list[AlertEvent]:
        if not len(rows):
            return []
        seconds = self.silent.seconds(now_ms)[rows]
        every = self.silent.table["every"][rows].astype(np.float64)
        extra = {"silent_seconds": seconds, "message_seconds": every}
        frame = node_frame(rows, self._last_ts(rows), extra)
        said = self.nodes.run(frame, only=NodeSilent.name)
        return [_seen_after(alert, float(s)) for alert, s in zip(said, seconds, strict=True)]

    def _say_together(self, now_ms: int) -> list[AlertEvent]:
        """Judge the nodes that fell silent at once, as long as there are any or were."""
        rows, first = self.silent.together(), np.zeros(1, dtype=np.int64)
        open_now = any(flags.any() for flags in self.pipeline.open_now(first).values())
        if not len(rows) and not open_now:
            return []
        extra = {
            "silent_nodes": np.array([float(len(rows))]),
            "heard_nodes": np.array([float(self.silent.known())]),
        }
        newest = self._last_ts(np.arange(len(self.fleet.nodes)))
        began = newest.max() if open_now else self._last_ts(rows).min()
        said = self.pipeline.run(node_frame(first, np.array([began], dtype=np.int64), extra))
        if any(alert.state == AlertState.RESOLVED for alert in said):
            self.silent.release(now_ms)
        return said

    def _last_ts(self, rows: IntArray) -> IntArray:
        """(n,) last event time of nodes, unix milliseconds."""
        return np.array([self.fleet.nodes[row].last_ts for row in rows.tolist()], dtype=np.int64)

    def _run(self, blocks: list[Block], outcome: Outcome) -> None:
        for step in rounds(self.fleet, blocks):
            self._grow()
            said = len(outcome.alerts)
            self._judge(step, outcome)
            outcome.windows += self.windows.add(step.gpus)
            if self._recent is not None and len(outcome.alerts) > said:
                outcome.alerts[said:] = map(self._with_lines, outcome.alerts[said:])
            outcome.counts["gpu_samples"] += int((~step.gpus.gone).sum())

    def _with_lines(self, alert: AlertEvent) -> AlertEvent:
        """Put the last minutes of its GPU beside an alert."""
        subject = alert.subject
        if self._recent is None or subject.node is None or subject.gpu_uuid is None:
            return alert
        row = self.fleet.find(subject.gpu_uuid, self.fleet.node_of(subject.node), None)
        if row is None:
            return alert
        return self._recent.beside(alert, row, self.windows.newest(row))

    def _hear_late(self, item: Admitted, outcome: Outcome) -> None:
        """Judge what a late message says has happened; its readings are past."""
        for step in rounds(self.fleet, [late_block(self.fleet, item)]):
            self._grow()
            self._judge(step, outcome)

    def _judge(self, step: Round, outcome: Outcome) -> None:
        found = self.gpus.run(step.gpus)
        step.nodes.members_open = self.gpus.open_now(step.gpus.rows)
        step.nodes.members_holding = self.gpus.holding_now(step.gpus.rows)
        of_nodes = self.nodes.run(step.nodes)
        # Nodes are judged after their GPUs, so only now is it known what a node explains.
        outcome.alerts += self._explained_by_nodes(found) + of_nodes

    def _explained_by_nodes(self, alerts: list[AlertEvent]) -> list[AlertEvent]:
        """Name the node's own alert as the cause of those of its GPUs that have no nearer one."""
        found = []
        for alert in alerts:
            cause = self._node_cause(alert) if alert.caused_by is None else None
            if cause is not None:
                self.gpus.said.explained_by(alert.alert_id, cause)
            found.append(alert if cause is None else replace(alert, caused_by=cause))
        return found

    def _node_cause(self, alert: AlertEvent) -> str | None:
        causes = NODE_CAUSES.get((alert.family, alert.kind), ())
        if not causes or alert.subject.node is None:
            return None
        row = self.fleet.node_of(alert.subject.node)
        subject = Subject(scope=Scope.NODE, node=alert.subject.node)
        return next(
            (fingerprint_of(*cause, subject) for cause in causes if self.nodes.is_open(cause, row)),
            None,
        )

    def _grow(self) -> None:
        self.gpus.grow(len(self.fleet.gpus))
        self.nodes.grow(len(self.fleet.nodes))
        self.silent.table.grow(len(self.fleet.nodes))
        self.windows.table.grow(len(self.fleet.gpus))
        if self._recent is not None:
            self._recent.table.grow(len(self.fleet.gpus))

    def _close_moved(self, outcome: Outcome, at_ms: int) -> None:
        """End what was open on GPUs that changed their node or slot."""
        self._grow()
        moved, self.fleet.moved = self.fleet.moved, []
        subjects = {row: _subject(was) for row, was in moved}
        rows = np.array(sorted(subjects), dtype=np.int64)
        outcome.alerts += self.gpus.close(rows, subjects, at_ms, "gpu_moved")
        self.windows.table.reset(rows)
        if self._recent is not None:
            self._recent.table.reset(rows)
        outcome.counts["gpus_moved"] += len(rows)

    def _gpu_subject(self, row: int, position: int, frame: Frame) -> Subject:
        job, project = self.fleet.jobs.get(int(frame.job[position]), (None, None))
        return _subject(self.fleet.gpus[row], job, project)

    def _job_subject(self, code: int, member: Subject) -> Subject:
        """Return the job as a subject, or the member's node where no job is known."""
        job, project = self.fleet.jobs.get(code, (None, None))
        scope = Scope.NODE if job is None else Scope.JOB
        return Subject(scope=scope, node=member.node, job=job, project=project)

    def _node_subject(self, row: int, position: int, frame: Frame) -> Subject:
        del position, frame
        return Subject(scope=Scope.NODE, node=self.fleet.nodes[row].name)

    def _pipeline_subject(self, row: int, position: int, frame: Frame) -> Subject:
        del row, position, frame
        return Subject(scope=Scope.PIPELINE, pipeline=self._name)

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
            **prefixed("pipeline", self.pipeline.dump()),
            **prefixed("silence", self.silent.dump()),
            **prefixed("windows", windows),
            **prefixed("fleet/gpu", self.fleet.gpu_table.dump()),
            **prefixed("fleet/node", self.fleet.node_table.dump()),
        }
        return {**self.fleet.dump(), "window_metrics": metrics}, arrays

    def load(self, facts: dict[str, Any], arrays: Mapping[str, AnyArray]) -> list[str]:
        """Take over a dumped state; return the names of arrays that start fresh instead."""
        self.fleet.load(facts)
        gpus, nodes = len(self.fleet.gpus), len(self.fleet.nodes)
        if self._recent is not None:
            self._recent.table.grow(gpus)
        dropped = self.gpus.load(unprefixed("gpu", arrays), gpus)
        dropped += self.nodes.load(unprefixed("node", arrays), nodes)
        dropped += self.pipeline.load(unprefixed("pipeline", arrays), 1)
        dropped += self.silent.load(unprefixed("silence", arrays), nodes)
        names = facts.get("window_metrics", [])
        dropped += self.windows.load(names, unprefixed("windows", arrays), gpus)
        dropped += self.fleet.gpu_table.load(unprefixed("fleet/gpu", arrays), gpus)
        dropped += self.fleet.node_table.load(unprefixed("fleet/node", arrays), nodes)
        return dropped


def _seen_after(alert: AlertEvent, seconds: float) -> AlertEvent:
    """Say when a silence was noticed: so many seconds after the last event."""
    observed = parse_time(alert.observed_at) + round(seconds * 1000)
    return replace(alert, observed_at=rfc3339(observed))


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
