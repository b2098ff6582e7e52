"""The episodes of one fingerprint, as the rules of the lifecycle need them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from api.lifecycle import Episode, Standing
from api.tables import alert
from schemas.alert import AlertEvent

__all__ = ["episode_before", "later_episode", "read_histories", "read_history"]

#: Episodes of one fingerprint that are looked at; older ones decide nothing.
_HISTORY = 50

# Statements are built once: SQLAlchemy then finds their compiled form by identity.
_COLUMNS = (
    alert.c.alert_id,
    alert.c.seq,
    alert.c.state,
    alert.c.severity_rank,
    alert.c.started_ms,
    alert.c.ended_ms,
    alert.c.end_reason,
    alert.c.acked_by,
    alert.c.acked_ms,
    alert.c.ack_until_ms,
    alert.c.ack_rank,
    alert.c.assignee,
    alert.c.closed_rank,
    alert.c.flapping_ms,
    alert.c.reopens,
    alert.c.version,
)
_RECENT = (
    sa.select(*_COLUMNS)
    .where(alert.c.fingerprint == sa.bindparam("fingerprint"))
    .order_by(alert.c.started_ms.desc())
    .limit(_HISTORY)
)
_OWN = sa.select(*_COLUMNS).where(alert.c.alert_id == sa.bindparam("id"))
_LATER = sa.select(sa.func.min(alert.c.started_ms)).where(
    alert.c.fingerprint == sa.bindparam("fingerprint"),
    sa.tuple_(alert.c.started_ms, alert.c.alert_id)
    > sa.tuple_(sa.bindparam("started_ms"), sa.bindparam("id")),
)


def read_history(connection: sa.Connection, new: AlertEvent) -> list[Episode]:
    """Return the newest episodes of the fingerprint, and the alert itself however old."""
    found = [_episode(row) for row in connection.execute(_RECENT, {"fingerprint": new.fingerprint})]
    if len(found) == _HISTORY and not any(e.alert_id == new.alert_id for e in found):
        found += [_episode(row) for row in connection.execute(_OWN, {"id": new.alert_id})]
    return found


def read_histories(
    connection: sa.Connection, events: Sequence[AlertEvent]
) -> dict[str, list[Episode]]:
    """Read the episodes of many fingerprints at once; a query for each would cost more.

    Returns
    -------
    dict
        By fingerprint: only those that occur once among the events, since what is recorded of the
        first of two changes the history of the second, and that have few episodes.
    """
    times = Counter(new.fingerprint for new in events)
    once = sorted(fingerprint for fingerprint, number in times.items() if number == 1)
    found: dict[str, list[Episode]] = {fingerprint: [] for fingerprint in once}
    counted = (
        sa.select(alert.c.fingerprint, sa.func.count())
        .where(alert.c.fingerprint.in_(once))
        .group_by(alert.c.fingerprint)
    )
    few = []
    for fingerprint, number in connection.execute(counted):
        if number < _HISTORY:
            few.append(fingerprint)
        else:
            del found[fingerprint]
    if few:
        query = sa.select(alert.c.fingerprint, *_COLUMNS).where(alert.c.fingerprint.in_(few))
        for row in connection.execute(query.order_by(alert.c.started_ms.desc())):
            found[row.fingerprint].append(_episode(row))
    return found


# Any: a row has no type of its columns.
def _episode(row: Any) -> Episode:
    return Episode(
        alert_id=row.alert_id,
        started_ms=row.started_ms,
        ended_ms=row.ended_ms,
        end_reason=row.end_reason,
        version=row.version,
        standing=Standing(
            state=row.state,
            rank=row.severity_rank,
            seq=row.seq,
            acked_by=row.acked_by,
            acked_ms=row.acked_ms,
            ack_until_ms=row.ack_until_ms,
            ack_rank=row.ack_rank,
            assignee=row.assignee,
            closed_rank=row.closed_rank,
            flapping_ms=row.flapping_ms,
            reopens=row.reopens,
        ),
    )


def episode_before(others: Sequence[Episode], started_ms: int) -> Episode | None:
    """Return the newest episode that began before."""
    earlier = [e for e in others if e.started_ms < started_ms]
    return max(earlier, key=lambda e: e.started_ms, default=None)


def later_episode(
    connection: sa.Connection, others: Sequence[Episode], new: AlertEvent, started_ms: int
) -> int | None:
    """Return the start of the next episode after this one, or None."""
    if len(others) >= _HISTORY:
        key = {"fingerprint": new.fingerprint, "started_ms": started_ms, "id": new.alert_id}
        found: int | None = connection.execute(_LATER, key).scalar_one_or_none()
        return found
    later = [
        e.started_ms for e in others if (e.started_ms, e.alert_id) > (started_ms, new.alert_id)
    ]
    return min(later, default=None)
