"""Signs of life that this service sends while all of it works: the dead man's switch.

Whoever gets them raises the alarm when they stop. So they are withheld as soon as anything that an
alert needs on its way to people does not work: reading, the store, delivery.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson
import structlog

from api.beatsettings import PingSettings
from api.endpoints import secret_bytes
from api.metrics import ApiMetrics
from api.notify.base import OutboundRequest
from api.notify.retry import Verdict, classify_status
from api.notify.sender import Sender, SendError
from api.notify.signing import signed_headers
from schemas.alert import rfc3339
from schemas.errors import ForeshockError

__all__ = ["Health", "Ping"]

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "foreshock.ping")
_log = structlog.get_logger(__name__)


class Health(Protocol):
    """Says whether all of the pipeline works."""

    def __call__(self) -> Mapping[str, Any]:  # JSON
        """Return ``ok`` and, where not, ``detail``."""
        ...


class Ping:
    """Sends one sign of life again and again.

    Parameters
    ----------
    settings
        Where to, how often, what it needs.
    sender
        What opens connections.
    health
        Whether all of the pipeline works.
    in_time
        Tells whether heartbeats of these names have come in time.
    metrics
        Counters.
    now_ms
        Clock, unix milliseconds.
    """

    def __init__(
        self,
        settings: PingSettings,
        *,
        sender: Sender,
        health: Health,
        in_time: Callable[[tuple[str, ...], int], bool],
        metrics: ApiMetrics,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._settings = settings
        self._sender = sender
        self._health = health
        self._in_time = in_time
        self._metrics = metrics
        self._now_ms = now_ms
        self._last: str | None = None

    def run(self, stop: threading.Event) -> None:
        """Send at once and then at its pace until ``stop`` is set."""
        while not stop.is_set():
            begun = time.monotonic()
            self.once()
            stop.wait(max(0.0, self._settings.every_seconds - (time.monotonic() - begun)))

    def once(self) -> str:
        """Send one if all works; return ``sent``, ``failed`` or ``withheld``."""
        why = self._why_not()
        result = "withheld"
        if why is None:
            why = self._send()
            result = "sent" if why is None else "failed"
        self._metrics.pings.labels(name=self._settings.name, result=result).inc()
        if result != self._last:
            if result == "sent":
                _log.info("ping_sent", name=self._settings.name)
            else:
                _log.error(f"ping_{result}", name=self._settings.name, reason=why)
        self._last = result
        return result

    def _why_not(self) -> str | None:
        try:
            report = self._health()
            if not report["ok"]:
                return str(report["detail"])
            needs = self._settings.needs
            if needs and not self._in_time(needs, self._now_ms()):
                return "a heartbeat that it needs has not come in time"
        except ForeshockError as exc:
            return str(exc)
        except Exception as exc:  # noqa: BLE001 - what cannot be asked does not work
            return type(exc).__name__
        return None

    def _send(self) -> str | None:
        settings = self._settings
        try:
            answer = self._sender.send(self._request(), allow_private=settings.allow_private)
        except SendError as exc:
            return str(exc)
        if classify_status(answer.status) is not Verdict.DELIVERED:
            return f"the receiver answered HTTP {answer.status}"
        return None

    def _request(self) -> OutboundRequest:
        now_ms, settings = self._now_ms(), self._settings
        body = orjson.dumps(
            {
                "type": "foreshock.alive",
                "timestamp": rfc3339(now_ms),
                "data": {"name": settings.name, "every_seconds": settings.every_seconds},
            }
        )
        headers = {"content-type": "application/json", "user-agent": "foreshock"}
        if settings.secret is not None:
            key = secret_bytes(settings.secret.get_secret_value())
            ping_id = str(uuid.uuid5(_NAMESPACE, f"{settings.name}/{now_ms}"))
            headers |= signed_headers((key,), ping_id, now_ms // 1000, body)
        return OutboundRequest(
            url=settings.url.get_secret_value(),
            headers=headers,
            body=body,
            ca_file=settings.ca_file,
        )
