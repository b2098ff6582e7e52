"""A batch of events leaves the store as the same events do one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from api.database import Database
from api.ledger import Ledger, Route
from api.tables import alert, delivery, event
from schemas.alert import AlertEvent, Severity, Subject, fingerprint_of

NOC = Route(endpoint="noc", severity_min=Severity.WARNING)
START_MS = 1_758_684_003_007
Make = Callable[..., AlertEvent]


def silence(make_event: Make, node: str, seq: int, started_ms: int) -> AlertEvent:
    """The node is silent, or with seq 2 is heard again."""
    subject = Subject(scope="node", node=node)
    fingerprint = fingerprint_of("telemetry", "node_silent", subject)
    return make_event(
        family="telemetry",
        kind="node_silent",
        subject=subject,
        fingerprint=fingerprint,
        alert_id=fingerprint[:-6] + f"{started_ms % 1_000_000:06d}",
        state="firing" if seq == 1 else "resolved",
        severity="critical",
        seq=seq,
        started_ms=started_ms,
    )


def story(make_event: Make, seed: int) -> list[AlertEvent]:
    """Alerts begin, change and end, nodes fall silent; some events come twice or late."""
    chance = random.Random(seed)
    found: list[AlertEvent] = []
    for number in range(60):
        node, started = f"n{chance.randrange(3)}", START_MS + (number // 20) * 3_600_000
        if chance.random() < 0.15:
            found.append(silence(make_event, node, chance.choice((1, 2)), started))
            continue
        seq = chance.randint(1, 4)
        found.append(
            make_event(
                node=node,
                gpu=f"GPU-{node}-{chance.randrange(4)}",
                seq=seq,
                state="resolved" if seq == 4 else "firing",
                severity=chance.choice(("warning", "critical")),
                started_ms=started,
            )
        )
    return found


def content(database: Database) -> list[Any]:
    with database.read() as connection:
        return [
            list(connection.execute(sa.select(table).order_by(*table.primary_key.columns)))
            for table in (alert, event, delivery)
        ]


@pytest.mark.parametrize("seed", range(6))
def test_a_batch_is_stored_as_its_events_one_by_one(
    tmp_path: Path, make_event: Make, seed: int
) -> None:
    events = story(make_event, seed)
    singly, batched = (Database.open(None, tmp_path / name) for name in ("singly", "batched"))
    ledger = Ledger([NOC])
    with singly.write() as connection:
        for one in events:
            ledger.record(connection, one, START_MS)
    chance = random.Random(seed)
    rest = list(events)
    while rest:
        size = chance.randint(1, 25)
        with batched.write() as connection:
            ledger.record_all(connection, rest[:size], START_MS)
        rest = rest[size:]
    assert content(batched) == content(singly)
    assert len(content(singly)[0]) > 5
    for database in (singly, batched):
        database.close()
