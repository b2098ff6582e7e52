"""Signs of life that others send by name: one that stays away becomes an alert.

Whoever sends one first makes it known; the settings may name some that must come even if they never
have. A missing one is an alert like any other (``telemetry/heartbeat_missing``), by the same
lifecycle and routes; the next one ends it. What nobody could send because this service was away is
not missing: the time counts from its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from api.beatsettings import HeartbeatSettings
from api.database import Database
from api.ledger import Ledger
from api.readings import duration
from api.tables import heartbeat
from schemas.alert import (
    AlertEvent,
    AlertState,
    DetectorRef,
    Evidence,
    Severity,
    Subject,
    alert_id_of,
    fingerprint_of,
    rfc3339,
)

__all__ = ["Heartbeats", "TooManyError", "beat_state"]

_FAMILY, _KIND = "telemetry", "heartbeat_missing"
MOST = 1000

_Row = Mapping[Any, Any]  # a row mapping is untyped


class TooManyError(ValueError):
    """No further name is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """Why a missing heartbeat is missing no more."""

    reason: str
    summary: str


class Heartbeats:
    """Notes heartbeats, raises and ends the alerts about them.

    Parameters
    ----------
    database
        The store.
    ledger
        The rules by which events are recorded.
    started_ms
        When this process began; waits count from then at the earliest.
    """

    def __init__(self, database: Database, ledger: Ledger, started_ms: int = 0) -> None:
        self._database = database
        self._ledger = ledger
        self._started_ms = started_ms

    def declare(self, wanted: Sequence[HeartbeatSettings], now_ms: int) -> None:
        """Take over the settings: those named from now on, and no longer named."""
        with self._database.write() as connection:
            known = {row["name"]: row for row in connection.execute(_ALL).mappings()}
            for one in wanted:
                values = {
                    "interval_ms": one.interval_seconds * 1000,
                    "grace_ms": one.grace_seconds * 1000,
                    "severity": one.severity.value,
                    "declared": True,
                }
                if one.name in known:
                    connection.execute(_of(one.name).values(values))
                else:
                    new = {"name": one.name, "first_ms": now_ms, **values}
                    connection.execute(sa.insert(heartbeat).values(new))
            names = {one.name for one in wanted}
            for name, row in known.items():
                if row["declared"] and name not in names:
                    self._remove(connection, row, now_ms)

    def beat(
        self,
        name: str,
        now_ms: int,
        *,
        interval_ms: int | None = None,
        grace_ms: int | None = None,
        severity: Severity | None = None,
    ) -> _Row:
        """Note that one has come; return its row.

        Parameters
        ----------
        name
            Which; an unknown one is known from now on.
        now_ms
            Unix milliseconds.
        interval_ms, grace_ms, severity
            How it is expected from now on; those of the settings stay.

        Raises
        ------
        TooManyError
            If it is unknown and no more can be taken.
        """
        given = {"interval_ms": interval_ms, "grace_ms": grace_ms, "severity": severity}
        said = {key: value for key, value in given.items() if value is not None}
        with self._database.write() as connection:
            row = connection.execute(_ONE, {"name": name}).mappings().one_or_none()
            if row is None:
                self._insert(connection, name, said, now_ms)
            else:
                if row["missing_ms"] is not None:
                    span = duration((now_ms - row["missing_ms"]) / 1000)
                    end = _End(reason="heartbeat", summary=f"It came again, {span} late.")
                    self._end(connection, row, end, now_ms)
                kept = {} if row["declared"] else said
                connection.execute(_of(name).values(last_ms=now_ms, missing_ms=None, **kept))
            return connection.execute(_ONE, {"name": name}).mappings().one()

    def look(self, now_ms: int) -> int:
        """Raise an alert for each that has become overdue; return for how many."""
        with self._database.read() as connection:
            rows = connection.execute(_ALL).mappings().all()
        late = [row["name"] for row in rows if self._is_overdue(row, now_ms)]
        for name in late:
            with self._database.write() as connection:
                row = connection.execute(_ONE, {"name": name}).mappings().one_or_none()
                if row is not None and self._is_overdue(row, now_ms):
                    due_ms = self.due_ms(row) - row["grace_ms"]
                    event = _missing(row, due_ms, now_ms)
                    self._ledger.record(connection, event, now_ms)
                    connection.execute(_of(name).values(missing_ms=due_ms))
        return len(late)

    def due_ms(self, row: _Row) -> int:
        """Return when one is overdue, its grace included, unix milliseconds."""
        since: int = max(row["last_ms"] or row["first_ms"], self._started_ms)
        return since + int(row["interval_ms"]) + int(row["grace_ms"])

    def all(self) -> list[_Row]:
        """Return every row, by name."""
        with self._database.read() as connection:
            return list(connection.execute(_ALL).mappings())

    def in_time(self, names: Sequence[str], now_ms: int) -> bool:
        """Tell whether all of these have come and none is overdue."""
        rows = {row["name"]: row for row in self.all()}
        return all(
            name in rows and beat_state(rows[name], self.due_ms(rows[name]), now_ms) == "in_time"
            for name in names
        )

    def remove(self, name: str, now_ms: int) -> bool | None:
        """Expect one no more. None if there is none, False if the settings name it."""
        with self._database.write() as connection:
            row = connection.execute(_ONE, {"name": name}).mappings().one_or_none()
            if row is None:
                return None
            if row["declared"]:
                return False
            self._remove(connection, row, now_ms)
            return True

    def _insert(
        self, connection: sa.Connection, name: str, said: Mapping[str, object], now_ms: int
    ) -> None:
        count = connection.execute(sa.select(sa.func.count()).select_from(heartbeat)).scalar_one()
        if count >= MOST:
            raise TooManyError(f"at most {MOST} heartbeats are known at once")
        usual = HeartbeatSettings(name=name)
        values = {
            "interval_ms": usual.interval_seconds * 1000,
            "grace_ms": usual.grace_seconds * 1000,
            "severity": usual.severity.value,
            **said,
        }
        connection.execute(
            sa.insert(heartbeat).values(
                name=name, declared=False, first_ms=now_ms, last_ms=now_ms, **values
            )
        )

    def _is_overdue(self, row: _Row, now_ms: int) -> bool:
        return row["missing_ms"] is None and now_ms > self.due_ms(row)

    def _remove(self, connection: sa.Connection, row: _Row, now_ms: int) -> None:
        if row["missing_ms"] is not None:
            end = _End(reason="entity_removed", summary="It is not expected any more.")
            self._end(connection, row, end, now_ms)
        connection.execute(sa.delete(heartbeat).where(heartbeat.c.name == row["name"]))

    def _end(self, connection: sa.Connection, row: _Row, end: _End, now_ms: int) -> None:
        self._ledger.record(connection, _over(row, end, now_ms), now_ms)


def beat_state(row: _Row, due_ms: int, now_ms: int) -> str:
    """Return ``waiting`` (none has come yet), ``in_time`` or ``missing``."""
    if row["missing_ms"] is not None or now_ms > due_ms:
        return "missing"
    return "waiting" if row["last_ms"] is None else "in_time"


def _missing(row: _Row, due_ms: int, now_ms: int) -> AlertEvent:
    name, last_ms = row["name"], row["last_ms"]
    every = duration(row["interval_ms"] / 1000)
    if last_ms is None:
        said = f"Heartbeat {name} has never come; one is expected every {every}."
    else:
        age = duration((now_ms - last_ms) / 1000)
        said = f"No heartbeat from {name} for {age}; one is expected every {every}."
    return _event(row, due_ms, now_ms, said)


def _over(row: _Row, end: _End, now_ms: int) -> AlertEvent:
    return _event(row, row["missing_ms"], now_ms, f"Heartbeat {row['name']}: {end.summary}", end)


def _event(
    row: _Row, started_ms: int, now_ms: int, summary: str, end: _End | None = None
) -> AlertEvent:
    subject = Subject(scope="pipeline", pipeline=f"heartbeat {row['name']}")
    fingerprint = fingerprint_of(_FAMILY, _KIND, subject)
    last_ms = row["last_ms"]
    return AlertEvent(
        alert_id=alert_id_of(fingerprint, started_ms),
        fingerprint=fingerprint,
        seq=1 if end is None else 2,
        state=(AlertState.FIRING if end is None else AlertState.RESOLVED).value,
        family=_FAMILY,
        kind=_KIND,
        severity=row["severity"],
        subject=subject,
        started_at=rfc3339(started_ms),
        observed_at=rfc3339(now_ms),
        ended_at=None if end is None else rfc3339(now_ms),
        end_reason=None if end is None else end.reason,
        score=1.0,
        summary=summary,
        evidence=(
            Evidence(
                metric="heartbeat_age_seconds",
                value=None if last_ms is None else (now_ms - last_ms) / 1000,
                unit="s",
                expected_high=(row["interval_ms"] + row["grace_ms"]) / 1000,
            ),
        ),
        likely_cause="Who sends it has ended or hangs, or cannot reach this service.",
        action="watch",
        next_steps=(
            "Look at who sends it: its log, its host, its network.",
            f"Send one by hand: curl -X POST …/v1/heartbeats/{row['name']}",
        ),
        detector=DetectorRef(name="heartbeats", version="1"),
    )


def _of(name: str) -> sa.Update:
    return sa.update(heartbeat).where(heartbeat.c.name == name)


_ALL = sa.select(heartbeat).order_by(heartbeat.c.name)
_ONE = sa.select(heartbeat).where(heartbeat.c.name == sa.bindparam("name"))
