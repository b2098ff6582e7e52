"""Many waiting notices in one message, where a receiver takes less than there is to say.

The members are marked in the transaction that claims them, so that the same message is sent again
under the same id after a crash. They become done, or dead, with the one that carries them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import orjson
import sqlalchemy as sa

from api.tables import DeliveryState, delivery, event

__all__ = ["gather", "members_of", "webhook_id_of_digest"]

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "foreshock.digest")
_MOST = 10_000


def webhook_id_of_digest(head: str) -> str:
    """Return the id of a digest: not that of any single notice, which may have been sent before."""
    return str(uuid.uuid5(_NAMESPACE, head))


# Any: rows are untyped.
def gather(
    connection: sa.Connection, name: str, now_ms: int, *, more_than: int, waited_ms: int
) -> list[Any]:
    """Return what may go into one message, oldest first; empty if there is no need.

    Parameters
    ----------
    name
        The endpoint.
    more_than
        What the receiver takes at once: so few need no digest.
    waited_ms
        How long the first must have waited.
    """
    due = (
        delivery.c.endpoint == name,
        delivery.c.state == DeliveryState.PENDING,
        delivery.c.next_at_ms <= now_ms,
        delivery.c.digest.is_(None),
    )
    count = sa.select(sa.func.count(), sa.func.min(delivery.c.next_at_ms)).where(*due)
    number, oldest = connection.execute(count).one()
    if number <= more_than or oldest > now_ms - waited_ms:
        return []
    alerts, groups = _kept_apart(connection, name, now_ms)
    query = (
        sa.select(
            delivery.c.id,
            delivery.c.webhook_id,
            delivery.c.alert_id,
            delivery.c.group_key,
            delivery.c.attempts,
            delivery.c.refusals,
            delivery.c.kind,
            delivery.c.digest,
            event.c.payload,
        )
        .join(event, event.c.id == delivery.c.event_id)
        .where(*due)
        .order_by(delivery.c.id)
        .limit(_MOST)
        .with_for_update(of=delivery, skip_locked=True)
    )
    return [
        row
        for row in connection.execute(query)
        if row.alert_id not in alerts and row.group_key not in groups
    ]


def _kept_apart(
    connection: sa.Connection, name: str, now_ms: int
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the alerts and the groups that stay out of a digest, so that order stands.

    What is held keeps out the rest of its alert; what is under way, is tried again or waits in
    another digest keeps out the rest of its group.
    """
    under_way = sa.or_(
        delivery.c.state == DeliveryState.LEASED,
        delivery.c.digest.is_not(None),
        delivery.c.attempts > 0,
    )
    query = sa.select(delivery.c.alert_id, delivery.c.group_key, under_way).where(
        delivery.c.endpoint == name,
        delivery.c.state.in_((DeliveryState.PENDING, DeliveryState.LEASED)),
        sa.or_(
            delivery.c.state == DeliveryState.LEASED,
            delivery.c.next_at_ms > now_ms,
            delivery.c.digest.is_not(None),
        ),
    )
    rows = connection.execute(query).all()
    return (
        frozenset(row[0] for row in rows),
        frozenset(row[1] for row in rows if row[2]),
    )


def members_of(connection: sa.Connection, head: int) -> tuple[Mapping[str, Any], ...]:
    """Return the events that a digest tells, oldest first."""
    query = (
        sa.select(event.c.payload)
        .join(delivery, event.c.id == delivery.c.event_id)
        .where(delivery.c.digest == head)
        .order_by(delivery.c.id)
    )
    return tuple(orjson.loads(payload) for payload in connection.execute(query).scalars())
