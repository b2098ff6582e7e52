"""The application in process: what it answers when its parts fail."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from api.app import create_app
from api.database import Database
from api.feed import Feed
from api.health import STUCK_SECONDS, Readiness
from api.metrics import ApiMetrics
from api.settings import ApiSettings
from schemas.errors import StoreError


class _Loop:
    """A loop that came round at second 0 of the test's clock."""

    beat = 0.0
    problem: str | None = None


class _Failing:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


@pytest.fixture
def app(database: Database) -> Any:
    return create_app(
        ApiSettings(),
        database,
        metrics=ApiMetrics(CollectorRegistry()),
        feed=Feed(),
        readiness=Readiness(database, {"ingest": _Loop()}, clock=lambda: 1.0),
    )


def client_of(app: Any) -> TestClient:
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=True)


def test_a_crash_is_a_500_problem_without_its_text_and_with_every_header(app: Any) -> None:
    app.state.queries = _Failing(RuntimeError("planted secret"))
    answer = client_of(app).get("/v1/alerts")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "planted" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["request_id"]


def test_a_store_that_cannot_answer_is_a_503_problem(app: Any) -> None:
    app.state.queries = _Failing(StoreError("planted path"))
    answer = client_of(app).get("/v1/alerts")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert "planted" not in answer.text


def test_a_loop_that_hangs_makes_the_service_unready(database: Database) -> None:
    stuck = Readiness(database, {"ingest": _Loop()}, clock=lambda: STUCK_SECONDS + 1)
    report = stuck.report()
    assert report["ok"] is False
    assert "The ingest loop has not come round for 31 s." in report["detail"]


def test_a_loops_own_problem_is_shown(database: Database) -> None:
    loop = _Loop()
    loop.problem = "The disk is full."
    report = Readiness(database, {"ingest": loop}, clock=lambda: 1.0).report()
    assert report["detail"] == "The disk is full."
    assert report["checks"] == {
        "store": "ok",
        "schema": "ok",
        "ingest": "The disk is full.",
    }


def test_a_store_migrated_by_another_version_makes_the_service_unready(database: Database) -> None:
    with database.write() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0999'"))
    report = Readiness(database, {}, clock=lambda: 1.0).report()
    assert "has schema 0999" in report["detail"]


def test_other_methods_are_refused_as_problems(app: Any) -> None:
    answer = client_of(app).post("/v1/alerts", json={})
    assert answer.status_code == 405
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("text", ["'; DROP TABLE alert", "%", "\\", "\ud7ff", "é" * 200])
def test_any_search_text_is_only_text(app: Any, text: str) -> None:
    for name in ("q", "node", "gpu", "job"):
        answer = client_of(app).get("/v1/alerts", params={name: text})
        assert answer.status_code == 200, (name, text)
        assert answer.json() == {"alerts": [], "next_cursor": None}
