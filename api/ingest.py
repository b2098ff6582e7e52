"""Reads alert events from the bus into the store.

Position and content are committed together in the store, and to the bus afterwards for its own
display of lag: after a crash reading resumes where the store is, so nothing is lost and nothing
counts twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from api.database import Database, RefusedRowError, insert_of
from api.ledger import Ledger, check_storable
from api.metrics import ApiMetrics
from api.tables import consumer
from bus.protocol import Bus, Publisher, Record, TopicPartition
from schemas.alert import AlertEvent
from schemas.codec import decode_alert
from schemas.errors import BusError, DataDirError, DecodeError, StoreError
from schemas.topics import ALERTS, DEAD_LETTERS

__all__ = ["AlertIngest", "Positions"]

_POLL_SECONDS = 0.25
_RETRY_SECONDS = 1.0
_REPORT_SECONDS = 60.0
_DEAD_LETTER_FLUSH_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class _Clock(Protocol):
    def __call__(self) -> int:
        """Return unix milliseconds."""
        ...


class Positions:
    """Read positions of one consumer group, kept in the store beside what was read."""

    def __init__(self, database: Database, group: str) -> None:
        self._database = database
        self._group = group

    def load(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the next offset of each place; 0, the oldest record kept, where none is known.

        Not the bus's own position: a store that was lost must be filled again.
        """
        query = sa.select(consumer.c.topic, consumer.c.partition, consumer.c.next_offset).where(
            consumer.c.consumer_group == self._group
        )
        with self._database.read() as connection:
            known = {
                TopicPartition(row.topic, row.partition): row.next_offset
                for row in connection.execute(query)
            }
        return {place: known.get(place, 0) for place in places}

    def save(self, connection: sa.Connection, offsets: Mapping[TopicPartition, int]) -> None:
        """Move the positions, in the transaction that stores what was read."""
        rows = [
            {
                "consumer_group": self._group,
                "topic": place.topic,
                "partition": place.partition,
                "next_offset": offset,
            }
            for place, offset in offsets.items()
        ]
        if rows:
            new = insert_of(connection)(consumer)
            connection.execute(
                new.on_conflict_do_update(
                    index_elements=["consumer_group", "topic", "partition"],
                    set_={"next_offset": new.excluded.next_offset},
                ),
                rows,
            )


class AlertIngest:
    """The loop from ``gpu.alerts`` to the store. Runs in one thread.

    Parameters
    ----------
    bus, prefix, group
        Transport, prefix of topic names, consumer group.
    database, ledger
        Where events go, and by which rules.
    metrics
        Counters.
    on_stored
        Called after a commit that stored something new: wakes streams and delivery.
    batch_size
        Most events in one transaction.
    now_ms
        Clock, unix milliseconds.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        prefix: str,
        group: str,
        database: Database,
        ledger: Ledger,
        metrics: ApiMetrics,
        on_stored: Callable[[], None] = lambda: None,
        batch_size: int = 500,
        now_ms: _Clock = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._bus = bus
        self._topic = ALERTS.full_name(prefix)
        self._dead_letters = DEAD_LETTERS.full_name(prefix)
        self._group = group
        self._database = database
        self._ledger = ledger
        self._metrics = metrics
        self._on_stored = on_stored
        self._batch_size = batch_size
        self._now_ms = now_ms
        self._positions = Positions(database, group)
        self._waiting: list[Record] = []
        self._places: set[TopicPartition] = set()
        self._reported_at = -_REPORT_SECONDS
        self._store_fault: str | None = None
        self._outage: str | None = None
        self.beat = time.monotonic()

    @property
    def problem(self) -> str | None:
        """Sentence that says what keeps it from its work: the store or the bus; or None."""
        return self._store_fault or self._outage

    def on_assigned(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Resume where the store is."""
        self._places |= set(places)
        return self._positions.load(places)

    def on_revoked(self, places: Sequence[TopicPartition]) -> None:
        """Forget what is not stored; the next owner reads it again."""
        self.on_lost(places)

    def on_lost(self, places: Sequence[TopicPartition]) -> None:
        """Forget what is not stored."""
        self._places -= set(places)
        gone = set(places)
        self._waiting = [record for record in self._waiting if record.place not in gone]

    def run(self, stop: threading.Event) -> None:
        """Read until ``stop`` is set.

        Raises
        ------
        BusUnavailableError
            If the transport will not mend by itself.
        """
        subscriber = self._bus.subscriber(
            group=self._group, topics=[self._topic], listener=self, client_id="foreshock-api"
        )
        publisher = self._bus.publisher(client_id="foreshock-api")
        paused = False
        try:
            while not stop.is_set():
                self.beat = time.monotonic()
                records = subscriber.poll(self._batch_size, _POLL_SECONDS)
                self._outage = subscriber.outage
                self._waiting.extend(records)
                self._metrics.ingest_lag.set(sum(subscriber.lag().values()))
                offsets = self._store(publisher) if self._waiting else {}
                if offsets is None:
                    # Keep polling, or a Kafka group takes us for dead; but take no more.
                    subscriber.pause(self._places)
                    paused = True
                    stop.wait(_RETRY_SECONDS)
                    continue
                if offsets:
                    subscriber.commit(offsets)
                if paused:  # stored at last, or what waited went to another reader
                    subscriber.resume(self._places)
                    paused = False
        finally:
            publisher.close()
            subscriber.close()

    def _store(self, publisher: Publisher) -> dict[TopicPartition, int] | None:
        """Store what is waiting; return the new positions, or None if that must wait."""
        offsets = _next_offsets(self._waiting)
        try:
            try:
                self._store_batch(publisher, self._waiting)
            except (RefusedRowError, SQLAlchemyError, ValueError, OverflowError) as exc:
                _log.warning("alert_batch_refused", error=type(exc).__name__)
                self._store_singly(publisher)
        except (StoreError, DataDirError) as exc:
            self._report(exc)
            return None
        self._store_fault = None
        self._waiting = []
        return offsets

    def _store_singly(self, publisher: Publisher) -> None:
        """Find the record that spoils the batch, set it aside, store the others."""
        while self._waiting:
            record = self._waiting[0]
            try:
                self._store_batch(publisher, [record])
            except (RefusedRowError, SQLAlchemyError, ValueError, OverflowError) as exc:
                with self._database.write() as connection:
                    self._positions.save(connection, _next_offsets([record]))
                self._set_aside(publisher, record, "store_refused", type(exc).__name__)
            self._waiting.pop(0)

    def _store_batch(self, publisher: Publisher, records: Sequence[Record]) -> None:
        decoded: list[AlertEvent] = []
        rejected: list[tuple[Record, DecodeError]] = []
        for record in records:
            try:
                alert_event = decode_alert(record.value)
                check_storable(alert_event)
            except DecodeError as exc:
                rejected.append((record, exc))
            else:
                decoded.append(alert_event)
        with self._database.write() as connection:
            entries = self._ledger.record_all(connection, decoded, self._now_ms())
            self._positions.save(connection, _next_offsets(records))
        for record, error in rejected:
            self._set_aside(publisher, record, error.reason, error.detail)
        new = sum(entry.event_id is not None for entry in entries)
        self._metrics.events.labels(outcome="stored").inc(new)
        self._metrics.events.labels(outcome="duplicate").inc(len(decoded) - new)
        if new:
            self._on_stored()

    def _set_aside(self, publisher: Publisher, record: Record, reason: str, detail: str) -> None:
        """Send an unusable record to the dead-letter topic; it never stops the stream."""
        self._metrics.events.labels(outcome="dead_letter").inc()
        _log.warning(
            "alert_event_undecodable",
            reason=reason,
            detail=detail[:200],
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
        )
        headers = (
            *record.headers,
            # The same names as the detector gives its dead letters.
            ("dlq_reason", reason.encode()),
            ("dlq_detail", detail[:500].encode(errors="replace")),
            ("dlq_topic", record.topic.encode()),
            ("dlq_partition", str(record.partition).encode()),
            ("dlq_offset", str(record.offset).encode()),
        )
        try:
            publisher.send(self._dead_letters, key=record.key, value=record.value, headers=headers)
            left = publisher.flush(_DEAD_LETTER_FLUSH_SECONDS)
        except BusError as exc:
            _log.warning("dead_letter_not_sent", error=str(exc))
            return
        if left:
            _log.warning("dead_letter_not_sent", error="the bus did not take it in time")

    def _report(self, exc: StoreError | DataDirError) -> None:
        self._metrics.ingest_errors.inc()
        now = time.monotonic()
        if self._store_fault != str(exc) or now - self._reported_at > _REPORT_SECONDS:
            _log.error("alert_store_failed", error=str(exc))
            self._reported_at = now
        self._store_fault = str(exc)


def _next_offsets(records: Sequence[Record]) -> dict[TopicPartition, int]:
    return {record.place: record.offset + 1 for record in records}
