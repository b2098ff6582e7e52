"""A webhook receiver of the demo's own: takes deliveries and checks their signatures."""

from __future__ import annotations

import base64
import hmac
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import orjson

__all__ = ["Delivery", "WebhookReceiver", "verify_signature"]

_MAX_BODY = 65_536
#: Standard Webhooks: refuse time stamps that are more than five minutes off, against replays.
_TOLERANCE_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One POST that arrived.

    Parameters
    ----------
    webhook_id
        The same for every attempt of one notification; empty if there was none.
    verified
        Whether the signature belongs to the body and the shared secret.
    type
        ``alert.firing`` or ``alert.resolved``; empty if the body is not understood.
    severity, summary
        Of the alert.
    received
        Unix seconds of arrival.
    """

    webhook_id: str
    verified: bool
    type: str
    severity: str
    summary: str
    received: float


def verify_signature(key: bytes, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Check a Standard Webhooks 1.0.0 signature; written apart from the code that signs.

    Parameters
    ----------
    key
        The shared secret, decoded.
    headers
        Lower-case names.
    body
        As it arrived.
    now
        Unix seconds; a time stamp more than 300 s away is refused.
    """
    webhook_id = headers.get("webhook-id", "")
    stamp = headers.get("webhook-timestamp", "")
    if not webhook_id or not stamp.isdecimal() or abs(now - int(stamp)) > _TOLERANCE_SECONDS:
        return False
    mac = hmac.new(key, f"{webhook_id}.{stamp}.".encode() + body, "sha256").digest()
    expected = base64.b64encode(mac)
    given = (word.partition(",") for word in headers.get("webhook-signature", "").split())
    return any(
        version == "v1" and hmac.compare_digest(expected, signature.encode())
        for version, _, signature in given
    )


class WebhookReceiver:
    """Listens on a free port of 127.0.0.1 while the context is open.

    Parameters
    ----------
    clock
        Unix seconds, for the age of signatures.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock
        self._arrived: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="demo-receiver", daemon=True
        )

    @property
    def secret(self) -> str:
        """Shared secret in the form of Standard Webhooks."""
        return "whsec_" + base64.b64encode(self._key).decode()

    @property
    def url(self) -> str:
        """Where to POST."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(5.0)
        self._server.server_close()

    def take(self) -> list[Delivery]:
        """Return what has arrived since the last call."""
        taken = []
        while True:
            try:
                taken.append(self._arrived.get_nowait())
            except queue.Empty:
                return taken

    def accept(self, headers: Mapping[str, str], body: bytes) -> Delivery:
        """Judge one request and keep it; header names are lower case."""
        now = self._clock()
        alert = _alert_of(body)
        delivery = Delivery(
            webhook_id=headers.get("webhook-id", ""),
            verified=verify_signature(self._key, headers, body, now),
            type=_word(alert.get("type")),
            severity=_word(_data(alert).get("severity")),
            summary=_word(_data(alert).get("summary")),
            received=now,
        )
        self._arrived.put(delivery)
        return delivery

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        accept = self.accept

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = self.headers.get("content-length", "")
                if not length.isdecimal() or int(length) > _MAX_BODY:
                    self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                    return
                body = self.rfile.read(int(length))
                names = {name.lower(): value for name, value in self.headers.items()}
                good = accept(names, body).verified
                self._answer(HTTPStatus.NO_CONTENT if good else HTTPStatus.UNAUTHORIZED)

            def _answer(self, status: HTTPStatus) -> None:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
                """Say nothing: what arrived is shown by the view."""

        return Handler


def _alert_of(body: bytes) -> dict[str, Any]:  # decoded JSON
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _data(alert: dict[str, Any]) -> dict[str, Any]:
    data = alert.get("data")
    return data if isinstance(data, dict) else {}


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""
