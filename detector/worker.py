"""What is done with the records of one partition: the seam between the bus and the engine.

A worker turns records into messages to send and can be saved and loaded. It decodes, so a
record that breaks the contract becomes a dead letter here and nothing else stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import orjson

from bus.protocol import Headers, Record
from detector.base import Detector
from detector.cohort.tier import CohortTier
from detector.engine import Engine
from detector.shadow import NOT_ON_TRIAL, Trial
from schemas.alert import AlertEvent
from schemas.codec import (
    CONTENT_TYPE_HEADER,
    JSON_CONTENT_TYPE,
    alert_headers,
    decode_sample,
    decode_window,
    encode,
)
from schemas.errors import DecodeError
from schemas.sample import NodeSample
from schemas.topics import ALERTS, DEAD_LETTERS, SAMPLES, WINDOWS, TopicSpec
from schemas.window import WindowBatch

__all__ = ["Outgoing", "Output", "SampleWorker", "WindowWorker", "Worker"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_FORGET_EVERY_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to send. The topic is a spec; the prefix is the sender's business."""

    topic: TopicSpec
    key: bytes | None
    value: bytes
    headers: Headers = ()


@dataclass(slots=True)
class Output:
    """What came of some records: messages in order, alerts among them, and counts."""

    messages: list[Outgoing] = field(default_factory=list)
    alerts: list[AlertEvent] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    trial: Trial = NOT_ON_TRIAL

    def say(self, alerts: Sequence[AlertEvent]) -> None:
        """Add alerts, and the messages that carry them; those on trial are marked."""
        alerts = self.trial.mark(alerts)
        self.alerts += alerts
        self.messages += [
            Outgoing(
                topic=ALERTS,
                key=event.fingerprint.encode(),
                value=encode(event),
                headers=alert_headers(event),
            )
            for event in alerts
        ]

    def bury(self, record: Record, reason: str, detail: str) -> None:
        """Add a dead letter: the original as it came, and why."""
        self.counts["dead_letters"] += 1
        why = (
            ("dlq_reason", reason.encode()),
            ("dlq_detail", detail[:500].encode()),
            ("dlq_topic", record.topic.encode()),
            ("dlq_partition", str(record.partition).encode()),
            ("dlq_offset", str(record.offset).encode()),
        )
        self.messages.append(
            Outgoing(
                topic=DEAD_LETTERS,
                key=record.key,
                value=record.value,
                headers=(*record.headers, *why),
            )
        )


class Worker(Protocol):
    """State of one partition and what its records do to it."""

    def process(self, records: Sequence[Record], *, caught_up: bool) -> Output:
        """Take records in log order."""
        ...

    def silence(self, now_ms: int) -> Output:
        """Say who was not heard of, by the wall clock; called only while nothing is unread."""
        ...

    def open_alerts(self) -> int:
        """Count the open episodes."""
        ...

    def dump(self) -> tuple[dict[str, Any], dict[str, AnyArray]]:
        """Return the state as JSON values and arrays."""
        ...

    def load(self, facts: dict[str, Any], arrays: Mapping[str, AnyArray]) -> list[str]:
        """Take over a dumped state; return the names of what did not fit."""
        ...


class SampleWorker:
    """Stream tier: ``gpu.samples`` into alerts and windows.

    Parameters
    ----------
    detectors
        From ``detector.registry.build``.
    partition
        Of ``gpu.samples``.
    trial
        Detectors whose alerts are marked.
    series_minutes
        As for :class:`~detector.engine.Engine`.
    forget_hours
        How long a node is remembered that is not heard of.
    """

    def __init__(
        self,
        detectors: Sequence[Detector],
        partition: int,
        trial: Trial = NOT_ON_TRIAL,
        series_minutes: float = 0.0,
        forget_hours: float = 168.0,
    ) -> None:
        self._trial = trial
        self._forget_hours = forget_hours
        self._forget_at = 0
        self.engine = Engine(
            detectors, topic=SAMPLES.name, partition=partition, series_minutes=series_minutes
        )

    def process(self, records: Sequence[Record], *, caught_up: bool) -> Output:
        """Decode, run the engine, encode."""
        del caught_up
        output = Output(trial=self._trial)
        samples: list[NodeSample] = []
        arrived: list[int] = []
        for record in records:
            try:
                samples.append(decode_sample(record.value, _content_type(record)))
            except DecodeError as exc:
                output.bury(record, exc.reason, exc.detail)
            else:
                arrived.append(record.arrived_ms)
        outcome = self.engine.process(samples, arrived)
        output.counts += outcome.counts
        output.counts["windows"] += len(outcome.windows)
        output.say(outcome.alerts)
        output.messages += [
            Outgoing(
                topic=WINDOWS,
                key=window.cohort.encode(),
                value=encode(window),
                headers=((CONTENT_TYPE_HEADER, JSON_CONTENT_TYPE),),
            )
            for window in outcome.windows
        ]
        return output

    def silence(self, now_ms: int) -> Output:
        """Say which nodes were not heard of."""
        output = Output(trial=self._trial)
        output.say(self.engine.silence(now_ms))
        if now_ms >= self._forget_at:
            self._forget_at = now_ms + _FORGET_EVERY_MS
            output.say(self.engine.forget(now_ms, self._forget_hours))
        return output

    def open_alerts(self) -> int:
        """Count the open episodes."""
        stages = (self.engine.gpus, self.engine.nodes, self.engine.pipeline)
        return sum(stage.open_count() for stage in stages)

    def dump(self) -> tuple[dict[str, Any], dict[str, AnyArray]]:
        """Return the engine's state."""
        return self.engine.dump()

    def load(self, facts: dict[str, Any], arrays: Mapping[str, AnyArray]) -> list[str]:
        """Take over the engine's state."""
        return self.engine.load(facts, arrays)


class WindowWorker:
    """Cohort tier: ``gpu.windows`` into alerts.

    Parameters
    ----------
    detectors
        From ``detector.registry.build_cohort``.
    trial
        Detectors whose alerts are marked.
    """

    def __init__(self, detectors: Sequence[Detector], trial: Trial = NOT_ON_TRIAL) -> None:
        self._trial = trial
        self.tier = CohortTier(detectors)

    def process(self, records: Sequence[Record], *, caught_up: bool) -> Output:
        """Decode and run the tier."""
        output = Output(trial=self._trial)
        batches: list[WindowBatch] = []
        for record in records:
            try:
                batches.append(decode_window(record.value))
            except DecodeError as exc:
                output.bury(record, exc.reason, exc.detail)
        output.say(self.tier.process(batches, caught_up=caught_up))
        return output

    def silence(self, now_ms: int) -> Output:
        """Say nothing: who is silent is seen where samples arrive."""
        del now_ms
        return Output()

    def open_alerts(self) -> int:
        """Count the open episodes."""
        return self.tier.open_count()

    def dump(self) -> tuple[dict[str, Any], dict[str, AnyArray]]:
        """Return the tier's state."""
        return self.tier.dump()

    def load(self, facts: dict[str, Any], arrays: Mapping[str, AnyArray]) -> list[str]:
        """Take over the tier's state; the models are rebuilt."""
        return self.tier.load(facts, arrays, lambda saved: decode_window(orjson.dumps(saved)))


def _content_type(record: Record) -> bytes:
    for name, value in record.headers:
        if name == CONTENT_TYPE_HEADER:
            return value
    return JSON_CONTENT_TYPE
