"""The small health server: what it says, and to whom."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from foreshock.health import HealthServer
from schemas.errors import ConfigError


@pytest.fixture
def serve(service: Callable[..., Any]) -> Iterator[Callable[..., HealthServer]]:
    servers: list[HealthServer] = []

    def start(one: Any = None, **options: Any) -> HealthServer:
        where: dict[str, Any] = {"host": "127.0.0.1", "port": 0} | options
        servers.append(HealthServer(one or service(), **where))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def get(server: HealthServer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_live_service_is_healthy(serve: Callable[..., HealthServer]) -> None:
    assert get(serve(), "/healthz") == (200, b"ok\n")


@pytest.mark.parametrize(("ok", "status"), [(True, 200), (False, 503)])
def test_readiness_is_what_the_service_says(
    serve: Callable[..., HealthServer], service: Callable[..., Any], ok: bool, status: int
) -> None:
    answered, body = get(serve(service(ok=ok)), "/readyz")
    assert answered == status
    assert json.loads(body) == {"ok": ok, "detail": "as scripted"}


def test_metrics_are_those_of_the_service_alone(serve: Callable[..., HealthServer]) -> None:
    status, body = get(serve(), "/metrics")
    assert status == 200
    assert b"foreshock_scripted_total 1.0" in body
    assert b"python_info" not in body


def test_head_has_no_body_and_other_paths_are_not_found(serve: Callable[..., HealthServer]) -> None:
    server = serve()
    assert get(server, "/healthz", "HEAD") == (200, b"")
    assert get(server, "/")[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8601", ""])
def test_a_foreign_name_in_the_host_header_is_refused(
    serve: Callable[..., HealthServer], host: str
) -> None:
    """DNS rebinding: the page's own name points at loopback."""
    assert get(serve(), "/metrics", Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8601", "10.1.2.3:8601"])
def test_addresses_and_localhost_are_accepted(
    serve: Callable[..., HealthServer], host: str
) -> None:
    assert get(serve(), "/metrics", Host=host)[0] == 200


def test_an_open_address_without_a_key_is_refused(serve: Callable[..., HealthServer]) -> None:
    with pytest.raises(ConfigError, match=r"collector.host is 0.0.0.0.*collector.api_key"):
        serve(host="0.0.0.0")


def test_an_open_address_asks_for_the_key(serve: Callable[..., HealthServer]) -> None:
    server = serve(host="0.0.0.0", api_key="k" * 20)
    assert get(server, "/healthz")[0] == 200
    assert get(server, "/metrics")[0] == 401
    assert get(server, "/metrics", Authorization="Bearer wrong")[0] == 401
    key = {"Authorization": "Bearer " + "k" * 20}
    assert get(server, "/metrics", **key)[0] == 200
    assert get(server, "/metrics", Host="gpu01.cluster", **key)[0] == 200


def test_a_taken_port_is_named(serve: Callable[..., HealthServer]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}.*Set collector.port"):
            serve(port=port)
