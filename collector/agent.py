"""The collector as a service: read at a steady beat, batch, publish, never stand still.

Live and simulated sources are read once per tick of a steady clock. A recording carries its own
time: it is read as fast as the bus takes it, and the service ends with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from bus.protocol import Bus
from collector.batching import Batching, NodeBatcher
from collector.clock import Clock, SystemClock, Ticker
from collector.echoes import EXPORTER_ECHO_MS, Echoes, Origin, placed_events
from collector.exposed import GpuExposition, NodeNumbers
from collector.footprint import give_memory_back
from collector.health import sentence_of
from collector.host import HostFiles
from collector.metrics import CollectorMetrics
from collector.nvmlparent import NvmlChildSource
from collector.patient import PatientPublisher
from collector.publishing import SamplePublisher
from collector.reading import DirectReader, Reader, SourceReader, ThreadReader
from collector.settings import CollectorSettings, SourceKind
from collector.source import EventSource, JobSource, Reading, Source
from collector.sources import child_settings
from collector.spool import Message, Spool
from collector.truth import refuse_impossible
from schemas.binary import encode_binary
from schemas.codec import encode, sample_headers
from schemas.sample import CollectorState, EventKind, NodeSample, SampleEvent
from schemas.topics import DEAD_LETTERS, SAMPLES

__all__ = ["CollectorService"]

log = structlog.get_logger()

_CLOSE_SECONDS = 5.0  # for the last messages, within the ten seconds a service has to end
_FINISH_SECONDS = 60.0  # without any progress, at the end of a recording
_POLL_SECONDS = 1.0  # delivery reports are looked at this often even between slow ticks
_HEAR_SECONDS = 0.25  # and events so often: a hard fact does not wait for the next tick
_STEP_MS = 1_000  # a wall clock this far from the beat was set, not merely drifting
_ALIVE_INTERVALS = 3.0


class CollectorService:
    """Reads one source and publishes NodeSamples.

    Parameters
    ----------
    source
        What is read; closed when the service ends. A source may carry attributes ``boot_id``
        (of the readings last returned) and ``interval_seconds`` of its own, as recordings do.
    bus
        Where messages go.
    settings
        How often, how batched, how much may wait.
    prefix
        Of topic names.
    clock
        Time. A demonstration passes one that runs fast.
    reader
        How the source is asked; by default NVML waits for its own child process, others are
        asked directly.
    host
        Where the kernel keeps the boot id.
    events
        Tells of events beside the source: the kernel log. Closed when the service ends.
    jobs
        Knows which jobs use the GPUs; asked where the source itself does not.
    node_numbers
        Tells of the machine around the GPUs when metrics are scraped.
    """

    name = "collector"

    def __init__(
        self,
        source: Source,
        bus: Bus,
        settings: CollectorSettings,
        *,
        prefix: str = "",
        clock: Clock | None = None,
        reader: Reader | None = None,
        host: HostFiles | None = None,
        events: EventSource | None = None,
        jobs: JobSource | None = None,
        node_numbers: Callable[[], NodeNumbers] | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._source = source
        self._bus = bus
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._reader = reader
        self._events = events
        self._jobs = jobs
        self._echoes = Echoes(EXPORTER_ECHO_MS) if source.kind == SourceKind.DCGM else Echoes()
        self._listed: dict[str, Reading] = {}
        self._metrics = CollectorMetrics(self.registry)
        self._exposed = GpuExposition(self._alive, node_numbers)
        self.registry.register(self._exposed)
        self._topic = SAMPLES.full_name(prefix)
        self._dead_letters = DEAD_LETTERS.full_name(prefix)
        self._live = source.kind != SourceKind.REPLAY
        self._boot_id = self._make_boot_id(host or HostFiles())
        self._rules = Batching(
            interval_seconds=(
                settings.interval_seconds
                if self._live
                else getattr(source, "interval_seconds", None)
            ),
            flush_seconds=settings.flush_seconds,
            keyframe_seconds=settings.keyframe_seconds,
            source=source.kind,
            labels=settings.labels,
            expected_gpus=settings.expected_gpus,
        )
        self._batchers: dict[str, NodeBatcher] = {}
        self._publisher: SamplePublisher | None = None
        self._state: str = CollectorState.OK
        self._begun = 0.0
        self._overdue = False
        self._last_ts = 0
        self._beat: float | None = None
        self._gpus: dict[str, int] = {}
        self._failing = False
        self._wanted: CollectorSettings | None = None
        self._release_asked = threading.Event()

    # -- the service -------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop, or until a recording ends.

        Raises
        ------
        DataDirError
            If the spool cannot be opened.
        BusUnavailableError
            If the end of a recording cannot be delivered.
        """
        log.info("collector_started", source=self._source.kind, node=self._settings.node)
        if self._live:
            self._run_live(stop)
        else:
            self._run_recording(stop)
        log.info("collector_stopped")

    def health(self) -> Mapping[str, object]:
        """Return whether readings arrive and messages leave. Safe from any thread."""
        alive, publisher = self._alive(), self._publisher
        waiting = publisher.waiting if publisher is not None else 0
        return {
            "ok": alive and self._state == CollectorState.OK,
            "detail": sentence_of(self._state, alive=alive, waiting=waiting),
            "alive": alive,
            "state": str(self._state),
            "nodes": len(self._batchers),
            "gpus": sum(list(self._gpus.values())),
            "spool_messages": waiting,
            **({} if self._events is None else {"kernel_log": dict(self._events.health())}),
            **({} if self._jobs is None else self._jobs.health()),
        }

    def _alive(self) -> bool:
        """Tell whether the loop turns."""
        beat = self._beat
        patience = max(_ALIVE_INTERVALS * self._settings.interval_seconds, 10.0)
        return beat is not None and self._clock.monotonic() - beat < patience

    def release(self) -> None:
        """Let go of the GPUs for a reset, or take them back. Safe from any thread."""
        self._release_asked.set()

    def change(self, settings: CollectorSettings) -> None:
        """Go on with other intervals and metric groups, losing no tick. Safe from any thread.

        Parameters
        ----------
        settings
            What else differs (source, node, addresses, spool) takes effect with the next start.
        """
        self._wanted = settings

    # -- live --------------------------------------------------------------------------------

    def _run_live(self, stop: threading.Event) -> None:
        spool_settings = self._settings.spool
        spool = Spool(
            spool_settings.path,
            max_bytes=spool_settings.max_bytes,
            max_hours=spool_settings.max_hours,
        )
        publisher = self._publisher = SamplePublisher(
            self._bus.publisher(client_id=f"collector-{self._settings.node}"),
            spool,
            dead_letters=self._dead_letters,
            node=self._settings.node,
            settings=spool_settings,
            metrics=self._metrics,
        )
        reader = self._reader or self._make_reader()
        give_memory_back()
        try:
            self._beat_until(stop, reader, publisher)
        finally:
            self._publish(self._last_words(), publisher)
            publisher.close(_CLOSE_SECONDS, self._clock.unix_ms())
            if self._events is not None:
                self._events.close()
            if self._jobs is not None:
                self._jobs.close()
            self._let_go(reader)

    def _beat_until(
        self, stop: threading.Event, reader: Reader, publisher: SamplePublisher
    ) -> None:
        clock = self._clock
        ticker = Ticker(self._settings.interval_seconds, start=clock.monotonic())
        last: float | None = None
        anchor_ms = clock.unix_ms() - round(clock.monotonic() * 1000)
        while not stop.is_set():
            tick = ticker.next(clock.monotonic())
            self._metrics.ticks_missed.inc(tick.missed)
            if self._sleep(tick.due, stop, publisher):
                return
            if self._wanted is not None:
                start = self._adopt(self._wanted, last, tick.due)
                ticker = Ticker(self._settings.interval_seconds, start=start)
                continue
            last = tick.due
            self._metrics.tick_delay_seconds.observe(max(0.0, clock.monotonic() - tick.due))
            if abs(clock.unix_ms() - clock.monotonic() * 1000 - anchor_ms) > _STEP_MS:
                log.warning("wall_clock_was_set")
                anchor_ms = clock.unix_ms() - round(clock.monotonic() * 1000)
            ts_ms = anchor_ms + round(tick.due * 1000)
            readings = self._collect(reader, ts_ms, ticker.due, stop)
            self._beat = clock.monotonic()
            for reading in readings:
                self._publish(self._admit(reading), publisher)
            self._hear()
            publisher.step(clock.monotonic(), clock.unix_ms())
            if self._source.exhausted:
                return

    def _adopt(self, wanted: CollectorSettings, last: float | None, due: float) -> float:
        """Take over new settings between two ticks; return when the next tick is due."""
        self._wanted = None
        settings, interval = self._settings, wanted.interval_seconds
        if last is not None and interval != settings.interval_seconds:
            due = max(last + interval, self._clock.monotonic())
        names = (
            *("interval_seconds", "flush_seconds", "keyframe_seconds", "call_deadline_seconds"),
            *("device_deadline_seconds", "groups", "slow_seconds", "release_seconds"),
        )
        self._settings = settings.model_copy(update={n: getattr(wanted, n) for n in names})
        self._rules = replace(
            self._rules,
            interval_seconds=interval,
            flush_seconds=wanted.flush_seconds,
            keyframe_seconds=wanted.keyframe_seconds,
        )
        for batcher in self._batchers.values():
            if self._publisher is not None:
                self._publish(batcher.change(self._rules), self._publisher)
        if isinstance(self._source, NvmlChildSource):
            self._source.change(child_settings(self._settings), wanted.call_deadline_seconds)
        log.info("settings_changed", interval_seconds=interval, groups=wanted.groups)
        return due

    def _release_if_asked(self) -> None:
        if not self._release_asked.is_set():
            return
        self._release_asked.clear()
        source = self._source
        if not isinstance(source, NvmlChildSource):
            log.warning("nothing_to_release", source=source.kind)
        elif source.released:
            source.take_back()
        else:
            source.release(self._settings.release_seconds)

    def _sleep(self, due: float, stop: threading.Event, publisher: SamplePublisher) -> bool:
        """Wait for the tick, looking at delivery reports on long waits; True if told to stop."""
        clock = self._clock
        told = self._events is not None or hasattr(self._source, "heard")
        piece = _HEAR_SECONDS if told else _POLL_SECONDS
        while True:
            if clock.sleep_until(min(due, clock.monotonic() + piece), stop):
                return True
            self._beat = clock.monotonic()
            self._release_if_asked()
            if self._beat >= due or self._wanted is not None:
                return False
            self._hear()
            publisher.step(clock.monotonic(), clock.unix_ms())

    def _collect(
        self, reader: Reader, ts_ms: int, next_due: float, stop: threading.Event
    ) -> list[Reading]:
        """Read, or continue a reading that hangs; after the deadline say that it does."""
        clock = self._clock
        if reader.busy:
            self._metrics.ticks_missed.inc()
        else:
            self._begun = clock.monotonic()
            reader.begin(ts_ms)
        deadline = self._begun + self._settings.call_deadline_seconds
        try:
            readings = self._await(reader, min(next_due, max(deadline, clock.monotonic())), stop)
        except Exception:
            # A source promises not to raise. If it does all the same, the node must not fall
            # silent: the next tick is another attempt.
            self._metrics.read_errors.inc()
            if not self._failing:
                log.exception("reading_failed")
            self._failing = True
            self._overdue = False
            return self._heartbeats(ts_ms, CollectorState.BLIND)
        if readings is None:
            return self._hanging(ts_ms, deadline)
        self._metrics.read_seconds.observe(clock.monotonic() - self._begun)
        self._failing = False
        if self._overdue:  # its time stamp lies behind the heartbeats sent meanwhile
            self._overdue = False
            log.info("driver_responds_again")
            readings = [replace(item, ts=max(ts_ms, item.ts)) for item in readings]
        return readings

    def _await(self, reader: Reader, until: float, stop: threading.Event) -> list[Reading] | None:
        """Wait for the readings; a driver that hangs must not keep the kernel's words back."""
        if self._events is None:
            return reader.result(until, stop)
        while True:
            now = self._clock.monotonic()
            readings = reader.result(min(until, now + _HEAR_SECONDS), stop)
            if readings is not None or stop.is_set() or self._clock.monotonic() >= until:
                return readings
            self._hear()

    def _hear(self) -> None:
        """Publish at once, without a reading of the GPUs, what driver and kernel tell."""
        node = self._settings.node
        if self._publisher is None or node not in self._batchers:
            return
        now = self._clock.unix_ms()
        listed = self._listed.get(node) or Reading(node=node, ts=now)
        heard = self._echoes.admit(Origin.DRIVER, self._heard_from_driver(), now)
        if self._events is not None:
            told = placed_events(self._events.poll(now), listed.inventory)
            told = self._echoes.admit(Origin.KERNEL, told, now)
            for event in told:
                self._metrics.kernel_events.labels(kind=event.kind).inc(event.count)
            heard += told
        if heard:
            self._last_ts = max(now, self._last_ts + 1)
            reading = replace(
                listed, ts=self._last_ts, values={}, status={}, state=self._state, events=heard
            )
            self._publish(self._batchers[node].add(reading), self._publisher)
        if self._events is not None:
            self._events.settle()
            self._metrics.set_kernel_log(str(self._events.health().get("state")))

    def _heard_from_driver(self) -> tuple[SampleEvent, ...]:
        # Any: an ability that only some sources have, see Source.
        heard: Any = getattr(self._source, "heard", None)
        return () if heard is None else tuple(heard())

    def _hanging(self, ts_ms: int, deadline: float) -> list[Reading]:
        if self._clock.monotonic() < deadline:
            return []
        if not self._overdue:
            log.warning("driver_unresponsive", seconds=self._settings.call_deadline_seconds)
        self._overdue = True
        return self._heartbeats(ts_ms, CollectorState.UNRESPONSIVE)

    def _heartbeats(self, ts_ms: int, state: CollectorState) -> list[Reading]:
        """Say only that we are there, for every node known, without asking the source."""
        nodes = list(self._batchers) or [self._settings.node]
        return [Reading(node=node, ts=ts_ms, state=state) for node in nodes]

    def _last_words(self) -> list[NodeSample]:
        """Flush what is pending and say goodbye, for every node."""
        samples: list[NodeSample] = []
        ts_ms = max(self._clock.unix_ms(), self._last_ts + 1)
        for node, batcher in self._batchers.items():
            samples += batcher.flush()
            samples += batcher.add(Reading(node=node, ts=ts_ms, state=CollectorState.STOPPING))
        self._set_state(CollectorState.STOPPING)
        return samples

    def _make_reader(self) -> Reader:
        # Only a driver or a server can hang.
        if isinstance(self._source, NvmlChildSource):
            return SourceReader(self._source, self._clock)
        if self._source.kind in {SourceKind.NVML, SourceKind.DCGM, SourceKind.AMDSMI}:
            return ThreadReader(self._source, self._clock)
        return DirectReader(self._source)

    def _let_go(self, reader: Reader) -> None:
        hangs = isinstance(reader, ThreadReader) and not reader.close()
        if hangs or (reader.busy and not isinstance(reader, SourceReader)):
            log.warning("driver_call_left_behind")  # closing would hang in the same driver
            return
        self._source.close()

    # -- recordings --------------------------------------------------------------------------

    def _run_recording(self, stop: threading.Event) -> None:
        publisher = PatientPublisher(
            self._bus.publisher(client_id=f"replay-{self._settings.node}"),
            self._clock,
            self._metrics,
        )
        try:
            while not stop.is_set() and not self._source.exhausted:
                for reading in self._source.read(self._clock.unix_ms()):
                    for sample in self._admit(reading):
                        publisher.send(self._message(sample), stop)
                publisher.step(stop)
                self._beat = self._clock.monotonic()
            for batcher in self._batchers.values():
                for sample in batcher.flush():
                    publisher.send(self._message(sample), stop)
            publisher.finish(_FINISH_SECONDS, stop)
        finally:
            publisher.close(_CLOSE_SECONDS)
            self._source.close()

    # -- both --------------------------------------------------------------------------------

    def _admit(self, reading: Reading) -> list[NodeSample]:
        """Check a reading at the door and batch it; return the messages that are complete."""
        reading, refused = refuse_impossible(reading)
        for metric, count in refused.items():
            self._metrics.implausible.labels(metric=metric).inc(count)
        self._metrics.samples.inc(len(reading.gpus))
        self._set_state(reading.state)
        self._gpus[reading.node] = len(reading.gpus)
        self._last_ts = max(self._last_ts, reading.ts)
        reading = self._complete(reading) if self._live else reading
        ready: list[NodeSample] = []
        batcher = self._batchers.get(reading.node)
        boot_id = getattr(self._source, "boot_id", None) or self._boot_id
        if batcher is not None and batcher.boot_id != boot_id:  # a recording went back in time
            ready += batcher.flush()
            batcher = None
        if batcher is None:
            batcher = NodeBatcher(reading.node, boot_id, self._rules)
            self._batchers[reading.node] = batcher
            if self._live:
                started = SampleEvent(ts=reading.ts, kind=EventKind.COLLECTOR_STARTED)
                reading = replace(reading, events=(started, *reading.events))
        return [*ready, *batcher.add(reading)]

    def _complete(self, reading: Reading) -> Reading:
        """Add the jobs, leave out what the kernel has told already, remember who is listed."""
        if self._jobs is not None and reading.jobs is None and reading.gpus:
            jobs = self._jobs.jobs(reading.ts, reading.gpus, reading.pids)
            reading = replace(reading, jobs=jobs)
        if self._events is not None and reading.events:
            events = placed_events(reading.events, reading.inventory)
            events = self._echoes.admit(Origin.DRIVER, events, reading.ts)
            reading = replace(reading, events=events)
        self._exposed.show(reading)
        if reading.gpus:
            self._listed[reading.node] = replace(reading, events=(), nvml_error=None)
        return reading

    def _publish(self, samples: Iterable[NodeSample], publisher: SamplePublisher) -> None:
        for sample in samples:
            publisher.send(self._message(sample), self._clock.unix_ms())

    def _message(self, sample: NodeSample) -> Message:
        binary = self._settings.body == "binary"
        return Message(
            topic=self._topic,
            key=sample.node.encode(),
            value=encode_binary(sample) if binary else encode(sample),
            headers=sample_headers(sample, binary=binary),
        )

    def _set_state(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._metrics.set_state(state)

    def _make_boot_id(self, host: HostFiles) -> str:
        """Name this run: the kernel's boot id and the start of the collector.

        ``seq`` begins at 0 with every start of the collector, so the kernel's id alone would
        make the first messages after a restart look like repetitions.
        """
        return f"{host.read_boot_id()}-{self._clock.unix_ms():x}"
