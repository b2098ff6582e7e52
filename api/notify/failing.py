"""Says through the other endpoints that one of them takes nothing any more.

It is an alert like any other: it stands in the list, is acknowledged, and resolves when the
endpoint takes something again. The failing endpoint itself is not asked to tell it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from api.database import Database
from api.ledger import Ledger
from api.lifecycle import LifecycleRules
from api.notices import Receiver, Receivers
from api.readings import duration
from api.tables import DeliveryState, alert, delivery, pace
from schemas.alert import (
    AlertEvent,
    DetectorRef,
    Evidence,
    Subject,
    alert_id_of,
    fingerprint_of,
    rfc3339,
)

__all__ = ["FailureWatch"]

_FAMILY, _KIND = "telemetry", "delivery_failing"
_REMOVED = "entity_removed"


@dataclass(frozen=True, slots=True)
class _Without:
    """Every receiver but one."""

    receivers: Receivers
    left_out: str

    def of(self, labels: Mapping[str, str], rank: int) -> Sequence[Receiver]:
        return [r for r in self.receivers.of(labels, rank) if r.endpoint != self.left_out]

    def names(self) -> frozenset[str]:
        return self.receivers.names() - {self.left_out}


class FailureWatch:
    """Raises and resolves the alerts about endpoints.

    Parameters
    ----------
    database
        The store.
    receivers
        Who is told of alerts.
    failing_seconds
        After how long without success an endpoint is reported; at once when a delivery is dead.
    exists
        Names of the endpoints that are meant to be told; None if all of them are.
    """

    def __init__(
        self,
        database: Database,
        receivers: Receivers,
        failing_seconds: float,
        exists: Callable[[], Collection[str]] | None = None,
    ) -> None:
        self._database = database
        self._receivers = receivers
        self._failing_ms = int(failing_seconds * 1000)
        self._exists = exists

    def look(self, now_ms: int) -> None:
        """Report what has failed or works again since the last look."""
        changed = sa.or_(pace.c.failing_since_ms.is_not(None), pace.c.told_ms.is_not(None))
        with self._database.read() as connection:
            rows = connection.execute(sa.select(pace).where(changed)).mappings().all()
            reports = [
                report
                for row in rows
                if (report := self._report(connection, row, now_ms)) is not None
            ]
        for report in reports:
            self._record(report, now_ms)

    def _report(
        self, connection: sa.Connection, row: Mapping[Any, Any], now_ms: int
    ) -> AlertEvent | None:  # row: a row mapping is untyped
        name, since, told = row["endpoint"], row["failing_since_ms"], row["told_ms"]
        if self._exists is not None and name not in self._exists():
            return _removed(name, since if told is None else told, now_ms)
        if told is not None:
            return None if since is not None else _event(name, told, now_ms, None)
        dead = sa.select(sa.func.count()).where(
            delivery.c.endpoint == name,
            delivery.c.state == DeliveryState.DEAD,
            delivery.c.finished_ms >= since,
        )
        lost = connection.execute(dead).scalar() or 0
        if now_ms - since < self._failing_ms and not lost:
            return None
        waiting = sa.select(sa.func.count()).where(
            delivery.c.endpoint == name, delivery.c.state == DeliveryState.PENDING
        )
        error = (
            sa.select(delivery.c.last_error)
            .where(delivery.c.endpoint == name, delivery.c.last_error.is_not(None))
            .order_by(delivery.c.id.desc())
            .limit(1)
        )
        return _event(
            name,
            since,
            now_ms,
            _Trouble(
                waiting=connection.execute(waiting).scalar() or 0,
                lost=lost,
                error=connection.execute(error).scalar() or "no answer",
            ),
        )

    def _record(self, report: AlertEvent, now_ms: int) -> None:
        name = (report.subject.pipeline or "").removeprefix("endpoint ")
        firing = report.state == "firing"
        receivers = _Without(self._receivers, name)
        # Each failure is an episode of its own: its times are those of the endpoint.
        ledger = Ledger(receivers, LifecycleRules(reopen_ms=0))
        gone = report.end_reason == _REMOVED
        with self._database.write() as connection:
            known = sa.select(alert.c.alert_id).where(alert.c.alert_id == report.alert_id)
            if not gone or connection.execute(known).first() is not None:
                ledger.record(connection, report, now_ms)
            since = pace.c.failing_since_ms if firing else None
            values = {"told_ms": since} | ({"failing_since_ms": None} if gone else {})
            connection.execute(sa.update(pace).where(pace.c.endpoint == name).values(**values))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trouble:
    waiting: int
    lost: int
    error: str


def _removed(name: str, since_ms: int, now_ms: int) -> AlertEvent:
    """Return the end of what is said of an endpoint that nobody means to tell any more."""
    over = _event(name, since_ms, now_ms, None)
    return replace(
        over, end_reason=_REMOVED, summary=f"Endpoint {name} is no longer told of anything."
    )


def _event(name: str, since_ms: int, now_ms: int, trouble: _Trouble | None) -> AlertEvent:
    subject = Subject(scope="pipeline", pipeline=f"endpoint {name}")
    fingerprint = fingerprint_of(_FAMILY, _KIND, subject)
    span = duration((now_ms - since_ms) // 1000)
    if trouble is None:
        summary = f"Endpoint {name} takes notifications again, after {span}."
    else:
        summary = (
            f"Endpoint {name} has taken nothing for {span}: {trouble.error}; "
            f"{trouble.waiting} notices wait, {trouble.lost} were given up."
        )
    evidence = (
        ()
        if trouble is None
        else (
            Evidence(metric="waiting_notices_total", value=float(trouble.waiting), unit=""),
            Evidence(metric="dead_notices_total", value=float(trouble.lost), unit=""),
        )
    )
    return AlertEvent(
        alert_id=alert_id_of(fingerprint, since_ms),
        fingerprint=fingerprint,
        seq=1 if trouble else 2,
        state="firing" if trouble else "resolved",
        family=_FAMILY,
        kind=_KIND,
        severity="critical",
        subject=subject,
        started_at=rfc3339(since_ms),
        observed_at=rfc3339(now_ms),
        ended_at=None if trouble else rfc3339(now_ms),
        end_reason=None if trouble else "delivered",
        score=1.0,
        summary=summary,
        evidence=evidence,
        likely_cause="The receiver is down, unreachable, or refuses what it gets.",
        action="watch",
        next_steps=(
            f"Try it: foreshock endpoints test {name}",
            "Mend it, then send again what was given up: foreshock endpoints replay " + name,
        ),
        detector=DetectorRef(name="delivery", version="1"),
    )
