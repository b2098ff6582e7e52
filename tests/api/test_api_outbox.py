"""Leases and order of the queue of notifications, with a clock of the test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from api.database import Database
from api.ledger import Ledger, Route
from api.notify.outbox import Claim, Outbox
from api.notify.retry import Decision, Outcome, Verdict
from api.tables import delivery
from schemas.alert import AlertEvent, Severity

LEASE_MS = 60_000
ROOM = {"noc": 4}
OK = Outcome(verdict=Verdict.DELIVERED, status=200)
FAILED = Outcome(verdict=Verdict.TRANSIENT, status=500, error="the receiver answered HTTP 500")

Make = Callable[..., AlertEvent]


def outbox(database: Database, owner: str) -> Outbox:
    return Outbox(database, owner=owner, lease_seconds=LEASE_MS / 1000)


def queue(database: Database, *events: AlertEvent) -> None:
    ledger = Ledger([Route(endpoint="noc", severity_min=Severity.WARNING)])
    with database.write() as connection:
        for event in events:
            ledger.record(connection, event, 0)


def finish(box: Outbox, claim: Claim, outcome: Outcome, decision: Decision, now_ms: int) -> None:
    box.finish(claim, outcome, decision, started_ms=now_ms, now_ms=now_ms)


def states(database: Database) -> list[tuple[str, int]]:
    query = sa.select(delivery.c.state, delivery.c.attempts).order_by(delivery.c.id)
    with database.read() as connection:
        return [(row[0], row[1]) for row in connection.execute(query)]


def test_a_leased_delivery_is_not_given_out_again_until_its_lease_ends(
    database: Database, make_event: Make
) -> None:
    queue(database, make_event())
    first, second = outbox(database, "a"), outbox(database, "b")
    (claim,) = first.claim(ROOM, 10, 0)
    assert second.claim(ROOM, 10, LEASE_MS) == []
    (again,) = second.claim(ROOM, 10, LEASE_MS + 1)
    assert again.webhook_id == claim.webhook_id


def test_who_lost_the_lease_changes_nothing_any_more(database: Database, make_event: Make) -> None:
    queue(database, make_event())
    first, second = outbox(database, "a"), outbox(database, "b")
    (old,) = first.claim(ROOM, 10, 0)
    (new,) = second.claim(ROOM, 10, LEASE_MS + 1)
    finish(first, old, FAILED, Decision(dead=True), LEASE_MS + 2)
    assert states(database) == [("leased", 0)]
    finish(second, new, OK, Decision(done=True), LEASE_MS + 3)
    assert states(database) == [("done", 1)]


def test_a_renewed_lease_lasts(database: Database, make_event: Make) -> None:
    queue(database, make_event())
    box = outbox(database, "a")
    (claim,) = box.claim(ROOM, 10, 0)
    box.renew([claim.id], LEASE_MS)
    assert outbox(database, "b").claim(ROOM, 10, LEASE_MS + 1) == []


def test_released_deliveries_are_free_at_once(database: Database, make_event: Make) -> None:
    queue(database, make_event())
    box = outbox(database, "a")
    assert box.claim(ROOM, 10, 0)
    box.release()
    assert len(outbox(database, "b").claim(ROOM, 10, 0)) == 1


def test_only_the_oldest_unfinished_delivery_of_an_alert_can_be_claimed(
    database: Database, make_event: Make
) -> None:
    queue(database, make_event(), make_event(seq=2, state="resolved"), make_event(gpu="GPU-2"))
    box = outbox(database, "a")
    first = box.claim(ROOM, 10, 0)
    assert [(c.event["subject"]["gpu_uuid"], c.event["state"]) for c in first] == [
        ("GPU-1", "firing"),
        ("GPU-2", "firing"),
    ]
    finish(box, first[0], FAILED, Decision(wait_seconds=30), 0)
    assert box.claim(ROOM, 10, 1000) == [], "a waiting firing holds its resolved back"
    assert box.next_due_ms() == 0


@pytest.mark.parametrize("decision", [Decision(done=True), Decision(dead=True)])
def test_a_finished_head_lets_the_next_go(
    database: Database, make_event: Make, decision: Decision
) -> None:
    queue(database, make_event(), make_event(seq=2, state="resolved"))
    box = outbox(database, "a")
    (head,) = box.claim(ROOM, 10, 0)
    finish(box, head, FAILED, decision, 0)
    (following,) = box.claim(ROOM, 10, 0)
    assert following.event["state"] == "resolved"


def test_a_failed_attempt_waits_as_decided(database: Database, make_event: Make) -> None:
    queue(database, make_event())
    box = outbox(database, "a")
    (claim,) = box.claim(ROOM, 10, 0)
    finish(box, claim, FAILED, Decision(wait_seconds=5), 100)
    assert box.next_due_ms() == 5100
    assert box.claim(ROOM, 10, 5099) == []
    (again,) = box.claim(ROOM, 10, 5100)
    assert again.attempts == 1


def test_claims_stay_within_the_room_given(database: Database, make_event: Make) -> None:
    queue(database, *(make_event(gpu=f"GPU-{n}") for n in range(10)))
    box = outbox(database, "a")
    assert len(box.claim({"noc": 4}, 10, 0)) == 4
    assert len(box.claim({"noc": 4}, 2, 0)) == 2
    assert box.claim({"noc": 0, "other": 4}, 10, 0) == []
