"""What time alone brings: acknowledgements end, flapping ends, reminders fall due, old things go.

One step is one look at the store; the loop around it only waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
import sqlalchemy as sa
import structlog

from api.database import Database
from api.lifecycle import EventType, State
from api.matchers import labels_of
from api.notices import LogEntry, Receiver, append_event, queue_notices
from api.routing import Routing
from api.tables import (
    IS_OPEN,
    DeliveryState,
    alert,
    attempt,
    delivery,
    event,
    idempotency,
    pushed,
    series,
    silence,
)
from schemas.alert import rfc3339
from schemas.codec import decode_alert
from schemas.errors import DataDirError, StoreError

__all__ = ["Clockwork", "Periods"]

_LOOK_SECONDS = 5.0
_BATCH = 200
_REMIND_BATCH = 2000
_DAY_MS = 86_400_000

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """Times, in milliseconds.

    Parameters
    ----------
    stable_ms
        Flapping ends after this long without a change.
    retention_ms
        How long resolved alerts and ended silences are kept.
    idempotency_ms
        How long an Idempotency-Key is remembered.
    """

    stable_ms: int = 15 * 60_000
    retention_ms: int = 90 * _DAY_MS
    idempotency_ms: int = _DAY_MS


class _Only:
    """Receivers narrowed to those whose reminder is due."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def of(self, _labels: object, _rank: int) -> list[Receiver]:
        return [Receiver(endpoint=name) for name in self._names]

    def names(self) -> frozenset[str]:
        return frozenset(self._names)


class Changing(Protocol):
    """Something that other processes change too."""

    def refresh(self, now_ms: int) -> object:
        """Take over what was changed since the last look."""
        ...


class Clockwork:
    """The loop that looks at what has become due. Runs in one thread.

    Parameters
    ----------
    database
        The store.
    routing
        Who is told; its tree is kept up to date here.
    periods
        Times in force.
    on_change
        Called after a step that changed something.
    roster
        The receivers, kept up to date here too; None leaves them as they are.
    errands
        Other things that fall due: each gets the time and returns how many alerts it touched.
    now_ms
        Clock, unix milliseconds.
    """

    def __init__(
        self,
        database: Database,
        routing: Routing,
        periods: Periods,
        on_change: Callable[[], None] = lambda: None,
        *,
        roster: Changing | None = None,
        errands: Sequence[Callable[[int], int]] = (),
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._database = database
        self._routing = routing
        self._periods = periods
        self._on_change = on_change
        self._roster = roster
        self._errands = tuple(errands)
        self._now_ms = now_ms
        self.problem: str | None = None
        self.beat = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Look again and again until ``stop`` is set."""
        while not stop.is_set():
            self.beat = time.monotonic()
            try:
                self.step()
                self.problem = None
            except (StoreError, DataDirError) as exc:
                if self.problem is None:
                    _log.error("clockwork_failed", error=str(exc))
                self.problem = str(exc)
            stop.wait(_LOOK_SECONDS)

    def step(self) -> int:
        """Do what is due; return how many alerts were touched."""
        now_ms = self._now_ms()
        if self._roster is not None:
            self._roster.refresh(now_ms)
        with self._database.read() as connection:
            self._routing.refresh(connection)
            due = self._due(connection, now_ms)
        done = 0
        if due:
            with self._database.write() as connection:
                done += self._end_acks(connection, now_ms)
                done += self._end_flapping(connection, now_ms)
                done += self._remind(connection, now_ms)
        done += sum(errand(now_ms) for errand in self._errands)
        done += self._forget(now_ms)
        if done:
            self._on_change()
        return done

    def _due(self, connection: sa.Connection, now_ms: int) -> bool:
        """Look without the write lock: mostly there is nothing."""
        queries = [_expired(now_ms).limit(1), _settled(now_ms - self._periods.stable_ms).limit(1)]
        found = any(connection.execute(query).first() is not None for query in queries)
        return found or self._routing.reminds

    def _end_acks(self, connection: sa.Connection, now_ms: int) -> int:
        rows = connection.execute(_expired(now_ms).limit(_BATCH)).mappings().all()
        for row in rows:
            values = dict.fromkeys(("acked_by", "acked_ms", "ack_until_ms", "ack_rank"))
            self._change(
                connection,
                row,
                EventType.ACK_EXPIRED,
                {"state": State.FIRING.value, "changed_ms": now_ms, **values},
                now_ms,
            )
        return len(rows)

    def _end_flapping(self, connection: sa.Connection, now_ms: int) -> int:
        """Tell once how a fault stands that came and went; its newest episode speaks."""
        quiet = connection.execute(_settled(now_ms - self._periods.stable_ms).limit(_BATCH))
        prints = [row.fingerprint for row in quiet]
        for fingerprint in prints:
            newest = (
                sa.select(alert)
                .where(alert.c.fingerprint == fingerprint)
                .order_by(alert.c.started_ms.desc())
                .limit(1)
            )
            row = connection.execute(newest).mappings().one()
            connection.execute(
                sa.update(alert)
                .where(alert.c.fingerprint == fingerprint, alert.c.flapping_ms.is_not(None))
                .values(flapping_ms=None)
            )
            self._change(connection, row, EventType.STABLE, {}, now_ms)
        return len(prints)

    def _remind(self, connection: sa.Connection, now_ms: int) -> int:
        if not self._routing.reminds:
            return 0
        firing = (
            sa.select(alert)
            .where(IS_OPEN, alert.c.state == State.FIRING.value)
            .order_by(sa.func.coalesce(alert.c.remind_ms, alert.c.changed_ms))
            .limit(_REMIND_BATCH)
        )
        done = 0
        for row in connection.execute(firing).mappings().all():
            labels = labels_of(orjson.loads(row["payload"]))
            since = now_ms - (row["remind_ms"] or row["changed_ms"])
            every = self._routing.reminders(labels, row["severity_rank"])
            due = [name for name, wait in every.items() if since >= wait]
            if due:
                self._change(
                    connection, row, EventType.REMINDER, {"remind_ms": now_ms}, now_ms, _Only(due)
                )
                done += 1
        return done

    # Any: a row mapping is untyped.
    def _change(
        self,
        connection: sa.Connection,
        row: Any,
        happened: EventType,
        values: dict[str, object],
        now_ms: int,
        receivers: Routing | _Only | None = None,
    ) -> None:
        version = row["version"] + 1
        connection.execute(
            sa.update(alert)
            .where(alert.c.alert_id == row["alert_id"])
            .values(**values, version=version)
        )
        event_id = append_event(
            connection,
            LogEntry(
                alert_id=row["alert_id"],
                seq=version,
                origin="lifecycle",
                type=happened.value,
                state=str(values.get("state", row["state"])),
                severity=row["severity"],
                observed_ms=now_ms,
                received_ms=now_ms,
                payload=row["payload"],
                actor="api",
                detail={"at": rfc3339(now_ms)},
            ),
        )
        if event_id is not None:
            new = decode_alert(row["payload"].encode())
            queue_notices(
                connection,
                receivers or self._routing,
                new,
                happened,
                event_id,
                "lifecycle",
                now_ms,
            )

    def _forget(self, now_ms: int) -> int:
        """Remove what is older than it is kept, a little at a time."""
        before_ms = now_ms - self._periods.retention_ms
        # By the store's own clock: a replay of old telemetry is kept as long as anything else.
        old = (
            sa.select(alert.c.alert_id)
            .where(
                alert.c.state == State.RESOLVED.value,
                alert.c.changed_ms < before_ms,
                ~_untold(alert.c.alert_id),
            )
            .order_by(alert.c.changed_ms)
            .limit(_BATCH)
        )
        with self._database.read() as connection:
            ids = list(connection.execute(old).scalars())
            ended = sa.select(silence.c.id).where(silence.c.ends_ms < before_ms)
            stale_keys = sa.select(idempotency.c.key).where(
                idempotency.c.created_ms < now_ms - self._periods.idempotency_ms
            )
            idle = not ids and all(
                connection.execute(query.limit(1)).first() is None for query in (ended, stale_keys)
            )
        if idle:
            return 0
        with self._database.write() as connection:
            _remove_alerts(connection, ids)
            connection.execute(sa.delete(silence).where(silence.c.ends_ms < before_ms))
            connection.execute(
                sa.delete(idempotency).where(
                    idempotency.c.created_ms < now_ms - self._periods.idempotency_ms
                )
            )
        return len(ids)


def _untold(alert_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Tell whether a notice of an alert still waits."""
    return (
        sa.exists()
        .where(
            delivery.c.alert_id == alert_id,
            delivery.c.state.in_((DeliveryState.PENDING, DeliveryState.LEASED)),
        )
        .correlate(alert)
    )


def _expired(now_ms: int) -> sa.Select[Any]:  # Any: the row is that of the whole table
    return sa.select(alert).where(
        alert.c.state == State.ACKNOWLEDGED.value, alert.c.ack_until_ms <= now_ms
    )


def _settled(before_ms: int) -> sa.Select[str]:
    return (
        sa.select(alert.c.fingerprint)
        .where(alert.c.flapping_ms.is_not(None))
        .group_by(alert.c.fingerprint)
        .having(sa.func.max(alert.c.changed_ms) <= before_ms)
    )


def _remove_alerts(connection: sa.Connection, ids: Sequence[str]) -> None:
    if not ids:
        return
    theirs = sa.select(delivery.c.id).where(delivery.c.alert_id.in_(ids))
    connection.execute(sa.delete(attempt).where(attempt.c.delivery_id.in_(theirs)))
    for table in (delivery, event, series, pushed, alert):
        connection.execute(sa.delete(table).where(table.c.alert_id.in_(ids)))
