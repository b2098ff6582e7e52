"""A client of the REST surface, for the command line. Errors are sentences with an exit code."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2
import orjson

from schemas.errors import ForeshockError

__all__ = ["ApiClient", "NotFoundError", "RestError", "StreamEvent", "Waits"]

_TIMEOUT_SECONDS = 30.0
#: Comments come every 15 s; who hears nothing for so long has lost the line.
_SILENT_SECONDS = 60.0
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 60.0
_NOT_FOUND, _NOT_ALLOWED = 3, 4


class RestError(ForeshockError):
    """The api did not do what was asked.

    Parameters
    ----------
    message
        Sentence for people; never a key.
    exit_code
        1 failed, 2 a wrong request, 3 not found, 4 not allowed.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class NotFoundError(RestError):
    """There is no such thing."""

    def __init__(self, message: str) -> None:
        super().__init__(message, _NOT_FOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One server-sent event: ``alert`` with an entry of the log, or ``resync``."""

    name: str
    id: int | None
    data: Mapping[str, Any]  # decoded JSON


class Waits:
    """How long to wait before each try to connect again: doubling, spread, up to a minute.

    Parameters
    ----------
    first_seconds
        The first wait.
    spread
        Factor from 0.5 to 1 for each wait, so that many clients do not come at once.
    """

    def __init__(
        self,
        first_seconds: float = _FIRST_WAIT_SECONDS,
        spread: Callable[[], float] = lambda: random.uniform(0.5, 1.0),
    ) -> None:
        self._first = first_seconds
        self._spread = spread
        self._next = first_seconds

    def reset(self) -> None:
        """Begin anew: a connection came about."""
        self._next = self._first

    def next_seconds(self) -> float:
        """Return the next wait.

        Examples
        --------
        >>> waits = Waits(spread=lambda: 1.0)
        >>> [waits.next_seconds() for _ in range(9)]
        [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
        """
        now = self._next
        self._next = min(self._next * 2, _LONGEST_WAIT_SECONDS)
        return now * self._spread()


class ApiClient:
    """Speaks with one api. Close it, or use it as a context.

    Parameters
    ----------
    url
        Where it is, such as ``http://127.0.0.1:8600``.
    key
        API key, or None.
    wait
        Sleeps.

    Raises
    ------
    RestError
        If the URL is none.
    """

    def __init__(
        self, url: str, key: str | None = None, wait: Callable[[float], None] = time.sleep
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username:
            raise RestError("The address of the api must be http://host:port or https://host.", 2)
        self._place = f"{parts.scheme}://{parts.netloc}"
        self._wait = wait
        headers = {"accept": "application/json", "user-agent": "foreshock-cli"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        try:
            self._client = httpx2.Client(
                base_url=url.rstrip("/"), headers=headers, timeout=_TIMEOUT_SECONDS, trust_env=False
            )
        except (ValueError, httpx2.InvalidURL, UnicodeError):
            # Without its cause, which may show the key.
            message = "The key or the address holds characters that cannot be sent."
            raise RestError(message, 2) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:  # JSON
        """Read. Raises RestError."""
        return self.send("GET", path, params=params)

    def send(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        params: Mapping[str, Any] | None = None,  # texts and lists of them
    ) -> dict[str, Any]:  # JSON
        """Send a request and return its answer; empty if it has none.

        Raises
        ------
        RestError
            If nothing answers, or the answer is no.
        """
        given = {name: value for name, value in (params or {}).items() if value is not None}
        try:
            answer = self._client.request(method, path, params=given, json=json)
        except httpx2.HTTPError as exc:
            raise self._away(exc) from None
        if answer.is_success:
            return self._decoded(answer.content) if answer.content else {}
        raise self._refused(answer.status_code, answer.content)

    def pages(
        self, path: str, name: str, params: Mapping[str, Any], most: int
    ) -> Iterator[dict[str, Any]]:  # JSON
        """Give up to ``most`` entries of a list, page by page."""
        cursor: str | None = None
        given = 0
        while given < most:
            limit = min(500, most - given)
            page = self.get(path, {**params, "limit": limit, "cursor": cursor})
            for entry in page[name][: most - given]:
                given += 1
                yield entry
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    def follow(
        self, after: int | None, on_line: Callable[[str], None], waits: Waits | None = None
    ) -> Iterator[StreamEvent]:
        """Give every event as it comes, for ever; come back after a lost line and miss nothing.

        Parameters
        ----------
        after
            Last id already seen; None for what is new from now on.
        on_line
            Told in a sentence when the line is lost, and when it is back.
        waits
            How long between tries.

        Raises
        ------
        RestError
            If the api says no; a line that is lost is no reason to end.
        """
        waits = waits or Waits()
        lost = False
        while True:
            try:
                for event in self._stream(after):
                    if lost:
                        on_line(f"{self._place} answers again.")
                    lost = False
                    waits.reset()
                    if event is None:
                        continue
                    after = event.id if event.id is not None else after
                    yield event
                said = f"{self._place} has ended the stream"
            except httpx2.HTTPError as exc:
                said = str(self._away(exc)).partition(":")[0].rstrip(".")
            if not lost:
                on_line(f"{said}; trying again until it answers.")
            lost = True
            self._wait(waits.next_seconds())

    def _stream(self, after: int | None) -> Iterator[StreamEvent | None]:
        """Give the events of one connection; None for the first sign of life."""
        headers = {"accept": "text/event-stream"}
        if after is not None:
            headers["last-event-id"] = str(after)
        timeout = httpx2.Timeout(_TIMEOUT_SECONDS, read=_SILENT_SECONDS)
        with self._client.stream("GET", "/v1/stream", headers=headers, timeout=timeout) as answer:
            if answer.status_code in {429, 502, 503, 504}:
                raise httpx2.ReadError("the server is not ready")
            if not answer.is_success:
                raise self._refused(answer.status_code, answer.read())
            yield None
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                if not line and fields:
                    yield _event(fields)
                    fields = {}
                elif line and not line.startswith(":"):
                    name, _, value = line.partition(":")
                    text = value.removeprefix(" ")
                    fields[name] = f"{fields[name]}\n{text}" if name in fields else text

    def _away(self, exc: httpx2.HTTPError) -> RestError:
        if isinstance(exc, httpx2.TimeoutException):
            return RestError(f"{self._place} did not answer in time: is it overloaded?")
        if isinstance(exc, httpx2.UnsupportedProtocol | httpx2.DecodingError):
            return RestError(f"{self._place} gave no answer that can be read.")
        return RestError(
            f"Nothing answers at {self._place}: is foreshock running there? Another place is "
            "given with --url or FORESHOCK_URL."
        )

    def _refused(self, status: int, content: bytes) -> RestError:
        try:
            said = str(orjson.loads(content)["detail"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return RestError(f"{self._place} answered {status}, and not as foreshock does.")
        if status == 401:
            return RestError(
                "The api wants a key that it knows: give one in FORESHOCK_KEY, or in a file with "
                "--key-file.",
                _NOT_ALLOWED,
            )
        if status == 403:
            return RestError(said, _NOT_ALLOWED)
        if status == 404:
            return NotFoundError(said)
        return RestError(said, 2 if status == 422 else 1)

    def _decoded(self, content: bytes) -> dict[str, Any]:  # JSON
        try:
            found = orjson.loads(content)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise RestError(f"{self._place} did not answer as foreshock does.")
        return found


def _event(fields: Mapping[str, str]) -> StreamEvent:
    number = fields.get("id", "")
    return StreamEvent(
        name=fields.get("event", "message"),
        id=int(number) if number.isdecimal() else None,
        data=orjson.loads(fields.get("data") or "{}"),
    )
