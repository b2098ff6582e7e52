"""Snapshots in the compacted topic ``gpu.detector.state``: state moves with its partition.

The default on Kafka, where a partition may go to a detector on another machine. A snapshot is
larger than a message may be, so it travels as numbered chunks. Two slots take turns, because
compaction keeps only the newest record of each key: a writer that dies half-way has overwritten
the older of two snapshots and never the newest whole one.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass

import structlog

from bus.protocol import Bus, DeliveryReport, Publisher, Record
from detector.snapshot import Snapshot, pack, unpack
from schemas.errors import BusFullError, BusUnavailableError, SnapshotError
from schemas.topics import STATE

__all__ = ["CHUNK_BYTES", "TopicSnapshots"]

_log = structlog.get_logger()
CHUNK_BYTES = 524_288  # half of what a message of the topic may have
_FLUSH_SECONDS = 30.0
_SLOTS = 2
_Place = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """One record of the topic: chunk ``index`` of ``count`` of a snapshot at ``offset``."""

    offset: int
    index: int
    count: int
    value: bytes


class TopicSnapshots:
    """Snapshots by (topic, partition) in one compacted topic of the bus.

    Parameters
    ----------
    bus, prefix
        Where the topic is.
    chunk_bytes
        Largest part of a snapshot in one message.
    """

    def __init__(self, bus: Bus, prefix: str, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._bus = bus
        self._topic = STATE.full_name(prefix)
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._kept: dict[_Place, tuple[int, bytes]] = {}  # slot and packed snapshot
        self._own = threading.local()  # a publisher belongs to one thread

    def refresh(self) -> None:
        """Read the whole topic again.

        Raises
        ------
        BusUnavailableError
            If it cannot be read to its end.
        """
        found: dict[tuple[_Place, int], dict[int, _Chunk]] = defaultdict(dict)
        for record in self._bus.read_all(self._topic):
            decoded = _decoded(record)
            if decoded is not None:
                where, chunk = decoded
                found[where][chunk.index] = chunk
        kept: dict[_Place, tuple[int, int, bytes]] = {}
        for (place, slot), chunks in found.items():
            whole = _joined(chunks)
            if whole is not None and whole[0] >= kept.get(place, (-1, 0, b""))[0]:
                kept[place] = (whole[0], slot, whole[1])
        with self._lock:
            self._kept = {place: (slot, data) for place, (_, slot, data) in kept.items()}

    def load(self, topic: str, partition: int) -> Snapshot | None:
        """Return the newest whole snapshot that the last refresh, or this process, has seen."""
        with self._lock:
            kept = self._kept.get((topic, partition))
        if kept is None:
            return None
        try:
            return unpack(kept[1])
        except SnapshotError as exc:
            _log.warning("snapshot_unreadable", place=f"{topic}/{partition}", reason=str(exc))
            return None

    def save(self, snapshot: Snapshot) -> None:
        """Send all chunks and wait until the log has them.

        Raises
        ------
        BusUnavailableError
            If it has not after half a minute; the snapshot before stays the newest.
        """
        place = (snapshot.topic, snapshot.partition)
        data = pack(snapshot)
        with self._lock:
            slot = (self._kept.get(place, (-1, b""))[0] + 1) % _SLOTS
        size = self._chunk_bytes
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        failures: list[str] = []
        for index, part in enumerate(parts):
            self._send(place, slot, (snapshot.next_offset, index, len(parts)), part, failures)
        left = self._publisher().flush(_FLUSH_SECONDS)
        if left or failures:
            reason = failures[0] if failures else f"{left} chunks are still waiting"
            raise BusUnavailableError(f"The state could not be saved on {self._topic}: {reason}.")
        with self._lock:
            self._kept[place] = (slot, data)

    def forget(self, topic: str, partition: int) -> None:
        """Mark the snapshots of a partition as void."""
        with self._lock:
            kept = self._kept.pop((topic, partition), None)
        if kept is not None:
            for slot in range(_SLOTS):
                self._send((topic, partition), slot, (-1, 0, 1), b"", [])
            self._publisher().flush(_FLUSH_SECONDS)

    def _send(
        self,
        place: _Place,
        slot: int,
        numbers: tuple[int, int, int],
        value: bytes,
        failures: list[str],
    ) -> None:
        def report(done: DeliveryReport) -> None:
            if done.error is not None:
                failures.append(done.error)

        key = f"{place[0]}/{place[1]}/{slot}/{numbers[1]}".encode()
        headers = (("numbers", ",".join(map(str, numbers)).encode()),)
        publisher = self._publisher()
        while True:
            try:
                publisher.send(
                    self._topic, key=key, value=value, headers=headers, on_delivery=report
                )
            except BusFullError as exc:
                # Room comes only from what is delivered.
                if publisher.flush(_FLUSH_SECONDS):
                    raise BusUnavailableError(f"The state could not be saved: {exc}") from exc
            else:
                return

    def _publisher(self) -> Publisher:
        made: Publisher | None = getattr(self._own, "publisher", None)
        if made is None:
            made = self._bus.publisher(client_id="foreshock-state", durable=True)
            self._own.publisher = made
        return made


def _decoded(record: Record) -> tuple[tuple[_Place, int], _Chunk] | None:
    """Read place, slot and chunk; None for a record that is none of ours."""
    try:
        topic, partition, slot, _ = (record.key or b"").decode().rsplit("/", 3)
        offset, index, count = map(int, dict(record.headers)["numbers"].split(b","))
        place = (topic, int(partition))
    except (KeyError, ValueError):
        return None
    chunk = _Chunk(offset=offset, index=index, count=count, value=record.value)
    return (place, int(slot)), chunk


def _joined(chunks: dict[int, _Chunk]) -> tuple[int, bytes] | None:
    """Join the chunks of a slot; None if some are missing or of another snapshot, or void."""
    first = chunks.get(0)
    if first is None or first.offset < 0:
        return None
    parts = [chunks.get(index) for index in range(first.count)]
    whole = [part for part in parts if part is not None and part.offset == first.offset]
    if len(whole) != first.count or any(part.count != first.count for part in whole):
        return None
    return first.offset, b"".join(part.value for part in whole)
