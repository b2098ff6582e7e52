"""A receiver that talks slowly or not at all gets its time, and no more."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry

from api.database import Database
from api.ledger import Ledger, Route
from api.metrics import ApiMetrics
from api.notify.base import Notice, OutboundRequest
from api.notify.outbox import Outbox
from api.notify.retry import Outcome, Verdict
from api.notify.sender import HttpSender, SendError
from api.notify.worker import DeliveryWorker, Target
from api.settings import DeliverySettings
from api.tables import delivery
from schemas.alert import Severity

TOTAL_SECONDS = 0.6
SECRET_PATH = "planted-secret-path"

Talk = Callable[[socket.socket, threading.Event], None]


@contextmanager
def _server(talk: Talk) -> Iterator[int]:
    """A real TCP server; each connection is handed to ``talk`` in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                talk(connection, ended)
            except OSError:
                return  # the client has hung up, as it should

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join()
        for thread in threads:
            thread.join()


def _drip_headers(connection: socket.socket, ended: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not ended.wait(0.05):
        connection.sendall(b"x-more: and more\r\n")


def _drip_body(connection: socket.socket, ended: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while not ended.wait(0.05):
        connection.sendall(b"x")


def _say_nothing(_connection: socket.socket, ended: threading.Event) -> None:
    ended.wait()


def _talk_nonsense(connection: socket.socket, _ended: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def _send(port: int, scheme: str = "http") -> None:
    sender = HttpSender(connect_seconds=5, total_seconds=TOTAL_SECONDS)
    url = f"{scheme}://127.0.0.1:{port}/{SECRET_PATH}"
    sender.send(OutboundRequest(url=url, headers={}, body=b"{}"), allow_private=True)


@pytest.mark.parametrize("talk", [_drip_headers, _drip_body, _say_nothing])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_attempt_ends_in_its_time_however_the_receiver_talks(talk: Talk, scheme: str) -> None:
    """Over https the silence falls into the handshake."""
    if scheme == "https":
        talk = _say_nothing
    with _server(talk) as port:
        begun = time.monotonic()
        with pytest.raises(SendError) as caught:
            _send(port, scheme)
        assert TOTAL_SECONDS * 0.9 < time.monotonic() - begun < TOTAL_SECONDS + 2
    assert not caught.value.permanent


@pytest.mark.parametrize("talk", [_talk_nonsense, _drip_headers])
def test_nothing_of_an_address_but_its_host_is_in_an_error_or_a_log(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with _server(talk) as port, pytest.raises(SendError) as caught:
        _send(port)
    for text in (str(caught.value), repr(caught.value), caplog.text):
        assert SECRET_PATH not in text
    assert "127.0.0.1" in str(caught.value)
    assert caught.value.__cause__ is None, "a chained error would bring the address along"


def test_an_untrusted_certificate_says_so(tls_material: Any) -> None:
    def handshake(connection: socket.socket, _ended: threading.Event) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls_material.configure_cert(context)
        with context.wrap_socket(connection, server_side=True):
            pass

    with _server(handshake) as port, pytest.raises(SendError, match="not trusted") as caught:
        _send(port, "https")
    assert caught.value.permanent


def test_receivers_that_drip_do_not_take_the_places_of_healthy_ones(
    tmp_path: Any,
    bus: Any,
    receiver: Any,
    make_event: Any,
    wait_until: Any,
    endpoint_for: Any,
    running_api: Any,
) -> None:
    """Five bad endpoints with twenty notices each, one good one."""
    settings = DeliverySettings(
        schedule_seconds=(0, 1, 60), total_seconds=2.0, connect_seconds=2.0, lease_seconds=0.5
    )
    with _server(_drip_headers) as port:
        bad = tuple(
            endpoint_for(receiver, name=f"bad-{n}", url=f"http://127.0.0.1:{port}/{SECRET_PATH}")
            for n in range(5)
        )
        endpoints = (*bad, endpoint_for(receiver, name="good"))
        with running_api(tmp_path, bus, endpoints=endpoints, delivery=settings) as running:
            running.send(*(make_event(gpu=f"GPU-{n}", severity="critical") for n in range(20)))
            wait_until(lambda: len(set(receiver.ids)) == 20, 30)
            failed = wait_until(
                lambda: [d for d in running.deliveries(endpoint="bad-0") if d["attempts"]]
            )
    assert "Timeout" in failed[0]["last_error"]
    assert SECRET_PATH not in str(failed)


class _Hanging:
    """A way to a receiver that knows no deadline, as a name server that never answers."""

    rate = None
    digests = False

    def __init__(self) -> None:
        self.release = threading.Event()

    def deliver(self, notice: Notice) -> Outcome:
        self.release.wait(30)
        return Outcome(verdict=Verdict.DELIVERED, status=200)


def test_an_attempt_that_hangs_outside_of_any_deadline_frees_its_place(
    sqlite_database: Database, make_event: Any, wait_until: Any
) -> None:
    with sqlite_database.write() as connection:
        route = Route(endpoint="noc", severity_min=Severity.WARNING)
        Ledger([route]).record(connection, make_event(), 0)
    hanging = _Hanging()
    worker = DeliveryWorker(
        outbox=Outbox(sqlite_database, owner="a", lease_seconds=60),
        targets={"noc": Target(channel=hanging)},
        settings=DeliverySettings(total_seconds=0.2, schedule_seconds=(0, 60)),
        metrics=ApiMetrics(CollectorRegistry()),
        slack_seconds=0.1,
    )
    stop = threading.Event()
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()

    def given_up() -> Any:
        with sqlite_database.read() as connection:
            query = sa.select(delivery.c.state, delivery.c.last_error)
            row = connection.execute(query).one()
            return row.last_error and row

    try:
        row = wait_until(given_up)
    finally:
        stop.set()
        hanging.release.set()
        worker.wake()
        thread.join(10)
    assert (row.state, row.last_error) == ("pending", "the attempt did not end in time")
