"""Filters of alerts take what people see, and answer a typo with words. On both stores."""

from __future__ import annotations

from dataclasses import replace
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


@pytest.fixture
def client(database: Database, make_event: Any) -> TestClient:
    with database.write() as connection:
        for index, gpu in enumerate(("GPU-a", "GPU-b", "3")):
            event = make_event(gpu=gpu, node=f"n{index}")
            moved = replace(event, subject=replace(event.subject, gpu_index=index + 2))
            Ledger(()).record(connection, moved, 1000 + index)
    app = create_app(
        ApiSettings(),
        database,
        metrics=ApiMetrics(CollectorRegistry()),
        feed=Feed(),
        readiness=Readiness(database, {}),
    )
    return TestClient(app, base_url="http://localhost")


@pytest.mark.parametrize(
    ("gpu", "nodes"), [("3", ["n1"]), ("03", ["n1"]), ("GPU-a", ["n0"]), ("7", []), ("33333", [])]
)
def test_a_gpu_is_found_by_its_uuid_or_its_index(
    client: TestClient, gpu: str, nodes: list[str]
) -> None:
    found = client.get("/v1/alerts", params={"gpu": gpu}).json()["alerts"]
    assert [alert["subject"]["node"] for alert in found] == nodes


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"family": "thermal"}, ["'thermal'", "thermal_fault", "throttling"]),
        ({"kind": "outlier"}, ["'outlier'", "peer_outlier"]),
        ({"family": "throttling", "kind": "peer_outlier"}, ["throttling", "hw_thermal"]),
    ],
)
def test_a_word_that_is_no_family_or_kind_is_answered_with_the_right_ones(
    client: TestClient, wrong: dict[str, str], words: list[str]
) -> None:
    answer = client.get("/v1/alerts", params=wrong)
    assert answer.status_code == 422
    assert all(word in answer.json()["detail"] for word in words)
    body = {"action": "ack", "filter": wrong, "dry_run": True}
    assert client.post("/v1/alerts:bulk", json=body).status_code == 422


def test_a_kind_of_a_detector_of_ones_own_is_right_once_it_has_alerted(
    client: TestClient, database: Database, make_event: Any
) -> None:
    wanted = {"family": "thermal_fault", "kind": "wet_socks"}
    assert client.get("/v1/alerts", params=wanted).status_code == 422
    with database.write() as connection:
        Ledger(()).record(connection, replace(make_event(gpu="own"), kind="wet_socks"), 2000)
    assert len(client.get("/v1/alerts", params=wanted).json()["alerts"]) == 1


def test_a_bulk_filter_takes_the_index_too(client: TestClient) -> None:
    body = {"action": "ack", "filter": {"gpu": "2"}, "dry_run": True}
    assert client.post("/v1/alerts:bulk", json=body).json()["changed"] == 1
