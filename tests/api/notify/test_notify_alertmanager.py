"""Pushing into a real Alertmanager of Debian: again and again until the end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from prometheus_client import CollectorRegistry

from api.database import Database
from api.ledger import Ledger, Route
from api.metrics import ApiMetrics
from api.notify.base import Answer, OutboundRequest
from api.notify.channel import channel_of
from api.notify.outbox import Outbox
from api.notify.renewing import Renewal
from api.notify.retry import Decision, Outcome, Verdict
from api.notify.sender import HttpSender
from api.settings import DeliverySettings, EndpointSettings
from bus.memory import MemoryBus
from schemas.alert import AlertEvent, Severity

Make = Callable[..., AlertEvent]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


@contextmanager
def alertmanager(folder: Path, port: int) -> Iterator[httpx2.Client]:
    path = shutil.which("prometheus-alertmanager")
    if path is None:
        words = "there is no prometheus-alertmanager here (Debian's package of that name)"
        if os.environ.get("FORESHOCK_REQUIRE_SERVICES") == "1":
            pytest.fail(words)
        pytest.skip(words)
    config = folder / "alertmanager.yml"
    config.write_text("route:\n  receiver: none\nreceivers:\n- name: none\n")
    process = subprocess.Popen(
        [
            path,
            f"--config.file={config}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def is_ready(client: httpx2.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx2.HTTPError:
        return False


def known(client: httpx2.Client) -> dict[str, Any]:
    alerts = client.get("/api/v2/alerts").json()
    return {one["labels"]["gpu"]: one for one in alerts}


def test_acceptance_18_a_real_alertmanager_learns_again_after_its_restart_and_of_the_end(
    tmp_path: Path, bus: MemoryBus, running_api: Any, make_event: Make, wait_until: Any
) -> None:
    port = free_port()
    endpoint = EndpointSettings(
        name="am", type="alertmanager", url=f"http://127.0.0.1:{port}", allow_private=True
    )
    labels = {"rack.row": "7", "1st": "x", "rack": "r1"}
    with running_api(tmp_path, bus, endpoints=(endpoint,)) as running:
        renewal = Renewal(
            running.service.store,
            names=lambda: ["am"],
            channel=lambda _name: channel_of(
                endpoint,
                HttpSender(connect_seconds=2, total_seconds=5),
                DeliverySettings(),
                clock=lambda: time.time() + 60,  # a minute later
            ),
            metrics=ApiMetrics(CollectorRegistry()),
        )
        with alertmanager(tmp_path, port) as client:
            wait_until(lambda: is_ready(client), 60)
            running.send(make_event(labels=labels), make_event(gpu="GPU-2"))
            wait_until(lambda: set(known(client)) == {"GPU-1", "GPU-2"}, 60)
            first = known(client)["GPU-1"]
            assert first["labels"]["rack_row"] == "7"
            assert first["labels"]["_1st"] == "x"
        with alertmanager(tmp_path, port) as client:
            wait_until(lambda: is_ready(client), 60)
            assert known(client) == {}, "it keeps alerts in memory only"
            assert renewal.once("am") == 2
            assert set(known(client)) == {"GPU-1", "GPU-2"}
            again = known(client)["GPU-1"]
            assert again["fingerprint"] == first["fingerprint"]
            assert again["startsAt"] == first["startsAt"]
            assert again["endsAt"] > first["endsAt"], "renewed"
            running.send(make_event(seq=2, state="resolved", labels=labels))
            wait_until(lambda: set(known(client)) == {"GPU-2"}, 60)
            assert renewal.once("am") == 1, "what has ended is not pushed again"
            assert set(known(client)) == {"GPU-2"}


class _Racing:
    """A receiver during whose first answer an alert ends."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.bodies: list[list[dict[str, Any]]] = []
        self._meanwhile = meanwhile

    def send(self, request: OutboundRequest, *, allow_private: bool) -> Answer:
        assert allow_private
        self.bodies.append(orjson.loads(request.body))
        if len(self.bodies) == 1:
            self._meanwhile()
        return Answer(status=200, headers={}, body=b"")

    def close(self) -> None:
        pass


def test_what_ends_while_it_is_pushed_is_pushed_once_more_as_ended(
    database: Database, make_event: Make
) -> None:
    ledger = Ledger([Route(endpoint="am", severity_min=Severity.WARNING)])

    def record(*events: AlertEvent) -> None:
        with database.write() as connection:
            ledger.record_all(connection, events, 0)

    record(make_event(), make_event(gpu="GPU-2"), make_event(gpu="GPU-3"))
    box = Outbox(database, owner="a", lease_seconds=60)
    done = Outcome(verdict=Verdict.DELIVERED, status=200)
    for claim in box.claim({"am": 2}, 2, 0):
        box.finish(claim, done, Decision(done=True), started_ms=0, now_ms=0)
    racing = _Racing(lambda: record(make_event(seq=2, state="resolved")))
    endpoint = EndpointSettings(
        name="am", type="alertmanager", url="http://127.0.0.1:9093", allow_private=True
    )
    renewal = Renewal(
        database,
        names=lambda: ["am"],
        channel=lambda _name: channel_of(endpoint, racing, DeliverySettings()),
        metrics=ApiMetrics(CollectorRegistry()),
    )
    assert renewal.once("am") == 2, "GPU-3 was never told there"
    first, second = racing.bodies
    assert {one["labels"]["gpu"] for one in first} == {"GPU-1", "GPU-2"}
    (over,) = second
    assert over["labels"]["gpu"] == "GPU-1"
    assert over["endsAt"] == make_event(seq=2, state="resolved").ended_at
