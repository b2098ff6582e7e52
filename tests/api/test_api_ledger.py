"""What is stored must not depend on the order or number of times in which events arrive."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from api.database import Database
from api.ledger import SUPERSEDED, Entry, Ledger, Route, check_storable, webhook_id_of
from api.queries import AlertFilter, Queries
from api.tables import alert, delivery, event
from schemas.alert import AlertEvent, AlertState, Severity
from schemas.errors import DecodeError

HOUR_MS = 3_600_000
START_MS = 1_758_684_003_007
NOC = Route(endpoint="noc", severity_min=Severity.WARNING)


def record(
    database: Database, events: Sequence[AlertEvent], routes: Sequence[Route] = (NOC,)
) -> list[Entry]:
    ledger = Ledger(routes)
    with database.write() as connection:
        return [ledger.record(connection, e, 1000 + i) for i, e in enumerate(events)]


def final_state(database: Database) -> list[tuple[Any, ...]]:
    query = sa.select(alert.c.alert_id, alert.c.seq, alert.c.state, alert.c.severity)
    with database.read() as connection:
        return sorted(tuple(row) for row in connection.execute(query))


def queued(database: Database) -> list[tuple[Any, ...]]:
    query = (
        sa.select(event.c.seq, event.c.state, delivery.c.endpoint)
        .join(event, event.c.id == delivery.c.event_id)
        .order_by(delivery.c.id)
    )
    with database.read() as connection:
        return [tuple(row) for row in connection.execute(query)]


def test_a_second_copy_of_an_event_changes_nothing(
    database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    first, again = record(database, [make_event(), make_event()])
    assert first.event_id is not None
    assert again.event_id is None
    assert again.deliveries == 0
    assert queued(database) == [(1, "firing", "noc")]


def test_an_event_that_comes_late_is_logged_but_does_not_reopen_the_alert(
    database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    record(database, [make_event(seq=2, state="resolved"), make_event(seq=1)])
    queries = Queries(database)
    (shown,), _ = queries.alerts(AlertFilter(), limit=10, cursor=None)
    assert (shown["state"], shown["seq"]) == ("resolved", 2)
    assert [e["seq"] for e in queries.timeline(shown["alert_id"], 10)] == [1, 2]
    # "firing" after "resolved" would be a lie to the receiver.
    assert queued(database) == [(2, "resolved", "noc")]


def test_a_new_episode_closes_the_open_one_of_its_fingerprint(
    database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    record(database, [make_event(), make_event(started_ms=START_MS + HOUR_MS)])
    queries = Queries(database)
    newer, older = queries.alerts(AlertFilter(), limit=10, cursor=None)[0]
    assert newer["state"] == "firing"
    assert (older["state"], older["end_reason"]) == ("resolved", SUPERSEDED)
    assert older["ended_at"] == newer["started_at"]
    assert [e["origin"] for e in queries.timeline(older["alert_id"], 10)] == ["detector", "api"]
    assert queued(database) == [(1, "firing", "noc"), (1, "resolved", "noc"), (1, "firing", "noc")]


def test_the_detectors_own_end_of_a_superseded_alert_is_shown_and_not_told_again(
    database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    later = make_event(started_ms=START_MS + HOUR_MS)
    record(database, [make_event(), later, make_event(seq=2, state="resolved")])
    older = Queries(database).alerts(AlertFilter(), limit=10, cursor=None)[0][1]
    assert older["end_reason"] == "recovered"
    assert len(queued(database)) == 3


def test_an_old_episode_that_comes_late_never_stands_open_beside_the_new_one(
    database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    record(database, [make_event(started_ms=START_MS + HOUR_MS), make_event()])
    states = [row[2] for row in final_state(database)]
    assert sorted(states) == ["firing", "resolved"]
    assert queued(database) == [(1, "firing", "noc")]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_final_state_is_the_same_whatever_the_order_and_repetitions(
    data: st.DataObject, make_event: Callable[..., AlertEvent]
) -> None:
    """Three episodes of one GPU and one of another, shuffled, each event once to three times."""
    plain = [
        make_event(seq=seq, state=state, gpu=gpu, started_ms=START_MS + episode * HOUR_MS)
        for gpu, episode, history in (
            ("GPU-1", 0, ("firing", "firing")),
            ("GPU-1", 1, ("firing", "resolved")),
            ("GPU-1", 2, ("firing", "firing", "resolved")),
            ("GPU-2", 0, ("firing",)),
        )
        for seq, state in enumerate(history, 1)
    ]
    repeats = data.draw(st.lists(st.sampled_from(plain), max_size=10))
    mixed = data.draw(st.permutations(plain + repeats))
    with tempfile.TemporaryDirectory() as folder:
        outcomes = []
        for number, events in enumerate((plain, mixed)):
            database = Database.open(None, Path(folder) / str(number))
            try:
                record(database, events)
                outcomes.append(final_state(database))
                with database.read() as connection:
                    logged = connection.execute(
                        sa.select(sa.func.count()).where(event.c.origin == "detector")
                    ).scalar()
                assert logged == len(plain)
            finally:
                database.close()
    assert outcomes[0] == outcomes[1]


def test_people_are_told_of_changes_not_of_new_evidence(
    database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    events = [
        make_event(seq=1),
        make_event(seq=2),  # new evidence
        make_event(seq=3, severity="critical"),
        make_event(seq=4, severity="warning"),  # milder is no news either
        make_event(seq=5, severity="info", state="resolved"),
    ]
    record(database, events)
    assert [seq for seq, _, _ in queued(database)] == [1, 3, 5]


def test_each_endpoint_gets_what_is_grave_enough_for_it_and_the_end_of_what_it_got(
    database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    pager = Route(endpoint="pager", severity_min=Severity.CRITICAL)
    events = [
        make_event(seq=1),
        make_event(seq=2, state="resolved"),
        make_event(gpu="GPU-2", severity="critical"),
        make_event(gpu="GPU-2", seq=2, severity="warning", state="resolved"),
        make_event(gpu="GPU-3", severity="info"),
    ]
    record(database, events, [NOC, pager])
    told = queued(database)
    assert [e for _, _, e in told].count("noc") == 4
    assert [(seq, state) for seq, state, e in told if e == "pager"] == [
        (1, "firing"),
        (2, "resolved"),
    ]


def test_the_webhook_id_depends_on_the_event_alone(make_event: Callable[..., AlertEvent]) -> None:
    first = make_event()
    ids = {
        webhook_id_of(first.alert_id, seq, origin)
        for seq, origin in itertools.product((1, 2), ("detector", "api"))
    }
    assert len(ids) == 4
    assert webhook_id_of(first.alert_id, 1, "detector") in ids


@pytest.mark.parametrize(
    "fault",
    [
        {"alert_id": "seven"},
        {"fingerprint": "{7f3c2b1e-0000-4000-8000-000000000000}"},
        {"seq": 0},
        {"seq": 2**64},
        {"score": 7.0},
        {"summary": "x" * 5000},
    ],
)
def test_what_a_store_cannot_hold_is_a_decode_error(
    make_event: Callable[..., AlertEvent], fault: dict[str, Any]
) -> None:
    broken = replace(make_event(), **fault)
    with pytest.raises(DecodeError):
        check_storable(broken)


def test_the_store_itself_refuses_a_second_open_alert_of_a_fingerprint(
    database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    """The promise does not rest on the ledger alone."""
    record(database, [make_event()])
    with database.read() as connection:
        row = dict(connection.execute(sa.select(alert)).mappings().one())
    with pytest.raises(Exception, match=r"(?i)unique"), database.write() as connection:
        connection.execute(sa.insert(alert).values(row | {"alert_id": "other"}))
    assert [row[2] for row in final_state(database)] == [AlertState.FIRING.value]
