"""What every request passes before it reaches a route: host, key, security headers.

Plain ASGI, because Starlette's BaseHTTPMiddleware would buffer event streams.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

import structlog
from pydantic import SecretStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.metrics import ApiMetrics
from api.problems import PROBLEM_TYPE, problem_body
from api.rendering import problem_page, wants_page

__all__ = ["OPEN_PATHS", "Guard"]

_log = structlog.get_logger(__name__)

#: Answered without a key: they say nothing about any GPU.
OPEN_PATHS = frozenset(
    {"/healthz", "/readyz", "/version", "/docs", "/openapi.json", "/static/foreshock.css"}
)

#: No script at all, nothing from elsewhere, no framing, no forms.
_CSP = (
    "default-src 'none'; style-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SECURITY_HEADERS = {
    "content-security-policy": _CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Checks host and key, adds security headers, counts answers.

    Parameters
    ----------
    app
        The application behind it.
    host_names
        Accepted Host headers, lower case, without port; ``*`` accepts any.
    api_key
        Key that requests must carry, or None.
    metrics
        Counters.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host_names: frozenset[str],
        api_key: SecretStr | None,
        metrics: ApiMetrics,
    ) -> None:
        self._app = app
        self._host_names = host_names
        self._key = None if api_key is None else _digest(api_key.get_secret_value())
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        started = False

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
                self._metrics.requests.labels(status=str(message["status"])).inc()
            await send(message)

        headers = Headers(scope=scope)
        refusal = self._refusal(scope["path"], headers)
        if refusal is not None:
            await _refuse(guarded_send, *refusal, page=wants_page(headers.get("accept", "")))
            return
        try:
            await self._app(scope, receive, guarded_send)
        except Exception as exc:
            # Here and not in a handler of the application: those answer outside of this guard.
            request_id = secrets.token_hex(8)
            _log.exception("request_crashed", request_id=request_id, error=type(exc).__name__)
            if started:
                raise  # half an answer: the server must cut the line
            await _refuse(
                guarded_send,
                500,
                "The server failed; its log says more.",
                request_id=request_id,
                page=wants_page(headers.get("accept", "")) and not _is_rest(scope["path"]),
            )

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str] | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not hosts[0].strip():
            return 400, "The request needs exactly one Host header."
        if "*" not in self._host_names and _host_name(hosts[0]) not in self._host_names:
            return 421, "This host name is not served here; add it to api.allowed_hosts."
        if self._key is None or path in OPEN_PATHS:
            return None
        given = _given_key(headers)
        if given is None or not hmac.compare_digest(_digest(given), self._key):
            return 401, (
                "An API key is needed: send it as Authorization: Bearer or X-Api-Key; in a "
                "browser, any user name with the key as password."
            )
        return None


def _is_rest(path: str) -> bool:
    return path.startswith("/v1/")


def _digest(key: str) -> bytes:
    # Equal lengths, so that the comparison says nothing about the length of the key either.
    return hashlib.sha256(key.encode()).digest()


def _host_name(header: str) -> str:
    """Host header without port and brackets, lower case.

    Examples
    --------
    >>> [_host_name(text) for text in ("Localhost:8600", "[::1]:8600", "127.0.0.1")]
    ['localhost', '::1', '127.0.0.1']
    """
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def _given_key(headers: Headers) -> str | None:
    direct = headers.get("x-api-key")
    if direct is not None:
        return direct
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(value.strip(), validate=True).decode()
        except (binascii.Error, ValueError):
            return None
        return decoded.partition(":")[2]
    return None


async def _refuse(
    send: Send, status: int, detail: str, *, request_id: str = "", page: bool = False
) -> None:
    request_id = request_id or secrets.token_hex(8)
    if page:
        body, kind = problem_page(status, detail, request_id=request_id), "text/html; charset=utf-8"
    else:
        body, kind = problem_body(status, detail, request_id=request_id), PROBLEM_TYPE
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="foreshock", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
