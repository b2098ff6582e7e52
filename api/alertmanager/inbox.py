"""Takes in what other tools push, by the same lifecycle as any alert.

A sender repeats what fires until it ends, each time with an end that lies ahead. Most repetitions
change nothing but that end; what is not repeated in time is over. What should have been repeated
while this service was away gets the time to be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from api.alertmanager.pushed import PushedAlert, ended_event, event_of
from api.database import Database, insert_of
from api.ledger import Ledger
from api.tables import alert, pushed
from schemas.alert import AlertEvent
from schemas.codec import decode_alert

__all__ = ["RESOLVE_MS", "Inbox"]

#: What Alertmanager takes for an alert without an end (its ``resolve_timeout``), in milliseconds.
RESOLVE_MS = 5 * 60_000
#: New words of an alert that goes on are logged no more often: their numbers change at each push.
_WORDS_MS = 60_000
_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known of a label set: its newest episode."""

    alert_id: str
    over: bool
    started_ms: int
    last_seen_ms: int
    payload: str


class Inbox:
    """Stores pushed alerts, and ends those that are not repeated.

    Parameters
    ----------
    database
        The store.
    ledger
        The rules by which events are recorded.
    started_ms
        When this process began; None if it was never away.
    """

    def __init__(self, database: Database, ledger: Ledger, started_ms: int | None = None) -> None:
        self._database = database
        self._ledger = ledger
        self._started_ms = started_ms

    def take(self, alerts: Sequence[PushedAlert], now_ms: int) -> int:
        """Store a batch; return how many events it gave."""
        newest = {one.fingerprint: one for one in alerts}
        with self._database.write() as connection:
            known = _known(connection, list(newest))
            events = []
            for fingerprint, one in newest.items():
                events += self._take_one(connection, one, known.get(fingerprint), now_ms)
            self._ledger.record_all(connection, events, now_ms)
        return len(events)

    def look(self, now_ms: int) -> int:
        """End what was not repeated in time; return how many alerts that ended."""
        query = sa.select(pushed.c.fingerprint, pushed.c.ends_ms).where(
            sa.not_(pushed.c.over), pushed.c.ends_ms <= now_ms
        )
        with self._database.read() as connection:
            lapsed = [
                row.fingerprint for row in connection.execute(query) if self._due(row, now_ms)
            ]
        for start in range(0, len(lapsed), _BATCH):
            with self._database.write() as connection:
                some = lapsed[start : start + _BATCH]
                found = connection.execute(query.where(pushed.c.fingerprint.in_(some))).all()
                ends = {row.fingerprint: row.ends_ms for row in found}
                known = _known(connection, list(ends))
                events = [
                    event
                    for name, one in known.items()
                    for event in _ending(one, ends[name], now_ms, "not renewed")
                ]
                self._ledger.record_all(connection, events, now_ms)
                _mark_over(connection, list(ends))
        return len(lapsed)

    def _due(self, row: Any, now_ms: int) -> bool:  # a row is untyped
        if self._started_ms is None or row.ends_ms > self._started_ms:
            return True
        return now_ms >= self._started_ms + RESOLVE_MS

    def _take_one(
        self, connection: sa.Connection, one: PushedAlert, known: _Known | None, now_ms: int
    ) -> list[AlertEvent]:
        ends_ms = now_ms + RESOLVE_MS if one.ends_ms is None else one.ends_ms
        if ends_ms <= now_ms:
            if known is None or known.over:
                return []  # the end of what nobody here knows
            _mark_over(connection, [one.fingerprint])
            return _ending(known, ends_ms, now_ms, "resolved by the sender")
        if known is not None and not known.over:
            _keep(connection, one, known.alert_id, ends_ms, now_ms)
            return _renewed(one, known, now_ms)
        event = _beginning(one, known, now_ms)
        _keep(connection, one, event.alert_id, ends_ms, now_ms)
        return [event]


def _beginning(one: PushedAlert, known: _Known | None, now_ms: int) -> AlertEvent:
    started_ms = min(one.starts_ms or now_ms, now_ms)
    seq = 1
    if known is not None and started_ms <= known.started_ms:
        # The same episode goes on: it was taken for over.
        started_ms, seq = known.started_ms, decode_alert(known.payload.encode()).seq + 1
    return event_of(one, started_ms=started_ms, seq=seq, now_ms=now_ms)


def _renewed(one: PushedAlert, known: _Known, now_ms: int) -> list[AlertEvent]:
    last = decode_alert(known.payload.encode())
    if last.summary == one.summary or now_ms - known.last_seen_ms < _WORDS_MS:
        return []
    return [event_of(one, started_ms=known.started_ms, seq=last.seq + 1, now_ms=now_ms)]


def _ending(known: _Known, ends_ms: int, now_ms: int, reason: str) -> list[AlertEvent]:
    last = decode_alert(known.payload.encode())
    if last.state == "resolved":
        return []
    ended_ms = max(known.started_ms, min(ends_ms, now_ms))
    return [ended_event(last, ended_ms=ended_ms, now_ms=now_ms, reason=reason)]


def _known(connection: sa.Connection, fingerprints: Sequence[str]) -> dict[str, _Known]:
    found: dict[str, _Known] = {}
    for start in range(0, len(fingerprints), _BATCH):
        query = (
            sa.select(
                pushed.c.fingerprint,
                pushed.c.over,
                alert.c.alert_id,
                alert.c.started_ms,
                alert.c.last_seen_ms,
                alert.c.payload,
            )
            .join(alert, alert.c.alert_id == pushed.c.alert_id)
            .where(pushed.c.fingerprint.in_(fingerprints[start : start + _BATCH]))
        )
        for row in connection.execute(query):
            found[row.fingerprint] = _Known(
                alert_id=row.alert_id,
                over=row.over,
                started_ms=row.started_ms,
                last_seen_ms=row.last_seen_ms,
                payload=row.payload,
            )
    return found


def _mark_over(connection: sa.Connection, fingerprints: Sequence[str]) -> None:
    if fingerprints:
        over = sa.update(pushed).where(pushed.c.fingerprint.in_(fingerprints))
        connection.execute(over.values(over=True))


def _keep(
    connection: sa.Connection, one: PushedAlert, alert_id: str, ends_ms: int, now_ms: int
) -> None:
    values: Mapping[str, object] = {
        "alert_id": alert_id,
        "ends_ms": ends_ms,
        "over": False,
        "updated_ms": now_ms,
        "body": orjson.dumps(
            {"annotations": one.annotations, "generatorURL": one.generator_url}
        ).decode(),
    }
    new = insert_of(connection)(pushed).values(fingerprint=one.fingerprint, **values)
    connection.execute(new.on_conflict_do_update(index_elements=["fingerprint"], set_=values))
