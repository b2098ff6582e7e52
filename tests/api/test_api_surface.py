"""The rest of the REST surface: ingest, long lists, bounds of what runs at once. On both stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from api.app import create_app
from api.crowds import Crowds
from api.database import Database
from api.feed import Feed
from api.health import Readiness
from api.metrics import ApiMetrics
from api.security.keys import KeyStore
from api.security.principal import Role, Scope
from api.settings import ApiSettings
from schemas.alert import AlertEvent
from schemas.codec import encode

NOW_MS = 1_758_684_003_007
KEY = "settings-key-of-some-length"
Make = Callable[..., AlertEvent]


def client_of(database: Database, **settings: Any) -> TestClient:
    app = create_app(
        ApiSettings(**settings),
        database,
        metrics=ApiMetrics(CollectorRegistry()),
        feed=Feed(),
        readiness=Readiness(database, {}),
        now_ms=lambda: NOW_MS,
    )
    return TestClient(app, base_url="http://localhost")


@pytest.fixture
def client(database: Database) -> TestClient:
    return client_of(database)


def decoded(event: AlertEvent) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(encode(event))
    return found


def test_events_come_over_rest_as_over_the_bus_once_each(
    client: TestClient, make_event: Make
) -> None:
    events = [decoded(make_event(gpu=f"GPU-{n}")) for n in range(3)]
    first = client.post("/v1/ingest/alerts", json={"events": events[:2]})
    assert first.json() == {"stored": 2, "known": 0}
    again = client.post("/v1/ingest/alerts", json={"events": events})
    assert again.json() == {"stored": 1, "known": 2}
    assert len(client.get("/v1/alerts").json()["alerts"]) == 3


def test_of_a_batch_with_a_wrong_event_nothing_is_stored_and_nothing_repeated(
    client: TestClient, make_event: Make
) -> None:
    good = decoded(make_event())
    for change in (
        {"alert_id": "planted"},
        {"severity": "planted"},
        {"schema": "planted/9"},
        {"seq": 2**70},
        {"score": "planted"},
    ):
        answer = client.post("/v1/ingest/alerts", json={"events": [good, good | change]})
        assert answer.status_code == 422, change
        assert "Event 1" in answer.json()["detail"]
        assert "planted" not in answer.text
    assert client.get("/v1/alerts").json()["alerts"] == []


def test_only_who_may_ingest_does(database: Database) -> None:
    client = client_of(database, api_key=KEY)
    with database.write() as connection:
        store = KeyStore(database, lambda: NOW_MS)
        operator = store.create(connection, name="op", role=Role.OPERATOR, actor="test").key
        feeder = store.create(
            connection, name="in", role=Role.VIEWER, scopes=[Scope.INGEST], actor="test"
        ).key
    for key, status in ((operator, 403), (feeder, 200)):
        answer = client.post("/v1/ingest/alerts", json={"events": []}, headers={"x-api-key": key})
        assert answer.status_code == status
    assert client.get("/v1/alerts", headers={"x-api-key": feeder}).status_code == 403


def test_many_events_come_in_a_longer_body_than_others(client: TestClient) -> None:
    long = b'{"events": [' + b" " * 2_000_000 + b"]}"
    json = {"content-type": "application/json"}
    assert client.post("/v1/ingest/alerts", content=long, headers=json).status_code == 200
    assert client.post("/v1/silences", content=long, headers=json).status_code == 413
    too_long = b'{"events": [' + b" " * 9_000_000 + b"]}"
    assert client.post("/v1/ingest/alerts", content=too_long, headers=json).status_code == 413


@pytest.mark.parametrize("path", ["/v1/silences", "/v1/ingest/alerts", "/v1/endpoints"])
def test_a_body_as_deep_as_it_is_long_is_refused(client: TestClient, path: str) -> None:
    for deep in (b"[" * 400_000, b'{"a":' * 100_000):
        answer = client.post(path, content=deep, headers={"content-type": "application/json"})
        assert answer.status_code in {400, 422}
        assert answer.headers["content-type"] == "application/problem+json"


def test_silences_go_on_in_the_order_of_their_ends(client: TestClient) -> None:
    for number in (3, 1, 2):
        body = {
            "matchers": [{"name": "node", "value": f"n{number}"}],
            "ends_at": f"2025-09-2{4 + number}T00:00:00Z",
            "comment": "x",
        }
        assert client.post("/v1/silences", json=body).status_code == 201
    seen: list[str] = []
    address: str | None = "/v1/silences?limit=2"
    while address is not None:
        page = client.get(address)
        seen += [one["matchers"][0]["value"] for one in page.json()["silences"]]
        after = page.json()["next_cursor"]
        address = None if after is None else f"/v1/silences?limit=2&cursor={after}"
    assert seen == ["n1", "n2", "n3"]
    assert client.get("/v1/silences?cursor=W10").status_code == 422


def test_a_preview_counts_beyond_one_page(client: TestClient, make_event: Make) -> None:
    events = [decoded(make_event(gpu=f"GPU-{n}")) for n in range(620)]
    assert client.post("/v1/ingest/alerts", json={"events": events}).json()["stored"] == 620
    body = {"matchers": [{"name": "node", "op": "=~", "value": "node-.*"}]}
    found = client.post("/v1/silences:preview", json=body).json()
    assert (found["open"], found["last_7_days"], found["more"]) == (620, 620, False)
    assert len(found["alerts"]) == 50


def test_nothing_is_put_off_until_a_time_that_is_over(client: TestClient, make_event: Make) -> None:
    event = make_event()
    client.post("/v1/ingest/alerts", json={"events": [decoded(event)]})
    past = {"until": "2020-01-01T00:00:00Z"}
    for action in ("ack", "snooze"):
        assert client.post(f"/v1/alerts/{event.alert_id}/{action}", json=past).status_code == 422
        bulk = {"action": action, "ids": [event.alert_id], **past}
        assert client.post("/v1/alerts:bulk", json=bulk).status_code == 422


def test_what_is_sent_to_webhooks_is_described_too(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    sent = described["webhooks"]["alert"]["post"]
    names = {parameter["name"] for parameter in sent["parameters"]}
    assert {"webhook-id", "webhook-timestamp", "webhook-signature"} <= names


def test_searches_beyond_the_bound_are_asked_to_come_again_and_others_pass() -> None:
    """Eight at once; the ninth gets 429, and a place when one of them has ended."""

    async def run() -> list[int]:
        release = asyncio.Event()
        statuses: list[int] = []

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] != "/v1/quick":
                await release.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        async def ask(path: str, query: bytes = b"") -> None:
            scope = {"type": "http", "path": path, "query_string": query, "state": {}}
            await crowds(scope, receive, send)

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        crowds = Crowds(slow, at_once=2)
        waiting = [
            asyncio.create_task(ask("/v1/alerts.csv")),
            asyncio.create_task(ask("/v1/alerts", b"match=a%3Db")),
        ]
        await asyncio.sleep(0)
        await ask("/v1/groups")
        await ask("/v1/quick")
        release.set()
        await asyncio.gather(*waiting)
        await ask("/v1/groups")
        return statuses

    assert asyncio.run(run()) == [429, 200, 200, 200, 200]
