"""What an attempt leaves in the store: its log, the delivery's new state, the endpoint's pace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from api.notify.claims import Claim
from api.notify.pacing import Breaker, Pace
from api.notify.retry import Decision, Outcome, Verdict
from api.tables import DeliveryState, attempt, delivery

__all__ = ["finish_members", "log_attempt", "pace_after", "values_after"]


def pace_after(before: Pace, claim: Claim, outcome: Outcome, breaker: Breaker, now_ms: int) -> Pace:
    """Return the endpoint's pace after an attempt."""
    if outcome.verdict is Verdict.DELIVERED:
        return before.after_success()
    if outcome.line_failed:
        return before.after_failure(breaker, now_ms, probe=claim.probe)
    return before.after_answer(now_ms)


def log_attempt(
    connection: sa.Connection, claim: Claim, outcome: Outcome, started_ms: int, now_ms: int
) -> None:
    """Append an attempt to the log."""
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


def values_after(
    claim: Claim, outcome: Outcome, decision: Decision, now_ms: int, *, counted: bool
) -> dict[str, Any]:  # columns of delivery
    """Return what changes in the row of the delivery.

    Parameters
    ----------
    counted
        Whether the attempt uses up one of those that it has.
    """
    state = DeliveryState.PENDING
    if decision.done or decision.dead:
        state = DeliveryState.DONE if decision.done else DeliveryState.DEAD
    values: dict[str, Any] = {
        "state": state,
        "attempts": claim.attempts + counted,
        "refusals": claim.refusals + (outcome.verdict is Verdict.PERMANENT),
        "next_at_ms": now_ms + round(decision.wait_seconds * 1000),
        "lease_by": None,
        "lease_until_ms": None,
        "last_status": outcome.status,
        "last_error": outcome.error,
        "finished_ms": now_ms if state != DeliveryState.PENDING else None,
    }
    if outcome.unsure:
        values["unsure"] = True
    if claim.delayed and decision.done:
        values["note"] = "It ended before it could be told."
    return values


def finish_members(connection: sa.Connection, claim: Claim, values: Mapping[str, Any]) -> None:
    """Let the members of a digest end as the one that carried them."""
    kept = ("state", "last_status", "last_error", "finished_ms")
    connection.execute(
        sa.update(delivery)
        .where(delivery.c.digest == claim.id, delivery.c.id != claim.id)
        .values(
            **{name: values[name] for name in kept},
            note=f"Told in one message with {len(claim.digest) - 1} others.",
        )
    )
