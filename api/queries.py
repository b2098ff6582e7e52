"""Reads of the store: pages of alerts, events and deliveries.

Pages are cut by key, never by offset, and alerts are sorted by their start, which never
changes: whoever pages through the list while alerts arrive sees every older alert once.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from api.database import Database
from api.matchers import Matcher, labels_of, matches
from api.security.auditing import last_audit_id
from api.tables import IS_OPEN, DeliveryState, alert, attempt, delivery, event, pace, series
from schemas.alert import Severity, rfc3339

__all__ = [
    "DELIVERY_STATES",
    "OPEN",
    "AlertFilter",
    "CursorError",
    "Queries",
    "decode_cursor",
    "encode_cursor",
]

#: Filter word for every state but resolved.
OPEN = "open"

Json = dict[str, Any]  # decoded JSON, any value


class CursorError(ValueError):
    """A cursor was not made by this service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFilter:
    """Which alerts; None leaves a condition out.

    Parameters
    ----------
    state
        A word of :class:`~api.lifecycle.State`, or ``open``: every state but resolved.
    since_ms, until_ms
        Alerts that were open at some time in [since, until), unix milliseconds.
    text
        Part of the summary, node, GPU, job or kind, whatever the case of ASCII letters.
    matchers
        Conditions on an alert's words; those that compare a column are left to the store.
    """

    state: str | None = None
    severity_min: Severity | None = None
    family: str | None = None
    kind: str | None = None
    node: str | None = None
    gpu: str | None = None
    job: str | None = None
    fingerprint: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    text: str | None = None
    matchers: tuple[Matcher, ...] = ()

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """Return the filter as SQL conditions."""
        found: list[sa.ColumnElement[bool]] = [
            column == value
            for column, value in (
                (alert.c.state, None if self.state == OPEN else self.state),
                (alert.c.family, self.family),
                (alert.c.kind, self.kind),
                (alert.c.node, self.node),
                (alert.c.gpu_uuid, self.gpu),
                (alert.c.job, self.job),
                (alert.c.fingerprint, self.fingerprint),
            )
            if value is not None
        ]
        if self.state == OPEN:
            found.append(IS_OPEN)
        if self.severity_min is not None:
            found.append(alert.c.severity_rank >= self.severity_min.rank)
        if self.since_ms is not None:
            found.append(sa.or_(alert.c.ended_ms.is_(None), alert.c.ended_ms >= self.since_ms))
        if self.until_ms is not None:
            found.append(alert.c.started_ms < self.until_ms)
        if self.text:
            columns = (alert.c.summary, alert.c.node, alert.c.gpu_uuid, alert.c.job, alert.c.kind)
            found.append(sa.or_(*(c.icontains(self.text, autoescape=True) for c in columns)))
        found += [
            _COLUMNS[one.name] == one.value
            for one in self.matchers
            if one.op == "=" and one.value and one.name in _COLUMNS
        ]
        return found


class Queries:
    """Reads for the HTTP surface. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def alerts(
        self, wanted: AlertFilter, *, limit: int, cursor: str | None
    ) -> tuple[list[Json], str | None]:
        """Return a page of alerts, newest start first, and the cursor of the next page."""
        after = None if cursor is None else decode_cursor(cursor, (int, str))
        found: list[Json] = []
        seen = 0
        with self._database.read() as connection:
            while True:
                # With matchers, rows are read until enough of them match.
                rows = _page(
                    connection, wanted, after, limit + 1 if not wanted.matchers else _CHUNK
                )
                more = len(rows) > limit if not wanted.matchers else len(rows) == _CHUNK
                for row in rows[: limit if not wanted.matchers else None]:
                    after = (row["started_ms"], row["alert_id"])
                    seen += 1
                    shown = _alert(row, series=False)
                    if matches(wanted.matchers, labels_of(shown)):
                        found.append(shown)
                    if len(found) == limit and wanted.matchers:
                        return found, encode_cursor(after)
                if not wanted.matchers or not more or seen >= _MOST_SEEN:
                    return found, encode_cursor(after) if more and after is not None else None

    def first(self, wanted: AlertFilter, most: int) -> tuple[list[Json], bool]:
        """Return alerts that match among the newest ``most``, and whether there may be more."""
        found: list[Json] = []
        cursor: str | None = None
        for _ in range(max(1, most // _MOST_SEEN)):
            page, cursor = self.alerts(wanted, limit=_MOST_SEEN, cursor=cursor)
            found += page
            if cursor is None:
                return found, False
        return found, True

    def count(self, wanted: AlertFilter) -> int | None:
        """Return how many alerts match; None under matchers that the store cannot count."""
        if any(one.op != "=" or one.name not in _COLUMNS for one in wanted.matchers):
            return None
        query = sa.select(sa.func.count()).select_from(alert).where(*wanted.conditions())
        with self._database.read() as connection:
            return connection.execute(query).scalar_one()

    def knows_kind(self, family: str | None, kind: str) -> bool:
        """Tell whether any stored alert is of this kind."""
        query = sa.select(alert.c.alert_id).where(alert.c.kind == kind).limit(1)
        if family is not None:
            query = query.where(alert.c.family == family)
        with self._database.read() as connection:
            return connection.execute(query).first() is not None

    def change_mark(self) -> str:
        """Return a text that changes with every change of alerts and silences."""
        with self._database.read() as connection:
            newest = connection.execute(sa.select(sa.func.max(event.c.id))).scalar() or 0
            return f"{newest}-{last_audit_id(connection)}"

    def open_alerts(self, limit: int) -> list[Json]:
        """Return the open alerts, gravest first, then newest."""
        query = (
            sa.select(alert)
            .where(IS_OPEN)
            .order_by(alert.c.severity_rank.desc(), alert.c.started_ms.desc())
            .limit(limit)
        )
        with self._database.read() as connection:
            return [_alert(row, series=False) for row in connection.execute(query).mappings()]

    def alert(self, alert_id: str) -> Json | None:
        """Return one alert with its series, or None."""
        query = (
            sa.select(alert, series.c.payload.label("series"))
            .join(series, series.c.alert_id == alert.c.alert_id, isouter=True)
            .where(alert.c.alert_id == alert_id)
        )
        with self._database.read() as connection:
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else _alert(row, series=True)

    def newest_of(self, fingerprint: str) -> Json | None:
        """Return the newest alert of a fingerprint, which ``caused_by`` names; None if none is."""
        found, _ = self.alerts(AlertFilter(fingerprint=fingerprint), limit=1, cursor=None)
        return found[0] if found else None

    def timeline(self, alert_id: str, limit: int) -> list[Json]:
        """Return the newest events of one alert, oldest first."""
        query = (
            sa.select(event)
            .where(event.c.alert_id == alert_id)
            # A conclusion of the store follows the detector's event of the same moment.
            .order_by(event.c.observed_ms.desc(), event.c.id.desc())
            .limit(limit)
        )
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return [_event(row) for row in reversed(rows)]

    def events_after(self, after: int, limit: int) -> list[Json]:
        """Return events of the log after an id, oldest first."""
        query = sa.select(event).where(event.c.id > after).order_by(event.c.id).limit(limit)
        with self._database.read() as connection:
            return [_event(row) for row in connection.execute(query).mappings()]

    def last_event_id(self) -> int:
        """Return the newest id of the event log; 0 if it is empty."""
        with self._database.read() as connection:
            return connection.execute(sa.select(sa.func.max(event.c.id))).scalar() or 0

    def counts(self) -> dict[tuple[str, str, str], int]:
        """Return the number of alerts by (state, severity, family)."""
        columns = (alert.c.state, alert.c.severity, alert.c.family)
        query = sa.select(*columns, sa.func.count()).group_by(*columns)
        with self._database.read() as connection:
            return {(r[0], r[1], r[2]): r[3] for r in connection.execute(query)}

    def deliveries_by_state(self, name: str | None = None) -> dict[str, dict[str, int]]:
        """Return endpoint to state to number of deliveries; every state is there.

        Parameters
        ----------
        name
            Only of this endpoint; None for all.
        """
        tally = sa.select(delivery.c.endpoint, delivery.c.state, sa.func.count()).group_by(
            delivery.c.endpoint, delivery.c.state
        )
        if name is not None:
            # By state too, as the index begins.
            known = delivery.c.state.in_(DELIVERY_STATES)
            tally = tally.where(known, delivery.c.endpoint == name)
        found: dict[str, dict[str, int]] = {}
        with self._database.read() as connection:
            for told, state, number in connection.execute(tally):
                found.setdefault(told, dict.fromkeys(DELIVERY_STATES, 0))[state] = number
        return found

    def paces(self) -> dict[str, Json]:
        """Return endpoint to since when it takes nothing, and when it is asked again."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(pace)).mappings().all()
        return {
            row["endpoint"]: {
                "failing_since": _time(row["failing_since_ms"]),
                "next_probe_at": _time(row["probe_ms"]),
            }
            for row in rows
        }

    def delivery(self, number: int) -> Json | None:
        """Return one delivery with its attempts, newest first; None if there is none."""
        with self._database.read() as connection:
            query = sa.select(delivery).where(delivery.c.id == number)
            row = connection.execute(query).mappings().one_or_none()
            if row is None:
                return None
            tried = connection.execute(
                sa.select(attempt)
                .where(attempt.c.delivery_id == number)
                .order_by(attempt.c.id.desc())
                .limit(_MOST_ATTEMPTS)
            ).mappings()
            return _delivery(row) | {"log": [_attempt(one) for one in tried]}

    def deliveries_of(self, alert_id: str, limit: int) -> list[Json]:
        """Return the newest deliveries of one alert."""
        query = (
            sa.select(delivery)
            .where(delivery.c.alert_id == alert_id)
            .order_by(delivery.c.id.desc())
            .limit(limit)
        )
        with self._database.read() as connection:
            return [_delivery(row) for row in connection.execute(query).mappings()]

    def deliveries(
        self, *, state: str | None, endpoint_name: str | None, limit: int, cursor: str | None
    ) -> tuple[list[Json], str | None]:
        """Return a page of deliveries, newest first, and the cursor of the next page."""
        query = sa.select(delivery).order_by(delivery.c.id.desc()).limit(limit + 1)
        if state is not None:
            query = query.where(delivery.c.state == state)
        if endpoint_name is not None:
            query = query.where(delivery.c.endpoint == endpoint_name)
        if cursor is not None:
            (before,) = decode_cursor(cursor, (int,))
            query = query.where(delivery.c.id < before)
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        page = rows[:limit]
        after = encode_cursor((page[-1]["id"],)) if len(rows) > limit else None
        return [_delivery(row) for row in page], after


#: Attempts shown of one delivery.
_MOST_ATTEMPTS = 100
#: Rows that a page under matchers reads at once, and at most.
_CHUNK = 200
_MOST_SEEN = 5000
#: Words of matchers that stand in columns.
_COLUMNS: dict[str, sa.ColumnElement[Any]] = {  # of any type
    "family": alert.c.family,
    "kind": alert.c.kind,
    "severity": alert.c.severity,
    "scope": alert.c.scope,
    "node": alert.c.node,
    "gpu": alert.c.gpu_uuid,
    "job": alert.c.job,
}


def _page(
    connection: sa.Connection,
    wanted: AlertFilter,
    after: tuple[Any, ...] | None,  # (int, str), decoded
    limit: int,
) -> Sequence[Mapping[Any, Any]]:  # a row mapping is untyped
    query = (
        sa.select(alert)
        .where(*wanted.conditions())
        .order_by(alert.c.started_ms.desc(), alert.c.alert_id.desc())
        .limit(limit)
    )
    if after is not None:
        key = sa.tuple_(alert.c.started_ms, alert.c.alert_id)
        query = query.where(key < sa.tuple_(sa.literal(after[0]), sa.literal(after[1])))
    return connection.execute(query).mappings().all()


DELIVERY_STATES = (
    DeliveryState.PENDING,
    DeliveryState.LEASED,
    DeliveryState.DONE,
    DeliveryState.DEAD,
    DeliveryState.CANCELLED,
)

# Any: a row mapping is untyped.
_Row = Mapping[Any, Any]


def _alert(row: _Row, *, series: bool) -> Json:
    shown: Json = orjson.loads(row["payload"])
    shown["state"] = row["state"]
    shown["ended_at"] = _time(row["ended_ms"])
    shown["end_reason"] = row["end_reason"]
    shown["last_seen_at"] = rfc3339(row["last_seen_ms"])
    shown["received_at"] = rfc3339(row["received_ms"])
    shown["version"] = row["version"]
    shown["acknowledged"] = _acknowledged(row)
    shown["assignee"] = row["assignee"]
    shown["feedback"] = row["feedback"]
    shown["stale_since"] = _time(row["stale_ms"])
    shown["flapping_since"] = _time(row["flapping_ms"])
    shown["snoozed_until"] = _time(row["snoozed_until_ms"])
    shown["reopens"] = row["reopens"]
    if not series:
        shown["series"] = []
    elif row["series"] is not None:
        shown["series"] = orjson.loads(row["series"])
    return shown


def _acknowledged(row: _Row) -> Json | None:
    if row["acked_ms"] is None:
        return None
    return {
        "by": row["acked_by"],
        "at": rfc3339(row["acked_ms"]),
        "until": _time(row["ack_until_ms"]),
    }


def _event(row: _Row) -> Json:
    return {
        "id": row["id"],
        "alert_id": row["alert_id"],
        "seq": row["seq"],
        "origin": row["origin"],
        "type": row["type"],
        "actor": row["actor"],
        "detail": None if row["detail"] is None else orjson.loads(row["detail"]),
        "state": row["state"],
        "severity": row["severity"],
        "received_at": rfc3339(row["received_ms"]),
        "event": orjson.loads(row["payload"]),
    }


def _delivery(row: _Row) -> Json:
    waiting = row["state"] == DeliveryState.PENDING
    return {
        "id": row["id"],
        "endpoint": row["endpoint"],
        "alert_id": row["alert_id"],
        "event_id": row["event_id"],
        "webhook_id": row["webhook_id"],
        "kind": row["kind"],
        "group_key": row["group_key"],
        "note": row["note"],
        "state": row["state"],
        "attempts": row["attempts"],
        "next_attempt_at": _time(row["next_at_ms"]) if waiting else None,
        "last_status": row["last_status"],
        "last_error": row["last_error"],
        "created_at": rfc3339(row["created_ms"]),
        "finished_at": _time(row["finished_ms"]),
    }


def _attempt(row: _Row) -> Json:
    return {
        "number": row["number"],
        "started_at": rfc3339(row["started_ms"]),
        "duration_ms": row["duration_ms"],
        "status": row["status"],
        "error": row["error"],
    }


def _time(unix_ms: int | None) -> str | None:
    return None if unix_ms is None else rfc3339(unix_ms)


def encode_cursor(key: tuple[object, ...]) -> str:
    """Write the place after which the next page begins."""
    return base64.urlsafe_b64encode(orjson.dumps(key)).decode().rstrip("=")


# Any: the values have the types asked for, which a tuple type cannot say.
def decode_cursor(cursor: str, types: tuple[type, ...]) -> tuple[Any, ...]:
    """Read a cursor. Raises CursorError if it is none of a list with these types."""
    try:
        key = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error) as exc:
        raise CursorError("the cursor is damaged") from exc
    if not isinstance(key, list) or [type(part) for part in key] != list(types):
        raise CursorError("the cursor is of another list")
    if any(isinstance(part, int) and abs(part) > 2**62 for part in key):
        raise CursorError("the cursor is damaged")
    return tuple(key)
