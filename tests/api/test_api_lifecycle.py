"""What becomes of an alert: by the detector, by people, by time. On both stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from api.actions import (
    ActionKind,
    ActionRefusedError,
    ActionRequest,
    Actions,
    StaleVersionError,
)
from api.clockwork import Clockwork, Periods
from api.database import Database
from api.decision import Action, Decisions, Ruling, Timing, Waiting
from api.ledger import Ledger, Route
from api.notify.outbox import Outbox
from api.queries import AlertFilter, Queries
from api.routing import Routing
from api.tables import alert, delivery
from schemas.alert import AlertEvent, Series, Severity, Subject, fingerprint_of, rfc3339

START_MS = 1_758_684_003_007
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
NOC = Route(endpoint="noc", severity_min=Severity.WARNING)

Make = Callable[..., AlertEvent]


def record(database: Database, *events: AlertEvent, now_ms: int | None = None) -> None:
    ledger = Ledger([NOC])
    for one in events:
        with database.write() as connection:
            ledger.record(connection, one, START_MS if now_ms is None else now_ms)


def do(
    database: Database, alert_id: str, kind: ActionKind, now_ms: int = START_MS, **more: Any
) -> bool:
    version = more.pop("if_version", None)
    with database.write() as connection:
        return Actions(Routing([NOC])).apply(
            connection,
            alert_id,
            ActionRequest(kind=kind, **more),
            actor="li",
            now_ms=now_ms,
            if_version=version,
        )


def shown(database: Database, alert_id: str) -> dict[str, Any]:
    found = Queries(database).alert(alert_id)
    assert found is not None
    return found


def kinds(database: Database) -> list[str]:
    with database.read() as connection:
        query = sa.select(delivery.c.kind).order_by(delivery.c.id)
        return list(connection.execute(query).scalars())


def types(database: Database, alert_id: str) -> list[tuple[str, str]]:
    return [(e["type"], e["actor"]) for e in Queries(database).timeline(alert_id, 100)]


def rulings(
    database: Database, now_ms: int, timing: Timing | None = None, **more: Any
) -> list[Ruling]:
    """Rule on all that waits, as a claim would."""
    decisions = Decisions(timing=timing or Timing(), **more)
    query = sa.select(delivery).where(delivery.c.state == "pending").order_by(delivery.c.id)
    with database.read() as connection:
        waiting = [
            Waiting(
                delivery_id=row["id"],
                endpoint=row["endpoint"],
                alert_id=row["alert_id"],
                kind=row["kind"],
            )
            for row in connection.execute(query).mappings()
        ]
        found = decisions.rule(connection, waiting, now_ms)
    return [found[one.delivery_id] for one in waiting]


def codes(found: Sequence[Ruling]) -> list[str]:
    return [one.code for one in found]


def clockwork(database: Database, now_ms: int, **periods: int) -> Clockwork:
    return Clockwork(database, Routing([NOC]), Periods(**periods), now_ms=lambda: now_ms)


def silence_of(make_event: Make, node: str = "node-1", **more: Any) -> AlertEvent:
    subject = Subject(scope="node", node=node)
    fingerprint = fingerprint_of("telemetry", "node_silent", subject)
    return make_event(
        family="telemetry",
        kind="node_silent",
        subject=subject,
        fingerprint=fingerprint,
        alert_id=fingerprint[:-4] + "0000",
        severity="critical",
        **more,
    )


def test_an_acknowledged_alert_says_who_has_it_and_new_evidence_leaves_it_so(
    database: Database, make_event: Make
) -> None:
    first = make_event()
    record(database, first)
    assert do(database, first.alert_id, ActionKind.ACK, comment="on it")
    record(database, make_event(seq=2))
    found = shown(database, first.alert_id)
    assert found["state"] == "acknowledged"
    assert found["acknowledged"]["by"] == "li"
    assert ("acknowledged", "li") in types(database, first.alert_id)
    assert not do(database, first.alert_id, ActionKind.ACK), "asking again changes nothing"


def test_an_acknowledgement_ends_when_the_severity_rises(
    database: Database, make_event: Make
) -> None:
    first = make_event()
    record(database, first)
    do(database, first.alert_id, ActionKind.ACK)
    record(database, make_event(seq=2, severity="critical"))
    found = shown(database, first.alert_id)
    assert found["state"] == "firing"
    assert found["acknowledged"] is None
    assert kinds(database) == ["fired", "escalated"]


def test_an_acknowledgement_ends_with_its_time_and_people_are_told(
    database: Database, make_event: Make
) -> None:
    first = make_event()
    record(database, first)
    do(database, first.alert_id, ActionKind.ACK, until_ms=START_MS + HOUR_MS)
    assert clockwork(database, START_MS + HOUR_MS - 1).step() == 0
    assert clockwork(database, START_MS + HOUR_MS).step() == 1
    assert shown(database, first.alert_id)["state"] == "firing"
    assert kinds(database)[-1] == "ack_expired"


def test_an_alert_closed_by_hand_stays_closed_until_it_grows_graver(
    database: Database, make_event: Make
) -> None:
    first = make_event()
    record(database, first)
    assert do(database, first.alert_id, ActionKind.RESOLVE, comment="known")
    record(database, make_event(seq=2))
    found = shown(database, first.alert_id)
    assert (found["state"], found["end_reason"]) == ("resolved", "resolved_by_hand")
    assert found["ended_at"] is not None
    record(database, make_event(seq=3, severity="critical"))
    assert shown(database, first.alert_id)["state"] == "firing"
    assert kinds(database) == ["fired", "resolved", "reopened"]


def test_a_resolved_alert_can_be_opened_by_hand_unless_a_newer_one_is_known(
    database: Database, make_event: Make
) -> None:
    old = make_event(seq=2, state="resolved")
    record(database, old)
    assert do(database, old.alert_id, ActionKind.REOPEN)
    assert shown(database, old.alert_id)["state"] == "firing"
    newer = make_event(started_ms=START_MS + HOUR_MS)
    record(database, newer)
    with pytest.raises(ActionRefusedError):
        do(database, old.alert_id, ActionKind.REOPEN)


def test_an_alert_that_somebody_else_changed_meanwhile_is_not_changed(
    database: Database, make_event: Make
) -> None:
    first = make_event()
    record(database, first)
    version = shown(database, first.alert_id)["version"]
    assert do(database, first.alert_id, ActionKind.ASSIGN, assignee="wang", if_version=version)
    with pytest.raises(StaleVersionError):
        do(database, first.alert_id, ActionKind.ASSIGN, assignee="li", if_version=version)
    assert shown(database, first.alert_id)["assignee"] == "wang"


def test_an_episode_within_the_reopen_window_goes_on_with_who_has_it(
    database: Database, make_event: Make
) -> None:
    first = make_event()
    record(database, first)
    do(database, first.alert_id, ActionKind.ACK)
    do(database, first.alert_id, ActionKind.ASSIGN, assignee="wang")
    record(database, make_event(seq=2, state="resolved"))
    soon = make_event(started_ms=START_MS + 10 * MINUTE_MS)
    record(database, soon)
    found = shown(database, soon.alert_id)
    assert (found["state"], found["assignee"], found["reopens"]) == ("acknowledged", "wang", 1)
    later = make_event(gpu="GPU-2")
    record(database, later, make_event(gpu="GPU-2", seq=2, state="resolved"))
    new = make_event(gpu="GPU-2", started_ms=START_MS + HOUR_MS)
    record(database, new)
    assert shown(database, new.alert_id)["reopens"] == 0


def test_acceptance_13_no_data_is_stale_told_once_for_the_node_and_never_resolved(
    database: Database, make_event: Make
) -> None:
    hot = [make_event(gpu=f"GPU-{n}") for n in range(3)]
    record(database, *hot, make_event(gpu="other", node="node-2"))
    told_before = len(kinds(database))
    loss = silence_of(make_event)
    record(database, loss)
    states = {
        a["alert_id"]: a["state"]
        for a in Queries(database).alerts(AlertFilter(), limit=50, cursor=None)[0]
    }
    assert [states[one.alert_id] for one in hot] == ["stale"] * 3
    assert sorted(states.values()).count("firing") == 2, "the other node, and the loss itself"
    assert kinds(database)[told_before:] == ["fired"], "one notice, that of the node"
    back = silence_of(make_event, seq=2, state="resolved")
    record(database, back)
    assert shown(database, hot[0].alert_id)["state"] == "firing"
    assert [t for t, _ in types(database, hot[0].alert_id)] == ["fired", "stale", "returned"]


def test_an_end_for_want_of_data_is_no_recovery(database: Database, make_event: Make) -> None:
    first = make_event()
    record(database, first, make_event(seq=2, state="resolved", end_reason="no_data"))
    assert shown(database, first.alert_id)["state"] == "stale"
    assert kinds(database) == ["fired"]


def test_acceptance_14_flapping_is_told_once_and_its_end_once(
    database: Database, make_event: Make
) -> None:
    """Twenty beginnings and ends within 20 minutes: after the fourth, at most two notices."""
    for number in range(10):
        started = START_MS + number * 2 * MINUTE_MS
        record(
            database,
            make_event(started_ms=started),
            make_event(started_ms=started, seq=60, state="resolved"),
            now_ms=started,
        )
    before = kinds(database)
    assert before == ["fired", "resolved", "reopened", "flapping"]
    last = START_MS + 18 * MINUTE_MS
    assert clockwork(database, last + 14 * MINUTE_MS).step() == 0
    assert clockwork(database, last + 16 * MINUTE_MS).step() == 1
    assert clockwork(database, last + 17 * MINUTE_MS).step() == 0
    assert kinds(database)[3:] == ["flapping", "stable"]


def test_a_flapping_alert_that_grows_graver_is_told(database: Database, make_event: Make) -> None:
    for number in range(4):
        started = START_MS + number * 2 * MINUTE_MS
        record(database, make_event(started_ms=started))
        record(database, make_event(started_ms=started, seq=60, state="resolved"))
    started = START_MS + 8 * MINUTE_MS
    record(database, make_event(started_ms=started))
    record(database, make_event(started_ms=started, seq=2, severity="critical"))
    assert kinds(database)[-1] == "escalated"


def test_acceptance_12_after_a_start_with_500_inhibited_alerts_nobody_is_told_while_it_settles(
    database: Database, make_event: Make
) -> None:
    subject = Subject(scope="gpu", node="node-0", gpu_uuid="GPU-lost")
    root = make_event(
        family="gpu_lost",
        kind="lost",
        severity="critical",
        subject=subject,
        fingerprint=fingerprint_of("gpu_lost", "lost", subject),
        alert_id=fingerprint_of("gpu_lost", "lost", subject),
    )
    symptoms = [
        replace(make_event(gpu=f"GPU-{n}", node=f"node-{n}"), caused_by=root.fingerprint)
        for n in range(500)
    ]
    with database.write() as connection:
        ledger = Ledger([NOC])
        for one in (root, *symptoms):
            ledger.record(connection, one, START_MS)
    started = START_MS + HOUR_MS
    timing = Timing(started_ms=started, settle_until_ms=started + MINUTE_MS)
    found = rulings(database, started + MINUTE_MS - 1, timing)
    assert len(found) == 501
    assert {one.action for one in found} == {Action.HOLD}
    after = rulings(database, started + MINUTE_MS, timing)
    assert codes(after).count("due") == 1, "the root"
    assert codes(after).count("inhibited") == 500
    new = make_event(gpu="new", started_ms=started)
    record(database, new, now_ms=started)
    assert rulings(database, started + 1, timing)[-1].code == "due", "what is new is told at once"


def test_what_a_graver_alert_explained_is_told_once_that_has_ended(
    database: Database, make_event: Make
) -> None:
    subject = Subject(scope="gpu", node="node-1", gpu_uuid="GPU-1")
    fingerprint = fingerprint_of("gpu_lost", "lost", subject)
    lost = make_event(
        family="gpu_lost",
        kind="lost",
        severity="critical",
        subject=subject,
        fingerprint=fingerprint,
        alert_id=fingerprint,
    )
    record(database, make_event(), lost)
    assert codes(rulings(database, START_MS)) == ["inhibited", "due"]
    record(database, replace(lost, seq=2, state="resolved"))
    assert codes(rulings(database, START_MS)) == ["due", "merged", "due"]


def test_the_end_of_an_alert_held_back_for_its_cause_is_not_told_after_the_end_of_the_cause(
    database: Database, make_event: Make
) -> None:
    brake = {"family": "throttling", "kind": "power_brake", "severity": "critical"}
    subject = Subject(scope="node", node="node-1")
    fingerprint = fingerprint_of("throttling", "power_brake", subject)
    wide = make_event(**brake, subject=subject, fingerprint=fingerprint, alert_id=fingerprint)
    record(database, make_event(**brake), wide)
    assert codes(rulings(database, START_MS)) == ["inhibited", "due"]
    ended_at = rfc3339(START_MS + MINUTE_MS)
    for one in (wide, make_event(**brake)):
        record(database, replace(one, seq=2, state="resolved", ended_at=ended_at))
    found = rulings(database, START_MS + 2 * MINUTE_MS)
    assert codes(found)[-1] == "inhibited", "nobody was told that it had begun"
    later = make_event(**brake, started_ms=START_MS + HOUR_MS)
    ended_at = rfc3339(START_MS + HOUR_MS + MINUTE_MS)
    record(database, later, replace(later, seq=2, state="resolved", ended_at=ended_at))
    assert codes(rulings(database, START_MS + 2 * HOUR_MS))[-1] == "due", "its own, not explained"


def test_a_beginning_nobody_heard_of_is_told_by_its_end_or_not_at_all(
    database: Database, make_event: Make
) -> None:
    record(database, make_event(), make_event(seq=2, state="resolved"))
    grave = {"gpu": "GPU-2", "severity": "critical"}
    record(database, make_event(**grave), make_event(**grave, seq=2, state="resolved"))
    found = rulings(database, START_MS)
    assert codes(found) == ["merged", "resolved_untold", "merged", "due"]
    assert found[-1].delayed


def test_an_acknowledged_or_snoozed_alert_is_not_told_again(
    database: Database, make_event: Make
) -> None:
    one, other = make_event(), make_event(gpu="GPU-2")
    record(database, one, other)
    do(database, one.alert_id, ActionKind.ACK)
    do(database, other.alert_id, ActionKind.SNOOZE, until_ms=START_MS + HOUR_MS)
    found = rulings(database, START_MS)
    assert codes(found) == ["acknowledged", "snoozed"]
    assert found[1].until_ms == START_MS + HOUR_MS


def test_old_resolved_alerts_go_with_all_that_is_theirs(
    database: Database, make_event: Make
) -> None:
    day = 24 * HOUR_MS
    record(database, make_event(), make_event(seq=2, state="resolved"), make_event(gpu="open"))
    assert clockwork(database, START_MS + day, retention_ms=2 * day).step() == 0
    late = clockwork(database, START_MS + 3 * day, retention_ms=2 * day)
    assert late.step() == 0  # somebody still waits to be told of it
    with database.write() as connection:
        connection.execute(sa.update(delivery).values(state="done"))
    assert late.step() == 1
    with database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(alert)).scalar() == 1
        assert connection.execute(sa.select(sa.func.count()).select_from(delivery)).scalar() == 1


def test_series_are_kept_beside_the_alert_and_shown_with_it_alone(
    database: Database, make_event: Make
) -> None:
    event = make_event(series=(Series(metric="power_watts", ts=[1, 2], values=[1.5, None]),))
    record(database, event, make_event(seq=2))
    found = shown(database, event.alert_id)
    assert found["series"] == [{"metric": "power_watts", "ts": [1, 2], "values": [1.5, None]}]
    (listed,), _ = Queries(database).alerts(AlertFilter(), limit=5, cursor=None)
    assert listed["series"] == []


def test_acceptance_22_readers_that_then_write_meet_no_lock_error(
    database: Database, make_event: Make
) -> None:
    """Ingest, claims and operators at once, each reading before it writes."""
    events = [make_event(gpu=f"GPU-{n}") for n in range(40)]
    record(database, *events)
    box = Outbox(database, owner="a", lease_seconds=60)

    def ingest() -> None:
        for seq in (2, 3):
            record(database, *(make_event(gpu=f"GPU-{n}", seq=seq) for n in range(40)))

    def operate() -> None:
        for one in events:
            do(database, one.alert_id, ActionKind.COMMENT, comment="x")

    def claim() -> None:
        for _ in range(20):
            box.claim({"noc": 1}, 1, START_MS)

    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(work) for work in (ingest, operate, claim) * 2]
    assert [job.exception() for job in jobs] == [None] * 6
