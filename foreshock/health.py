"""A small HTTP server with ``/healthz``, ``/readyz`` and ``/metrics`` for one service.

Standard library only: the node agent and the detector carry no web framework. Loopback by
default; elsewhere only with an API key. The Host header is checked, so that a web page cannot
read a loopback port through a name that it re-points (DNS rebinding): accepted are addresses,
``localhost``, this machine's own name, and any name from a client that has the key.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import orjson
import structlog
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from foreshock.service import Service
from schemas.errors import ConfigError

__all__ = ["HealthServer", "is_loopback", "require_key"]

_log = structlog.get_logger()


def is_loopback(host: str) -> bool:
    """Whether listening on ``host`` is reachable from this machine alone.

    Examples
    --------
    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "0.0.0.0", "::1", "gpu01")]
    [True, True, False, True, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def require_key(service: str, host: str, api_key: object) -> None:
    """Raise ConfigError if ``host`` is open to the network and there is no key."""
    if not is_loopback(host) and not api_key:
        raise ConfigError(
            f"{service}.host is {host}, open to the network, and {service}.api_key is not set. "
            "Set a key, or listen on 127.0.0.1."
        )


def _host_name(header: str) -> str:
    """Return the name in a Host header without its port, in lower case."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    name, _, _ = header.partition(":")
    return name.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Handler(BaseHTTPRequestHandler):
    """Answers one request; the subclass made by HealthServer binds the service."""

    service: ClassVar[Service]
    api_key: ClassVar[str | None]
    hosts: ClassVar[frozenset[str]]

    timeout = 5  # seconds; a client that sends nothing does not hold a thread
    server_version = "foreshock"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer GET, and HEAD without a body."""
        if not self._is_known_host():
            self._answer(421, b"unknown Host header; use the address, or send the API key\n")
        elif self.path == "/healthz":
            self._answer(200, b"ok\n")
        elif self.path == "/readyz":
            health = dict(self.service.health())
            body = orjson.dumps(health, default=str, option=orjson.OPT_APPEND_NEWLINE)
            self._answer(200 if health.get("ok") is True else 503, body, "application/json")
        elif self.path != "/metrics":
            self._answer(404, b"try /healthz, /readyz or /metrics\n")
        elif self.api_key is not None and not self._has_key():
            self._answer(401, b"send the API key as 'Authorization: Bearer KEY'\n")
        else:
            self._answer(200, generate_latest(self.service.registry), CONTENT_TYPE_LATEST)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _is_known_host(self) -> bool:
        name = _host_name(self.headers.get("Host", ""))
        # A name is what rebinding needs; a page cannot make a browser send a bare address.
        return name in self.hosts or _is_address(name) or self._has_key()

    def _has_key(self) -> bool:
        if self.api_key is None:
            return False
        given = self.headers.get("Authorization", "")
        # Constant time, so that a key cannot be guessed letter by letter.
        return hmac.compare_digest(given.encode(), f"Bearer {self.api_key}".encode())

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing: a probe a second is no news."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that hangs up is no fault of ours."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class HealthServer:
    """Serves one service's health in a thread of its own.

    Parameters
    ----------
    service
        Whose health and registry to show.
    host, port
        Address to listen on; port 0 takes a free one.
    api_key
        Key for ``/metrics``; required unless ``host`` is loopback.

    Raises
    ------
    ConfigError
        If the address is open to the network without a key, or cannot be listened on.
    """

    def __init__(
        self,
        service: Service,
        *,
        host: str,
        port: int,
        api_key: str | None = None,
    ) -> None:
        require_key(service.name, host, api_key)
        names = {host, "localhost", socket.gethostname()}
        handler = type(
            "_BoundHandler",
            (_Handler,),
            {
                "service": service,
                "api_key": api_key or None,
                "hosts": frozenset(name.lower() for name in names),
            },
        )
        self._closing = False
        server = _ServerV6 if ":" in host else _Server
        try:
            self._server = server((host, port), handler)
        except OSError as exc:
            raise ConfigError(
                f"The {service.name} cannot listen on {host} port {port} for its health: "
                f"{exc.strerror}. Set {service.name}.port to a free port."
            ) from exc
        self._thread = threading.Thread(
            target=self._serve,
            name=f"{service.name}-health",
            daemon=True,
        )
        self._thread.start()
        _log.info("health_listening", service=service.name, host=host, port=self.port)

    @property
    def port(self) -> int:
        """TCP port listened on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._closing = True
        # Wakes the thread, which waits for connections alone: it costs nothing while none comes.
        with contextlib.suppress(OSError), socket.create_connection(self._own_address(), 1.0):
            pass
        self._thread.join(timeout=2)
        self._server.server_close()

    def _serve(self) -> None:
        while not self._closing:
            self._server.handle_request()

    def _own_address(self) -> tuple[str, int]:
        """Return where this process reaches itself, also if it listens on every address."""
        host = str(self._server.server_address[0])
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), self.port  # noqa: S104
