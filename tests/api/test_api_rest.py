"""The REST surface of people's actions, silences, routes and keys. On both stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from api.app import create_app
from api.database import Database
from api.feed import Feed
from api.health import Readiness
from api.ledger import Ledger
from api.metrics import ApiMetrics
from api.notices import Route
from api.routing import Routing
from api.settings import ApiSettings
from api.tables import audit, idempotency
from schemas.alert import AlertEvent, Severity

START_MS = 1_758_684_003_007
KEY = "settings-key-of-some-length"
ROUTES = (
    Route(endpoint="noc", severity_min=Severity.WARNING),
    Route(endpoint="pager", severity_min=Severity.CRITICAL),
)

Make = Callable[..., AlertEvent]


def app_of(database: Database, **settings: Any) -> Any:
    return create_app(
        ApiSettings(**settings),
        database,
        metrics=ApiMetrics(CollectorRegistry()),
        feed=Feed(),
        readiness=Readiness(database, {}),
        routing=Routing(ROUTES),
        now_ms=lambda: START_MS,
    )


def client_of(app: Any, **headers: str) -> TestClient:
    return TestClient(app, base_url="http://localhost", headers=headers)


@pytest.fixture
def client(database: Database) -> TestClient:
    return client_of(app_of(database))


def store(database: Database, *events: AlertEvent) -> None:
    with database.write() as connection:
        for one in events:
            Ledger(ROUTES).record(connection, one, START_MS)


def silence(**changes: Any) -> dict[str, Any]:
    return {
        "matchers": [{"name": "node", "op": "=~", "value": "node-.*"}],
        "ends_at": "2025-09-25T00:00:00Z",
        "comment": "maintenance",
    } | changes


def test_every_action_gives_the_alert_as_it_then_stands(
    client: TestClient, database: Database, make_event: Make
) -> None:
    one = make_event()
    store(database, one)
    base = f"/v1/alerts/{one.alert_id}"
    later = "2025-09-25T00:00:00Z"
    for path, body, field, value in (
        ("ack", {"until": later, "comment": "on it"}, "state", "acknowledged"),
        ("unack", {}, "state", "firing"),
        ("assign", {"assignee": "wang"}, "assignee", "wang"),
        ("comments", {"comment": "seen before"}, "assignee", "wang"),
        ("feedback", {"feedback": "false_positive"}, "feedback", "false_positive"),
        ("snooze", {"until": later}, "snoozed_until", "2025-09-25T00:00:00.000Z"),
        ("resolve", {}, "state", "resolved"),
        ("reopen", {}, "state", "firing"),
    ):
        answer = client.post(f"{base}/{path}", json=body)
        assert answer.status_code == 200, (path, answer.text)
        assert answer.json()[field] == value
        assert answer.headers["etag"] == f'"{answer.json()["version"]}"'
    entries = client.get("/v1/audit", params={"object_id": one.alert_id}).json()["entries"]
    assert len(entries) == 8
    assert {e["actor"] for e in entries} == {"local"}


def test_an_action_without_a_body_is_taken(
    client: TestClient, database: Database, make_event: Make
) -> None:
    one = make_event()
    store(database, one)
    assert client.post(f"/v1/alerts/{one.alert_id}/ack").json()["state"] == "acknowledged"


def test_if_match_refuses_what_was_decided_on_an_older_state(
    client: TestClient, database: Database, make_event: Make
) -> None:
    one = make_event()
    store(database, one)
    path = f"/v1/alerts/{one.alert_id}"
    tag = client.get(path).headers["etag"]
    first = client.post(f"{path}/ack", headers={"if-match": tag})
    assert first.status_code == 200
    assert client.post(f"{path}/unack", headers={"if-match": tag}).status_code == 412
    assert client.post(f"{path}/unack", headers={"if-match": "*"}).status_code == 200
    assert client.post(f"{path}/ack", headers={"if-match": "nonsense"}).status_code == 412


def test_a_request_sent_twice_under_one_key_is_done_once(
    client: TestClient, database: Database
) -> None:
    headers = {"idempotency-key": "one"}
    first = client.post("/v1/silences", json=silence(), headers=headers)
    again = client.post("/v1/silences", json=silence(), headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert len(client.get("/v1/silences").json()["silences"]) == 1
    other = client.post("/v1/silences", json=silence(comment="x"), headers=headers)
    assert other.status_code == 422
    with database.write() as connection:
        connection.execute(sa.update(idempotency).values(status=None))
    assert client.post("/v1/silences", json=silence(), headers=headers).status_code == 409
    assert client.post("/v1/silences", headers={"idempotency-key": "a b"}).status_code == 422


def test_a_new_api_key_lies_nowhere_in_the_store(client: TestClient, database: Database) -> None:
    headers = {"idempotency-key": "k"}
    key = client.post("/v1/api-keys", json={"name": "ci"}, headers=headers).json()["key"]
    with database.read() as connection:
        tables = sa.inspect(connection).get_table_names()
        for name in tables:
            for row in connection.execute(sa.text(f"SELECT * FROM {name}")):  # noqa: S608
                assert key not in repr(tuple(row)), name
    assert key not in client.get("/v1/api-keys").text
    assert key not in client.get("/v1/audit").text


def test_bulk_says_for_each_alert_what_became_of_it_and_a_dry_run_does_nothing(
    client: TestClient, database: Database, make_event: Make
) -> None:
    open_one, closed = make_event(), make_event(gpu="GPU-2", seq=2, state="resolved")
    store(database, open_one, closed)
    unknown = "7f3c2b1e-0000-4000-8000-000000000000"
    body = {"action": "ack", "ids": [open_one.alert_id, closed.alert_id, unknown]}
    for dry in (True, False):
        answer = client.post("/v1/alerts:bulk", json=body | {"dry_run": dry}).json()
        assert [r["outcome"] for r in answer["results"]] == ["changed", "refused", "not_found"]
        assert answer["changed"] == 1
    again = client.post("/v1/alerts:bulk", json=body).json()
    assert again["results"][0]["outcome"] == "unchanged"
    chosen = {"action": "resolve", "filter": {"match": ['node=~"node-.*"']}}
    assert client.post("/v1/alerts:bulk", json=chosen).json()["changed"] == 1
    for wrong in ({"action": "ack"}, body | {"filter": {}}, {"action": "comment", "ids": []}):
        assert client.post("/v1/alerts:bulk", json=wrong).status_code == 422


def test_matchers_narrow_the_list_over_pages(
    client: TestClient, database: Database, make_event: Make
) -> None:
    store(database, *(make_event(gpu=f"GPU-{n}", node=f"node-{n % 3}") for n in range(30)))
    found: list[str] = []
    params: dict[str, Any] = {"match": ['node=~"node-[12]"', 'gpu!="GPU-1"'], "limit": 4}
    answer = client.get("/v1/alerts", params=params).json()
    while True:
        found += [a["subject"]["gpu_uuid"] for a in answer["alerts"]]
        if answer["next_cursor"] is None:
            break
        params["cursor"] = answer["next_cursor"]
        answer = client.get("/v1/alerts", params=params).json()
    assert sorted(found) == sorted(f"GPU-{n}" for n in range(30) if n % 3 and n != 1)
    assert client.get("/v1/alerts", params={"match": "node=~("}).status_code == 422
    counted = client.get("/v1/alerts", params={"count": "true", "match": "node=node-1"}).json()
    assert counted["count"] == 10


def test_an_unchanged_list_is_304_until_something_changes(
    client: TestClient, database: Database, make_event: Make
) -> None:
    one = make_event()
    store(database, one)
    tag = client.get("/v1/alerts").headers["etag"]
    assert client.get("/v1/alerts", headers={"if-none-match": tag}).status_code == 304
    client.post(f"/v1/alerts/{one.alert_id}/assign", json={"assignee": "li"})
    assert client.get("/v1/alerts", headers={"if-none-match": tag}).status_code == 200


def test_the_table_of_alerts_holds_no_formula(
    client: TestClient, database: Database, make_event: Make
) -> None:
    store(database, make_event(summary="=HYPERLINK(1)", node="-n"))
    text = client.get("/v1/alerts.csv").text
    assert "'=HYPERLINK(1)" in text
    assert ",'-n," in text
    assert text.count("\n") == 2


def test_evidence_and_notifications_of_one_alert(
    client: TestClient, database: Database, make_event: Make
) -> None:
    one = make_event()
    store(database, one)
    evidence = client.get(f"/v1/alerts/{one.alert_id}/evidence").json()
    assert evidence["evidence"][0]["value"] == 87.0
    (sent,) = client.get(f"/v1/alerts/{one.alert_id}/notifications").json()["notifications"]
    assert (sent["endpoint"], sent["kind"], sent["state"]) == ("noc", "fired", "pending")


def test_a_silence_needs_a_reason_an_end_and_a_matcher_that_narrows(client: TestClient) -> None:
    for wrong in (
        {"comment": ""},
        {"comment": "  "},
        {"matchers": []},
        {"matchers": [{"name": "node", "op": "=~", "value": ".*"}]},
        {"matchers": [{"name": "node", "op": "=~", "value": "("}]},
        {"ends_at": "2025-09-01T00:00:00Z"},
        {"ends_at": "2026-09-01T00:00:00Z"},
        {"planted": 1},
    ):
        answer = client.post("/v1/silences", json=silence(**wrong))
        assert answer.status_code == 422, wrong
        assert "planted" not in answer.json()["detail"] or "planted" in wrong
    assert client.get("/v1/silences").json()["silences"] == []


def test_a_silence_can_be_tried_changed_and_ended(
    client: TestClient, database: Database, make_event: Make
) -> None:
    one = make_event()
    store(database, one, make_event(gpu="GPU-2", node="other"))
    tried = client.post("/v1/silences:preview", json={"matchers": silence()["matchers"]}).json()
    assert (tried["open"], tried["last_7_days"]) == (1, 1)
    made = client.post("/v1/silences", json=silence())
    path = made.headers["location"]
    assert made.json()["created_by"] == "local"
    assert client.get(f"/v1/alerts/{one.alert_id}").json()["silenced_by"] == made.json()["id"]
    tag = made.headers["etag"]
    changed = client.put(path, json=silence(comment="longer"), headers={"if-match": tag})
    assert changed.json()["comment"] == "longer"
    assert client.put(path, json=silence(), headers={"if-match": tag}).status_code == 412
    assert client.delete(path).json()["state"] == "expired"
    assert client.get(f"/v1/alerts/{one.alert_id}").json()["silenced_by"] is None
    assert client.get("/v1/silences").json()["silences"] == []
    assert len(client.get("/v1/silences?expired=true").json()["silences"]) == 1


def test_a_route_can_be_tried_and_the_explanation_names_the_rule(
    client: TestClient, database: Database, make_event: Make
) -> None:
    one = make_event()
    store(database, one)
    path = f"/v1/alerts/{one.alert_id}/notifications/explain"
    said = {e["endpoint"]: e["code"] for e in client.get(path).json()["endpoints"]}
    assert said == {"noc": "due", "pager": "below_severity"}
    tree = {
        "endpoints": ["noc"],
        "routes": [{"name": "hot", "match": ["family=thermal_fault"], "endpoints": ["pager"]}],
    }
    put = client.put("/v1/routes", json=tree, headers={"if-match": '"0"'})
    assert put.status_code == 200, put.text
    assert put.json()["version"] == 1
    assert client.get("/v1/routes").json()["tree"]["routes"][0]["name"] == "hot"
    said = {e["endpoint"]: e["code"] for e in client.get(path).json()["endpoints"]}
    assert said == {"noc": "not_routed", "pager": "below_severity"}
    trial = client.post(
        "/v1/routes:test", json={"labels": {"family": "thermal_fault"}, "severity": "critical"}
    ).json()
    assert [e["endpoint"] for e in trial["endpoints"]] == ["pager"]
    client.post("/v1/silences", json=silence())
    assert client.put("/v1/routes", json={"endpoints": ["noc"]}).json()["version"] == 2
    (noc, _) = client.get(path).json()["endpoints"]
    assert noc["code"] == "silenced"
    assert client.put("/v1/routes", json=tree, headers={"if-match": '"1"'}).status_code == 412


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoints": ["nobody"]},
        {"match": ["node=~("]},
        {"match": [1]},
        {"unknown": 1},
        {"continue": "yes"},
        {"remind_every_seconds": -1},
        {"group_by": "colour"},
        {"routes": [[]]},
    ],
)
def test_a_tree_that_cannot_work_is_refused(client: TestClient, wrong: dict[str, Any]) -> None:
    assert client.put("/v1/routes", json=wrong).status_code == 422
    assert client.get("/v1/routes").json()["tree"] is None


def test_groups_gather_what_one_rack_says_at_once(
    client: TestClient, database: Database, make_event: Make
) -> None:
    store(
        database,
        *(make_event(gpu=f"G{n}", node=f"n{n}", labels={"rack": "r1"}) for n in range(4)),
        make_event(gpu="alone", node="n9"),
    )
    groups = client.get("/v1/groups").json()["groups"]
    assert {(g["by"], len(g["alert_ids"])) for g in groups} == {("rack", 4), ("node", 1)}
    rack = next(g for g in groups if g["by"] == "rack")
    assert client.get(f"/v1/groups/{rack['id']}").json() == rack
    assert client.get("/v1/groups/none").status_code == 404


def test_keys_may_do_what_their_scopes_say_and_no_more(
    database: Database, make_event: Make
) -> None:
    one = make_event(labels={"user": "planted", "rack": "r1"})
    store(database, one)
    app = app_of(database, api_key=KEY)
    admin = client_of(app, authorization=f"Bearer {KEY}")
    keys = {
        role: admin.post("/v1/api-keys", json={"name": role, "role": role}).json()
        for role in ("viewer", "operator", "admin")
    }
    path = f"/v1/alerts/{one.alert_id}"
    allowed = {}
    for role, made in keys.items():
        client = client_of(app, authorization=f"Bearer {made['key']}")
        allowed[role] = [
            client.get("/v1/alerts").status_code,
            client.post(f"{path}/comments", json={"comment": role}).status_code,
            client.post("/v1/silences", json=silence()).status_code,
            client.put("/v1/routes", json={}).status_code,
            client.get("/v1/audit").status_code,
        ]
    assert allowed == {
        "viewer": [200, 403, 403, 403, 403],
        "operator": [200, 200, 201, 403, 403],
        "admin": [200, 200, 201, 200, 200],
    }
    viewer = client_of(app, authorization=f"Bearer {keys['viewer']['key']}")
    for address in (path, "/v1/alerts", f"{path}/timeline", "/v1/events"):
        assert "planted" not in viewer.get(address).text, address
        assert "r1" in viewer.get(address).text
    assert "planted" in admin.get(path).text
    timeline = admin.get(f"{path}/timeline").json()["events"]
    assert {"operator", "admin"} <= {e["actor"] for e in timeline}
    revoked = admin.delete(f"/v1/api-keys/{keys['viewer']['id']}")
    assert revoked.status_code == 204
    assert viewer.get("/v1/alerts").status_code == 401
    assert client_of(app).get("/v1/alerts").status_code == 401
    assert client_of(app, **{"x-api-key": "fsk_wrong"}).get("/v1/alerts").status_code == 401


def test_a_key_that_has_ended_opens_nothing(database: Database) -> None:
    app = app_of(database, api_key=KEY)
    admin = client_of(app, authorization=f"Bearer {KEY}")
    body = {"name": "short", "expires_at": "2025-09-24T03:20:04Z"}
    key = admin.post("/v1/api-keys", json=body).json()["key"]
    assert client_of(app, authorization=f"Bearer {key}").get("/v1/alerts").status_code == 200
    app.state.keys._now_ms = lambda: START_MS + 2000
    app.state.key_ring.forget()
    assert client_of(app, authorization=f"Bearer {key}").get("/v1/alerts").status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 201),
        ({"origin": "http://localhost"}, 201),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 201),
    ],
)
def test_a_page_of_another_site_changes_nothing(
    client: TestClient, headers: dict[str, str], status: int
) -> None:
    assert client.post("/v1/silences", json=silence(), headers=headers).status_code == status
    assert client.get("/v1/silences", headers=headers).status_code == 200


def test_too_large_and_too_many_are_refused(database: Database) -> None:
    client = client_of(app_of(database, requests_per_second=1.0))
    large = client.post("/v1/silences", content=b"x" * 1_048_577)
    assert large.status_code == 413
    answers = [client.get("/v1/silences") for _ in range(7)]
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["retry-after"]) >= 1
    with database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(audit)).scalar() == 0


def test_problems_and_answers_carry_the_id_of_the_request(client: TestClient) -> None:
    answer = client.get("/v1/alerts/planted")
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
