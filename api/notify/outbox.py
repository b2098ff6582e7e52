"""The queue of notifications in the store: claim, finish, release.

A claim leases a delivery for a while. Who dies holding a lease loses it when it ends, and the
delivery is sent again under the same webhook id: at least once, never lost.

Order: only the oldest unfinished delivery of an (endpoint, alert) can be claimed, so "resolved"
never overtakes "firing"; a dead one lets the next go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from api.database import Database
from api.decision import Action, Decisions, Waiting
from api.notify.retry import Decision, Outcome, Verdict
from api.settings import EndpointSettings
from api.tables import DeliveryState, attempt, delivery, endpoint, event

__all__ = ["Claim", "Outbox"]

#: Deliveries of one endpoint that are ruled on in one claim.
_RULED_AT_ONCE = 200
_WAITING = (DeliveryState.PENDING, DeliveryState.LEASED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A delivery that this process may send now.

    Parameters
    ----------
    id, endpoint, webhook_id
        Which delivery, to whom, under which id.
    attempts, refusals
        Made so far, this one not included.
    event
        The AlertEvent as decoded JSON.
    """

    id: int
    endpoint: str
    webhook_id: str
    attempts: int
    refusals: int
    event: Mapping[str, Any]  # decoded JSON


class Outbox:
    """Claims and finishes deliveries for one process.

    Parameters
    ----------
    database
        The store.
    owner
        Unique name of this process's leases.
    lease_seconds
        How long a lease lasts without renewal.
    decisions
        Asked about each delivery when it is claimed; None sends everything.
    """

    def __init__(
        self,
        database: Database,
        *,
        owner: str,
        lease_seconds: float,
        decisions: Decisions | None = None,
    ) -> None:
        self._decisions = decisions
        self._database = database
        self._owner = owner
        self._lease_ms = int(lease_seconds * 1000)

    def sync_endpoints(self, endpoints: Sequence[EndpointSettings], now_ms: int) -> None:
        """Show the operator's endpoints; cancel what waits for one that is gone or disabled."""
        active = [e.name for e in endpoints if e.enabled]
        with self._database.write() as connection:
            connection.execute(sa.delete(endpoint))
            for settings in endpoints:
                connection.execute(
                    sa.insert(endpoint).values(
                        name=settings.name,
                        type=settings.type,
                        severity_min=settings.severity_min.value,
                        enabled=settings.enabled,
                        host=settings.host,
                        seen_ms=now_ms,
                    )
                )
            connection.execute(
                sa.update(delivery)
                .where(delivery.c.state.in_(_WAITING), delivery.c.endpoint.not_in(active))
                .values(
                    state=DeliveryState.CANCELLED,
                    last_error="the endpoint is disabled or no longer in the settings",
                    finished_ms=now_ms,
                    lease_by=None,
                    lease_until_ms=None,
                )
            )

    def next_due_ms(self) -> int | None:
        """Return when the earliest waiting delivery is due or its lease ends; None if none is."""
        due = sa.select(sa.func.min(delivery.c.next_at_ms)).where(
            delivery.c.state == DeliveryState.PENDING
        )
        lapsing = sa.select(sa.func.min(delivery.c.lease_until_ms)).where(
            delivery.c.state == DeliveryState.LEASED
        )
        with self._database.read() as connection:
            times = [connection.execute(due).scalar(), connection.execute(lapsing).scalar()]
        return min((t for t in times if t is not None), default=None)

    def claim(self, room: Mapping[str, int], limit: int, now_ms: int) -> list[Claim]:
        """Lease what is due.

        Parameters
        ----------
        room
            Attempts that may still be started, per endpoint name.
        limit
            Attempts that may still be started over all endpoints.
        now_ms
            Unix milliseconds.
        """
        claims: list[Claim] = []
        with self._database.write_beside() as connection:
            connection.execute(_RETURN_LAPSED, {"now": now_ms})
            for name, free in room.items():
                wanted = min(free, limit - len(claims))
                if wanted > 0:
                    claims += self._claim_of(connection, name, wanted, now_ms)
        return claims

    def _claim_of(
        self, connection: sa.Connection, name: str, wanted: int, now_ms: int
    ) -> list[Claim]:
        # More than is wanted: what is cancelled or held must not hold up what is sent.
        batch = wanted if self._decisions is None else max(wanted, _RULED_AT_ONCE)
        key = {"name": name, "now": now_ms, "wanted": batch}
        rows = self._ruled(connection, connection.execute(_DUE, key).all(), name, now_ms)[:wanted]
        claims = [
            Claim(
                id=row.id,
                endpoint=name,
                webhook_id=row.webhook_id,
                attempts=row.attempts,
                refusals=row.refusals,
                event=orjson.loads(row.payload),
            )
            for row in rows
        ]
        self._lease(connection, [c.id for c in claims], now_ms)
        return claims

    # Any: a row has no type of its columns.
    def _ruled(
        self, connection: sa.Connection, rows: Sequence[Any], name: str, now_ms: int
    ) -> list[Any]:
        """Return the deliveries that are to be sent; cancel or put off the others."""
        if self._decisions is None:
            return list(rows)
        waiting = [
            Waiting(
                delivery_id=row.id,
                endpoint=name,
                alert_id=row.alert_id,
                kind=row.kind,
                attempts=row.attempts,
            )
            for row in rows
        ]
        rulings = self._decisions.rule(connection, waiting, now_ms)
        for delivery_id, ruling in rulings.items():
            values: dict[str, object] = {"note": ruling.reason}
            if ruling.action is Action.SEND:
                continue
            if ruling.action is Action.CANCEL:
                values |= {"state": DeliveryState.CANCELLED, "finished_ms": now_ms}
            else:
                values |= {"next_at_ms": ruling.until_ms or now_ms}
            connection.execute(
                sa.update(delivery).where(delivery.c.id == delivery_id).values(values)
            )
        return [row for row in rows if rulings[row.id].action is Action.SEND]

    def _lease(self, connection: sa.Connection, ids: Collection[int], now_ms: int) -> None:
        if ids:
            connection.execute(
                sa.update(delivery)
                .where(delivery.c.id.in_(ids))
                .values(
                    state=DeliveryState.LEASED,
                    lease_by=self._owner,
                    lease_until_ms=now_ms + self._lease_ms,
                )
            )

    def renew(self, ids: Collection[int], now_ms: int) -> None:
        """Keep the leases of attempts that are still under way."""
        with self._database.write_beside() as connection:
            self._lease(connection, ids, now_ms)

    def finish(
        self,
        claim: Claim,
        outcome: Outcome,
        decision: Decision,
        *,
        started_ms: int,
        now_ms: int,
    ) -> None:
        """Store what an attempt came to; nothing changes if the lease was lost meanwhile."""
        state = DeliveryState.PENDING
        if decision.done or decision.dead:
            state = DeliveryState.DONE if decision.done else DeliveryState.DEAD
        permanent = outcome.verdict is Verdict.PERMANENT
        with self._database.write_beside() as connection:
            connection.execute(
                sa.insert(attempt).values(
                    delivery_id=claim.id,
                    number=claim.attempts + 1,
                    started_ms=started_ms,
                    duration_ms=max(0, now_ms - started_ms),
                    status=outcome.status,
                    error=outcome.error,
                )
            )
            connection.execute(
                sa.update(delivery)
                .where(delivery.c.id == claim.id, delivery.c.lease_by == self._owner)
                .values(
                    state=state,
                    attempts=claim.attempts + 1,
                    refusals=claim.refusals + permanent,
                    next_at_ms=now_ms + round(decision.wait_seconds * 1000),
                    lease_by=None,
                    lease_until_ms=None,
                    last_status=outcome.status,
                    last_error=outcome.error,
                    finished_ms=now_ms if state != DeliveryState.PENDING else None,
                )
            )

    def release(self) -> None:
        """Give back every lease of this process: at its end."""
        with self._database.write_beside() as connection:
            connection.execute(
                sa.update(delivery)
                .where(delivery.c.state == DeliveryState.LEASED, delivery.c.lease_by == self._owner)
                .values(state=DeliveryState.PENDING, lease_by=None, lease_until_ms=None)
            )


_earlier = delivery.alias("earlier")
_DUE = (
    sa.select(
        delivery.c.id,
        delivery.c.alert_id,
        delivery.c.kind,
        delivery.c.webhook_id,
        delivery.c.attempts,
        delivery.c.refusals,
        event.c.payload,
    )
    .join(event, event.c.id == delivery.c.event_id)
    .where(
        delivery.c.endpoint == sa.bindparam("name"),
        delivery.c.state == DeliveryState.PENDING,
        delivery.c.next_at_ms <= sa.bindparam("now"),
        ~sa.exists().where(
            _earlier.c.endpoint == delivery.c.endpoint,
            _earlier.c.alert_id == delivery.c.alert_id,
            _earlier.c.id < delivery.c.id,
            _earlier.c.state.in_(_WAITING),
        ),
    )
    # As the index has it: sorting a long queue by id would read all of it for each claim.
    .order_by(delivery.c.next_at_ms, delivery.c.id)
    .limit(sa.bindparam("wanted"))
    # PostgreSQL: what another process is claiming at this moment is its own. SQLite has one writer.
    .with_for_update(of=delivery, skip_locked=True)
)
_RETURN_LAPSED = (
    sa.update(delivery)
    .where(
        delivery.c.state == DeliveryState.LEASED, delivery.c.lease_until_ms < sa.bindparam("now")
    )
    .values(state=DeliveryState.PENDING, lease_by=None, lease_until_ms=None)
)
