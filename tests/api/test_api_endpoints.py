"""Receivers made over REST: kept, changed, told, tried, and their secrets never shown."""

from __future__ import annotations

import base64
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
import structlog
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry
from standardwebhooks.webhooks import Webhook

from api.app import create_app
from api.database import Database
from api.endpointediting import Editor
from api.endpointstore import EndpointStore
from api.feed import Feed
from api.health import Readiness
from api.metrics import ApiMetrics
from api.notify.egress import Allowed, RefusedAddressError, check_addresses, resolve
from api.notify.failing import FailureWatch
from api.notify.paces import save_pace
from api.notify.pacing import Pace
from api.notify.sender import HttpSender
from api.roster import Roster
from api.routing import Routing
from api.security.keys import KeyStore
from api.security.principal import Role
from api.security.secretbox import SecretBox
from api.settings import ApiSettings, DeliverySettings, EndpointSettings
from api.tables import audit, endpoint, idempotency

NOW_MS = 1_758_684_003_007
HOUR_MS = 3_600_000
PATH = "very-secret-path"
URL = f"https://hooks.example.org/{PATH}"
KEY = "settings-key-of-some-length"


def resolver(host: str, _port: int) -> list[str]:
    """Names as a public DNS has them; no request leaves this machine."""
    known = {"hooks.example.org": "93.184.216.34", "inside.example.org": "10.1.2.3"}
    if host in known:
        return [known[host]]
    if host.replace(".", "").isdecimal():
        return [host]
    raise OSError(f"no {host}")


class Api:
    """The application over a store, with a clock that the test moves."""

    def __init__(
        self,
        database: Database,
        box: SecretBox,
        fixed: Any = (),
        resolving: Any = resolver,
        **settings: Any,
    ) -> None:
        self.now_ms = NOW_MS
        self.routing = Routing()
        self.roster = Roster(
            database,
            EndpointStore(box),
            fixed=fixed,
            sender=HttpSender(connect_seconds=2, total_seconds=2),
            delivery=DeliverySettings(),
            routing=self.routing,
        )
        self.roster.start(self.now_ms)
        app = create_app(
            ApiSettings(endpoints=fixed, **settings),
            database,
            metrics=ApiMetrics(CollectorRegistry()),
            feed=Feed(),
            readiness=Readiness(database, {}),
            routing=self.routing,
            roster=self.roster,
            box=box,
            now_ms=lambda: self.now_ms,
        )
        app.state.endpoint_editor = Editor(
            database, self.roster, allowed=Allowed(), resolver=resolving
        )
        self.client = TestClient(app, base_url="http://localhost")

    def make(self, **changes: Any) -> dict[str, Any]:
        body = {"name": "noc", "type": "discord", "url": URL} | changes
        answer = self.client.post("/v1/endpoints", json=body)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture
def box() -> SecretBox:
    return SecretBox(secrets.token_bytes(32))


@pytest.fixture
def rest(database: Database, box: SecretBox) -> Api:
    return Api(database, box)


def test_what_was_made_is_shown_without_its_secrets(rest: Api) -> None:
    made = rest.make(timezone="Asia/Shanghai", severity_min="info")
    assert made["url"] == "hooks.example.org/****"
    answer = rest.client.get("/v1/endpoints/noc")
    assert answer.headers["etag"] == '"1"'
    assert {**answer.json(), "new_secret": None} == made
    listed = rest.client.get("/v1/endpoints")
    assert listed.json()["endpoints"] == [answer.json()]
    assert not made["read_only"]
    assert made["timezone"] == "Asia/Shanghai"
    assert PATH not in answer.text + listed.text


def test_a_webhook_without_a_secret_gets_one_that_is_shown_once(rest: Api) -> None:
    made = rest.make(type="webhook")
    assert made["new_secret"].startswith("whsec_")
    assert made["secret"] == "****"
    shown = rest.client.get("/v1/endpoints/noc").text + rest.client.get("/v1/audit").text
    assert made["new_secret"] not in shown


def test_everything_may_be_changed_and_nobody_overwrites_what_they_have_not_seen(
    rest: Api,
) -> None:
    rest.make()
    client = rest.client
    changed = client.patch("/v1/endpoints/noc", json={"language": "zh-CN", "keyword": "gpu"})
    assert changed.json()["language"] == "zh-CN"
    assert changed.headers["etag"] == '"2"'
    late = client.patch("/v1/endpoints/noc", json={}, headers={"if-match": '"1"'})
    assert late.status_code == 412
    client.patch("/v1/endpoints/noc", json={"keyword": None})
    assert client.get("/v1/endpoints/noc").json()["keyword"] is None
    replaced = client.put(
        "/v1/endpoints/noc",
        json={"type": "teams", "url": URL},
        headers={"if-match": '"3"'},
    )
    assert (replaced.json()["type"], replaced.json()["language"]) == ("teams", "en")
    assert client.delete("/v1/endpoints/noc", headers={"if-match": '"1"'}).status_code == 412
    assert client.delete("/v1/endpoints/noc").status_code == 204
    assert client.get("/v1/endpoints/noc").status_code == 404
    assert client.patch("/v1/endpoints/noc", json={}).status_code == 404


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"url": None}, "body/url"),
    ({"url": f"ftp://hooks.example.org/{PATH}"}, "body/url"),
    ({"url": f"https://user:{PATH}@hooks.example.org/"}, "body/url"),
    ({"url": f"http://127.0.0.1:9/{PATH}"}, "body/url"),
    ({"url": f"http://169.254.169.254/{PATH}"}, "body/url"),
    ({"url": f"https://inside.example.org/{PATH}"}, "body/url"),
    ({"url": f"https://hooks.example.org:22/{PATH}"}, "body/url"),
    ({"url": f"https://unknown.example.org/{PATH}"}, "body/url"),
    ({"url": f"https://[::1/{PATH}"}, "body/url"),
    ({"type": "webhook", "secret": PATH}, "body/secret"),
    ({"timezone": f"Mars/{PATH}"}, "body/timezone"),
    ({"type": "telegram", "url": None, "channel": "1"}, "body/type"),
    ({"rate_per_minute": 0}, "body/rate_per_minute"),
    ({"name": "Not A Name"}, "body/name"),
    ({"allow_private": True}, "body/allow_private"),
    ({"secret_file": "/etc/passwd"}, "body/secret_file"),
    ({"ca_file": "/etc/passwd"}, "body/ca_file"),
    (
        {"type": "email", "url": None, "mail": {"server": "10.1.2.3", "sender": "a@b"}},
        "body/mail/recipients",
    ),
    (
        {
            "type": "email",
            "url": None,
            "mail": {"server": "10.1.2.3", "sender": "a@b", "recipients": ["c@d"]},
        },
        "body/mail",
    ),
]


def test_what_cannot_be_used_is_refused_by_its_place_and_never_repeated(
    sqlite_database: Database, box: SecretBox
) -> None:
    client = Api(sqlite_database, box).client
    for changes, pointer in REFUSED:
        body = {"name": "noc", "type": "discord", "url": URL} | changes
        answer = client.post("/v1/endpoints", json=body)
        assert answer.status_code == 422, (changes, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
        assert PATH not in answer.text
    assert client.get("/v1/endpoints").json()["endpoints"] == []


INNER = (
    "localhost 127.1 2130706433 0x7f000001 0 0177.0.0.1 100.100.100.200 [::1] [::ffff:127.0.0.1] "
    "[64:ff9b::7f00:1] [fe80::1] [fd00:ec2::254]"
)


def test_however_an_inner_address_is_written_it_is_refused_at_once(
    sqlite_database: Database, box: SecretBox
) -> None:
    """By the real resolution of names."""
    rest = Api(sqlite_database, box, resolving=resolve)
    for host in INNER.split():
        body = {"name": "noc", "type": "discord", "url": f"http://{host}:8080/x"}
        answer = rest.client.post("/v1/endpoints", json=body)
        assert answer.status_code == 422, host
        assert answer.json()["errors"][0]["pointer"] == "body/url"


def test_two_who_make_the_same_at_once_make_one(rest: Api) -> None:
    body = {"name": "noc", "type": "discord", "url": URL}
    with ThreadPoolExecutor(4) as pool:
        codes = list(
            pool.map(lambda _: rest.client.post("/v1/endpoints", json=body).status_code, range(4))
        )
    assert sorted(codes) == [201, 409, 409, 409]


def test_one_that_is_switched_off_may_stand_in_the_routing_tree(rest: Api) -> None:
    rest.make(enabled=False)
    assert rest.client.put("/v1/routes", json={"endpoints": ["noc"]}).status_code == 200
    assert rest.client.put("/v1/routes", json={"endpoints": ["other"]}).status_code == 422


def test_a_change_to_a_forbidden_address_is_refused(rest: Api) -> None:
    rest.make()
    answer = rest.client.patch("/v1/endpoints/noc", json={"url": f"http://10.0.0.1/{PATH}"})
    assert answer.status_code == 422
    assert "api.delivery.allow_hosts" in answer.json()["detail"]


def test_what_stands_in_the_settings_file_is_read_only(
    database: Database, box: SecretBox, secret: str
) -> None:
    fixed = (EndpointSettings(name="noc", url=URL, secret=secret),)
    rest = Api(database, box, fixed)
    shown = rest.client.get("/v1/endpoints/noc").json()
    assert shown["read_only"]
    for method, path, body in (
        ("PUT", "", {"type": "discord", "url": URL}),
        ("PATCH", "", {}),
        ("DELETE", "", None),
        ("POST", "/disable", None),
        ("POST", "/enable", None),
        ("POST", "/rotate-secret", {}),
    ):
        answer = rest.client.request(method, f"/v1/endpoints/noc{path}", json=body)
        assert answer.status_code == 409, (method, path)
        assert "settings file" in answer.json()["detail"]
    taken = rest.client.post("/v1/endpoints", json={"name": "noc", "type": "discord", "url": URL})
    assert taken.status_code == 409


def test_only_administrators_change_receivers(database: Database, box: SecretBox) -> None:
    rest = Api(database, box, api_key=KEY)
    admin = {"x-api-key": KEY}
    with database.write() as connection:
        made = KeyStore(database).create(connection, name="op", role=Role.OPERATOR, actor="test")
    operator = {"x-api-key": made.key}
    body = {"name": "noc", "type": "discord", "url": URL}
    client = rest.client
    assert client.post("/v1/endpoints", json=body, headers=operator).status_code == 403
    assert client.post("/v1/endpoints", json=body, headers=admin).status_code == 201
    for path in ("disable", "test", "rotate-secret", "replay-failed"):
        answer = client.post(f"/v1/endpoints/noc/{path}", headers=operator)
        assert answer.status_code == 403, path
    assert client.get("/v1/endpoints/noc", headers=operator).status_code == 200


def test_mail_addresses_are_shown_to_those_who_may_see_people(
    database: Database, box: SecretBox
) -> None:
    rest = Api(database, box, api_key=KEY)
    mail = {"server": "hooks.example.org", "sender": "gpu@example.org", "recipients": ["a@b.org"]}
    body = {"name": "post", "type": "email", "mail": mail}
    admin = {"x-api-key": KEY}
    made = rest.client.post("/v1/endpoints", json=body, headers=admin).json()
    assert made["mail"]["recipients"] == ["a@b.org"]
    with database.write() as connection:
        key = KeyStore(database).create(connection, name="v", role=Role.VIEWER, actor="test").key
    seen = rest.client.get("/v1/endpoints/post", headers={"x-api-key": key})
    assert "a@b.org" not in seen.text
    assert seen.json()["mail"]["server"] == "hooks.example.org"


def test_a_request_that_is_sent_twice_makes_one_and_shows_the_same_secret(
    rest: Api, database: Database
) -> None:
    body = {"name": "noc", "type": "webhook", "url": URL}
    headers = {"idempotency-key": "once"}
    first = rest.client.post("/v1/endpoints", json=body, headers=headers)
    again = rest.client.post("/v1/endpoints", json=body, headers=headers)
    assert again.json() == first.json()
    assert again.status_code == 201
    with database.read() as connection:
        kept = connection.execute(sa.select(idempotency)).mappings().all()
    assert first.json()["new_secret"].encode() not in b"".join(bytes(r["body"]) for r in kept)


def test_secrets_lie_sealed_in_the_store_and_stand_in_no_entry_of_the_audit_log(
    rest: Api, database: Database
) -> None:
    token = "token-that-nobody-sees"
    rest.make(type="slack", url=None, token=token, channel="C1")
    rest.client.patch("/v1/endpoints/noc", json={"token": token + "-2"})
    rest.client.post("/v1/endpoints/noc/disable")
    with database.read() as connection:
        rows = [str(dict(r)) for r in connection.execute(sa.select(endpoint)).mappings()]
        entries = connection.execute(sa.select(audit).order_by(audit.c.id)).mappings().all()
    assert token not in "".join(rows) + "".join(str(dict(e)) for e in entries)
    assert [e["action"] for e in entries] == [
        "endpoint.create",
        "endpoint.change",
        "endpoint.disable",
    ]
    assert {e["actor"] for e in entries} == {"local"}
    assert orjson.loads(entries[1]["detail"])["fields"] == ["token"]


def test_a_lost_key_switches_off_what_it_sealed_and_says_so(rest: Api, database: Database) -> None:
    rest.make()
    rest.make(name="other")
    with structlog.testing.capture_logs() as logs:
        later = Api(database, SecretBox(secrets.token_bytes(32)))
    assert {entry["event"] for entry in logs} == {"endpoint_unusable"}
    shown = later.client.get("/v1/endpoints/noc").json()
    assert "sealed with another key" in shown["problem"]
    assert later.routing.names() == frozenset()
    tried = later.client.post("/v1/endpoints/noc/test")
    assert tried.status_code == 409
    assert "sealed with another key" in tried.json()["detail"]
    changed = later.client.patch("/v1/endpoints/noc", json={"language": "zh-CN"})
    assert changed.status_code == 409
    mended = later.client.put("/v1/endpoints/noc", json={"type": "discord", "url": URL})
    assert mended.json()["problem"] is None
    assert later.routing.names() == {"noc"}


def test_a_key_is_replaced_by_putting_the_new_one_first(
    database: Database,
) -> None:
    old, new = secrets.token_bytes(32), secrets.token_bytes(32)
    Api(database, SecretBox(old)).make()
    both = Api(database, SecretBox(new, [old]))
    assert both.routing.names() == {"noc"}
    # What was opened was sealed anew: the old key may go.
    assert Api(database, SecretBox(new)).routing.names() == {"noc"}


def test_keys_come_from_a_file_or_the_environment_and_errors_repeat_none(tmp_path: Path) -> None:
    words = [base64.b64encode(secrets.token_bytes(32)).decode() for _ in range(2)]
    path = tmp_path / "keys"
    path.write_text("\n".join(words))
    sealed = SecretBox.from_text(words[1], "api.secret_key").seal("hush", "here")
    assert SecretBox.from_file(path, create=False).open(sealed, "here") == "hush"
    for wrong in ("", "junk-that-is-secret", base64.b64encode(bytes(31)).decode()):
        with pytest.raises(Exception, match="base64 of 32 bytes") as caught:
            SecretBox.from_text(wrong, "api.secret_key")
        assert "junk" not in str(caught.value)


def test_one_that_the_routing_tree_names_is_not_removed(rest: Api) -> None:
    rest.make()
    tree = {"endpoints": [], "routes": [{"endpoints": ["noc"]}]}
    assert rest.client.put("/v1/routes", json=tree).status_code == 200
    answer = rest.client.delete("/v1/endpoints/noc")
    assert answer.status_code == 409
    assert "routing tree names" in answer.json()["detail"]


def test_lists_go_on_by_name(rest: Api) -> None:
    for name in ("c", "a", "b"):
        rest.make(name=name)
    first = rest.client.get("/v1/endpoints?limit=2")
    assert [e["name"] for e in first.json()["endpoints"]] == ["a", "b"]
    assert 'rel="next"' in first.headers["link"]
    rest_of = rest.client.get(f"/v1/endpoints?cursor={first.json()['next_cursor']}").json()
    assert [e["name"] for e in rest_of["endpoints"]] == ["c"]
    assert rest_of["next_cursor"] is None
    assert rest.client.get("/v1/endpoints?cursor=%C3%A9").status_code == 422


def test_a_rotated_secret_signs_beside_the_former_one_until_the_overlap_ends(
    rest: Api,
) -> None:
    first = rest.make(type="webhook")["new_secret"]
    answer = rest.client.post("/v1/endpoints/noc/rotate-secret", json={"overlap_hours": 2}).json()
    assert answer["secret_overlap_until"] == "2025-09-24T05:20:03.007Z"
    settings = rest.roster.get("noc")
    assert settings is not None
    assert settings.settings is not None
    assert settings.settings.signing_secret() == answer["new_secret"] != first
    previous = settings.settings.secret_previous
    assert previous is not None
    assert previous.get_secret_value() == first
    rest.roster.refresh(NOW_MS + 2 * HOUR_MS)
    after = rest.roster.get("noc")
    assert after is not None
    assert after.settings is not None
    assert after.settings.secret_previous is None
    made_by_hand = rest.client.post("/v1/endpoints/noc/rotate-secret", json={"secret": first})
    assert made_by_hand.json()["new_secret"] is None
    rest.make(name="chat")
    assert rest.client.post("/v1/endpoints/chat/rotate-secret", json={}).status_code == 409


def test_a_change_of_another_process_is_seen_at_the_next_look(
    rest: Api, database: Database, box: SecretBox
) -> None:
    Api(database, box).make(name="elsewhere")
    assert rest.client.get("/v1/endpoints/elsewhere").status_code == 404
    assert rest.roster.refresh(NOW_MS)
    assert rest.client.get("/v1/endpoints/elsewhere").status_code == 200
    assert not rest.roster.refresh(NOW_MS)


@pytest.fixture
def live(tmp_path: Path, bus: Any, store_url: str | None, running_api: Any, fast: Any) -> Any:
    """A running api that may speak to loopback, over each kind of store."""
    delivery = fast.model_copy(update={"allow_cidrs": ("127.0.0.0/8",)})
    with running_api(tmp_path, bus, database=store_url, delivery=delivery) as running:
        yield running


def test_from_making_to_removing_a_receiver_is_told_what_is_meant_for_it(
    live: Any, receiver: Any, make_event: Any, wait_until: Any
) -> None:
    """No restart anywhere: the queue follows every change."""
    client = live.client
    body = {"name": "noc", "type": "webhook", "url": receiver.url}
    made = client.post("/v1/endpoints", json=body).json()
    tried = client.post("/v1/endpoints/noc/test").json()
    assert (tried["delivered"], tried["status_class"], tried["error"]) == (True, "2xx", None)
    rotated = client.post("/v1/endpoints/noc/rotate-secret", json={}).json()
    live.send(make_event())
    wait_until(lambda: len(receiver.received) == 2)
    test, real = receiver.received
    Webhook(made["new_secret"]).verify(test.body, test.headers)
    for key in (made["new_secret"], rotated["new_secret"]):
        Webhook(key).verify(real.body, real.headers)

    receiver.script.append(410)
    live.send(make_event(gpu="GPU-2"))
    (dead,) = wait_until(lambda: client.get("/v1/dead-letters").json()["deliveries"])
    wait_until(lambda: not client.get("/v1/endpoints/noc").json()["enabled"])
    switched = client.get("/v1/audit?object_id=noc").json()["entries"][0]
    assert (switched["actor"], switched["action"]) == ("delivery", "endpoint.disable")
    assert client.post("/v1/endpoints/noc/enable").status_code == 200
    detail = client.get(f"/v1/deliveries/{dead['id']}").json()
    assert [(a["number"], a["status"]) for a in detail["log"]] == [(1, 410)]
    assert client.post("/v1/dead-letters:replay", json={}).json() == {"queued": 1}
    wait_until(lambda: len(receiver.received) == 4)
    assert receiver.received[3].headers["foreshock-replay"] == "true"
    assert receiver.ids[3] == receiver.ids[2]
    wait_until(lambda: live.deliveries(state="done", endpoint="noc")[0]["id"] == dead["id"])
    again = client.post(f"/v1/deliveries/{dead['id']}/replay")
    assert again.status_code == 200
    wait_until(lambda: len(receiver.received) == 5)
    assert client.post("/v1/endpoints/noc/replay-failed").json() == {"queued": 0}
    listed = client.get("/v1/endpoints/noc/deliveries").json()["deliveries"]
    assert len(listed) == 2

    client.post("/v1/endpoints/noc/disable")
    live.send(make_event(gpu="GPU-3"))
    wait_until(lambda: len(live.alerts()) == 3)
    assert len(client.get("/v1/endpoints/noc/deliveries").json()["deliveries"]) == 2
    assert client.post("/v1/endpoints/noc/enable").json()["enabled"]
    assert client.delete("/v1/endpoints/noc").status_code == 204
    assert client.post("/v1/deliveries/999999/replay").status_code == 404


def test_a_test_message_tells_what_the_receiver_said_but_no_secret(
    live: Any, receiver: Any
) -> None:
    body = {"name": "noc", "type": "webhook", "url": receiver.url}
    live.client.post("/v1/endpoints", json=body)
    receiver.script.append(403)
    answer = live.client.post("/v1/endpoints/noc/test")
    assert answer.json()["status_class"] == "4xx"
    assert answer.json()["error"] == "the receiver answered HTTP 403"
    assert PATH not in answer.text


def test_what_waits_for_a_receiver_that_is_removed_is_cancelled(
    live: Any, receiver: Any, make_event: Any, wait_until: Any
) -> None:
    receiver.script.extend([500] * 4)
    client = live.client
    client.post("/v1/endpoints", json={"name": "noc", "type": "webhook", "url": receiver.url})
    live.send(make_event())
    wait_until(lambda: receiver.received)
    client.delete("/v1/endpoints/noc")
    (cancelled,) = wait_until(lambda: live.deliveries(state="cancelled"))
    assert "deleted" in cancelled["last_error"]


def test_what_is_said_of_a_receiver_that_fails_ends_when_it_is_removed(
    database: Database, box: SecretBox, make_event: Any
) -> None:
    rest = Api(database, box)
    rest.make()
    rest.make(name="spare")
    watch = FailureWatch(database, rest.roster.everybody, 300, rest.roster.meant)
    with database.write_beside() as connection:
        for name in ("noc", "spare"):
            failing = Pace(tokens_ms=0, failing_since_ms=NOW_MS - 400_000)
            save_pace(connection, name, failing)
    watch.look(NOW_MS)
    assert len(open_alerts(rest)) == 2
    rest.client.delete("/v1/endpoints/noc")
    watch.look(NOW_MS + 1000)
    watch.look(NOW_MS + 2000)
    (left,) = open_alerts(rest)
    assert "Endpoint spare" in left["summary"]
    (over,) = rest.client.get("/v1/alerts?state=resolved").json()["alerts"]
    assert over["end_reason"] == "entity_removed"
    # One that says itself that it is gone is still missed by everybody.
    rest.roster.switch_off("spare", NOW_MS)
    watch.look(NOW_MS + 3000)
    assert len(open_alerts(rest)) == 1
    rest.client.post("/v1/endpoints/spare/enable")
    rest.client.post("/v1/endpoints/spare/disable")
    watch.look(NOW_MS + 4000)
    assert open_alerts(rest) == []


def open_alerts(rest: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rest.client.get("/v1/alerts?state=open").json()["alerts"]
    return found


def test_what_is_allowed_never_reaches_a_metadata_service() -> None:
    allowed = Allowed.of(["169.254.169.254", "meta.lan"], ["0.0.0.0/0", "::/0"])
    for address in (
        "169.254.169.254",
        "fd00:ec2::254",
        "100.100.100.200",
        "::ffff:169.254.169.254",
    ):
        with pytest.raises(RefusedAddressError, match="metadata"):
            check_addresses("meta.lan", [address], allow_private=False, allowed=allowed)
    assert check_addresses("a.lan", ["10.0.0.1"], allow_private=False, allowed=allowed)
    with pytest.raises(RefusedAddressError, match="private"):
        # Every address is judged, not only the first.
        check_addresses(
            "b.lan",
            ["10.0.0.1", "192.168.0.1"],
            allow_private=False,
            allowed=Allowed.of([], ["10.0.0.0/8"]),
        )


def test_no_planted_secret_leaves_by_any_door(
    live: Any, receiver: Any, make_event: Any, wait_until: Any, tmp_path: Path, caplog: Any
) -> None:
    """Made, refused, changed, tried, failing, rotated: not in an answer, a log, the store."""
    planted = ["very-secret-path", "planted-token", "whsec_cGxhbnRlZC1zZWNyZXQtb2YtMjQtYnl0ZXM="]
    client, answers = live.client, []
    hook = {"name": "noc", "type": "webhook", "url": receiver.url, "secret": planted[2]}
    chat = {"name": "chat", "type": "telegram", "token": planted[1], "channel": "1"}
    chat["url"] = receiver.url
    with caplog.at_level(logging.DEBUG), structlog.testing.capture_logs() as logs:
        receiver.script.extend([500, 302, "close"])
        for method, path, body in (
            ("POST", "", hook),
            ("POST", "", hook),
            ("POST", "", chat),
            ("POST", "", chat | {"name": "x", "url": f"http://10.0.0.1/{planted[0]}"}),
            ("POST", "", hook | {"name": "x", "secret": planted[1], "token": 7}),
            ("PATCH", "/chat", {"token": planted[1], "zone": planted[0]}),
            ("POST", "/noc/test", None),
            ("POST", "/noc/test", None),
            ("POST", "/chat/test", None),
            ("POST", "/noc/rotate-secret", {"secret": planted[0]}),
        ):
            answers.append(client.request(method, f"/v1/endpoints{path}", json=body).text)
        receiver.script.extend([403, 403, "close", 500])
        live.send(make_event(severity="critical"))
        wait_until(lambda: len(live.deliveries()) == 2)
        wait_until(lambda: not live.deliveries(state="leased") and len(receiver.received) > 4)
    doors = ("endpoints", "deliveries", "dead-letters", "audit", "events", "routes")
    answers += [client.get(f"/v1/{door}").text for door in doors]
    answers += [client.get(path).text for path in ("/metrics", "/readyz", "/", "/openapi.json")]
    shown = "".join(answers) + str(logs) + caplog.text
    stored = b"".join(p.read_bytes() for p in (tmp_path / "api").rglob("*") if p.is_file())
    for word in planted:
        assert word not in shown
        assert word.encode() not in stored


def test_the_service_runs_on_with_another_key_and_takes_up_what_waited_when_the_key_is_back(
    tmp_path: Path, bus: Any, running_api: Any, receiver: Any, make_event: Any, wait_until: Any
) -> None:
    keys = [base64.b64encode(secrets.token_bytes(32)).decode() for _ in range(2)]
    slow = DeliverySettings(schedule_seconds=(0, 0.2, 0.2), allow_cidrs=("127.0.0.0/8",))
    receiver.script.append((503, {"retry-after": "1"}))
    with running_api(tmp_path, bus, secret_key=keys[0], delivery=slow) as running:
        body = {"name": "noc", "type": "webhook", "url": receiver.url}
        assert running.client.post("/v1/endpoints", json=body).status_code == 201
        running.send(make_event())
        wait_until(lambda: receiver.received)
    assert not (tmp_path / "api" / "secret.key").exists()
    told = len(receiver.received)
    with running_api(tmp_path, bus, secret_key=keys[1], delivery=slow) as running:
        (shown,) = running.client.get("/v1/endpoints").json()["endpoints"]
        assert "another key" in shown["problem"]
        assert running.client.get("/readyz").status_code == 200
        assert running.deliveries(state="cancelled") == []
    assert len(receiver.received) == told
    with running_api(tmp_path, bus, secret_key=f"{keys[1]} {keys[0]}", delivery=slow) as running:
        wait_until(lambda: running.deliveries(state="done"))
        assert running.client.get("/v1/endpoints/noc").json()["problem"] is None


def test_the_key_that_is_made_is_for_its_owner_alone(
    tmp_path: Path, bus: Any, running_api: Any
) -> None:
    with running_api(tmp_path, bus):
        assert (tmp_path / "api" / "secret.key").stat().st_mode & 0o777 == 0o600
