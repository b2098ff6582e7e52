"""The loop around the workers: poll, process, send, checkpoint; take over and give back partitions.

Order at a checkpoint: deliver alerts, save the state, commit offsets. A crash between any two
of them leads to work done twice and to the same alert ids, never to a lost alert.
"""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from bus.protocol import Bus, Record, Subscriber, TopicPartition
from detector.metrics import DetectorMetrics
from detector.pace import Pace
from detector.sending import Sender
from detector.snapshot import Snapshot
from detector.snapshots import Snapshots
from detector.worker import Output, Worker
from schemas.errors import BusError, DataDirError
from schemas.topics import TopicSpec

__all__ = ["Consuming", "Wiring"]

_log = structlog.get_logger()
_POLL_SECONDS = 0.1
_FLUSH_SECONDS = 5.0
# Silence is judged once a second, after the reader was up to date for a while: what a broker
# held back must have had the time to come in, and a lag that is not known yet looks like none.
_LISTEN_SECONDS = 1.0
_SETTLED_SECONDS = 10.0
_LATE_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What a loop works with.

    Parameters
    ----------
    source
        Topic to read.
    group
        Consumer group.
    make
        Partition number to a fresh worker.
    snapshots
        Where states are kept.
    checkpoint_seconds, poll_records
        From the settings.
    """

    bus: Bus
    source: TopicSpec
    prefix: str
    group: str
    make: Callable[[int], Worker]
    snapshots: Snapshots
    metrics: DetectorMetrics
    checkpoint_seconds: float
    poll_records: int


@dataclass(slots=True)
class _Held:
    """One assigned partition."""

    worker: Worker
    next_offset: int
    saved_offset: int
    expected: int | None = None
    newest_ms: int = 0
    current_since: float | None = None


class Consuming:
    """Reads one topic with one worker per partition.

    Parameters
    ----------
    wiring
        Collaborators and settings.
    quiet
        Tells whether all sources upstream of this topic have no lag.
    unix_ms
        The wall clock, against which silence is judged.
    settled_seconds
        How long a partition must have been read up to now before anybody in it is called silent.
    """

    def __init__(
        self,
        wiring: Wiring,
        quiet: Callable[[], bool] = lambda: True,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        settled_seconds: float = _SETTLED_SECONDS,
    ) -> None:
        self._wiring = wiring
        self._unix_ms = unix_ms
        self._settled_seconds = settled_seconds
        self._pace = Pace(wiring.poll_records)
        self._listened = 0.0
        self._quiet = quiet
        self._topic = wiring.source.full_name(wiring.prefix)
        self._held: dict[TopicPartition, _Held] = {}
        self._poison: set[tuple[TopicPartition, int]] = set()
        self._careful: dict[TopicPartition, int] = {}
        self._broken = False
        self._sender: Sender | None = None
        self._stop = threading.Event()
        self._version = importlib.metadata.version("foreshock")
        self.lag: int | None = None
        #: Nothing was unread at the last poll, and what was polled is worked off.
        self.settled = False
        self.last_turn: float | None = None
        #: Sentence that says that the bus is away, or None.
        self.outage: str | None = None

    def run(self, stop: threading.Event) -> None:
        """Read until told to stop; then save, commit and leave the group."""
        self._stop = stop
        publisher = self._wiring.bus.publisher(
            client_id=f"foreshock-{self._wiring.group}", durable=True
        )
        self._sender = Sender(publisher, self._wiring.prefix)
        try:
            while not stop.is_set():
                self._read(stop)
        finally:
            self._sender.close()

    def _read(self, stop: threading.Event) -> None:
        """Read with one membership, until told to stop or until the engine broke."""
        self._broken = False
        subscriber = self._wiring.bus.subscriber(
            group=self._wiring.group,
            topics=[self._topic],
            listener=self,
            client_id=f"foreshock-{self._wiring.group}",
        )
        try:
            due = time.monotonic() + self._wiring.checkpoint_seconds
            while not stop.is_set() and not self._broken:
                self._turn(subscriber)
                # A state in which the engine broke half-way must not be saved.
                if not self._broken and time.monotonic() >= due:
                    self._checkpoint(subscriber, list(self._held))
                    due = time.monotonic() + self._wiring.checkpoint_seconds
            if not self._broken:
                self._checkpoint(subscriber, list(self._held))
        finally:
            subscriber.close()
            self._held.clear()

    def _turn(self, subscriber: Subscriber) -> None:
        records = subscriber.poll(1 if self._careful else self._pace.limit, _POLL_SECONDS)
        if records:
            self.settled = False
        lags = subscriber.lag()
        self.lag, self.outage = sum(lags.values()), subscriber.outage
        began = self.last_turn = time.monotonic()
        metrics = self._wiring.metrics
        metrics.lag.labels(self._wiring.source.name).set(self.lag)
        caught_up = self.lag == 0 and self._quiet()
        with metrics.loop_seconds.labels(self._wiring.source.name).time():
            for place, some in _by_place(records).items():
                self._process(place, some, caught_up=caught_up)
            if not records and caught_up:
                for place in list(self._held):
                    self._process(place, [], caught_up=True)
        self._pace.took(len(records), time.monotonic() - began)
        self.settled = self.lag == 0 and not self._broken
        self._listen(lags)
        opened = sum(held.worker.open_alerts() for held in self._held.values())
        metrics.open_alerts.labels(self._wiring.source.name).set(opened)

    def _listen(self, lags: Mapping[TopicPartition, int]) -> None:
        """Let the workers of partitions that are read up to now say who is silent."""
        now, wall_ms = time.monotonic(), self._unix_ms()
        if now - self._listened < _LISTEN_SECONDS or self._broken:
            return
        self._listened = now
        for place, held in list(self._held.items()):
            # A busy partition always has a few records on their way: its log is the clock then.
            empty = lags.get(place) == 0
            heard_ms = wall_ms if empty else held.newest_ms
            if place not in lags or wall_ms - heard_ms > _LATE_MS:
                held.current_since = None
                continue
            if held.current_since is None:
                held.current_since = now
            if now - held.current_since >= self._settled_seconds:
                try:
                    said = held.worker.silence(heard_ms)
                except Exception as exc:  # noqa: BLE001 - as in an idle turn: logged, not fatal
                    self._suspect(place, [], exc)
                else:
                    self._emit(said)

    def _process(self, place: TopicPartition, records: list[Record], *, caught_up: bool) -> None:
        held = self._held.get(place)
        if held is None or self._broken:
            return
        wanted = self._wanted(place, held, records)
        try:
            output = held.worker.process(wanted, caught_up=caught_up)
        except Exception as exc:  # noqa: BLE001 - a fault of ours costs one message, not the stream
            self._suspect(place, wanted, exc)
            return
        self._emit(output)
        if records:
            held.next_offset = records[-1].offset + 1
            held.newest_ms = records[-1].arrived_ms
            self._wiring.metrics.records.labels(self._wiring.source.name).inc(len(records))
            if self._careful.get(place, 0) <= held.next_offset:
                self._careful.pop(place, None)

    def _wanted(self, place: TopicPartition, held: _Held, records: list[Record]) -> list[Record]:
        """Leave out what the state holds already, and messages that broke the engine."""
        if records and held.expected is not None:
            if records[0].offset < held.expected:
                self._begin_topic_anew(place, held)
            held.expected = None
        return [
            record
            for record in records
            if record.offset >= held.next_offset and (place, record.offset) not in self._poison
        ]

    def _begin_topic_anew(self, place: TopicPartition, held: _Held) -> None:
        """Go on from offset 0: the topic was deleted and made again."""
        _log.warning("topic_made_anew", topic=place.topic, partition=place.partition)
        self._wiring.snapshots.forget(place.topic, place.partition)
        held.next_offset, held.saved_offset = 0, -1

    def _suspect(self, place: TopicPartition, records: list[Record], exc: Exception) -> None:
        """Find the message that broke the engine: reread one by one, then bury it."""
        self._wiring.metrics.count({"engine_errors": 1})
        if not records:
            _log.exception("idle_turn_broke", partition=place.partition)
            return
        self._broken = True
        if len(records) > 1:
            self._careful[place] = records[-1].offset + 1
            _log.exception("engine_broke", partition=place.partition, records=len(records))
            return
        record = records[0]
        _log.exception("message_buried", partition=place.partition, offset=record.offset)
        self._poison.add((place, record.offset))
        output = Output()
        output.bury(record, "engine", f"{type(exc).__name__}: {exc}")
        self._emit(output)

    def _emit(self, output: Output) -> None:
        if self._sender is None:
            raise RuntimeError("the loop is not running")
        metrics = self._wiring.metrics
        metrics.count(output.counts)
        for event in output.alerts:
            metrics.alerts.labels(event.family, event.kind, event.severity, event.state).inc()
            _log.info("alert", state=event.state, severity=event.severity, summary=event.summary)
        if output.messages:
            self._sender.send(output.messages, self._stop)

    def _checkpoint(self, subscriber: Subscriber | None, places: Sequence[TopicPartition]) -> None:
        """Deliver, save, commit; skip all of it if something could not be delivered."""
        moved = [
            place
            for place in places
            if self._held[place].next_offset > self._held[place].saved_offset
        ]
        if not moved or self._sender is None:
            return
        with self._wiring.metrics.checkpoint_seconds.labels(self._wiring.source.name).time():
            if not self._sender.settle(_FLUSH_SECONDS, self._stop):
                _log.warning("checkpoint_skipped", reason="alerts could not be delivered")
                return
            try:
                for place in moved:
                    self._save(place, self._held[place])
            except (BusError, DataDirError) as exc:
                # The state stays in memory; after a crash what came since is read again.
                _log.warning("checkpoint_skipped", reason=str(exc))
                return
            if subscriber is not None:
                subscriber.commit({place: self._held[place].next_offset for place in moved})

    def _save(self, place: TopicPartition, held: _Held) -> None:
        facts, arrays = held.worker.dump()
        self._wiring.snapshots.save(
            Snapshot(
                topic=place.topic,
                partition=place.partition,
                next_offset=held.next_offset,
                facts=facts,
                arrays=arrays,
                code_version=self._version,
            )
        )
        held.saved_offset = held.next_offset

    # -- bus.AssignmentListener --------------------------------------------------------------

    def on_assigned(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int] | None:
        """Load the states of new partitions and say where to go on."""
        starts: dict[TopicPartition, int] = {}
        if places:
            self._wiring.snapshots.refresh()
        for place in places:
            worker = self._wiring.make(place.partition)
            saved = self._wiring.snapshots.load(place.topic, place.partition)
            # -1: nothing read yet, so nothing to save and no position to commit.
            held = _Held(worker=worker, next_offset=-1, saved_offset=-1)
            if saved is not None:
                self._take_over(place, held, saved)
                starts[place] = held.next_offset
            self._held[place] = held
        self._count_partitions()
        _log.info(
            "partitions_assigned", topic=self._topic, partitions=[p.partition for p in places]
        )
        return starts

    def _take_over(self, place: TopicPartition, held: _Held, saved: Snapshot) -> None:
        dropped = held.worker.load(saved.facts, saved.arrays)
        held.next_offset = held.saved_offset = held.expected = saved.next_offset
        if dropped:
            self._wiring.metrics.state_fresh.inc(len(dropped))
            _log.warning("state_partly_fresh", partition=place.partition, arrays=dropped)

    def on_revoked(self, places: Sequence[TopicPartition]) -> None:
        """Save what is still ours, then let go."""
        mine = [place for place in places if place in self._held]
        if not self._broken:
            self._checkpoint(None, mine)
        self._drop(places)

    def on_lost(self, places: Sequence[TopicPartition]) -> None:
        """Let go without saving: another has these partitions already."""
        self._drop(places)

    def _drop(self, places: Sequence[TopicPartition]) -> None:
        for place in places:
            self._held.pop(place, None)
            if not self._broken:  # another reader finds the message; ours need not be slow for it
                self._careful.pop(place, None)
        self._count_partitions()

    def _count_partitions(self) -> None:
        self._wiring.metrics.partitions.labels(self._wiring.source.name).set(len(self._held))


def _by_place(records: Sequence[Record]) -> dict[TopicPartition, list[Record]]:
    """Sort records by partition, in log order."""
    found: dict[TopicPartition, list[Record]] = defaultdict(list)
    for record in records:
        found[record.place].append(record)
    return found
