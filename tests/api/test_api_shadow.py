"""The alerts of a detector on trial are stored and shown; nobody is told, nothing is explained."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import orjson
import sqlalchemy as sa

from api.database import Database
from api.inhibition import AlertFacts, Inhibition
from api.ledger import Ledger
from api.notices import BySeverity, Route
from api.tables import alert, delivery, event
from schemas.alert import AlertEvent, Severity

ALL = Route(endpoint="noc", severity_min=Severity.INFO)
Make = Callable[..., AlertEvent]


def record(database: Database, *events: AlertEvent) -> None:
    ledger = Ledger(BySeverity([ALL]))
    with database.write() as connection:
        for number, new in enumerate(events):
            ledger.record(connection, new, 1000 + number)


def count(database: Database, table: sa.Table) -> int:
    with database.read() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def test_an_alert_on_trial_is_stored_with_its_mark_and_nobody_is_told(
    database: Database, make_event: Make
) -> None:
    record(
        database,
        make_event(seq=1, shadow=True),
        make_event(seq=2, severity="critical", shadow=True),
        make_event(seq=3, state="resolved", shadow=True),
    )
    assert count(database, event) == 3
    assert count(database, delivery) == 0
    with database.read() as connection:
        (payload,) = connection.execute(sa.select(alert.c.payload)).scalars()
    assert orjson.loads(payload)["shadow"] is True


def test_other_alerts_are_told_as_ever(database: Database, make_event: Make) -> None:
    record(database, make_event(shadow=True), make_event(gpu="GPU-2"))
    assert count(database, delivery) == 1


def test_an_alert_on_trial_holds_no_other_back(database: Database, make_event: Make) -> None:
    other = str(uuid.uuid4())
    lost = {"family": "gpu_lost", "kind": "lost", "severity": "critical"}
    root = make_event(**lost, fingerprint=other, alert_id=other, shadow=True)
    record(database, root, make_event())
    with database.read() as connection:
        rows = connection.execute(sa.select(alert).where(alert.c.kind != "lost")).mappings()
        symptom = AlertFacts.of(rows.one())
        assert Inhibition.read(connection, [symptom]).root_of(symptom) is None
