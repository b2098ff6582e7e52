"""Writes alert events into the store: alert row, event log and notifications in one go.

The bus delivers at least once and, across partitions and replays, in any order. What is stored
must not depend on that, so these rules are free of order:

* An event is known by (alert, seq); a second one is ignored.
* An alert shows its event of the highest seq.
* An alert is open if that event is firing and no later episode of its fingerprint is known:
  a later episode closes an earlier one with the reason ``superseded``.

Notifications follow changes that people act on: a new alert, a changed state, a raised
severity. New evidence alone is logged and streamed, not sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import sqlalchemy as sa

from api.database import insert_of
from api.tables import DeliveryState, alert, delivery, event
from schemas.alert import AlertEvent, AlertState, Severity, parse_time, rfc3339
from schemas.codec import decode_alert, encode
from schemas.errors import DecodeError

__all__ = ["SUPERSEDED", "Entry", "Ledger", "Route", "check_storable", "webhook_id_of"]

SUPERSEDED = "superseded"
_DETECTOR = "detector"
_API = "api"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "foreshock.webhook")
_MAX_SEQ = 2**53  # what JSON readers in every language can hold
_MAX_TEXT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """An endpoint that takes notifications, and from which severity on."""

    endpoint: str
    severity_min: Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What became of one event.

    Parameters
    ----------
    event_id
        Last id that the event log gave, or None if the event was known.
    deliveries
        How many notifications were queued.
    """

    event_id: int | None = None
    deliveries: int = 0


def webhook_id_of(alert_id: str, seq: int, origin: str) -> str:
    """Return the id by which receivers recognise a notification sent twice.

    A UUID of the event's identity, not of a row number: a store filled anew from the bus sends
    the same ids.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{alert_id}/{seq}/{origin}"))


def check_storable(alert_event: AlertEvent) -> None:
    """Refuse what the codec lets pass and a store cannot index.

    Raises
    ------
    DecodeError
        With a reason for the dead-letter topic.
    """
    for name, text in (
        ("alert_id", alert_event.alert_id),
        ("fingerprint", alert_event.fingerprint),
    ):
        try:
            uuid.UUID(text)
        except ValueError as exc:
            raise DecodeError("bad_field", f"{name} is no UUID: {text[:64]!r}") from exc
        if len(text) != 36:
            raise DecodeError("bad_field", f"{name} must have 36 characters")
    if not 1 <= alert_event.seq <= _MAX_SEQ:
        raise DecodeError("bad_field", f"seq must be 1 to 2**53, got {alert_event.seq}")
    if not 0 <= alert_event.score <= 1:
        raise DecodeError("bad_field", f"score must be 0 to 1, got {alert_event.score}")
    if len(alert_event.summary) > _MAX_TEXT:
        raise DecodeError("bad_field", f"summary is longer than {_MAX_TEXT} characters")
    if alert_event.ended_at is not None:
        try:
            parse_time(alert_event.ended_at)
        except ValueError as exc:
            raise DecodeError("bad_field", "ended_at is no RFC 3339 time") from exc


class Ledger:
    """Records events through a connection that somebody else commits.

    Parameters
    ----------
    routes
        The endpoints that take notifications now.
    """

    def __init__(self, routes: Sequence[Route] = ()) -> None:
        self._routes = tuple(routes)

    def record(self, connection: sa.Connection, new: AlertEvent, now_ms: int) -> Entry:
        """Store one event with all that follows from it.

        Parameters
        ----------
        connection
            In a write transaction.
        new
            The event; :func:`check_storable` has passed it.
        now_ms
            Arrival, in unix milliseconds.
        """
        payload = encode(new).decode()
        event_id = _log(connection, new, payload, _DETECTOR, now_ms)
        if event_id is None:
            return Entry()
        before = connection.execute(_BEFORE, {"id": new.alert_id}).one_or_none()
        if before is not None and before.seq >= new.seq:
            return Entry(event_id=event_id)  # it came late; its successor is already shown
        started_ms = parse_time(new.started_at)
        queued = self._close_earlier(connection, new, started_ms, now_ms)
        later_ms = _later_episode(connection, new, started_ms)
        shown = new
        if new.state == AlertState.FIRING and later_ms is not None:
            shown = _superseded(new, later_ms)
            payload = encode(shown).decode()
            event_id = _log(connection, shown, payload, _API, now_ms) or event_id
        _upsert(connection, _row(shown, payload, started_ms, now_ms))
        if shown is new and _worth_telling(before, new):
            queued += self._queue(connection, new, _DETECTOR, event_id, now_ms)
        return Entry(event_id=event_id, deliveries=queued)

    def _close_earlier(
        self, connection: sa.Connection, new: AlertEvent, started_ms: int, now_ms: int
    ) -> int:
        queued = 0
        for row in connection.execute(_OPEN, {"fingerprint": new.fingerprint}).all():
            if (row.started_ms, row.alert_id) >= (started_ms, new.alert_id):
                continue
            ended = _superseded(decode_alert(row.payload.encode()), started_ms)
            payload = encode(ended).decode()
            event_id = _log(connection, ended, payload, _API, now_ms)
            _upsert(connection, _row(ended, payload, row.started_ms, now_ms))
            if event_id is not None:
                queued += self._queue(connection, ended, _API, event_id, now_ms)
        return queued

    def _queue(
        self, connection: sa.Connection, new: AlertEvent, origin: str, event_id: int, now_ms: int
    ) -> int:
        """Queue one notification per endpoint concerned; return how many."""
        rank = Severity(new.severity).rank
        concerned = {r.endpoint for r in self._routes if rank >= r.severity_min.rank}
        if new.state == AlertState.RESOLVED and self._routes:
            # Who was told of the alert is told of its end, whatever its severity is by now.
            told = connection.execute(_TOLD, {"id": new.alert_id}).scalars()
            concerned |= set(told) & {r.endpoint for r in self._routes}
        rows = [
            {
                "endpoint": name,
                "event_id": event_id,
                "alert_id": new.alert_id,
                "webhook_id": webhook_id_of(new.alert_id, new.seq, origin),
                "state": DeliveryState.PENDING,
                "next_at_ms": now_ms,
                "created_ms": now_ms,
            }
            for name in sorted(concerned)
        ]
        if rows:
            connection.execute(sa.insert(delivery), rows)
        return len(rows)


# Statements are built once: SQLAlchemy then finds their compiled form by identity.
_BEFORE = sa.select(alert.c.seq, alert.c.state, alert.c.severity_rank).where(
    alert.c.alert_id == sa.bindparam("id")
)
_OPEN = sa.select(alert.c.alert_id, alert.c.started_ms, alert.c.payload).where(
    # A literal: with a parameter SQLite cannot know that the partial index serves.
    alert.c.fingerprint == sa.bindparam("fingerprint"),
    sa.text("alert.state = 'firing'"),
)
_LATER = sa.select(sa.func.min(alert.c.started_ms)).where(
    alert.c.fingerprint == sa.bindparam("fingerprint"),
    sa.tuple_(alert.c.started_ms, alert.c.alert_id)
    > sa.tuple_(sa.bindparam("started_ms"), sa.bindparam("id")),
)
_TOLD = sa.select(delivery.c.endpoint).where(delivery.c.alert_id == sa.bindparam("id")).distinct()


# Any: the insert functions of the two dialects share no type, see insert_of.
@cache
def _log_statement(insert: Any) -> Any:
    return (
        insert(event)
        .on_conflict_do_nothing(index_elements=["alert_id", "seq", "origin"])
        .returning(event.c.id)
    )


@cache
def _upsert_statement(insert: Any) -> Any:
    new = insert(alert)
    return new.on_conflict_do_update(
        index_elements=["alert_id"],
        set_={
            column.name: new.excluded[column.name]
            for column in alert.columns
            if column.name not in {"alert_id", "received_ms"}
        },
        where=new.excluded.seq >= alert.c.seq,
    )


def _upsert(connection: sa.Connection, row: dict[str, object]) -> None:
    connection.execute(_upsert_statement(insert_of(connection)), row)


def _log(
    connection: sa.Connection, new: AlertEvent, payload: str, origin: str, now_ms: int
) -> int | None:
    row = {
        "alert_id": new.alert_id,
        "seq": new.seq,
        "origin": origin,
        "state": new.state,
        "severity": new.severity,
        "observed_ms": parse_time(new.observed_at),
        "received_ms": now_ms,
        "payload": payload,
    }
    found: int | None = connection.execute(
        _log_statement(insert_of(connection)), row
    ).scalar_one_or_none()
    return found


def _later_episode(connection: sa.Connection, new: AlertEvent, started_ms: int) -> int | None:
    key = {"fingerprint": new.fingerprint, "started_ms": started_ms, "id": new.alert_id}
    found: int | None = connection.execute(_LATER, key).scalar_one_or_none()
    return found


def _superseded(old: AlertEvent, by_ms: int) -> AlertEvent:
    moment = rfc3339(max(by_ms, parse_time(old.observed_at)))
    return replace(
        old,
        state=AlertState.RESOLVED.value,
        observed_at=moment,
        ended_at=rfc3339(by_ms),
        end_reason=SUPERSEDED,
    )


def _worth_telling(before: sa.Row[int, str, int] | None, new: AlertEvent) -> bool:
    if before is None:
        return True
    return bool(before.state != new.state or Severity(new.severity).rank > before.severity_rank)


def _row(shown: AlertEvent, payload: str, started_ms: int, now_ms: int) -> dict[str, object]:
    subject = shown.subject
    ended = parse_time(shown.ended_at) if shown.ended_at is not None else None
    if ended is None and shown.state == AlertState.RESOLVED:
        ended = parse_time(shown.observed_at)
    return {
        "alert_id": shown.alert_id,
        "fingerprint": shown.fingerprint,
        "seq": shown.seq,
        "state": shown.state,
        "severity": shown.severity,
        "severity_rank": Severity(shown.severity).rank,
        "family": shown.family,
        "kind": shown.kind,
        "scope": subject.scope,
        "node": subject.node,
        "gpu_uuid": subject.gpu_uuid,
        "job": subject.job,
        "summary": shown.summary,
        "started_ms": started_ms,
        "last_seen_ms": parse_time(shown.observed_at),
        "ended_ms": ended,
        "end_reason": shown.end_reason,
        "received_ms": now_ms,
        "payload": payload,
    }
