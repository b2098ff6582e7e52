"""Why somebody was told of an alert, or was not: routes, rules and deliveries, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from api.decision import Decisions, Waiting, facts_of
from api.inhibition import AlertFacts, Inhibition
from api.lifecycle import EventType
from api.routing import Routing, walk
from api.silences import Silences
from api.tables import DeliveryState, delivery
from schemas.alert import rfc3339

__all__ = ["explain", "suppression_of"]

_MOST = 100
#: A delivery that would be queued now: newer than every other.
_NEXT = 2**62


def suppression_of(connection: sa.Connection, alert_id: str, now_ms: int) -> dict[str, str | None]:
    """Return which silence and which graver alert keep people from being told."""
    facts = list(facts_of(connection, {alert_id}).values())
    silenced = Silences().matching(connection, facts, now_ms)
    roots = Inhibition.read(connection, facts)
    return {
        "silenced_by": silenced.get(alert_id),
        "inhibited_by": roots.root_of(facts[0]) if facts else None,
    }


def explain(
    connection: sa.Connection,
    alert_id: str,
    routing: Routing,
    decisions: Decisions,
    now_ms: int,
) -> dict[str, Any] | None:  # JSON
    """Say for each endpoint whether it is told of an alert, and why.

    Parameters
    ----------
    connection
        In a read transaction.
    routing, decisions
        The rules in force.
    now_ms
        Unix milliseconds.
    """
    facts = facts_of(connection, {alert_id}).get(alert_id)
    if facts is None:
        return None
    labels = facts.labels or {}
    receivers = {r.endpoint: r for r in routing.of(labels, facts.rank)}
    routed = {name for node in routing.taken_by(labels) for name in node.endpoints}
    sent = _sent(connection, alert_id)
    endpoints = [
        {
            "endpoint": name,
            "told": any(one["state"] == DeliveryState.DONE for one in sent.get(name, [])),
            **_ruling(connection, facts, name, decisions, now_ms, receivers, routed),
            "deliveries": sent.get(name, []),
        }
        for name in sorted(routing.names() | set(sent))
    ]
    steps = []
    if routing.tree is not None:
        steps = [
            {"path": step.path, "matched": step.matched, "failed": step.failed}
            for step in walk(routing.tree, labels)
        ]
    return {"alert_id": alert_id, "routes": steps, "endpoints": endpoints}


def _ruling(
    connection: sa.Connection,
    facts: AlertFacts,
    name: str,
    decisions: Decisions,
    now_ms: int,
    receivers: Mapping[str, object],
    routed: set[str],
) -> dict[str, Any]:  # JSON
    if name not in routed:
        return _said("no", "not_routed", "No route leads this alert to the endpoint.")
    if name not in receivers:
        return _said("no", "below_severity", "The alert is milder than the endpoint takes.")
    asked = Waiting(delivery_id=_NEXT, endpoint=name, alert_id=facts.alert_id, kind=EventType.FIRED)
    ruling = decisions.rule(connection, [asked], now_ms)[_NEXT]
    until = None if ruling.until_ms is None else rfc3339(ruling.until_ms)
    return _said(ruling.action.value, ruling.code, ruling.reason) | {"until": until}


def _said(action: str, code: str, reason: str) -> dict[str, Any]:  # JSON
    return {"action": action, "code": code, "reason": reason, "until": None}


def _sent(connection: sa.Connection, alert_id: str) -> dict[str, list[dict[str, Any]]]:  # JSON
    query = (
        sa.select(delivery)
        .where(delivery.c.alert_id == alert_id)
        .order_by(delivery.c.id.desc())
        .limit(_MOST)
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for row in connection.execute(query).mappings():
        found.setdefault(row["endpoint"], []).append(
            {
                "id": row["id"],
                "kind": row["kind"],
                "state": row["state"],
                "attempts": row["attempts"],
                "reason": row["note"] or row["last_error"],
                "created_at": rfc3339(row["created_ms"]),
            }
        )
    return found
