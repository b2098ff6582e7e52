"""Bounds of request bodies, and requests that are sent twice.

Plain ASGI, between guard and routes: every route has both without saying so.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa
import structlog
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.database import Database, insert_of
from api.problems import PROBLEM_TYPE, problem_body
from api.security.secretbox import SecretBox
from api.tables import idempotency
from schemas.errors import ConfigError, DataDirError, StoreError

__all__ = ["MAX_BODY_BYTES", "Bodies", "SeenRequests"]

MAX_BODY_BYTES = 1_048_576
#: Where many events come at once.
_LONGER_BYTES = 8 * MAX_BODY_BYTES
#: Who has not answered by then has crashed; the next one may do it.
_UNDER_WAY_MS = 60_000
#: A login is done anew each time: its answer without the cookie helps nobody, and a hash of its
#: body would be one of a key that may be guessed.
_NEVER_KEPT = frozenset({"/v1/session"})
_KEY = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)
_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_REPLAYED = ("content-type", "etag", "location")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class _TooLargeError(Exception):
    """The body is longer than it may be."""


class SeenRequests:
    """Answers by Idempotency-Key, in the store, sealed: an answer may show a new secret once.

    Parameters
    ----------
    database
        The store.
    box
        Seals the bodies.
    now_ms
        Clock, unix milliseconds.
    """

    def __init__(
        self,
        database: Database,
        box: SecretBox,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._database = database
        self._box = box
        self._now_ms = now_ms

    def begin(self, principal: str, key: str, request_hash: str) -> _Answer | str | None:
        """Return the answer given before, ``other`` or ``busy``; None if this is the first."""
        now_ms = self._now_ms()
        row = {"principal": principal, "key": key, "request_hash": request_hash}
        with self._database.write_beside() as connection:
            new = insert_of(connection)(idempotency).values(**row, created_ms=now_ms)
            mine = connection.execute(
                new.on_conflict_do_nothing(index_elements=["principal", "key"]).returning(
                    idempotency.c.key
                )
            ).first()
            if mine is not None:
                return None
            found = connection.execute(_seen(principal, key)).mappings().one()
            if found["request_hash"] != request_hash:
                return "other"
            if found["status"] is not None:
                return self._answer(found, principal)
            if now_ms - found["created_ms"] < _UNDER_WAY_MS:
                return "busy"
            connection.execute(_update(principal, key).values(created_ms=now_ms))
            return None

    def finish(self, principal: str, key: str, answer: _Answer) -> None:
        """Remember an answer; one that says that the server failed is forgotten instead."""
        with self._database.write_beside() as connection:
            if answer.status >= 500 or answer.status == 429:
                connection.execute(
                    sa.delete(idempotency).where(
                        idempotency.c.principal == principal, idempotency.c.key == key
                    )
                )
                return
            sealed = self._box.seal(answer.body.decode("latin-1"), f"idempotency/{principal}")
            connection.execute(
                _update(principal, key).values(
                    status=answer.status,
                    headers=orjson.dumps(answer.headers).decode(),
                    body=sealed.encode(),
                )
            )

    def _answer(self, row: Mapping[Any, Any], principal: str) -> _Answer:  # a row is untyped
        plain = self._box.open(bytes(row["body"]).decode(), f"idempotency/{principal}")
        return _Answer(
            status=row["status"],
            headers=orjson.loads(row["headers"]) | {"idempotent-replayed": "true"},
            body=plain.encode("latin-1"),
        )


def _seen(principal: str, key: str) -> sa.Select[Any]:  # Any: the row of a whole table
    return sa.select(idempotency).where(
        idempotency.c.principal == principal, idempotency.c.key == key
    )


def _update(principal: str, key: str) -> sa.Update:
    return sa.update(idempotency).where(
        idempotency.c.principal == principal, idempotency.c.key == key
    )


class Bodies:
    """Reads bodies within bounds and answers repeated requests from what was answered first.

    Parameters
    ----------
    app
        The application behind it.
    seen
        Answers by key.
    longer
        Paths where bodies of eight times that length are taken.
    max_bytes
        Longest body elsewhere.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        seen: SeenRequests,
        longer: frozenset[str] = frozenset(),
        max_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._app = app
        self._seen = seen
        self._longer = longer
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] not in _CHANGING:
            await self._app(scope, receive, send)
            return
        request_id = scope["state"]["request_id"]
        most = _LONGER_BYTES if scope["path"] in self._longer else self._max_bytes
        try:
            body = await self._read(Headers(scope=scope), receive, most)
        except _TooLargeError:
            detail = f"The body is longer than {most} bytes."
            await _send(send, _problem(413, detail, request_id))
            return

        async def again() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        key = Headers(scope=scope).get("idempotency-key")
        if key is None or scope["path"] in _NEVER_KEPT:
            await self._app(scope, again, send)
            return
        if not _KEY.fullmatch(key):
            detail = "An Idempotency-Key has 1 to 255 visible ASCII characters."
            await _send(send, _problem(422, detail, request_id))
            return
        await self._once(scope, again, send, key, body)

    async def _read(self, headers: Headers, receive: Receive, most: int) -> bytes:
        told = headers.get("content-length", "0")
        if told.isdecimal() and int(told[:20]) > most:
            raise _TooLargeError
        body: bytes = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > most:
                raise _TooLargeError
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                return body

    async def _once(
        self, scope: Scope, receive: Receive, send: Send, key: str, body: bytes
    ) -> None:
        state = scope["state"]
        principal = state["principal"].key_id or state["principal"].name
        digest = hashlib.sha256(
            b"\0".join([scope["method"].encode(), scope["path"].encode(), body])
        ).hexdigest()
        request_id = state["request_id"] or secrets.token_hex(8)
        try:
            before = await run_in_threadpool(self._seen.begin, principal, key, digest)
        except (StoreError, DataDirError, ConfigError) as exc:
            _log.error("request_failed", request_id=request_id, error=str(exc))
            await _send(send, _problem(503, "The alert store cannot answer now.", request_id))
            return
        if before == "other":
            detail = "This Idempotency-Key was used for another request; choose a new one."
            await _send(send, _problem(422, detail, request_id))
        elif before == "busy":
            detail = "The first request with this Idempotency-Key is still under way."
            await _send(send, _problem(409, detail, request_id))
        elif isinstance(before, _Answer):
            await _send(send, before)
        else:
            await self._first(scope, receive, send, principal, key)

    async def _first(
        self, scope: Scope, receive: Receive, send: Send, principal: str, key: str
    ) -> None:
        started: list[Message] = []
        parts: list[bytes] = []

        async def listening(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(message)
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))
            await send(message)

        answer = _Answer(status=500, headers={}, body=b"")
        try:
            await self._app(scope, receive, listening)
            if started:
                told = Headers(raw=started[0]["headers"])
                answer = _Answer(
                    status=started[0]["status"],
                    headers={name: told[name] for name in _REPLAYED if name in told},
                    body=b"".join(parts),
                )
        finally:
            try:
                await run_in_threadpool(self._seen.finish, principal, key, answer)
            except (StoreError, DataDirError) as exc:
                _log.error("answer_not_kept", error=str(exc))


def _problem(status: int, detail: str, request_id: str) -> _Answer:
    body = problem_body(status, detail, request_id=request_id)
    return _Answer(status=status, headers={"content-type": PROBLEM_TYPE}, body=body)


async def _send(send: Send, answer: _Answer) -> None:
    headers = {**answer.headers, "content-length": str(len(answer.body))}
    raw = [(name.encode(), text.encode()) for name, text in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": raw})
    await send({"type": "http.response.body", "body": answer.body})
