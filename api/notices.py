"""The event log and the queue of notices: appending to both, inside somebody else's transaction."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import orjson
import sqlalchemy as sa

from api.database import insert_of
from api.lifecycle import EventType
from api.matchers import labels_of
from api.tables import DeliveryState, delivery, event
from schemas.alert import AlertEvent, AlertState, Severity

__all__ = [
    "BySeverity",
    "LogEntry",
    "Outgoing",
    "Receiver",
    "Receivers",
    "Route",
    "append_event",
    "queue_notices",
    "webhook_id_of",
]

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "foreshock.webhook")
#: Origins that count by the detector's seq, which a store filled anew finds again.
_BY_SEQ = frozenset({"detector", "api"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """An endpoint that takes notifications, and from which severity on."""

    endpoint: str
    severity_min: Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """An endpoint that is told of one alert.

    Parameters
    ----------
    endpoint
        Its name.
    first_delay_ms
        How long its first notice waits; it never does for a critical alert.
    group_key
        Notices of one group stay in order; an alert's own id if empty.
    """

    endpoint: str
    first_delay_ms: int = 0
    group_key: str = ""


class Receivers(Protocol):
    """Decides who is told."""

    def of(self, labels: Mapping[str, str], rank: int) -> Sequence[Receiver]:
        """Return who is told of an alert with these words and this severity (1 to 3)."""
        ...

    def names(self) -> frozenset[str]:
        """Return every endpoint that takes notifications now."""
        ...


class BySeverity:
    """The receivers of plain routes: by severity alone.

    Parameters
    ----------
    routes
        Endpoints and their least severities.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = tuple(routes)

    def of(self, labels: Mapping[str, str], rank: int) -> Sequence[Receiver]:
        """Return who takes this severity, whatever the words."""
        _ = labels
        return [Receiver(endpoint=r.endpoint) for r in self._routes if rank >= r.severity_min.rank]

    def names(self) -> frozenset[str]:
        """Return every endpoint."""
        return frozenset(r.endpoint for r in self._routes)


def webhook_id_of(alert_id: str, seq: int, origin: str) -> str:
    """Return the id by which receivers recognise a notification sent twice.

    A UUID of the event's identity, not of a row number: a store filled anew from the bus sends
    the same ids.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{alert_id}/{seq}/{origin}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One row for the event log.

    Parameters
    ----------
    seq
        The detector's count, or for ``lifecycle`` and ``operator`` the version of the alert.
    origin
        detector, api, lifecycle or operator.
    payload
        The AlertEvent as JSON without series; ``null`` where nobody is told of it.
    """

    alert_id: str
    seq: int
    origin: str
    type: str
    state: str
    severity: str
    observed_ms: int
    received_ms: int
    payload: str
    actor: str
    detail: Mapping[str, object] | None = None


def append_event(connection: sa.Connection, entry: LogEntry) -> int | None:
    """Append to the event log; None if this event is there already."""
    row = {
        "alert_id": entry.alert_id,
        "seq": entry.seq,
        "origin": entry.origin,
        "type": entry.type,
        "state": entry.state,
        "severity": entry.severity,
        "observed_ms": entry.observed_ms,
        "received_ms": entry.received_ms,
        "payload": entry.payload,
        "actor": entry.actor,
        "detail": None if entry.detail is None else orjson.dumps(entry.detail).decode(),
    }
    statement = _log_statement(insert_of(connection))
    found: int | None = connection.execute(statement, row).scalar_one_or_none()
    return found


class Outgoing:
    """Notices of one batch, written at once: a statement for each would cost more than the rest."""

    def __init__(self) -> None:
        self._rows: list[dict[str, object]] = []

    def add(self, rows: list[dict[str, object]]) -> None:
        """Take rows of the table ``delivery``."""
        self._rows += rows

    def write(self, connection: sa.Connection) -> None:
        """Write what was taken so far."""
        if self._rows:
            connection.execute(_QUEUE, self._rows)
            self._rows = []


def queue_notices(
    connection: sa.Connection,
    receivers: Receivers,
    new: AlertEvent,
    kind: str,
    event_id: int,
    origin: str,
    now_ms: int,
    outgoing: Outgoing | None = None,
) -> int:
    """Queue one notification per endpoint concerned; return how many.

    None for the alert of a detector on trial: it is stored and shown, and nobody is told.

    Parameters
    ----------
    kind
        What happened, a word of :class:`~api.lifecycle.EventType`.
    event_id
        The event that is told.
    origin
        Its origin: with alert and seq it makes the webhook id.
    outgoing
        Where the rows go until the batch is complete; None writes them now.
    """
    names = receivers.names()
    if not names or new.shadow:
        return 0
    rank = Severity(new.severity).rank
    concerned = {r.endpoint: r for r in receivers.of(labels_of(_plain(new)), rank)}
    if new.state == AlertState.RESOLVED:
        # Who was told of the alert is told of its end, whatever its severity is by now, and in the
        # group of its beginning, whatever the routes say by now.
        if outgoing is not None:
            outgoing.write(connection)
        for name, group_key in connection.execute(_TOLD, {"id": new.alert_id}):
            if name in names:
                concerned[name] = Receiver(endpoint=name, group_key=group_key)
    first = kind in {EventType.FIRED, EventType.REOPENED} and rank < Severity.CRITICAL.rank
    seq = new.seq if origin in _BY_SEQ else event_id
    rows: list[dict[str, object]] = [
        {
            "endpoint": name,
            "event_id": event_id,
            "alert_id": new.alert_id,
            "webhook_id": webhook_id_of(new.alert_id, seq, origin),
            "state": DeliveryState.PENDING,
            "next_at_ms": now_ms + (concerned[name].first_delay_ms if first else 0),
            "created_ms": now_ms,
            "kind": str(kind),
            "group_key": concerned[name].group_key or new.alert_id,
        }
        for name in sorted(concerned)
    ]
    if outgoing is not None:
        outgoing.add(rows)
    elif rows:
        connection.execute(_QUEUE, rows)
    return len(rows)


_QUEUE = sa.insert(delivery)
_TOLD = (
    sa.select(delivery.c.endpoint, sa.func.min(delivery.c.group_key))
    .where(delivery.c.alert_id == sa.bindparam("id"))
    .group_by(delivery.c.endpoint)
)


# Any: the insert functions of the two dialects share no type, see insert_of.
@cache
def _log_statement(insert: Any) -> Any:
    return (
        insert(event)
        .on_conflict_do_nothing(index_elements=["alert_id", "seq", "origin"])
        .returning(event.c.id)
    )


def _plain(new: AlertEvent) -> Mapping[str, Any]:
    """Return the fields that labels are made of, as decoded JSON has them."""
    subject = new.subject
    return {
        "family": new.family,
        "kind": new.kind,
        "severity": new.severity,
        "action": new.action,
        "labels": new.labels,
        "detector": {"name": new.detector.name},
        "subject": {name: getattr(subject, name) for name in _SUBJECT},
    }


_SUBJECT = (
    "scope",
    "node",
    "gpu_uuid",
    "gpu_index",
    "pci",
    "model",
    "job",
    "project",
    "rack",
    "pipeline",
)
