"""What the api says to requests that are wrong, to browsers, and to HEAD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from api.app import create_app
from api.database import Database
from api.feed import Feed
from api.health import Readiness
from api.ledger import Ledger
from api.metrics import ApiMetrics
from api.settings import ApiSettings
from bus.memory import MemoryBus
from schemas.alert import AlertEvent

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
KEY = "a-key-of-some-length"
UNKNOWN = "7f3c2b1e-0000-4000-8000-000000000000"


@pytest.fixture
def client(database: Database) -> TestClient:
    app = create_app(
        ApiSettings(),
        database,
        metrics=ApiMetrics(CollectorRegistry()),
        feed=Feed(),
        readiness=Readiness(database, {}, clock=lambda: 1.0),
    )
    return TestClient(app, base_url="http://localhost")


@pytest.mark.parametrize(
    ("path", "unknown", "near"),
    [
        ("/v1/alerts?severity=critical", "severity", "severity_min"),
        ("/v1/alerts?status=firing", "status", "state"),
        ("/v1/alerts?State=firing", "State", "state"),
        ("/v1/events?afters=1", "afters", "after"),
        ("/v1/deliveries?endpoints=noc", "endpoints", "endpoint"),
    ],
)
def test_an_unknown_parameter_is_named_with_the_nearest_known_one(
    client: TestClient, path: str, unknown: str, near: str
) -> None:
    answer = client.get(path)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    (error,) = answer.json()["errors"]
    assert error["pointer"] == f"query/{unknown}"
    assert error["code"] == "unknown_parameter"
    assert error["message"].endswith(f"did you mean {near}?")
    assert f"did you mean {near}?" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("state=firing&state=resolved", "repeated_parameter"),
        ("limit=1&limit=2", "repeated_parameter"),
        ("q=%00", "bad_character"),
        ("node=n%001", "bad_character"),
    ],
)
def test_what_would_silently_filter_otherwise_is_refused(
    client: TestClient, query: str, code: str
) -> None:
    answer = client.get(f"/v1/alerts?{query}")
    assert answer.status_code == 422
    assert [error["code"] for error in answer.json()["errors"]] == [code]


def test_what_may_be_repeated_may_be(client: TestClient) -> None:
    path = '/v1/alerts?match=node="n1"&match=kind="leak"'
    assert client.get(path).status_code == 200


def test_every_unknown_parameter_is_named_and_what_there_is(client: TestClient) -> None:
    errors = client.get("/v1/deliveries?zzz=1&xxx=2").json()["errors"]
    assert [error["pointer"] for error in errors] == ["query/zzz", "query/xxx"]
    assert "there are state, endpoint, limit, cursor" in errors[0]["message"]
    assert "there are none" in client.get("/v1/groups?zzz=1").json()["errors"][0]["message"]
    assert client.get(f"/v1/alerts/{UNKNOWN}?zzz=1").status_code == 422
    assert client.get("/v1/stream?zzz=1").status_code == 422


@pytest.mark.parametrize(
    "text",
    [
        "1758684003",
        "1758684003.5",
        "2025-09-24",
        "2025-09-24T03:20:03",
        "2025-09-24 03:20:03Z",
        "2025-09-24T03:20Z",
        "2025-09-24T03:20:03+0100",
        "2025-09-24T03:20:03 01:00",
        "2025-13-24T03:20:03Z",
        "yesterday",
        "",
    ],
)
def test_a_time_that_is_not_rfc_3339_with_a_zone_is_refused(client: TestClient, text: str) -> None:
    for name in ("since", "until"):
        answer = client.get("/v1/alerts", params={name: text})
        assert answer.status_code == 422, (name, text)
        assert answer.json()["errors"][0]["pointer"].startswith(f"query/{name}")


@pytest.mark.parametrize(
    "text",
    ["2025-09-24T03:20:03Z", "2025-09-24t03:20:03.007z", "2025-09-24T03:20:03.1+05:30"],
)
def test_rfc_3339_with_a_zone_is_taken(client: TestClient, text: str) -> None:
    assert client.get("/v1/alerts", params={"since": text, "until": text}).status_code == 200


def test_a_wrong_word_is_answered_with_all_right_ones(client: TestClient) -> None:
    message = client.get("/v1/alerts?severity_min=planted").json()["errors"][0]["message"]
    assert message == "Input should be 'info', 'warning' or 'critical'"
    message = client.get("/v1/deliveries?state=planted").json()["errors"][0]["message"]
    for state in ("pending", "leased", "done", "dead", "cancelled"):
        assert f"'{state}'" in message


@pytest.mark.parametrize("path", [f"/alerts/{UNKNOWN}", "/alerts/planted", "/planted"])
def test_a_browser_gets_a_page_where_nothing_is(client: TestClient, path: str) -> None:
    answer = client.get(path, headers=BROWSER)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "<h1>Not Found</h1>" in answer.text
    assert "planted" not in answer.text
    program = client.get(path)
    assert program.status_code == 404
    assert program.headers["content-type"] == "application/problem+json"


def test_rest_addresses_answer_problem_documents_to_browsers_too(client: TestClient) -> None:
    answer = client.get(f"/v1/alerts/{UNKNOWN}", headers=BROWSER)
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_browser_without_the_key_gets_a_page_that_says_how(
    tmp_path: Path, bus: MemoryBus, running_api: Any
) -> None:
    with running_api(tmp_path, bus, api_key=KEY) as running:
        answer = running.client.get("/", headers=BROWSER)
        assert answer.status_code == 401
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["www-authenticate"].startswith("Basic")
        assert "any user name with the key as password" in answer.text
        program = running.client.get("/")
        assert program.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics", "/docs", "/v1/alerts"])
def test_head_answers_as_get_without_the_body(api: Any, path: str) -> None:
    got, head = api.client.get(path), api.client.head(path)
    assert head.status_code == got.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]


def test_head_of_the_endless_stream_is_refused(api: Any) -> None:
    assert api.client.head("/v1/stream").status_code == 405


def test_head_is_not_a_second_operation_of_the_reference(client: TestClient) -> None:
    assert client.head("/healthz").content == b""
    paths = client.get("/openapi.json").json()["paths"]
    assert not [path for path, operations in paths.items() if "head" in operations]


def test_the_reference_page_shows_code_as_code(client: TestClient) -> None:
    page = client.get("/docs").text
    assert "``" not in page
    assert "<code>since</code>" in page


def test_an_alert_that_follows_from_another_leads_to_it(
    client: TestClient, database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    root = make_event(gpu="GPU-root")
    symptom = replace(make_event(gpu="GPU-symptom"), caused_by=root.fingerprint)
    orphan = replace(make_event(gpu="GPU-orphan"), caused_by=UNKNOWN)
    with database.write() as connection:
        for number, event in enumerate((root, symptom, orphan)):
            Ledger(()).record(connection, event, 1000 + number)
    page = client.get(f"/alerts/{symptom.alert_id}", headers=BROWSER).text
    assert f'Follows from <a href="/alerts/{root.alert_id}">' in page
    assert UNKNOWN in client.get(f"/alerts/{orphan.alert_id}", headers=BROWSER).text
    listed = client.get(f"/v1/alerts?fingerprint={root.fingerprint}").json()["alerts"]
    assert [alert["alert_id"] for alert in listed] == [root.alert_id]
