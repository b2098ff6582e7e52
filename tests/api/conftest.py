"""Alert events, a receiver that misbehaves on purpose, and a running api."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog
import trustme

from api.database import Database
from api.service import ApiService
from api.settings import ApiSettings, DeliverySettings, EndpointSettings, LifecycleSettings
from bus.memory import MemoryBus
from schemas.alert import (
    AlertEvent,
    DetectorRef,
    Evidence,
    Subject,
    alert_id_of,
    fingerprint_of,
    rfc3339,
)
from schemas.codec import alert_headers, encode
from schemas.topics import ALERTS

START_MS = 1_758_684_003_007
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


def _make_event(
    *,
    seq: int = 1,
    state: str = "firing",
    severity: str = "warning",
    gpu: str = "GPU-1",
    node: str = "node-1",
    started_ms: int = START_MS,
    **changes: Any,
) -> AlertEvent:
    """One alert event of a GPU that is too hot; ``changes`` replace any field."""
    subject = Subject(scope="gpu", node=node, gpu_uuid=gpu, gpu_index=1)
    fingerprint = fingerprint_of("thermal_fault", "peer_outlier", subject)
    observed_ms = started_ms + seq * 1000
    fields: dict[str, Any] = {
        "alert_id": alert_id_of(fingerprint, started_ms),
        "fingerprint": fingerprint,
        "seq": seq,
        "state": state,
        "family": "thermal_fault",
        "kind": "peer_outlier",
        "severity": severity,
        "subject": subject,
        "started_at": rfc3339(started_ms),
        "observed_at": rfc3339(observed_ms),
        "ended_at": rfc3339(observed_ms) if state == "resolved" else None,
        "end_reason": "recovered" if state == "resolved" else None,
        "score": 0.8,
        "summary": f"{node} {gpu} runs 13 °C hotter than its 7 peers <script>",
        "evidence": (
            Evidence(
                metric="temperature_celsius",
                value=87.0,
                unit="°C",
                expected_high=78.0,
                peers=74.0,
                window_seconds=120.0,
            ),
            Evidence(metric="fan_speed_ratio", value=None, unit="ratio"),
        ),
        "likely_cause": "The cooler of this GPU.",
        "action": "check_cooling",
        "next_steps": ("Look at the fan.", "Drain the node."),
        "detector": DetectorRef(name="peer_outlier", version="1"),
    }
    return AlertEvent(**(fields | changes))


def _wait_until(condition: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Wait for a condition; its last value, or a failure after the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    pytest.fail(f"not within {seconds} s: {condition}")


@pytest.fixture(autouse=True, scope="session")
def _plain_tracebacks() -> None:
    """Rich's tracebacks with all locals take ten seconds where a whole application is local."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(
                colors=False, exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    )


@dataclass
class Received:
    """One request that reached the receiver."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float


@dataclass
class Receiver:
    """A real HTTP server; ``script`` holds its next answers, 200 when it is empty.

    An answer is a status, a (status, headers) pair, ``"close"`` (hang up) or a number of
    seconds as float (wait, then 200).
    """

    url: str
    received: list[Received] = field(default_factory=list)
    script: deque[Any] = field(default_factory=deque)

    @property
    def ids(self) -> list[str]:
        return [request.headers["webhook-id"] for request in self.received]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with _open_receiver() as found:
        yield found


@contextmanager
def _open_receiver() -> Iterator[Receiver]:
    found = Receiver(url="")
    release = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): text for name, text in self.headers.items()}
            answer = found.script.popleft() if found.script else 200
            found.received.append(Received(self.path, headers, body, time.monotonic()))
            if answer == "close":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if isinstance(answer, float):
                release.wait(answer)
                answer = 200
            status, extra = answer if isinstance(answer, tuple) else (answer, {})
            try:
                self.send_response(status)
                for name, text in extra.items():
                    self.send_header(name, text)
                self.send_header("content-length", "0")
                self.end_headers()
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}/hook/very-secret-path"
    try:
        yield found
    finally:
        release.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _endpoint_for(receiver: Receiver, **changes: Any) -> EndpointSettings:
    fields: dict[str, Any] = {
        "name": "noc",
        "url": receiver.url,
        "secret": SECRET,
        "allow_private": True,
    }
    return EndpointSettings(**(fields | changes))


#: The schedule of the product, a hundred times faster.
FAST = DeliverySettings(
    schedule_seconds=(0, 0.05, 0.3, 1.2, 3.0),
    permanent_retry_seconds=0.1,
    connect_seconds=2.0,
    total_seconds=2.0,
)


@dataclass
class Running:
    """An api that runs in a thread, and a client for it."""

    service: ApiService
    bus: MemoryBus
    client: httpx2.Client
    stop: threading.Event
    thread: threading.Thread
    failures: list[BaseException]

    def send(self, *events: AlertEvent) -> None:
        publisher = self.bus.publisher(client_id="test")
        for event in events:
            publisher.send(
                ALERTS.full_name(""),
                key=event.fingerprint.encode(),
                value=encode(event),
                headers=alert_headers(event),
            )
        assert publisher.flush(5.0) == 0
        publisher.close()

    def alerts(self, **params: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.get("/v1/alerts", params=params).json()["alerts"]
        return found

    def deliveries(self, **params: Any) -> list[dict[str, Any]]:
        answer = self.client.get("/v1/deliveries", params=params).json()
        found: list[dict[str, Any]] = answer["deliveries"]
        return found


@contextmanager
def _running_api(data_dir: Path, bus: MemoryBus, **settings: Any) -> Iterator[Running]:
    at_once = LifecycleSettings(settle_seconds=0)
    settings = {"port": 0, "delivery": FAST, "lifecycle": at_once} | settings
    service = ApiService(bus, ApiSettings(**settings), data_dir=data_dir)
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            service.run(stop)
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            failures.append(exc)

    thread = threading.Thread(target=run, name="api-under-test")
    thread.start()
    try:
        _wait_until(lambda: service.wait_until_listening(0.1) or failures)
        assert not failures, failures
        host, port = service.address or ("", 0)
        with httpx2.Client(base_url=f"http://{host}:{port}", trust_env=False) as client:
            yield Running(service, bus, client, stop, thread, failures)
    finally:
        stop.set()
        thread.join(15)
        assert not thread.is_alive(), "the api did not end"


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    memory = MemoryBus()
    yield memory
    memory.close()


@pytest.fixture
def api(tmp_path: Path, bus: MemoryBus) -> Iterator[Running]:
    with _running_api(tmp_path, bus) as running:
        yield running


def _migrate(url: str) -> None:
    Database.open(url, Path("/nonexistent")).close()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """What ``api.database`` says: both kinds of store, one after the other, each fresh."""
    if request.param == "sqlite":
        yield None
        return
    server = request.getfixturevalue("postgres")
    url = server.create_migrated(_migrate)
    yield url
    server.drop(url)


@pytest.fixture
def database(tmp_path: Path, store_url: str | None) -> Iterator[Database]:
    """A store of each kind."""
    found = Database.open(store_url, tmp_path)
    yield found
    found.close()


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[Database]:
    """A store for what only SQLite does."""
    found = Database.open(None, tmp_path)
    yield found
    found.close()


@pytest.fixture
def each_api(tmp_path: Path, bus: MemoryBus, store_url: str | None) -> Iterator[Running]:
    """A running api over each kind of store."""
    with _running_api(tmp_path, bus, database=store_url) as running:
        yield running


# Plain functions as fixtures: test files cannot import from here (import-mode=importlib).
@pytest.fixture(scope="session")
def make_event() -> Callable[..., AlertEvent]:
    return _make_event


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    return _wait_until


@pytest.fixture(scope="session")
def endpoint_for() -> Callable[..., EndpointSettings]:
    return _endpoint_for


@pytest.fixture(scope="session")
def running_api() -> Callable[..., Any]:
    return _running_api


@pytest.fixture(scope="session")
def open_receiver() -> Callable[..., Any]:
    return _open_receiver


@pytest.fixture(scope="session")
def secret() -> str:
    return SECRET


@pytest.fixture(scope="session")
def fast() -> DeliverySettings:
    return FAST


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """An authority of our own, for receivers that speak TLS."""
    return trustme.CA()


@pytest.fixture(scope="session")
def tls_material(authority: trustme.CA) -> Any:
    """A certificate for localhost and 127.0.0.1."""
    return authority.issue_cert("localhost", "127.0.0.1")


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path
