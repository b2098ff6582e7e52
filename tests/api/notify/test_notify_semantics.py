"""Delivery: order, retries, breaker, buckets, digests, dead letters; with a clock of the test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import orjson
import pytest
import sqlalchemy as sa

from api.database import Database
from api.decision import Decisions, SilenceSource
from api.inhibition import AlertFacts
from api.ledger import Ledger, Route
from api.notices import BySeverity
from api.notify.adapters.dingtalk import DingTalkAdapter
from api.notify.base import Answer, Notice
from api.notify.deadletters import replay
from api.notify.failing import FailureWatch
from api.notify.messages import Style
from api.notify.outbox import Claim, Outbox, Terms
from api.notify.pacing import Breaker, Pace, Rate
from api.notify.retry import Decision, Outcome, Verdict, decide
from api.settings import DeliverySettings
from api.tables import alert, delivery
from schemas.alert import AlertEvent, Severity

LEASE_MS = 60_000
MINUTE = 60_000
OK = Outcome(verdict=Verdict.DELIVERED, status=200)
DOWN = Outcome(verdict=Verdict.TRANSIENT, status=503, error="the receiver answered HTTP 503")
REFUSED = Outcome(verdict=Verdict.PERMANENT, status=404, error="the receiver answered HTTP 404")
SCHEDULE = DeliverySettings().schedule_seconds

Make = Callable[..., AlertEvent]


def outbox(database: Database, owner: str = "a", **changes: Any) -> Outbox:
    return Outbox(database, owner=owner, lease_seconds=LEASE_MS / 1000, **changes)


def queue(
    database: Database, *events: AlertEvent, now_ms: int = 0, names: Sequence[str] = ("noc",)
) -> None:
    ledger = Ledger([Route(endpoint=name, severity_min=Severity.WARNING) for name in names])
    with database.write() as connection:
        for event in events:
            ledger.record(connection, event, now_ms)


def attempt(box: Outbox, claim: Claim, outcome: Outcome, now_ms: int) -> str:
    decision = decide(
        outcome,
        attempts=claim.attempts + 1,
        refusals=claim.refusals + (outcome.verdict is Verdict.PERMANENT),
        schedule=SCHEDULE,
        permanent_retry_seconds=60,
        jitter=0.0,
    )
    return box.finish(claim, outcome, decision, started_ms=now_ms, now_ms=now_ms)


def rows(database: Database) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(sa.select(delivery).order_by(delivery.c.id)))


class _Silenced(SilenceSource):
    """A silence that somebody has just made."""

    def matching(
        self, connection: sa.Connection, facts: Sequence[AlertFacts], now_ms: int
    ) -> Mapping[str, str]:
        return {one.alert_id: "s-1" for one in facts}


def test_a_silence_added_while_a_notice_waits_cancels_it(
    database: Database, make_event: Make
) -> None:
    queue(database, make_event(severity="critical"))
    box = outbox(database, decisions=Decisions(silences=_Silenced()))
    assert box.claim({"noc": 4}, 10, 0) == []
    (row,) = rows(database)
    assert row.state == "cancelled"
    assert "Silence s-1" in row.note


def test_an_acknowledgement_while_a_notice_waits_cancels_it(
    database: Database, make_event: Make
) -> None:
    queue(database, make_event())
    with database.write() as connection:
        connection.execute(sa.update(alert).values(state="acknowledged", acked_by="ada"))
    assert outbox(database, decisions=Decisions()).claim({"noc": 4}, 10, 0) == []
    assert "ada" in rows(database)[0].note


@pytest.mark.parametrize(
    ("severity", "sent"), [("critical", [("resolved", True)]), ("warning", [])]
)
def test_an_alert_that_ended_untold_is_told_once_if_critical(
    database: Database, make_event: Make, severity: str, sent: list[tuple[str, bool]]
) -> None:
    queue(
        database,
        make_event(severity=severity),
        make_event(seq=2, state="resolved", severity=severity),
    )
    claims = outbox(database, decisions=Decisions()).claim({"noc": 4}, 10, 0)
    assert [(c.event["state"], c.delayed) for c in claims] == sent
    assert Counter(r.state for r in rows(database))["cancelled"] == 2 - len(sent)


def test_a_firing_held_up_by_errors_never_comes_after_its_end(
    database: Database, make_event: Make
) -> None:
    """Without rules everything is sent: the order is that of the queue alone."""
    queue(database, make_event())
    box = outbox(database)
    (claim,) = box.claim({"noc": 4}, 10, 0)
    attempt(box, claim, DOWN, 0)
    queue(database, make_event(seq=2, state="resolved"))
    told: list[str] = []
    now_ms = 0
    while len(told) < 2:
        now_ms += 1000
        for one in box.claim({"noc": 4}, 10, now_ms):
            told.append(one.event["state"])
            attempt(box, one, OK, now_ms)
    assert told == ["firing", "resolved"]


def test_after_retry_after_7_the_next_attempt_is_at_least_7_seconds_later(
    database: Database, make_event: Make
) -> None:
    queue(database, make_event())
    box = outbox(database)
    (claim,) = box.claim({"noc": 4}, 10, 0)
    busy = Outcome(verdict=Verdict.TRANSIENT, status=429, retry_after_seconds=7.0)
    attempt(box, claim, busy, 0)
    assert box.claim({"noc": 4}, 10, 6_999) == []
    assert len(box.claim({"noc": 4}, 10, 7_000)) == 1


def test_while_a_breaker_is_open_no_attempt_is_used_up(
    database: Database, make_event: Make
) -> None:
    """Twenty minutes away: the same number of attempts, a few probes, then everything goes."""
    queue(database, *(make_event(gpu=f"GPU-{n}") for n in range(8)))
    box = outbox(database)
    now_ms = 0
    while sum(r.attempts for r in rows(database)) < 5:
        for claim in box.claim({"noc": 4}, 10, now_ms):
            attempt(box, claim, DOWN, now_ms)
        now_ms += 1000
    used = [r.attempts for r in rows(database)]
    probes = 0
    for _ in range(20 * 12):
        now_ms += 5000
        claims = box.claim({"noc": 4}, 10, now_ms)
        assert len(claims) <= 1
        for claim in claims:
            probes += 1
            attempt(box, claim, DOWN, now_ms)
    assert [r.attempts for r in rows(database)] == used
    assert 4 <= probes <= 7, "30 s, doubling to ten minutes"
    told = 0
    for _ in range(20 * 12):
        now_ms += 5000
        for claim in box.claim({"noc": 4}, 10, now_ms):
            told += attempt(box, claim, OK, now_ms) == "done"
    assert told == 8


def test_two_processes_share_one_breaker_and_one_bucket(
    database: Database, make_event: Make
) -> None:
    queue(database, *(make_event(gpu=f"GPU-{n}") for n in range(9)))
    terms = {"noc": Terms(rate=Rate(per_minute=15, burst=5))}
    first, second = outbox(database, "a", terms=terms), outbox(database, "b", terms=terms)
    assert len(first.claim({"noc": 4}, 10, 0)) + len(second.claim({"noc": 4}, 10, 0)) == 5
    assert second.claim({"noc": 4}, 10, 3_999) == []
    assert len(second.claim({"noc": 4}, 10, 4_001)) == 1


def test_what_waits_too_long_for_a_receiver_that_is_away_is_dead(
    database: Database, make_event: Make
) -> None:
    queue(database, make_event())
    box = outbox(
        database, terms={"noc": Terms(deadline_ms=10 * MINUTE)}, breaker=Breaker(failures=1)
    )
    (claim,) = box.claim({"noc": 4}, 10, 0)
    attempt(box, claim, DOWN, 0)
    assert box.claim({"noc": 4}, 10, 11 * MINUTE) == []
    assert rows(database)[0].state == "dead"


def test_a_held_notice_does_not_hold_up_its_group(database: Database, make_event: Make) -> None:
    queue(database, make_event(gpu="GPU-1"), make_event(gpu="GPU-2"))
    with database.write() as connection:
        connection.execute(sa.update(delivery).values(group_key="node-1"))
    box = outbox(database)
    (head,) = box.claim({"noc": 4}, 10, 0)
    assert box.claim({"noc": 4}, 10, 0) == [], "one at a time within a group"
    box.finish(head, DOWN, Decision(wait_seconds=30), started_ms=0, now_ms=0)
    assert box.claim({"noc": 4}, 10, 1000) == [], "what is being retried goes first"
    with database.write() as connection:
        held = sa.update(delivery).where(delivery.c.id == head.id)
        connection.execute(held.values(attempts=0, next_at_ms=10 * MINUTE))
    (other,) = box.claim({"noc": 4}, 10, 2000)
    assert other.event["subject"]["gpu_uuid"] == "GPU-2"


def test_a_dead_letter_can_be_sent_again_under_its_id(database: Database, make_event: Make) -> None:
    queue(database, make_event())
    box = outbox(database)
    (claim,) = box.claim({"noc": 4}, 10, 0)
    attempt(box, claim, REFUSED, 0)
    (second,) = box.claim({"noc": 4}, 10, MINUTE)
    assert attempt(box, second, REFUSED, MINUTE) == "dead"
    with database.write() as connection:
        assert replay(connection, 2 * MINUTE, failed_since_ms=2 * MINUTE) == 0
        assert replay(connection, 2 * MINUTE, failed_since_ms=0, endpoint="other") == 0
        assert replay(connection, 2 * MINUTE, failed_since_ms=0) == 1
    (again,) = box.claim({"noc": 4}, 10, 2 * MINUTE)
    assert again.webhook_id == claim.webhook_id
    assert (again.replayed, again.attempts) == (True, 0)


def test_a_dead_endpoint_is_told_through_another_and_resolves_when_it_takes_again(
    database: Database, make_event: Make
) -> None:
    names = ("noc", "spare")
    everybody = BySeverity([Route(endpoint=n, severity_min=Severity.WARNING) for n in names])
    watch = FailureWatch(database, everybody, failing_seconds=300)
    queue(database, make_event(), names=names)
    box = outbox(database)
    (claim,) = box.claim({"noc": 4}, 10, 0)
    attempt(box, claim, DOWN, 1000)
    watch.look(200_000)
    assert len(rows(database)) == 2, "not yet"
    watch.look(302_000)
    watch.look(303_000)
    (told,) = rows(database)[2:]
    assert told.endpoint == "spare", "not through the one that fails"
    spare = box.claim({"spare": 4}, 10, 303_000)
    assert "Endpoint noc has taken nothing" in spare[-1].event["summary"]
    (retry,) = box.claim({"noc": 4}, 10, 303_000)
    attempt(box, retry, OK, 304_000)
    for one in spare:
        attempt(box, one, OK, 304_000)
    watch.look(305_000)
    watch.look(306_000)
    (over,) = rows(database)[3:]
    assert (over.endpoint, over.kind) == ("spare", "resolved")


def dingtalk_terms() -> dict[str, Terms]:
    return {"noc": Terms(rate=DingTalkAdapter.rate, digests=True)}


@pytest.mark.parametrize("number", [400, pytest.param(5000, marks=pytest.mark.slow)])
def test_acceptance_15_in_a_storm_one_digest_a_minute_goes_and_the_limit_holds(
    database: Database, make_event: Make, number: int
) -> None:
    """All alerts within a minute; 20 messages a minute allowed, 18 kB each."""
    adapter = DingTalkAdapter(url="https://oapi.example/send?access_token=t", style=Style())
    box = outbox(database, terms=dingtalk_terms(), decisions=Decisions())
    sent: list[int] = []
    digests: list[int] = []
    covered = 0
    for second in range(300):
        now_ms = second * 1000
        if second < 60:
            share = -(-number // 60)
            batch = range(second * share, min(number, (second + 1) * share))
            events = [make_event(gpu=f"GPU-{n}", node=f"node-{n % 50}") for n in batch]
            queue(database, *events, now_ms=now_ms)
        for claim in box.claim({"noc": 4}, 10, now_ms):
            notice = Notice(webhook_id="w", attempt=1, event=claim.event, digest=claim.digest)
            assert len(adapter.request(notice, now_seconds=second).body) <= 20_000
            sent.append(now_ms)
            if claim.digest:
                digests.append(now_ms)
            covered += len(claim.digest) or 1
            attempt(box, claim, OK, now_ms)
        if covered == number:
            break
    assert covered == number
    assert digests
    for start in sent:
        assert sum(start <= at < start + MINUTE for at in sent) <= 20
    assert all(later - former >= MINUTE for former, later in pairwise(digests))
    assert Counter(r.state for r in rows(database)) == {"done": number}


def test_a_digest_is_sent_again_under_the_same_id_with_the_same_members(
    database: Database, make_event: Make
) -> None:
    queue(database, *(make_event(gpu=f"GPU-{n}") for n in range(20)))
    box = outbox(database, terms=dingtalk_terms())
    (first,) = box.claim({"noc": 4}, 10, 2 * MINUTE)
    queue(database, make_event(gpu="GPU-new"), now_ms=2 * MINUTE)
    lapsed = 2 * MINUTE + LEASE_MS + 1
    other = outbox(database, "b", terms=dingtalk_terms())
    again = next(c for c in other.claim({"noc": 4}, 10, lapsed) if c.digest)
    assert again.webhook_id == first.webhook_id
    assert again.digest == first.digest
    assert len(again.digest) == 20
    attempt(other, again, OK, lapsed)
    done = [r for r in rows(database) if r.state == "done"]
    assert len(done) == 20
    assert {r.note for r in done[1:]} == {"Told in one message with 19 others."}


def test_pace_state_survives_the_store(database: Database, make_event: Make) -> None:
    terms = {"noc": Terms(rate=Rate(per_minute=6, burst=2))}
    queue(database, *(make_event(gpu=f"GPU-{n}") for n in range(5)))
    assert len(outbox(database, terms=terms).claim({"noc": 4}, 10, 0)) == 2
    assert outbox(database, "after-restart", terms=terms).claim({"noc": 4}, 10, 1000) == []


def test_a_breaker_waits_twice_as_long_after_each_probe_up_to_ten_minutes() -> None:
    pace, waits, now_ms = Pace(failures=4), [], 0
    pace = pace.after_failure(Breaker(), now_ms, probe=False)
    for _ in range(8):
        assert pace.probe_ms is not None
        waits.append((pace.probe_ms - now_ms) // 1000)
        now_ms = pace.probe_ms
        pace = pace.after_failure(Breaker(), now_ms, probe=True)
    assert waits == [30, 60, 120, 240, 480, 600, 600, 600]


@pytest.mark.parametrize(
    "body",
    [b'{"errcode":310000}', b'{"errcode":45009}', b'{"code":9499}', b"", b"ok"],
)
def test_a_200_with_an_error_in_it_is_retried_and_not_sent(
    database: Database, make_event: Make, body: bytes
) -> None:
    queue(database, make_event())
    box = outbox(database)
    (claim,) = box.claim({"noc": 4}, 10, 0)
    adapter = DingTalkAdapter(url="https://oapi.example/send", style=Style())
    outcome = adapter.judge(Answer(status=200, headers={}, body=body), now_seconds=0)
    assert attempt(box, claim, outcome, 0) == "pending"
    assert len(box.claim({"noc": 4}, 10, 60 * MINUTE)) == 1


def test_the_payload_of_a_claim_is_the_event_of_the_contract(
    database: Database, make_event: Make
) -> None:
    queue(database, make_event())
    (claim,) = outbox(database).claim({"noc": 4}, 10, 0)
    assert claim.event["schema"] == "gpu.alert/1"
    assert orjson.dumps(claim.event)
