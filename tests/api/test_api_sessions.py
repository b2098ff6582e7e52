"""Sessions of browsers: opened with a key, out of the reach of scripts and other sites."""

from __future__ import annotations

import hashlib
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
from api.metrics import ApiMetrics
from api.security.keys import KeyStore
from api.security.principal import Role
from api.security.sessions import COOKIE
from api.settings import ApiSettings
from api.tables import audit, idempotency, session

KEY = "settings-key-of-some-length"
NOW_MS = 1_758_684_003_007
HOME = {"origin": "http://localhost"}
HOUR_MS = 3_600_000


class Clock:
    now_ms = NOW_MS


def app_of(database: Database, clock: Clock, api_key: str = KEY) -> Any:
    return create_app(
        ApiSettings(api_key=api_key, session_hours=2),
        database,
        metrics=ApiMetrics(CollectorRegistry()),
        feed=Feed(),
        readiness=Readiness(database, {}),
        now_ms=lambda: clock.now_ms,
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def browser(database: Database, clock: Clock) -> Callable[..., TestClient]:
    """Opens browsers, each with cookies of its own."""
    app = app_of(database, clock)
    return lambda base_url="http://localhost": TestClient(app, base_url=base_url)


def make_key(database: Database, role: Role, **changes: Any) -> Any:
    with database.write() as connection:
        return KeyStore(database, lambda: NOW_MS).create(
            connection, name="li.wei", role=role, actor="test", **changes
        )


def log_in(client: TestClient, key: str = KEY) -> Any:
    return client.post("/v1/session", json={"key": key}, headers=HOME)


def test_a_browser_logs_in_with_a_key_and_out_again(
    browser: Callable[..., TestClient], database: Database
) -> None:
    client = browser()
    assert client.get("/v1/alerts").status_code == 401
    assert client.get("/v1/session").status_code == 401
    answer = log_in(client)
    assert answer.status_code == 201
    assert answer.json()["expires_at"] == "2025-09-24T05:20:03.007Z"
    cookie = answer.headers["set-cookie"].lower()
    for word in ("httponly", "samesite=lax", "path=/", "max-age=7200"):
        assert word in cookie
    assert "secure" not in cookie
    assert client.get("/v1/alerts").status_code == 200
    assert client.get("/v1/session").json()["name"] == "settings-key"
    token = client.cookies[COOKIE]
    with database.read() as connection:
        rows = str(connection.execute(sa.select(session)).mappings().all())
        said = str(connection.execute(sa.select(audit)).mappings().all())
    assert token not in rows + said
    assert KEY not in rows + said
    # A settings key may be a word that can be guessed from its hash.
    assert hashlib.sha256(KEY.encode()).hexdigest() not in rows + said
    assert client.delete("/v1/session", headers=HOME).status_code == 204
    assert COOKIE not in client.cookies
    client.cookies.set(COOKIE, token)
    assert client.get("/v1/alerts").status_code == 401
    with database.read() as connection:
        done = connection.execute(sa.select(audit.c.action).order_by(audit.c.id)).scalars().all()
    assert done == ["session.open", "session.end"]


def test_over_tls_the_cookie_stays_on_tls(browser: Callable[..., TestClient]) -> None:
    client = browser("https://localhost")
    headers = {"origin": "https://localhost"}
    answer = client.post("/v1/session", json={"key": KEY}, headers=headers)
    assert "secure" in answer.headers["set-cookie"].lower()


def test_a_change_by_session_needs_the_word_of_the_browser_that_our_page_asks(
    browser: Callable[..., TestClient],
) -> None:
    client = browser()
    log_in(client)
    body = {"matchers": [{"name": "node", "value": "n1"}], "comment": "x"}
    for headers, status in (
        ({}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 422),
        (HOME, 422),
    ):
        # 422: let through, and found without an end.
        answer = client.post("/v1/silences", json=body, headers=headers)
        assert answer.status_code == status, headers
    # A program with a key sends no Origin, and its cookies count for nothing.
    assert client.post("/v1/silences", json=body, headers={"x-api-key": KEY}).status_code == 422
    assert client.get("/v1/alerts", headers={"x-api-key": "wrong"}).status_code == 401


def test_a_session_ends_in_time(browser: Callable[..., TestClient], clock: Clock) -> None:
    client = browser()
    log_in(client)
    clock.now_ms += 2 * HOUR_MS - 1
    assert client.get("/v1/alerts").status_code == 200
    clock.now_ms += 1
    assert client.get("/v1/alerts").status_code == 401


def test_a_session_may_what_its_key_may_and_ends_with_it(
    browser: Callable[..., TestClient], database: Database
) -> None:
    viewer = make_key(database, Role.VIEWER)
    client = browser()
    assert log_in(client, viewer.key).json()["name"] == "li.wei"
    assert client.get("/v1/alerts").status_code == 200
    assert client.get("/v1/audit").status_code == 403
    answer = browser().delete(f"/v1/api-keys/{viewer.id}", headers={"x-api-key": KEY})
    assert answer.status_code == 204
    assert client.get("/v1/alerts").status_code == 401
    assert log_in(browser(), viewer.key).status_code == 401


def test_a_session_ends_when_the_settings_have_another_key(
    browser: Callable[..., TestClient], database: Database
) -> None:
    client = browser()
    log_in(client)
    later = TestClient(app_of(database, Clock(), api_key=KEY[::-1]), base_url="http://localhost")
    later.cookies.set(COOKIE, client.cookies[COOKIE])
    assert later.get("/v1/alerts").status_code == 401


def test_nothing_of_a_login_is_kept_for_its_repetition(
    browser: Callable[..., TestClient], database: Database
) -> None:
    client = browser()
    headers = HOME | {"idempotency-key": "once"}
    for _ in range(2):
        answer = client.post("/v1/session", json={"key": KEY}, headers=headers)
        assert "set-cookie" in answer.headers
    with database.read() as connection:
        assert connection.execute(sa.select(idempotency)).all() == []


def test_an_answer_to_a_login_shows_neither_key_nor_what_was_sent(
    browser: Callable[..., TestClient],
) -> None:
    client = browser()
    for body in ({"key": "planted-wrong-key"}, {"key": 7, "planted": 1}, {}):
        answer = client.post("/v1/session", json=body, headers=HOME)
        assert answer.status_code in {401, 422}
        assert "planted-wrong-key" not in answer.text
        assert "set-cookie" not in answer.headers


def test_wrong_keys_come_ten_a_minute_at_most(browser: Callable[..., TestClient]) -> None:
    client = browser()
    codes = [log_in(client, "wrong").status_code for _ in range(12)]
    assert codes[:10] == [401] * 10
    assert codes[-1] == 429
    assert log_in(client).status_code == 201
