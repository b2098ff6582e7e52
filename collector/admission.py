"""From a reading to messages: checked at the door, completed, batched, encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from collector.batching import Batching, NodeBatcher
from collector.exposed import GpuExposition
from collector.hearing import Hearing
from collector.metrics import CollectorMetrics
from collector.settings import CollectorSettings
from collector.source import JobSource, Reading
from collector.spool import Message
from collector.truth import refuse_impossible
from schemas.binary import encode_binary
from schemas.codec import encode, sample_headers
from schemas.sample import CollectorState, EventKind, NodeSample, SampleEvent

__all__ = ["Admission", "Beside"]


class Beside:
    """What is added to a reading of this node: jobs, the machine, what the log has told.

    Parameters
    ----------
    node
        Name of this node.
    jobs
        Knows which jobs use the GPUs; asked where the source itself does not.
    host
        Numbers of this machine; None where the source reads another one, or none.
    hearing
        Knows what was told already.
    exposed
        Shows the last reading to Prometheus.
    """

    def __init__(
        self,
        node: str,
        *,
        jobs: JobSource | None,
        host: Callable[[], Mapping[str, float]] | None,
        hearing: Hearing,
        exposed: GpuExposition,
    ) -> None:
        self._node = node
        self._jobs = jobs
        self._host = host
        self._host_at: int | None = None
        self._hearing = hearing
        self._exposed = exposed
        self._listed: dict[str, Reading] = {}

    def complete(self, reading: Reading, slow_seconds: float) -> Reading:
        """Add what the source does not know, and remember who is listed."""
        if self._jobs is not None and reading.jobs is None and reading.gpus:
            jobs = self._jobs.jobs(reading.ts, reading.gpus, reading.pids)
            reading = replace(reading, jobs=jobs)
        if self._host is not None and reading.node == self._node:
            reading = self._with_host(reading, self._host, slow_seconds)
        reading = self._hearing.untold(reading)
        self._exposed.show(reading)
        if reading.gpus:
            self._listed[reading.node] = replace(reading, events=(), nvml_error=None, host=None)
        return reading

    def listed(self, node: str, ts_ms: int) -> Reading:
        """Return the last reading that had GPUs, or one without any."""
        return self._listed.get(node) or Reading(node=node, ts=ts_ms)

    def _with_host(
        self, reading: Reading, host: Callable[[], Mapping[str, float]], slow_seconds: float
    ) -> Reading:
        if self._host_at is not None and 0 <= reading.ts - self._host_at < slow_seconds * 1000:
            return reading
        self._host_at = reading.ts
        return replace(reading, host=host())


class Admission:
    """Makes messages of readings. Belongs to one thread, but for what health looks at.

    Parameters
    ----------
    settings, rules
        How messages are written and cut.
    boot_id
        Of this run, where the source has none of its own.
    topic
        Full name of the samples' topic.
    metrics
        Where everything is counted.
    beside
        Completes live readings; None for a recording, which is complete.
    """

    def __init__(
        self,
        settings: CollectorSettings,
        rules: Batching,
        *,
        boot_id: str,
        topic: str,
        metrics: CollectorMetrics,
        beside: Beside | None,
    ) -> None:
        self._binary = settings.body == "binary"
        self._slow_seconds = settings.slow_seconds
        self._rules = rules
        self._boot_id = boot_id
        self._topic = topic
        self._metrics = metrics
        self._beside = beside
        self._batchers: dict[str, NodeBatcher] = {}
        #: What the collector can see, as last said.
        self.state: str = CollectorState.OK
        #: GPUs of each node in its last reading.
        self.gpus: dict[str, int] = {}
        self._last_ts = 0

    @property
    def nodes(self) -> list[str]:
        """The nodes that were read so far."""
        return list(self._batchers)

    def knows(self, node: str) -> bool:
        """Whether this node was read already."""
        return node in self._batchers

    def admit(self, reading: Reading, boot_id: str | None = None) -> list[Message]:
        """Take one reading; return the messages that are complete because of it.

        Parameters
        ----------
        reading
            As the source made it.
        boot_id
            Of the reading, where the source has its own.
        """
        reading, refused = refuse_impossible(reading)
        for metric, count in refused.items():
            self._metrics.implausible.labels(metric=metric).inc(count)
        self._metrics.samples.inc(len(reading.gpus))
        self._set_state(reading.state)
        self.gpus[reading.node] = len(reading.gpus)
        self._last_ts = max(self._last_ts, reading.ts)
        if self._beside is not None:
            reading = self._beside.complete(reading, self._slow_seconds)
        ready: list[NodeSample] = []
        batcher = self._batchers.get(reading.node)
        boot_id = boot_id or self._boot_id
        if batcher is not None and batcher.boot_id != boot_id:  # a recording went back in time
            ready += batcher.flush()
            batcher = None
        if batcher is None:
            batcher = NodeBatcher(reading.node, boot_id, self._rules)
            self._batchers[reading.node] = batcher
            if self._beside is not None:
                started = SampleEvent(ts=reading.ts, kind=EventKind.COLLECTOR_STARTED)
                reading = replace(reading, events=(started, *reading.events))
        return self._messages((*ready, *batcher.add(reading)))

    def tell(self, node: str, events: tuple[SampleEvent, ...], now_ms: int) -> list[Message]:
        """Make a message of events that came between two readings of a node already read."""
        assert self._beside is not None  # noqa: S101 - only a live loop hears anything
        self._last_ts = max(now_ms, self._last_ts + 1)
        reading = replace(
            self._beside.listed(node, now_ms),
            ts=self._last_ts,
            values={},
            status={},
            state=self.state,
            events=events,
        )
        return self._messages(self._batchers[node].add(reading))

    def change(self, settings: CollectorSettings) -> list[Message]:
        """Go on with other intervals; return what was pending under the old ones."""
        self._slow_seconds = settings.slow_seconds
        self._rules = replace(
            self._rules,
            interval_seconds=settings.interval_seconds,
            flush_seconds=settings.flush_seconds,
            keyframe_seconds=settings.keyframe_seconds,
        )
        changed = [batcher.change(self._rules) for batcher in self._batchers.values()]
        return self._messages(sample for samples in changed for sample in samples)

    def flush(self) -> list[Message]:
        """Return what is pending of every node."""
        flushed = [batcher.flush() for batcher in self._batchers.values()]
        return self._messages(sample for samples in flushed for sample in samples)

    def last_words(self, now_ms: int) -> list[Message]:
        """Flush what is pending and say goodbye, for every node."""
        samples: list[NodeSample] = []
        ts_ms = max(now_ms, self._last_ts + 1)
        for node, batcher in self._batchers.items():
            samples += batcher.flush()
            samples += batcher.add(Reading(node=node, ts=ts_ms, state=CollectorState.STOPPING))
        self._set_state(CollectorState.STOPPING)
        return self._messages(samples)

    def _messages(self, samples: Iterable[NodeSample]) -> list[Message]:
        return [
            Message(
                topic=self._topic,
                key=sample.node.encode(),
                value=encode_binary(sample) if self._binary else encode(sample),
                headers=sample_headers(sample, binary=self._binary),
            )
            for sample in samples
        ]

    def _set_state(self, state: str) -> None:
        if state != self.state:
            self.state = state
            self._metrics.set_state(state)
