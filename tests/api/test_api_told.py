"""Silences, acknowledgements and explanations as a receiver sees them. On both stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.memory import MemoryBus
from schemas.alert import Subject, fingerprint_of


@pytest.fixture
def told(
    tmp_path: Path,
    bus: MemoryBus,
    receiver: Any,
    endpoint_for: Any,
    running_api: Any,
    store_url: str | None,
) -> Iterator[Any]:
    endpoints = (endpoint_for(receiver),)
    with running_api(tmp_path, bus, endpoints=endpoints, database=store_url) as running:
        yield running


def test_acceptance_6_a_silence_stops_what_is_queued_and_the_explanation_says_so(
    told: Any, receiver: Any, make_event: Any, wait_until: Any
) -> None:
    receiver.script.append((429, {"retry-after": "2"}))
    told.send(make_event())
    wait_until(lambda: told.deliveries(state="pending") and receiver.received)
    made = told.client.post(
        "/v1/silences",
        json={
            "matchers": [{"name": "node", "op": "=", "value": "node-1"}],
            "ends_at": "2199-01-01T00:00:00Z",
            "comment": "x",
        },
    )
    assert made.status_code == 422, "no silence lasts for ever"
    alert_id = told.alerts()[0]["alert_id"]
    told.client.post(f"/v1/alerts/{alert_id}/ack")
    (cancelled,) = wait_until(lambda: told.deliveries(state="cancelled"))
    assert cancelled["note"] == "local has acknowledged it."
    assert len(receiver.received) == 1
    path = f"/v1/alerts/{alert_id}/notifications/explain"
    (noc,) = told.client.get(path).json()["endpoints"]
    assert (noc["told"], noc["code"]) == (False, "acknowledged")


def test_people_hear_of_the_cause_and_of_its_symptom_only_afterwards(
    told: Any, receiver: Any, make_event: Any, wait_until: Any
) -> None:
    subject = Subject(scope="gpu", node="node-1", gpu_uuid="GPU-1")
    fingerprint = fingerprint_of("gpu_lost", "lost", subject)
    lost = {
        "family": "gpu_lost",
        "kind": "lost",
        "severity": "critical",
        "subject": subject,
        "fingerprint": fingerprint,
        "alert_id": fingerprint,
    }
    told.send(make_event(**lost), make_event())
    wait_until(lambda: len(told.deliveries(state="done")) == 1)
    held = wait_until(lambda: [d for d in told.deliveries(state="pending") if d["note"]])
    assert held[0]["note"] == f"Alert {fingerprint} explains it."
    assert b"gpu_lost" in receiver.received[0].body
    assert len(receiver.received) == 1
