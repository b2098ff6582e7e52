"""A reader of the embedded transports: group membership and positions over a plain log.

Memory and SQLite differ only in where records, claims and positions lie (:class:`Log`). How a
group shares partitions is the same:

* Each live member computes who is due which partition (``placement.fair_share``).
* A member first gives back what is due to another, after its listener has saved; only then can
  the other claim it. Two members never hold one partition, except that a member which did not
  poll for a whole lease has lost its claims and is told so (``on_lost``) when it comes back.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.protocol import AssignmentListener, Record, Start, TopicPartition

__all__ = ["EmbeddedSubscriber", "Log", "Shares", "scan"]

_SCAN_RECORDS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Who has what: the claims that the log has for a member, and those due to it."""

    held: frozenset[TopicPartition]
    due: frozenset[TopicPartition]


class Log(Protocol):
    """Records, claims and positions of one embedded transport."""

    def beat(self, group: str, member: str, topics: Sequence[str]) -> Shares:
        """Say that the member lives, and return its shares."""
        ...

    def claim(
        self, group: str, member: str, places: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """Take those of the places that nobody holds, and return them."""
        ...

    def release(self, group: str, member: str, places: Iterable[TopicPartition]) -> None:
        """Give back the member's claims on the places."""
        ...

    def leave(self, group: str, member: str) -> None:
        """Forget the member and its claims."""
        ...

    def bounds(self, place: TopicPartition) -> tuple[int, int]:
        """Return the first offset kept and the next one to be written."""
        ...

    def committed(self, group: str, place: TopicPartition) -> int | None:
        """Return the group's position, or None."""
        ...

    def commit(self, group: str, member: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Record positions of places that the member holds; ignore the others."""
        ...

    def read(self, place: TopicPartition, offset: int, limit: int) -> list[Record]:
        """Return up to ``limit`` records from ``offset`` on."""
        ...

    def wait(self, timeout_seconds: float) -> None:
        """Return when something may have been written, at the latest after the time-out."""
        ...

    def close(self) -> None:
        """Let go of what this reader held open."""
        ...


class EmbeddedSubscriber:
    """One member of a group. Implements :class:`bus.protocol.Subscriber`.

    Once its listener has raised, the reader is spent: each further ``poll`` raises the same
    error, because state and position can no longer be trusted to agree.

    Parameters
    ----------
    log
        Where everything lies.
    group, topics, listener, start
        As in :meth:`bus.protocol.Bus.subscriber`.
    beat_seconds
        Seconds between two signs of life.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        log: Log,
        *,
        group: str,
        topics: Sequence[str],
        listener: AssignmentListener | None,
        start: str,
        beat_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._group = group
        self._topics = tuple(topics)
        self._listener = listener
        self._start = start
        self._beat_seconds = beat_seconds
        self._clock = clock
        self._member = uuid.uuid4().hex
        self._next: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._turn = 0
        self._beat_due = clock()
        self._failure: Exception | None = None
        self._closed = False
        self.outage: str | None = None  # a file is there or fails: there is no between

    def poll(self, max_records: int, timeout_seconds: float) -> list[Record]:
        """Return up to ``max_records`` records; empty after ``timeout_seconds`` without any."""
        if self._failure is not None:
            raise self._failure
        deadline = self._clock() + timeout_seconds
        while True:
            self._settle()
            records = self._read(max_records)
            remaining = deadline - self._clock()
            if records or remaining <= 0:
                return records
            self._log.wait(min(remaining, max(0.01, self._beat_due - self._clock())))

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record for the group the next offset to read of each place."""
        if offsets:
            self._log.commit(self._group, self._member, offsets)

    def lag(self) -> dict[TopicPartition, int]:
        """Count the records not yet returned by ``poll``, per assigned place."""
        return {
            place: max(0, self._log.bounds(place)[1] - position)
            for place, position in self._next.items()
        }

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Return no records of these places until ``resume``."""
        self._paused.update(place for place in places if place in self._next)

    def resume(self, places: Iterable[TopicPartition]) -> None:
        """Undo ``pause``."""
        self._paused.difference_update(places)

    def close(self) -> None:
        """Leave the group; ``on_revoked`` runs first for what is still assigned."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._failure is None and self._next and self._listener is not None:
                self._listener.on_revoked(sorted(self._next))
        finally:
            self._next.clear()
            self._log.leave(self._group, self._member)
            self._log.close()

    def _settle(self) -> None:
        if self._clock() < self._beat_due:
            return
        self._beat_due = self._clock() + self._beat_seconds
        shares = self._log.beat(self._group, self._member, self._topics)
        mine = frozenset(self._next)
        try:
            self._lose(mine - shares.held)
            self._give_back((mine & shares.held) - shares.due)
            # A claim whose release failed (full disk) is released again.
            self._log.release(self._group, self._member, shares.held - mine - shares.due)
            self._take(shares.due - frozenset(self._next))
        except Exception as error:
            self._failure = error
            raise

    def _lose(self, places: frozenset[TopicPartition]) -> None:
        if places:
            self._forget(places)
            if self._listener is not None:
                self._listener.on_lost(sorted(places))

    def _give_back(self, places: frozenset[TopicPartition]) -> None:
        if places:
            if self._listener is not None:
                self._listener.on_revoked(sorted(places))
            self._forget(places)
            self._log.release(self._group, self._member, places)

    def _take(self, places: frozenset[TopicPartition]) -> None:
        taken = self._log.claim(self._group, self._member, sorted(places)) if places else []
        if not taken:
            return
        wanted = (self._listener.on_assigned(taken) if self._listener is not None else None) or {}
        for place in taken:
            low, high = self._log.bounds(place)
            position = wanted.get(place)
            if position is None:
                position = self._log.committed(self._group, place)
            if position is None:
                position = low if self._start == Start.EARLIEST else high
            self._next[place] = min(max(position, low), high)

    def _forget(self, places: Iterable[TopicPartition]) -> None:
        for place in places:
            self._next.pop(place, None)
            self._paused.discard(place)

    def _read(self, max_records: int) -> list[Record]:
        """Read place by place, beginning with another one each time so that none starves."""
        places = [place for place in self._next if place not in self._paused]
        if not places:
            return []
        self._turn = (self._turn + 1) % len(places)
        records: list[Record] = []
        for place in places[self._turn :] + places[: self._turn]:
            part = self._log.read(place, self._next[place], max_records - len(records))
            if part:
                self._next[place] = part[-1].offset + 1
                records.extend(part)
            if len(records) >= max_records:
                break
        return records


def scan(log: Log, topic: str, partitions: int) -> Iterator[Record]:
    """Yield what a topic keeps now; see :meth:`bus.protocol.Bus.read_all`."""
    for number in range(partitions):
        place = TopicPartition(topic, number)
        offset, end = log.bounds(place)
        while offset < end:
            records = log.read(place, offset, _SCAN_RECORDS)
            if not records:
                break  # compacted away up to the end
            yield from records
            offset = records[-1].offset + 1
