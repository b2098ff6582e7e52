"""What every request passes before it reaches a route: host, origin, key, rate, headers.

Plain ASGI, because Starlette's BaseHTTPMiddleware would buffer event streams.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.metrics import ApiMetrics
from api.problems import PROBLEM_TYPE, problem_body
from api.rates import Rates
from api.rendering import problem_page, wants_page
from api.security.keys import KeyRing
from api.security.principal import LOCAL, Principal
from api.security.sessions import COOKIE, Sessions
from schemas.errors import DataDirError, StoreError

__all__ = ["OPEN_PATHS", "Guard"]

_log = structlog.get_logger(__name__)

#: Answered without a key: they say nothing about any GPU.
OPEN_PATHS = frozenset(
    {
        "/healthz",
        "/readyz",
        "/version",
        "/docs",
        "/openapi.json",
        "/static/foreshock.css",
        "/v1/session",  # where one logs in; it says nothing to nobody
    }
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


_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_NO_KEY = (
    "An API key is needed: send it as Authorization: Bearer or X-Api-Key; in a browser, any user "
    "name with the key as password."
)
_NO_ORIGIN = (
    "A change by session needs the header Origin, as browsers send it; programs send an API key."
)
#: Who asks for an open path without a key where one is needed: may nothing.
_NOBODY = Principal(name="nobody", scopes=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request goes no further."""

    status: int
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)


class Guard:
    """Checks host and key, adds security headers, counts answers.

    Parameters
    ----------
    app
        The application behind it.
    host_names
        Accepted Host headers, lower case, without port; ``*`` accepts any.
    keys
        Recognises keys.
    key_needed
        Whether requests must carry one.
    sessions
        Recognises the cookie of browsers that have logged in.
    rates
        How many requests each may send.
    metrics
        Counters.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host_names: frozenset[str],
        keys: KeyRing,
        key_needed: bool,
        sessions: Sessions,
        rates: Rates,
        metrics: ApiMetrics,
    ) -> None:
        self._app = app
        self._host_names = host_names
        self._keys = keys
        self._key_needed = key_needed
        self._sessions = sessions
        self._rates = rates
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        started = False
        request_id = secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
                headers.setdefault("x-request-id", request_id)
                self._metrics.requests.labels(status=str(message["status"])).inc()
            await send(message)

        headers = Headers(scope=scope)
        page = wants_page(headers.get("accept", ""))
        try:
            refusal = await self._refusal(scope, headers)
            if refusal is not None:
                await _refuse(guarded_send, refusal, request_id=request_id, page=page)
                return
            await self._app(scope, receive, guarded_send)
        except Exception as exc:
            # Here and not in a handler of the application: those answer outside of this guard.
            _log.exception("request_crashed", request_id=request_id, error=type(exc).__name__)
            if started:
                raise  # half an answer: the server must cut the line
            await _refuse(
                guarded_send,
                Refusal(status=500, detail="The server failed; its log says more."),
                request_id=request_id,
                page=page and not _is_rest(scope["path"]),
            )

    async def _refusal(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Return why the request goes no further, or None; notes who asks."""
        found = self._host_fault(headers) or _origin_fault(scope["method"], headers)
        if found is not None:
            return found
        given = _given_key(headers)
        token = None if given else _cookie(headers)
        session = None
        try:
            known = await run_in_threadpool(self._keys.find, given) if given else None
            if token is not None:
                session = await run_in_threadpool(self._sessions.find, token)
        except (StoreError, DataDirError) as exc:
            _log.error("key_not_checked", error=str(exc))
            return Refusal(status=503, detail="The alert store cannot answer now.")
        if session is not None:
            known, scope["state"]["session_expires_ms"] = session
            if scope["method"] not in _SAFE and not _says_same_origin(headers):
                return Refusal(status=403, detail=_NO_ORIGIN)
        who = known or (None if given or self._key_needed else LOCAL)
        if who is None and scope["path"] not in OPEN_PATHS:
            return Refusal(status=401, detail=_NO_KEY)
        scope["state"]["principal"] = who or _NOBODY
        client = scope.get("client") or ("",)
        wait_seconds = self._rates.take(known.name if known else client[0])
        if wait_seconds > 0:
            return Refusal(
                status=429,
                detail="Too many requests; the header Retry-After says when to go on.",
                headers={
                    "retry-after": str(max(1, round(wait_seconds))),
                    "ratelimit": self._rates.header(wait_seconds),
                },
            )
        return None

    def _host_fault(self, headers: Headers) -> Refusal | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not hosts[0].strip():
            return Refusal(status=400, detail="The request needs exactly one Host header.")
        if _HOST.fullmatch(hosts[0].strip()) is None:
            return Refusal(status=400, detail="The Host header is not a name with a port.")
        if "*" not in self._host_names and _host_name(hosts[0]) not in self._host_names:
            return Refusal(
                status=421,
                detail="This host name is not served here; add it to api.allowed_hosts.",
            )
        return None


def _origin_fault(method: str, headers: Headers) -> Refusal | None:
    """Refuse changes that a page of another site asks the browser for.

    A browser says where a page is from in ``Origin``; other clients send none.
    """
    if method in _SAFE:
        return None
    origin = headers.get("origin")
    foreign = origin is not None and _place_of(origin) != headers["host"].lower()
    if foreign or headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
        return Refusal(status=403, detail="A page of another site may not change anything here.")
    return None


def _place_of(origin: str) -> str | None:
    """Return name and port of an origin, lower case; None of what is no address at all."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _says_same_origin(headers: Headers) -> bool:
    """Tell whether the browser itself says that one of our own pages asks.

    A cookie travels by itself; so what it permits needs this word. That an Origin is not foreign
    was checked before.
    """
    return "origin" in headers or headers.get("sec-fetch-site") == "same-origin"


def _cookie(headers: Headers) -> str | None:
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE and value:
            return value
    return None


def _is_rest(path: str) -> bool:
    return path.startswith(("/v1/", "/api/v2/"))


# A name or a bracketed IPv6 address, and at most a port: nothing else may pass for a good name.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]/@]+)(:\d{1,5})?")


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


async def _refuse(send: Send, refusal: Refusal, *, request_id: str, page: bool) -> None:
    status, detail = refusal.status, refusal.detail
    if page:
        body, kind = problem_page(status, detail, request_id=request_id), "text/html; charset=utf-8"
    else:
        body, kind = problem_body(status, detail, request_id=request_id), PROBLEM_TYPE
    headers = {"content-type": kind, "content-length": str(len(body)), **refusal.headers}
    if status == 401:
        headers["www-authenticate"] = 'Basic realm="foreshock", charset="UTF-8"'
    raw = [(name.encode(), text.encode()) for name, text in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
