"""Signs of life: those of others that stay away, and our own, which stop with us."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry
from pydantic import ValidationError
from standardwebhooks.webhooks import Webhook

from api.beatsettings import HeartbeatSettings, PingSettings
from api.database import Database
from api.heartbeats import Heartbeats, TooManyError
from api.ledger import Ledger, Route
from api.metrics import ApiMetrics
from api.notify.sender import HttpSender
from api.pings import Ping
from api.queries import AlertFilter, Queries
from api.tables import delivery, heartbeat
from bus.memory import MemoryBus
from schemas.alert import Severity
from schemas.errors import StoreError

MINUTE_MS = 60_000
T0 = 1_758_684_000_000
NOC = Route(endpoint="noc", severity_min=Severity.WARNING)
BACKUP = HeartbeatSettings(name="backup", interval_seconds=300, grace_seconds=60)


def beats(database: Database, started_ms: int = 0) -> Heartbeats:
    return Heartbeats(database, Ledger([NOC]), started_ms)


def alerts(database: Database) -> list[dict[str, Any]]:
    found, _ = Queries(database).alerts(AlertFilter(), limit=100, cursor=None)
    return found


def kinds(database: Database) -> list[str]:
    with database.read() as connection:
        query = sa.select(delivery.c.kind).order_by(delivery.c.id)
        return list(connection.execute(query).scalars())


def test_one_that_stays_away_longer_than_its_grace_is_an_alert_and_the_next_one_ends_it(
    database: Database,
) -> None:
    found = beats(database)
    found.beat("backup", T0, interval_ms=5 * MINUTE_MS, grace_ms=MINUTE_MS)
    assert found.look(T0 + 6 * MINUTE_MS) == 0
    assert found.look(T0 + 6 * MINUTE_MS + 1) == 1
    assert found.look(T0 + 9 * MINUTE_MS) == 0, "told once"
    (one,) = alerts(database)
    assert (one["family"], one["kind"], one["state"]) == (
        "telemetry",
        "heartbeat_missing",
        "firing",
    )
    assert one["subject"]["pipeline"] == "heartbeat backup"
    assert one["started_at"] == "2025-09-24T03:25:00.000Z", "when it was due"
    assert one["summary"] == "No heartbeat from backup for 6 min; one is expected every 5 min."
    found.beat("backup", T0 + 10 * MINUTE_MS)
    (one,) = alerts(database)
    assert (one["state"], one["end_reason"]) == ("resolved", "heartbeat")
    assert kinds(database) == ["fired", "resolved"]
    assert found.look(T0 + 15 * MINUTE_MS) == 0
    assert found.look(T0 + 17 * MINUTE_MS) == 1, "and it is watched on"


def test_one_that_the_settings_name_must_come_even_if_it_never_has(database: Database) -> None:
    found = beats(database, started_ms=T0)
    found.declare([BACKUP], T0)
    assert not found.in_time(["backup"], T0), "it has not come yet"
    assert found.look(T0 + 7 * MINUTE_MS) == 1
    assert "has never come" in alerts(database)[0]["summary"]
    found.beat("backup", T0 + 8 * MINUTE_MS, interval_ms=1000)
    assert found.in_time(["backup"], T0 + 13 * MINUTE_MS), "the settings say how often"
    assert not found.in_time(["backup", "other"], T0 + 13 * MINUTE_MS)


def test_what_nobody_could_send_while_we_were_away_is_not_missing(database: Database) -> None:
    beats(database).beat("backup", T0, interval_ms=5 * MINUTE_MS, grace_ms=0)
    back = T0 + 60 * MINUTE_MS
    again = beats(database, started_ms=back)
    assert again.look(back + MINUTE_MS) == 0
    assert again.look(back + 5 * MINUTE_MS + 1) == 1
    after_another_restart = beats(database, started_ms=back + 6 * MINUTE_MS)
    assert after_another_restart.look(back + 20 * MINUTE_MS) == 0, "one alert, not another"
    assert [one["state"] for one in alerts(database)] == ["firing"]
    after_another_restart.beat("backup", back + 21 * MINUTE_MS)
    assert [one["state"] for one in alerts(database)] == ["resolved"]


def test_one_that_is_expected_no_more_ends_its_alert(database: Database) -> None:
    found = beats(database, started_ms=T0)
    found.declare([BACKUP], T0)
    found.beat("ad-hoc", T0)
    assert found.look(T0 + 10 * MINUTE_MS) == 2
    assert found.remove("backup", T0) is False, "the settings name it"
    assert found.remove("nobody", T0) is None
    assert found.remove("ad-hoc", T0 + 11 * MINUTE_MS) is True
    found.declare([], T0 + 12 * MINUTE_MS)
    assert {one["end_reason"] for one in alerts(database)} == {"entity_removed"}
    assert found.all() == []


def test_names_are_bounded(sqlite_database: Database) -> None:
    with sqlite_database.write() as connection:
        rows = [
            {
                "name": f"n{number}",
                "interval_ms": 1,
                "grace_ms": 1,
                "severity": "info",
                "declared": False,
                "first_ms": 0,
            }
            for number in range(1000)
        ]
        connection.execute(sa.insert(heartbeat), rows)
    with pytest.raises(TooManyError, match="1000"):
        beats(sqlite_database).beat("one-more", T0)


def test_over_rest_it_is_noted_listed_told_and_removed(
    tmp_path: Path,
    bus: MemoryBus,
    receiver: Any,
    endpoint_for: Any,
    running_api: Any,
    wait_until: Any,
) -> None:
    """The clockwork looks every five seconds; the interval is one. So on one store only."""
    endpoints = (endpoint_for(receiver),)
    with running_api(tmp_path, bus, endpoints=endpoints) as running:
        path = "/v1/heartbeats/cron.nightly"
        said = {"interval_seconds": 1, "grace_seconds": 0, "severity": "critical"}
        noted = running.client.post(path, params=said).json()
        assert (noted["state"], noted["in_settings"]) == ("in_time", False)
        wait_until(lambda: receiver.received, 60)
        told = orjson.loads(receiver.received[0].body)["data"]
        assert (told["kind"], told["severity"]) == ("heartbeat_missing", "critical")
        (listed,) = running.client.get("/v1/heartbeats").json()["heartbeats"]
        assert listed["state"] == "missing"
        running.client.post(path)
        wait_until(lambda: len(receiver.received) >= 2, 60)
        assert orjson.loads(receiver.received[1].body)["type"] == "alert.resolved"
        assert running.client.delete(path).status_code == 204
        assert running.client.delete(path).status_code == 404
        assert running.client.get("/v1/heartbeats").json() == {"heartbeats": []}
        assert running.client.post("/v1/heartbeats/No%20Name").status_code == 422


def ping(url: str, health: Callable[[], Mapping[str, Any]], **settings: Any) -> Ping:
    return Ping(
        PingSettings(name="watchdog", url=url, allow_private=True, **settings),
        sender=HttpSender(connect_seconds=2, total_seconds=2),
        health=health,
        in_time=lambda names, _now: "late" not in names,
        metrics=ApiMetrics(CollectorRegistry()),
    )


def test_our_own_is_signed_and_sent_while_all_works(receiver: Any, secret: str) -> None:
    alive = ping(receiver.url, lambda: {"ok": True}, secret=secret, needs=("detector-1",))
    assert [alive.once(), alive.once()] == ["sent", "sent"]
    request = receiver.received[0]
    body = Webhook(secret).verify(request.body.decode(), request.headers)
    assert body["type"] == "foreshock.alive"
    assert len(set(receiver.ids)) == 2


def test_our_own_is_withheld_as_soon_as_anything_does_not_work(receiver: Any) -> None:
    def broken() -> Mapping[str, Any]:
        raise StoreError("The store is gone.")

    assert ping(receiver.url, lambda: {"ok": False, "detail": "no reading"}).once() == "withheld"
    assert ping(receiver.url, broken).once() == "withheld"
    assert ping(receiver.url, lambda: {"ok": True}, needs=("late",)).once() == "withheld"
    assert receiver.received == []
    receiver.script.append(500)
    recovering = ping(receiver.url, lambda: {"ok": True})
    assert [recovering.once(), recovering.once()] == ["failed", "sent"]


def test_acceptance_the_dead_mans_switch_of_a_running_service_stops_with_its_reading(
    tmp_path: Path, bus: MemoryBus, receiver: Any, running_api: Any, wait_until: Any
) -> None:
    pings = (PingSettings(name="watchdog", url=receiver.url, allow_private=True, every_seconds=1),)
    with running_api(tmp_path, bus, pings=pings) as running:
        wait_until(lambda: len(receiver.received) >= 2, 60)
        well = threading.Event()
        running.service.depends_on(lambda: {"ok": well.is_set(), "detail": "The detector hangs."})
        line = 'foreshock_api_pings_total{name="watchdog",result="withheld"}'
        wait_until(lambda: line in running.client.get("/metrics").text, 60)
        before = len(receiver.received)
        well.set()
        wait_until(lambda: len(receiver.received) > before, 60)


@pytest.mark.parametrize(
    "wrong", [{"url": "ftp://x.example/secret"}, {"secret": "whsec_short"}, {"name": "No Name"}]
)
def test_a_faulty_ping_is_refused_without_repeating_it(wrong: dict[str, str]) -> None:
    fields = {"name": "watchdog", "url": "https://x.example/secret"} | wrong
    with pytest.raises(ValidationError) as caught:
        PingSettings(**fields)
    assert "secret" not in str(caught.value).replace("webhook secret", "")
