"""What every transport promises, in words and types.

The detector and the api are written against this file alone, so that one machine
(SQLite), a test (memory) and a cluster (Kafka) run the same code.

Delivery semantics, the same for the three transports:

* Records of one key are delivered in the order in which they were sent.
* Delivery is at least once: a reader that dies between reading and committing reads
  again. Readers de-duplicate by the ids that the messages carry.
* Offsets are explicit. A position moves only by ``commit`` or by the start offset that
  the reader returns when partitions are assigned.
* ``Publisher.send`` never waits for a broker. What cannot be taken is refused with
  :class:`~schemas.errors.BusFullError`; what was taken and could not be delivered is
  handed back through ``on_delivery``, whole, so that the caller can spool it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = [
    "AssignmentListener",
    "Bus",
    "DeliveryReport",
    "Headers",
    "Publisher",
    "Record",
    "Start",
    "Subscriber",
    "TopicDescription",
    "TopicPartition",
]

Headers = tuple[tuple[str, bytes], ...]


class TopicPartition(NamedTuple):
    """One partition of one topic. The topic is the full name, prefix included."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One message as it lies in the log.

    Parameters
    ----------
    topic, partition, offset
        Where it lies; offsets of one partition grow, they need not be contiguous.
    arrived_ms
        Unix milliseconds at which the log took it (LogAppendTime), never event time.
    key
        Partitioning key, or None.
    value
        The bytes as sent. An empty value is a tombstone on compacted topics.
    headers
        Name and bytes, in the order sent.
    """

    topic: str
    partition: int
    offset: int
    arrived_ms: int
    key: bytes | None
    value: bytes
    headers: Headers = ()

    @property
    def place(self) -> TopicPartition:
        """Topic and partition as one hashable value."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryReport:
    """What became of one sent message; ``error`` is None if the log has it."""

    topic: str
    key: bytes | None
    value: bytes
    headers: Headers
    partition: int | None = None
    offset: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as the transport has it."""

    name: str
    partitions: int
    config: Mapping[str, str]


class Publisher(Protocol):
    """Sends without waiting. One publisher belongs to one thread."""

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes,
        headers: Headers = (),
        on_delivery: Callable[[DeliveryReport], None] | None = None,
    ) -> None:
        """Take one message for delivery.

        Raises
        ------
        BusFullError
            If the transport's bounded queue is full or its disk takes no more: nothing
            was taken.
        MessageTooLargeError
            If the message can never be delivered: retrying is useless.
        """
        ...

    def poll(self) -> None:
        """Run the delivery reports that are due. Never blocks."""
        ...

    def flush(self, timeout_seconds: float) -> int:
        """Wait until everything taken is delivered or failed; return how many are not."""
        ...

    def close(self, timeout_seconds: float = 5.0) -> int:
        """Flush and let go of the transport; return how many messages were not delivered."""
        ...


class AssignmentListener(Protocol):
    """How a reader takes over and gives back partitions. Called from ``Subscriber.poll``.

    An exception raised here is re-raised by the ``poll`` in which it happened.
    """

    def on_assigned(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int] | None:
        """Return the offset to start at for those places that have one.

        A place that is not in the mapping starts at its committed offset, else at the
        subscriber's ``start``. An offset before the first record still kept starts at that record;
        one past the end starts at the end.
        """
        ...

    def on_revoked(self, places: Sequence[TopicPartition]) -> None:
        """Save and commit now: the places are still ours until this returns."""
        ...

    def on_lost(self, places: Sequence[TopicPartition]) -> None:
        """Drop the state of these places, save and commit nothing: they are already another's."""
        ...


class Subscriber(Protocol):
    """Reads as one member of a consumer group. Belongs to one thread."""

    #: Sentence that says that the transport is away for now, though reading goes on by itself
    #: once it is back; None while it answers. May be read from any thread.
    outage: str | None

    def poll(self, max_records: int, timeout_seconds: float) -> list[Record]:
        """Return up to ``max_records`` records; empty after ``timeout_seconds`` without any.

        Raises
        ------
        BusUnavailableError
            If the transport cannot be read and will not mend by itself. Passing faults are
            retried inside.
        """
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record for the group the next offset to read of each place."""
        ...

    def lag(self) -> Mapping[TopicPartition, int]:
        """Count the records not yet returned by ``poll``, per assigned place, as far as known."""
        ...

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Return no records of these places until ``resume``; keep calling ``poll``."""
        ...

    def resume(self, places: Iterable[TopicPartition]) -> None:
        """Undo ``pause``."""
        ...

    def close(self) -> None:
        """Leave the group; ``on_revoked`` runs first for what is still assigned."""
        ...


class Start:
    """Where a group without a committed offset begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


@runtime_checkable
class Bus(Protocol):
    """One transport. Safe to share between threads; what it makes is not."""

    def publisher(self, *, client_id: str, durable: bool = False) -> Publisher:
        """Make a publisher. ``durable`` asks that a delivered message survive power loss."""
        ...

    def subscriber(
        self,
        *,
        group: str,
        topics: Sequence[str],
        listener: AssignmentListener | None = None,
        start: str = Start.EARLIEST,
        client_id: str = "foreshock",
    ) -> Subscriber:
        """Join ``group`` and read ``topics`` (full names)."""
        ...

    def read_all(self, topic: str) -> Iterator[Record]:
        """Yield what a topic keeps now, in order within each partition, as no group's member.

        For small topics whose newest record per key is what counts; nothing is committed.

        Raises
        ------
        BusUnavailableError
            If the topic cannot be read to the end that it had when the reading began.
        """
        ...

    def create_topics(self) -> list[str]:
        """Create what ``schemas.topics`` declares and is missing; return the names created."""
        ...

    def describe_topics(self) -> list[TopicDescription]:
        """Describe those of our topics that exist, in the order of ``schemas.topics``."""
        ...

    def check(self, timeout_seconds: float) -> str:
        """Return one sentence that says the transport works.

        Raises
        ------
        BusUnavailableError
            With a sentence that says why it does not and what to do.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...
