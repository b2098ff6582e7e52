"""What was given up, and sending it again."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from api.tables import DeliveryState, delivery

__all__ = ["replay"]

_AGAIN = (DeliveryState.DEAD, DeliveryState.CANCELLED, DeliveryState.DONE)


def replay(
    connection: sa.Connection,
    now_ms: int,
    *,
    ids: Collection[int] | None = None,
    endpoint: str | None = None,
    failed_since_ms: int | None = None,
    dead_only: bool = False,
) -> int:
    """Queue finished deliveries again under the ids that they had; return how many.

    Parameters
    ----------
    connection
        In a write transaction.
    now_ms
        Unix milliseconds.
    ids
        These deliveries, however they ended.
    dead_only
        Of ``ids`` too only those that were given up.
    endpoint
        Only of this endpoint.
    failed_since_ms
        Without ``ids``: what was given up since then.
    """
    query = sa.update(delivery)
    if ids is not None:
        states = (DeliveryState.DEAD,) if dead_only else _AGAIN
        query = query.where(delivery.c.id.in_(list(ids)), delivery.c.state.in_(states))
    else:
        query = query.where(
            delivery.c.state == DeliveryState.DEAD,
            delivery.c.finished_ms >= (failed_since_ms or 0),
        )
    if endpoint is not None:
        query = query.where(delivery.c.endpoint == endpoint)
    done = connection.execute(
        query.values(
            state=DeliveryState.PENDING,
            attempts=0,
            refusals=0,
            next_at_ms=now_ms,
            replayed_ms=now_ms,
            finished_ms=None,
            digest=None,
            note="Sent again on request.",
        )
    )
    return int(done.rowcount)
