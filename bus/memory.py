"""Messages inside one process: for tests, replays and demonstrations. Nothing is kept.

It keeps every promise of :mod:`bus.protocol`, and can be told to fail, so that services are
tested against the real thing rather than against mocks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from bus.embedded import EmbeddedSubscriber, scan
from bus.memory_log import MemoryLog
from bus.placement import check_size, payload_bytes, spec_of
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


class MemoryPublisher:
    """Sends into the process. Implements :class:`bus.protocol.Publisher`."""

    def __init__(self, bus: MemoryBus, log: MemoryLog, capacity: int) -> None:
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
        self._log = MemoryLog(partitions, prefix, keep_records, lease_seconds)
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

    def read_all(self, topic: str) -> Iterator[Record]:
        """Yield what a topic keeps now, in order within each partition."""
        return scan(self._log, topic, len(self._log.lanes(topic)))

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
