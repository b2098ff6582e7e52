"""Silences, matchers and windows that come back: what they cover, to the millisecond."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from api.database import Database
from api.decision import Action, Decisions, Waiting
from api.ledger import Ledger, Route
from api.matchers import Matcher, MatcherError, check_matchers, labels_of, parse_matcher
from api.recurrence import Recurrence
from api.silences import Silence, Silences, state_of
from schemas.alert import AlertEvent, Severity, parse_time
from schemas.codec import encode

START_MS = 1_758_684_003_007
HOUR_MS = 3_600_000


def ms(text: str) -> int:
    return parse_time(text)


def window(zone: str, day: str, start: str, minutes: int) -> Recurrence:
    return Recurrence(weekdays=(day,), start=start, duration_minutes=minutes, zone=zone)


def silence(**changes: Any) -> Silence:
    fields: dict[str, Any] = {
        "id": "7f3c2b1e-0000-4000-8000-000000000000",
        "version": 1,
        "matchers": (Matcher(name="node", op="=", value="node-1"),),
        "comment": "maintenance",
        "created_by": "li",
        "created_ms": START_MS,
        "updated_ms": START_MS,
        "starts_ms": START_MS,
        "ends_ms": START_MS + HOUR_MS,
    }
    return Silence(**(fields | changes))


@pytest.mark.parametrize(
    ("zone", "day", "start", "minutes", "begins", "ends"),
    [
        # Winter, then summer: the same wall clock is another instant.
        ("Europe/Paris", "sun", "22:00", 60, "2026-03-22T21:00:00Z", "2026-03-22T22:00:00Z"),
        ("Europe/Paris", "sun", "22:00", 60, "2026-03-29T20:00:00Z", "2026-03-29T21:00:00Z"),
        # The night in which the clock is put forward: the duration is time that passes.
        ("Europe/Paris", "sun", "01:00", 120, "2026-03-29T00:00:00Z", "2026-03-29T02:00:00Z"),
        # A start that the clock skips.
        ("Europe/Paris", "sun", "02:30", 30, "2026-03-29T01:30:00Z", "2026-03-29T02:00:00Z"),
        # The night with one hour twice: the first 02:30 counts.
        ("Europe/Paris", "sun", "02:30", 60, "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),
        ("Europe/Paris", "sat", "22:00", 480, "2026-10-24T20:00:00Z", "2026-10-25T04:00:00Z"),
        # No daylight saving: the same instant all year.
        ("Asia/Shanghai", "sun", "22:00", 60, "2026-03-22T14:00:00Z", "2026-03-22T15:00:00Z"),
        ("Asia/Shanghai", "sun", "22:00", 60, "2026-03-29T14:00:00Z", "2026-03-29T15:00:00Z"),
        ("Asia/Shanghai", "sun", "22:00", 60, "2026-10-25T14:00:00Z", "2026-10-25T15:00:00Z"),
    ],
)
def test_acceptance_16_a_window_follows_the_wall_clock_of_its_zone(
    zone: str, day: str, start: str, minutes: int, begins: str, ends: str
) -> None:
    again = window(zone, day, start, minutes)
    assert not again.covers(ms(begins) - 1)
    assert again.covers(ms(begins))
    assert again.covers(ms(ends) - 1)
    assert not again.covers(ms(ends))
    assert again.end_of_window(ms(begins)) == ms(ends)


def test_a_window_covers_exactly_its_minutes_of_each_week() -> None:
    again = window("Europe/Paris", "wed", "23:30", 90)
    for week in range(60):
        first = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(weeks=week)
        moments = [
            round((first + timedelta(minutes=m)).timestamp() * 1000) for m in range(0, 10_080, 5)
        ]
        assert sum(again.covers(moment) for moment in moments) == 90 // 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"weekdays": ()},
        {"weekdays": ("funday",)},
        {"start": "24:00"},
        {"start": "1:00"},
        {"start": "noon"},
        {"duration_minutes": 0},
        {"duration_minutes": 10_081},
        {"zone": "Mars/Olympus"},
        {"zone": "../../etc/passwd"},
        {"zone": ""},
    ],
)
def test_a_window_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "weekdays": ("mon",),
        "start": "01:00",
        "duration_minutes": 60,
        "zone": "Asia/Shanghai",
    }
    with pytest.raises(ValueError, match=r"weekdays|start|duration_minutes|zone"):
        Recurrence(**(fields | wrong))


def test_a_silence_says_where_it_stands() -> None:
    nightly = silence(
        recurrence=window("Asia/Shanghai", "wed", "12:00", 30), ends_ms=START_MS + 14 * 24 * HOUR_MS
    )
    assert state_of(nightly, START_MS - 1) == "pending"
    assert state_of(nightly, START_MS) == "waiting"
    assert state_of(nightly, ms("2025-10-01T04:10:00Z")) == "active"
    assert state_of(nightly, START_MS + 15 * 24 * HOUR_MS) == "expired"


@pytest.mark.parametrize(
    ("text", "labels", "holds"),
    [
        ("node=n1", {"node": "n1"}, True),
        ('node="n1"', {"node": "n11"}, False),
        ("node!=n1", {}, True),
        ("node=~n.", {"node": "n1"}, True),
        ("node=~n", {"node": "n1"}, False),
        ("node!~n.*", {"node": "m"}, True),
        ('node=""', {}, True),
        (r'node="a\"b"', {"node": 'a"b'}, True),
        (' node =~ "(a|b)" ', {"node": "b"}, True),
    ],
)
def test_matchers_read_as_in_prometheus(text: str, labels: dict[str, str], holds: bool) -> None:
    one = parse_matcher(text)
    assert one.holds(labels) is holds
    assert parse_matcher(str(one)) == one


@pytest.mark.parametrize("text", ["", "node", "=x", "no-de=x", 'node="x', "node=~(", "node=~(?=x)"])
def test_what_is_no_matcher_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(MatcherError) as caught:
        parse_matcher(text)
    assert "(?=" not in str(caught.value)


def test_an_expression_that_ruins_others_is_harmless_here() -> None:
    """RE2 is linear: the classic catastrophe is answered at once."""
    assert not parse_matcher("node=~(a+)+").holds({"node": "a" * 5000 + "!"})


def test_matchers_that_take_everything_are_refused() -> None:
    with pytest.raises(MatcherError):
        check_matchers([parse_matcher("node=~.*"), parse_matcher("gpu!=x")])
    check_matchers([parse_matcher("node=~.*"), parse_matcher("gpu=x")])


def test_words_of_an_alert_are_those_of_the_contract_and_its_labels(
    make_event: Callable[..., AlertEvent],
) -> None:
    words = labels_of(orjson.loads(encode(make_event(labels={"rack": "r1", "node": "liar"}))))
    assert words["alertname"] == "thermal_fault/peer_outlier"
    assert words["node"] == "node-1", "a label never hides what the alert is about"
    assert (words["rack"], words["gpu"], words["gpu_index"]) == ("r1", "GPU-1", "1")
    assert "job" not in words


def test_acceptance_6_a_silence_made_while_a_notice_waits_cancels_it(
    database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    ledger = Ledger([Route(endpoint="noc", severity_min=Severity.WARNING)])
    one, other = make_event(), make_event(gpu="GPU-2", node="node-2")
    with database.write() as connection:
        for event in (one, other):
            ledger.record(connection, event, START_MS)
        Silences().put(connection, silence())
    decisions = Decisions(silences=Silences())
    waiting = [
        Waiting(delivery_id=n, endpoint="noc", alert_id=event.alert_id, kind="fired")
        for n, event in ((1, one), (2, other))
    ]
    with database.read() as connection:
        now = decisions.rule(connection, waiting, START_MS + 1)
        later = decisions.rule(connection, waiting, START_MS + HOUR_MS)
    assert (now[1].action, now[1].code) == (Action.CANCEL, "silenced")
    assert "7f3c2b1e" in now[1].reason
    assert now[2].code == "due"
    assert later[1].code == "due"
