"""Order within a group of alerts at one endpoint, whatever fails, is held or is told at once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from api.database import Database
from api.ledger import Ledger
from api.notices import Receiver
from api.notify.outbox import Claim, Outbox, Terms
from api.notify.pacing import Breaker, Rate
from api.notify.retry import Decision, Outcome, Verdict
from api.tables import delivery
from schemas.alert import AlertEvent

MINUTE = 60_000
OK = Outcome(verdict=Verdict.DELIVERED, status=200)
DOWN = Outcome(verdict=Verdict.TRANSIENT, status=503, error="the receiver answered HTTP 503")
SLOW = {"noc": Terms(rate=Rate(per_minute=6, burst=2), digests=True)}

Make = Callable[..., AlertEvent]


class ByNode:
    """Everything goes to one endpoint, in a group for each node."""

    def of(self, labels: Any, rank: int) -> Sequence[Receiver]:
        return [Receiver(endpoint="noc", group_key=f"node:{labels['node']}")] if rank > 1 else []

    def names(self) -> frozenset[str]:
        return frozenset({"noc"})


def queue(database: Database, *events: AlertEvent, now_ms: int = 0) -> None:
    with database.write() as connection:
        Ledger(ByNode()).record_all(connection, events, now_ms)


def outbox(database: Database, **changes: Any) -> Outbox:
    return Outbox(database, owner="a", lease_seconds=60, **changes)


def finish(box: Outbox, claim: Claim, outcome: Outcome, decision: Decision, now_ms: int) -> None:
    box.finish(claim, outcome, decision, started_ms=now_ms, now_ms=now_ms)


def groups(database: Database) -> list[tuple[str, str]]:
    with database.read() as connection:
        query = sa.select(delivery.c.kind, delivery.c.group_key).order_by(delivery.c.id)
        return [(row[0], row[1]) for row in connection.execute(query)]


def test_an_end_is_told_in_the_group_of_its_beginning(database: Database, make_event: Make) -> None:
    """Even where nobody would be told of its severity any more."""
    queue(database, make_event(node="n1"))
    queue(database, make_event(node="n1", seq=2, state="resolved", severity="info"))
    assert groups(database) == [("fired", "node:n1"), ("resolved", "node:n1")]


def test_a_digest_leaves_out_the_group_whose_head_is_tried_again(
    database: Database, make_event: Make
) -> None:
    queue(database, make_event(node="n1", gpu="GPU-head"))
    box = outbox(database, terms=SLOW)
    (head,) = box.claim({"noc": 4}, 10, 0)
    finish(box, head, DOWN, Decision(wait_seconds=600), 0)
    queue(database, *(make_event(node="n1", gpu=f"GPU-{n}") for n in range(20)), now_ms=1)
    queue(database, *(make_event(node="n2", gpu=f"GPU-2{n}") for n in range(20)), now_ms=1)
    (told,) = box.claim({"noc": 4}, 10, 3 * MINUTE)
    assert {one["subject"]["node"] for one in told.digest} == {"n2"}
    finish(box, told, OK, Decision(done=True), 3 * MINUTE)
    (again,) = box.claim({"noc": 4}, 10, 11 * MINUTE)
    assert again.event["subject"]["gpu_uuid"] == "GPU-head"


@pytest.mark.parametrize("seed", range(2))
def test_whatever_fails_the_notices_of_a_group_arrive_in_their_order(
    database: Database, make_event: Make, seed: int
) -> None:
    """Alerts of three nodes begin and end; one attempt in three fails, some for good."""
    chance = random.Random(seed)
    for number in range(12):
        node, gpu = f"n{number % 3}", f"GPU-{number}"
        queue(database, make_event(node=node, gpu=gpu), now_ms=number)
    for number in range(0, 12, 2):
        node, gpu = f"n{number % 3}", f"GPU-{number}"
        queue(database, make_event(node=node, gpu=gpu, seq=2, state="resolved"), now_ms=20)
    box = outbox(database, breaker=Breaker(failures=1000))
    arrived: dict[str, list[int]] = defaultdict(list)
    now_ms = 1000
    for _ in range(300):
        now_ms += 1000
        for claim in box.claim({"noc": 4}, 10, now_ms):
            luck = chance.random()
            if luck < 0.3:
                finish(box, claim, DOWN, Decision(wait_seconds=chance.uniform(0, 30)), now_ms)
            elif luck < 0.35:
                finish(box, claim, DOWN, Decision(dead=True), now_ms)
            else:
                arrived[claim.event["subject"]["node"]].append(claim.id)
                finish(box, claim, OK, Decision(done=True), now_ms)
    assert sum(map(len, arrived.values())) > 10
    for ids in arrived.values():
        assert ids == sorted(ids)
