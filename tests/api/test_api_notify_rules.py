"""Signing, retrying and the choice of addresses, without any socket."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from api.notify.base import Answer, Notice
from api.notify.egress import RefusedAddressError, check_addresses
from api.notify.retry import Outcome, Verdict, classify_status, decide, parse_retry_after
from api.notify.signing import sign, signed_headers
from api.notify.webhook import MAX_BODY_BYTES, WebhookAdapter, webhook_body
from api.settings import DeliverySettings, secret_bytes
from schemas.alert import AlertEvent, Evidence, Series
from schemas.codec import encode

SCHEDULE = DeliverySettings().schedule_seconds
NOW = 1_700_000_000


def wait_after(outcome: Outcome, attempts: int, jitter: float = 0.0, refusals: int = 0) -> Any:
    return decide(
        outcome,
        attempts=attempts,
        refusals=refusals,
        schedule=SCHEDULE,
        permanent_retry_seconds=60.0,
        jitter=jitter,
    )


@given(body=st.binary(max_size=200), key=st.binary(min_size=24, max_size=64))
def test_any_body_signed_here_is_verified_by_an_independent_library(
    body: bytes, key: bytes
) -> None:
    """Its verify() also checks the age of the timestamp, so only its signature is compared."""
    theirs = Webhook(key)
    moment = datetime.fromtimestamp(NOW, UTC)
    text = body.hex()
    assert sign(key, "id", NOW, text.encode()) == theirs.sign("id", moment, text)


def test_while_a_secret_rotates_both_signatures_are_sent() -> None:
    headers = signed_headers([b"a" * 24, b"b" * 24], "id", NOW, b"{}")
    assert headers["webhook-signature"].split(" ") == [
        sign(b"a" * 24, "id", NOW, b"{}"),
        sign(b"b" * 24, "id", NOW, b"{}"),
    ]


def test_an_id_with_a_full_stop_cannot_be_signed() -> None:
    with pytest.raises(ValueError, match="full stop"):
        sign(b"k" * 24, "a.b", NOW, b"")


def test_the_waits_follow_the_schedule_and_then_the_delivery_is_dead() -> None:
    failure = Outcome(verdict=Verdict.TRANSIENT, status=500)
    waits = [wait_after(failure, n).wait_seconds for n in range(1, len(SCHEDULE))]
    assert waits == list(SCHEDULE[1:])
    assert wait_after(failure, len(SCHEDULE)).dead


@given(jitter=st.floats(-1, 1), attempts=st.integers(1, len(SCHEDULE) - 1))
def test_the_spread_stays_within_a_fifth(jitter: float, attempts: int) -> None:
    wait = wait_after(Outcome(verdict=Verdict.TRANSIENT), attempts, jitter).wait_seconds
    assert 0.8 * SCHEDULE[attempts] <= wait <= 1.2 * SCHEDULE[attempts]


@given(jitter=st.floats(-1, 1))
def test_a_receiver_is_never_asked_again_before_the_time_it_named(jitter: float) -> None:
    asked = Outcome(verdict=Verdict.TRANSIENT, status=429, retry_after_seconds=7.0)
    assert 7.0 <= wait_after(asked, 1, jitter).wait_seconds <= 8.4


def test_a_receiver_cannot_put_us_off_for_more_than_an_hour() -> None:
    asked = Outcome(verdict=Verdict.TRANSIENT, retry_after_seconds=1e9)
    assert wait_after(asked, 1).wait_seconds == 3600


def test_a_permanent_answer_gets_one_more_chance() -> None:
    refused = Outcome(verdict=Verdict.PERMANENT, status=404)
    assert wait_after(refused, 1, refusals=1).wait_seconds == 60
    assert wait_after(refused, 2, refusals=2).dead


def test_gone_is_gone() -> None:
    assert wait_after(Outcome(verdict=Verdict.GONE, status=410), 1).dead


@given(status=st.integers(100, 599))
def test_only_2xx_counts_as_delivered(status: int) -> None:
    assert (classify_status(status) is Verdict.DELIVERED) == (200 <= status < 300)


@pytest.mark.parametrize("text", ["soon", "-5", "1e9", "٣", "9" * 30, "", "Mon, 99 Foo 2026"])
def test_a_senseless_retry_after_is_ignored(text: str) -> None:
    assert parse_retry_after(text, 0.0) is None


def test_the_answers_own_words_reach_the_outcome(secret: str) -> None:
    adapter = WebhookAdapter(url="https://x.example/", keys=(secret_bytes(secret),))
    answer = Answer(status=429, headers={"retry-after": "7"}, body=b"")
    outcome = adapter.judge(answer, now_seconds=NOW)
    assert (outcome.verdict, outcome.retry_after_seconds) == (Verdict.TRANSIENT, 7.0)
    assert outcome.error == "the receiver answered HTTP 429"


def test_each_attempt_says_its_number_under_the_same_id(
    make_event: Callable[..., AlertEvent], secret: str
) -> None:
    adapter = WebhookAdapter(url="https://x.example/", keys=(secret_bytes(secret),))
    event = orjson.loads(encode(make_event()))
    requests = [
        adapter.request(Notice(webhook_id="w", attempt=n, event=event), now_seconds=NOW + n)
        for n in (1, 2)
    ]
    assert [r.headers["foreshock-attempt"] for r in requests] == ["1", "2"]
    assert {r.headers["webhook-id"] for r in requests} == {"w"}
    assert requests[0].body == requests[1].body


def test_a_body_never_exceeds_20_kb(make_event: Callable[..., AlertEvent]) -> None:
    long = "é" * 4000
    event = make_event(
        summary=long,
        likely_cause=long,
        next_steps=(long,) * 20,
        unmeasured=(long,) * 20,
        labels={"rack": long},
        evidence=tuple(Evidence(metric=long, value=1.0, unit=long) for _ in range(30)),
        series=(Series(metric="m", ts=list(range(5000)), values=[1.0] * 5000),),
    )
    body = webhook_body(orjson.loads(encode(event)))
    assert len(body) <= MAX_BODY_BYTES
    assert orjson.loads(body)["data"]["alert_id"] == event.alert_id


def test_an_ordinary_alert_is_sent_whole_but_for_its_series(
    make_event: Callable[..., AlertEvent],
) -> None:
    event = orjson.loads(encode(make_event()))
    body = orjson.loads(webhook_body(event))
    assert body["type"] == "alert.firing"
    assert body["data"] == event | {"series": []}


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.9",
        "172.16.0.1",
        "100.64.0.1",
        "0.0.0.0",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "fc00::1",
        "fe80::1%eth0",
        "224.0.0.1",
    ],
)
def test_without_permission_only_public_addresses_are_used(address: str) -> None:
    with pytest.raises(RefusedAddressError):
        check_addresses("hooks", [address], allow_private=False)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "fd00:ec2::254",
        "100.100.100.200",
        "169.254.1.1",
    ],
)
def test_metadata_services_are_refused_even_with_permission(address: str) -> None:
    with pytest.raises(RefusedAddressError, match="never"):
        check_addresses("hooks", [address], allow_private=True)


def test_one_bad_address_among_good_ones_refuses_the_name() -> None:
    with pytest.raises(RefusedAddressError):
        check_addresses("hooks", ["93.184.215.14", "127.0.0.1"], allow_private=False)
    assert check_addresses("hooks", ["93.184.215.14"], allow_private=False) == "93.184.215.14"
