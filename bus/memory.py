"""Messages inside one process: for tests, replays and demonstrations. Nothing is kept.

It keeps every promise of :mod:`bus.protocol`, and can be told to fail, so that services are
tested against the real thing rather than against mocks.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bus.embedded import EmbeddedSubscriber, Shares
from bus.placement import check_size, fair_share, partition_of, payload_bytes, spec_of
from bus.protocol import (
    AssignmentListener,
    DeliveryReport,
    Headers,
    Record,
    Start,
    TopicDescription,
    TopicPartition,
)
from schemas.errors import BusFullError, BusUnavailableError
from schemas.topics import ALL_TOPICS

__all__ = ["MemoryBus", "MemoryPublisher"]

_MAX_BYTES = 1_048_576  # of topics that the contract does not name; Kafka's usual limit


@dataclass(slots=True)
class _Lane:
    """One partition: the records still kept and the offset of the first of them."""

    low: int = 0
    records: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    members: dict[str, tuple[tuple[str, ...], float]] = field(default_factory=dict)
    claims: dict[TopicPartition, str] = field(default_factory=dict)
    positions: dict[TopicPartition, int] = field(default_factory=dict)


class _MemoryLog:
    """All records and groups of one process, under one lock. Implements ``embedded.Log``."""

    def __init__(
        self, partitions: int, prefix: str, keep_records: int, lease_seconds: float
    ) -> None:
        self.changed = threading.Condition()
        self.prefix = prefix
        self._partitions = partitions
        self._keep = keep_records
        self._lease_seconds = lease_seconds
        self._topics: dict[str, list[_Lane]] = {}
        self._groups: dict[str, _Group] = {}
        self._null_key = itertools.count()

    def lanes(self, topic: str) -> list[_Lane]:
        if topic not in self._topics:
            spec = spec_of(topic, self.prefix)
            count = min(self._partitions, spec.partitions) if spec else self._partitions
            self._topics[topic] = [_Lane() for _ in range(count)]
        return self._topics[topic]

    def topics(self) -> Mapping[str, int]:
        with self.changed:
            return {name: len(lanes) for name, lanes in self._topics.items()}

    def append(
        self, topic: str, key: bytes | None, value: bytes, headers: Headers, arrived_ms: int
    ) -> Record:
        with self.changed:
            lanes = self.lanes(topic)
            number = next(self._null_key) if key is None else None
            partition = (
                partition_of(key, len(lanes)) if key is not None else (number or 0) % len(lanes)
            )
            lane = lanes[partition]
            record = Record(
                topic=topic,
                partition=partition,
                offset=lane.low + len(lane.records),
                arrived_ms=arrived_ms,
                key=key,
                value=value,
                headers=headers,
            )
            lane.records.append(record)
            # A tenth at a time: deleting from the front of a list costs its whole length.
            if len(lane.records) > self._keep + self._keep // 10:
                self._drop(lane, len(lane.records) - self._keep)
            self.changed.notify_all()
            return record

    def drop_before(self, place: TopicPartition, offset: int) -> None:
        with self.changed:
            lane = self.lanes(place.topic)[place.partition]
            self._drop(lane, min(max(0, offset - lane.low), len(lane.records)))

    @staticmethod
    def _drop(lane: _Lane, count: int) -> None:
        del lane.records[:count]
        lane.low += count

    def _group(self, name: str) -> _Group:
        return self._groups.setdefault(name, _Group())

    def beat(self, group: str, member: str, topics: Sequence[str]) -> Shares:
        with self.changed:
            state = self._group(group)
            state.members[member] = (tuple(topics), time.monotonic())
            self._bury(state)
            places = [
                TopicPartition(topic, number)
                for topic in topics
                for number in range(len(self.lanes(topic)))
            ]
            held = frozenset(place for place, owner in state.claims.items() if owner == member)
            members = {name: read for name, (read, _) in state.members.items()}
            return Shares(held=held, due=fair_share(places, members, member))

    def _bury(self, state: _Group) -> None:
        """Forget members that have not polled for a lease: whoever made them has let them go."""
        since = time.monotonic() - self._lease_seconds
        gone = {name for name, (_, seen) in state.members.items() if seen < since}
        for name in gone:
            del state.members[name]
        for place in [place for place, owner in state.claims.items() if owner in gone]:
            del state.claims[place]

    def claim(
        self, group: str, member: str, places: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        with self.changed:
            claims = self._group(group).claims
            return [place for place in places if claims.setdefault(place, member) == member]

    def release(self, group: str, member: str, places: Iterable[TopicPartition]) -> None:
        with self.changed:
            claims = self._group(group).claims
            for place in places:
                if claims.get(place) == member:
                    del claims[place]
                    self.changed.notify_all()

    def leave(self, group: str, member: str) -> None:
        with self.changed:
            state = self._group(group)
            state.members.pop(member, None)
            for place in [place for place, owner in state.claims.items() if owner == member]:
                del state.claims[place]
            self.changed.notify_all()

    def bounds(self, place: TopicPartition) -> tuple[int, int]:
        with self.changed:
            lane = self.lanes(place.topic)[place.partition]
            return lane.low, lane.low + len(lane.records)

    def committed(self, group: str, place: TopicPartition) -> int | None:
        with self.changed:
            return self._group(group).positions.get(place)

    def commit(self, group: str, member: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self.changed:
            state = self._group(group)
            for place, offset in offsets.items():
                if state.claims.get(place) == member:
                    state.positions[place] = offset

    def read(self, place: TopicPartition, offset: int, limit: int) -> list[Record]:
        with self.changed:
            lane = self.lanes(place.topic)[place.partition]
            first = max(0, offset - lane.low)
            return lane.records[first : first + limit]

    def wait(self, timeout_seconds: float) -> None:
        # A notification between the caller's look and this wait costs one turn of 10 ms.
        with self.changed:
            self.changed.wait(min(timeout_seconds, 0.01))

    def close(self) -> None:
        """Nothing is held open."""


class MemoryPublisher:
    """Sends into the process. Implements :class:`bus.protocol.Publisher`."""

    def __init__(self, bus: MemoryBus, log: _MemoryLog, capacity: int) -> None:
        self._bus = bus
        self._log = log
        self._capacity = capacity
        self._due: deque[tuple[Callable[[DeliveryReport], None], DeliveryReport]] = deque()

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes,
        headers: Headers = (),
        on_delivery: Callable[[DeliveryReport], None] | None = None,
    ) -> None:
        """Take one message for delivery; its report is due at the next ``poll``."""
        spec = spec_of(topic, self._log.prefix)
        limit = spec.max_message_bytes if spec else _MAX_BYTES
        check_size(topic, payload_bytes(key, value, headers), limit)
        if len(self._due) >= self._capacity:
            raise BusFullError(
                f"{self._capacity} messages wait for their delivery report. Poll the publisher."
            )
        outage = self._bus.outage
        record = (
            None if outage else self._log.append(topic, key, value, headers, self._bus.now_ms())
        )
        if on_delivery is not None:
            report = DeliveryReport(
                topic=topic,
                key=key,
                value=value,
                headers=headers,
                partition=record.partition if record else None,
                offset=record.offset if record else None,
                error=outage,
            )
            self._due.append((on_delivery, report))

    def poll(self) -> None:
        """Run the delivery reports that are due."""
        for _ in range(len(self._due)):
            tell, report = self._due.popleft()
            tell(report)

    def flush(self, timeout_seconds: float) -> int:  # noqa: ARG002 - nothing here ever waits
        """Run the delivery reports that are due; nothing is ever left."""
        self.poll()
        return 0

    def close(self, timeout_seconds: float = 5.0) -> int:
        """Flush."""
        return self.flush(timeout_seconds)


class MemoryBus:
    """One process. Implements :class:`bus.protocol.Bus`.

    Parameters
    ----------
    prefix
        Before each topic name.
    partitions
        Partitions of each topic, at most as many as the contract says.
    keep_records
        Records kept per partition; the oldest go first.
    capacity
        Reports that may wait per publisher before ``send`` refuses.
    lease_seconds
        Seconds without ``poll`` after which a reader's partitions go to others of its group.
    now_ms
        Arrival clock, unix milliseconds.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        partitions: int = 4,
        keep_records: int = 1_000_000,
        capacity: int = 100_000,
        lease_seconds: float = 5.0,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.now_ms = now_ms
        #: While set, each message fails with this text: what a broker that is away looks like.
        self.outage: str | None = None
        self._log = _MemoryLog(partitions, prefix, keep_records, lease_seconds)
        self._capacity = capacity

    def publisher(self, *, client_id: str, durable: bool = False) -> MemoryPublisher:  # noqa: ARG002 - memory has neither names nor disks
        """Make a publisher."""
        return MemoryPublisher(self, self._log, self._capacity)

    def subscriber(
        self,
        *,
        group: str,
        topics: Sequence[str],
        listener: AssignmentListener | None = None,
        start: str = Start.EARLIEST,
        client_id: str = "foreshock",  # noqa: ARG002 - members are named by themselves
    ) -> EmbeddedSubscriber:
        """Join ``group`` and read ``topics`` (full names)."""
        return EmbeddedSubscriber(
            self._log, group=group, topics=topics, listener=listener, start=start, beat_seconds=0.0
        )

    def create_topics(self) -> list[str]:
        """Create what ``schemas.topics`` declares and is missing."""
        names = [spec.full_name(self._log.prefix) for spec in ALL_TOPICS]
        missing = [name for name in names if name not in self._log.topics()]
        with self._log.changed:
            for name in missing:
                self._log.lanes(name)
        return missing

    def describe_topics(self) -> list[TopicDescription]:
        """Describe those of our topics that exist."""
        there = self._log.topics()
        names = [spec.full_name(self._log.prefix) for spec in ALL_TOPICS]
        return [
            TopicDescription(name=name, partitions=there[name], config={})
            for name in names
            if name in there
        ]

    def expire(self, place: TopicPartition, before_offset: int) -> None:
        """Drop the records of a partition before an offset, as retention does elsewhere."""
        self._log.drop_before(place, before_offset)

    def check(self, timeout_seconds: float) -> str:  # noqa: ARG002 - nothing here ever waits
        """Return one sentence that says the transport works."""
        if self.outage:
            raise BusUnavailableError(f"The memory bus was told to fail: {self.outage}")
        return f"The bus inside this process works ({len(self._log.topics())} topics)."

    def close(self) -> None:
        """Nothing is held open."""
