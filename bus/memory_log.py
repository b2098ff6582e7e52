"""Where the memory transport keeps its records, claims and positions."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bus.embedded import Shares
from bus.placement import fair_share, partition_of, spec_of
from bus.protocol import Headers, Record, TopicPartition

__all__ = ["MemoryLog"]


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


class MemoryLog:
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
        """Return the partitions of a topic, made at first use."""
        if topic not in self._topics:
            spec = spec_of(topic, self.prefix)
            count = min(self._partitions, spec.partitions) if spec else self._partitions
            self._topics[topic] = [_Lane() for _ in range(count)]
        return self._topics[topic]

    def topics(self) -> Mapping[str, int]:
        """Return the number of partitions by topic."""
        with self.changed:
            return {name: len(lanes) for name, lanes in self._topics.items()}

    def append(
        self, topic: str, key: bytes | None, value: bytes, headers: Headers, arrived_ms: int
    ) -> Record:
        """Add one record at the end of its partition."""
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
        """Forget the records of a place before an offset."""
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
        """Say that the member lives, and return its shares."""
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
        """Take those of the places that nobody holds."""
        with self.changed:
            claims = self._group(group).claims
            return [place for place in places if claims.setdefault(place, member) == member]

    def release(self, group: str, member: str, places: Iterable[TopicPartition]) -> None:
        """Give back the member's claims on the places."""
        with self.changed:
            claims = self._group(group).claims
            for place in places:
                if claims.get(place) == member:
                    del claims[place]
                    self.changed.notify_all()

    def leave(self, group: str, member: str) -> None:
        """Forget the member and its claims."""
        with self.changed:
            state = self._group(group)
            state.members.pop(member, None)
            for place in [place for place, owner in state.claims.items() if owner == member]:
                del state.claims[place]
            self.changed.notify_all()

    def bounds(self, place: TopicPartition) -> tuple[int, int]:
        """Return the first offset kept and the next one to be written."""
        with self.changed:
            lane = self.lanes(place.topic)[place.partition]
            return lane.low, lane.low + len(lane.records)

    def committed(self, group: str, place: TopicPartition) -> int | None:
        """Return the group's position, or None."""
        with self.changed:
            return self._group(group).positions.get(place)

    def commit(self, group: str, member: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Record positions of places that the member holds."""
        with self.changed:
            state = self._group(group)
            for place, offset in offsets.items():
                if state.claims.get(place) == member:
                    state.positions[place] = offset

    def read(self, place: TopicPartition, offset: int, limit: int) -> list[Record]:
        """Return up to ``limit`` records from ``offset`` on."""
        with self.changed:
            lane = self.lanes(place.topic)[place.partition]
            first = max(0, offset - lane.low)
            return lane.records[first : first + limit]

    def wait(self, timeout_seconds: float) -> None:
        """Return when something was written, at the latest after 10 ms."""
        # A notification between the caller's look and this wait costs one turn of 10 ms.
        with self.changed:
            self.changed.wait(min(timeout_seconds, 0.01))

    def close(self) -> None:
        """Nothing is held open."""
