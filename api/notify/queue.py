"""Statements over the queue of notifications: what is due, leasing, putting aside."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from api.decision import Action, Ruling
from api.tables import DeliveryState, delivery, event

__all__ = ["DUE", "RETURN_LAPSED", "WAITING", "give_up_old", "lease", "put_aside"]

WAITING = (DeliveryState.PENDING, DeliveryState.LEASED)
_LEAST_HOLD_MS = 1000


def give_up_old(connection: sa.Connection, name: str, *, before_ms: int, now_ms: int) -> None:
    """Give up what is due at an endpoint and was queued, or asked for again, before a moment."""
    born = sa.func.coalesce(delivery.c.replayed_ms, delivery.c.created_ms)
    connection.execute(
        sa.update(delivery)
        .where(
            delivery.c.endpoint == name,
            delivery.c.state == DeliveryState.PENDING,
            delivery.c.next_at_ms <= now_ms,
            born < before_ms,
        )
        .values(
            state=DeliveryState.DEAD,
            finished_ms=now_ms,
            note="The receiver did not come back in time.",
        )
    )


def lease(connection: sa.Connection, ids: Collection[int], *, owner: str, until_ms: int) -> None:
    """Lease deliveries to a process until a moment."""
    if ids:
        connection.execute(
            sa.update(delivery)
            .where(delivery.c.id.in_(ids))
            .values(state=DeliveryState.LEASED, lease_by=owner, lease_until_ms=until_ms)
        )


def put_aside(connection: sa.Connection, number: int, ruling: Ruling, now_ms: int) -> None:
    """Cancel a delivery, or hold it for a while, with the reason."""
    values: dict[str, Any] = {"note": ruling.reason}
    if ruling.action is Action.CANCEL:
        values |= {"state": DeliveryState.CANCELLED, "finished_ms": now_ms}
    else:
        values["next_at_ms"] = max(ruling.until_ms or 0, now_ms + _LEAST_HOLD_MS)
    connection.execute(sa.update(delivery).where(delivery.c.id == number).values(**values))


_earlier = delivery.alias("earlier")
DUE = (
    sa.select(
        delivery.c.id,
        delivery.c.webhook_id,
        delivery.c.alert_id,
        delivery.c.attempts,
        delivery.c.refusals,
        delivery.c.kind,
        delivery.c.digest,
        delivery.c.replayed_ms,
        event.c.payload,
    )
    .join(event, event.c.id == delivery.c.event_id)
    .where(
        delivery.c.endpoint == sa.bindparam("name"),
        delivery.c.state == DeliveryState.PENDING,
        delivery.c.next_at_ms <= sa.bindparam("now"),
        sa.or_(delivery.c.digest.is_(None), delivery.c.digest == delivery.c.id),
        ~sa.exists().where(
            _earlier.c.endpoint == delivery.c.endpoint,
            _earlier.c.alert_id == delivery.c.alert_id,
            _earlier.c.id < delivery.c.id,
            _earlier.c.state.in_(WAITING),
        ),
        # Of the same group, what is due, under way or being retried goes first; what is only held
        # does not stand in the way.
        ~sa.exists().where(
            _earlier.c.endpoint == delivery.c.endpoint,
            _earlier.c.group_key == delivery.c.group_key,
            _earlier.c.id < delivery.c.id,
            _earlier.c.state.in_(WAITING),
            sa.or_(
                _earlier.c.state == DeliveryState.LEASED,
                _earlier.c.attempts > 0,
                _earlier.c.next_at_ms <= sa.bindparam("now"),
            ),
        ),
    )
    # As the index has it: sorting a long queue by id would read all of it for each claim.
    .order_by(delivery.c.next_at_ms, delivery.c.id)
    .limit(sa.bindparam("wanted"))
    # PostgreSQL: what another process is claiming at this moment is its own. SQLite has one writer.
    .with_for_update(of=delivery, skip_locked=True)
)
RETURN_LAPSED = (
    sa.update(delivery)
    .where(
        delivery.c.state == DeliveryState.LEASED, delivery.c.lease_until_ms < sa.bindparam("now")
    )
    # Whoever held the lease may have sent it.
    .values(state=DeliveryState.PENDING, lease_by=None, lease_until_ms=None, unsure=True)
)
