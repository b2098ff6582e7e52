"""Notifications against a real receiver that misbehaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from standardwebhooks.webhooks import Webhook

from api.database import Database
from api.ledger import Ledger, Route
from api.settings import DeliverySettings, EndpointSettings
from bus.memory import MemoryBus
from schemas.alert import AlertEvent, Severity

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def told(
    tmp_path: Path,
    bus: MemoryBus,
    receiver: Any,
    endpoint_for: Callable[..., EndpointSettings],
    running_api: Callable[..., Any],
) -> Any:
    """An api that tells the receiver."""
    with running_api(tmp_path, bus, endpoints=(endpoint_for(receiver),)) as running:
        yield running


def test_an_independent_library_verifies_what_arrives(
    told: Any, receiver: Any, make_event: Any, wait_until: Any, secret: str
) -> None:
    told.send(make_event())
    wait_until(lambda: receiver.received)
    request = receiver.received[0]
    body = Webhook(secret).verify(request.body.decode(), request.headers)
    assert body["data"]["summary"] == make_event().summary
    assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "failure", [500, "close", (302, {"location": "http://127.0.0.1:9/"}), (404, {}), 3.0]
)
def test_a_failed_attempt_is_repeated_under_the_same_id(
    told: Any, receiver: Any, make_event: Any, wait_until: Any, failure: Any
) -> None:
    """Server error, hung-up line, redirect, not found, no answer in time."""
    receiver.script.append(failure)
    told.send(make_event())
    wait_until(lambda: len(receiver.received) == 2)
    assert len(set(receiver.ids)) == 1
    (delivery,) = wait_until(lambda: told.deliveries(state="done"))
    assert delivery["attempts"] == 2
    assert delivery["webhook_id"] == receiver.ids[0]


def test_retry_after_is_honoured(
    told: Any, receiver: Any, make_event: Any, wait_until: Any
) -> None:
    receiver.script.append((429, {"retry-after": "1"}))
    told.send(make_event())
    wait_until(lambda: len(receiver.received) == 2)
    first, second = receiver.received
    assert second.at - first.at >= 1.0


def test_after_the_schedule_a_delivery_is_dead_and_says_why(
    told: Any, receiver: Any, make_event: Any, wait_until: Any
) -> None:
    receiver.script.extend([500] * 5)
    told.send(make_event())
    (delivery,) = wait_until(lambda: told.deliveries(state="dead"))
    assert delivery["attempts"] == 5
    assert delivery["last_error"] == "the receiver answered HTTP 500"
    (endpoint,) = told.client.get("/v1/endpoints").json()["endpoints"]
    assert endpoint["deliveries"]["dead"] == 1
    line = 'foreshock_api_dead_deliveries_total{endpoint="noc"} 1.0'
    wait_until(lambda: line in told.client.get("/metrics").text)


def test_resolved_never_overtakes_firing(
    told: Any, receiver: Any, make_event: Any, wait_until: Any
) -> None:
    """The firing is held up by errors; another alert of the endpoint is not."""
    receiver.script.extend([500, 500])
    told.send(make_event())
    wait_until(lambda: receiver.received)
    # Once it was tried, the receiver may know of it: it is carried through, and its end follows.
    told.send(make_event(seq=2, state="resolved"), make_event(gpu="GPU-2"))
    wait_until(lambda: len(told.deliveries(state="done")) == 3)
    kinds = [orjson.loads(r.body) for r in receiver.received]
    first = [b["type"] for b in kinds if b["data"]["subject"]["gpu_uuid"] == "GPU-1"]
    assert first[-1] == "alert.resolved"
    assert set(first[:-1]) == {"alert.firing"}


def test_what_was_not_sent_before_a_stop_is_sent_after_the_start(
    tmp_path: Path,
    bus: MemoryBus,
    receiver: Any,
    make_event: Any,
    wait_until: Any,
    endpoint_for: Any,
    running_api: Any,
) -> None:
    receiver.script.append(
        (429, {"retry-after": "4"})
    )  # it waits until after the stop, on a busy machine too
    endpoints = (endpoint_for(receiver),)
    with running_api(tmp_path, bus, endpoints=endpoints) as running:
        running.send(make_event())
        wait_until(lambda: running.deliveries(state="pending") and receiver.received)
        running.send(make_event(seq=2, state="resolved"))
        wait_until(lambda: len(running.deliveries()) == 2)
    with running_api(tmp_path, bus, endpoints=endpoints) as running:
        wait_until(lambda: len(running.deliveries(state="done")) == 2)
    types = [orjson.loads(r.body)["type"] for r in receiver.received]
    assert types == ["alert.firing", "alert.firing", "alert.resolved"]
    assert len(set(receiver.ids)) == 2


def test_a_private_receiver_needs_permission(
    tmp_path: Path,
    bus: MemoryBus,
    receiver: Any,
    make_event: Any,
    wait_until: Any,
    endpoint_for: Any,
    running_api: Any,
) -> None:
    endpoints = (endpoint_for(receiver, allow_private=False),)
    with running_api(tmp_path, bus, endpoints=endpoints) as running:
        running.send(make_event())
        (delivery,) = wait_until(lambda: running.deliveries(state="dead"))
    assert "allow_private" in delivery["last_error"]
    assert receiver.received == []


def test_what_waits_for_an_endpoint_that_is_gone_is_cancelled(
    tmp_path: Path,
    bus: MemoryBus,
    receiver: Any,
    make_event: Any,
    wait_until: Any,
    endpoint_for: Any,
    running_api: Any,
) -> None:
    receiver.script.append((503, {"retry-after": "600"}))
    with running_api(tmp_path, bus, endpoints=(endpoint_for(receiver),)) as running:
        running.send(make_event())
        wait_until(lambda: [d for d in running.deliveries(state="pending") if d["attempts"]])
    with running_api(tmp_path, bus) as running:
        (delivery,) = running.deliveries()
    assert delivery["state"] == "cancelled"
    assert "no longer in the settings" in delivery["last_error"]


def test_no_secret_leaves_through_the_api_or_the_store(
    told: Any, receiver: Any, make_event: Any, wait_until: Any, tmp_path: Path, secret: str
) -> None:
    receiver.script.extend([500, "close"])
    told.send(make_event())
    wait_until(lambda: told.deliveries(state="done"))
    shown = "".join(
        told.client.get(path).text
        for path in ("/v1/endpoints", "/v1/deliveries", "/v1/events", "/metrics", "/readyz", "/")
    )
    stored = b"".join(p.read_bytes() for p in (tmp_path / "api").iterdir())
    for planted in (secret, secret[6:], "very-secret-path"):
        assert planted not in shown
        assert planted.encode() not in stored


def test_a_receiver_that_does_not_answer_does_not_hold_up_the_end(
    tmp_path: Path,
    bus: MemoryBus,
    receiver: Any,
    make_event: Any,
    wait_until: Any,
    endpoint_for: Any,
    running_api: Any,
) -> None:
    receiver.script.append(60.0)
    settings = {"endpoints": (endpoint_for(receiver),), "delivery": DeliverySettings()}
    with running_api(tmp_path, bus, **settings) as running:
        running.send(make_event())
        wait_until(lambda: receiver.received)
        begun = time.monotonic()
        running.stop.set()
        running.thread.join(10)
        assert not running.thread.is_alive()
        assert time.monotonic() - begun < 10


_SENDER = """
    import sys, threading
    from pathlib import Path
    from api.database import Database
    from api.notify.outbox import Outbox
    from api.notify.channel import target_of
    from api.notify.worker import DeliveryWorker
    from api.notify.sender import HttpSender
    from api.settings import DeliverySettings, EndpointSettings
    from api.metrics import ApiMetrics
    from prometheus_client import CollectorRegistry

    folder, url, secret = sys.argv[1:]
    database = Database.open(None, Path(folder))
    settings = DeliverySettings(lease_seconds=1.0)
    sender = HttpSender(connect_seconds=5, total_seconds=15)
    endpoint = EndpointSettings(name="noc", url=url, secret=secret, allow_private=True)
    DeliveryWorker(
        outbox=Outbox(database, owner="first", lease_seconds=1.0),
        targets={"noc": target_of(endpoint, sender, settings)},
        settings=settings,
        metrics=ApiMetrics(CollectorRegistry()),
    ).run(threading.Event())
"""


def test_a_process_killed_between_send_and_commit_repeats_under_the_same_id(
    tmp_path: Path,
    bus: MemoryBus,
    receiver: Any,
    make_event: Callable[..., AlertEvent],
    wait_until: Any,
    endpoint_for: Any,
    running_api: Any,
    secret: str,
) -> None:
    """A real process, really killed while the receiver holds its answer back."""
    receiver.script.append(30.0)
    database = Database.open(None, tmp_path)
    with database.write() as connection:
        route = Route(endpoint="noc", severity_min=Severity.WARNING)
        Ledger([route]).record(connection, make_event(), 0)
    database.close()
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_SENDER), str(tmp_path), receiver.url, secret],
        cwd=ROOT,
    )
    try:
        wait_until(lambda: receiver.received, 30)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    lost = receiver.ids[-1]
    with running_api(tmp_path, bus, endpoints=(endpoint_for(receiver),)) as running:
        (done,) = wait_until(lambda: running.deliveries(state="done"))
    assert receiver.ids == [lost, lost]
    assert done["webhook_id"] == lost
