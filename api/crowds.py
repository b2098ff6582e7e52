"""How many requests that read much may run at once: the others are asked to come again.

A dashboard that is reloaded, or a script in a loop, must not take all threads and with them the
requests of people who acknowledge.
"""

from __future__ import annotations

import threading
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from api.problems import PROBLEM_TYPE, problem_body

__all__ = ["Crowds"]

#: Reads that look at thousands of rows whatever is asked.
_ALWAYS = frozenset({"/v1/alerts.csv", "/v1/groups", "/v1/silences:preview"})
#: Reads of every open alert; what is pushed to the same address is let through.
_BOARD = frozenset({"/api/v2/alerts", "/api/v2/alerts/groups"})
#: Parameters that make a list look at many rows.
_SEARCHING = frozenset({"match", "q", "count"})
#: Of Starlette's forty threads.
_AT_ONCE = 8


class Crowds:
    """Lets a few expensive reads through at a time.

    Parameters
    ----------
    app
        The application behind it.
    at_once
        How many.
    """

    def __init__(self, app: ASGIApp, *, at_once: int = _AT_ONCE) -> None:
        self._app = app
        self._places = threading.Semaphore(at_once)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or not _is_expensive(scope):
            await self._app(scope, receive, send)
            return
        if not self._places.acquire(blocking=False):
            body = problem_body(
                429,
                "Too many searches and exports are under way; come again in a second.",
                request_id=scope.get("state", {}).get("request_id", ""),
            )
            headers = [
                (b"content-type", PROBLEM_TYPE.encode()),
                (b"content-length", str(len(body)).encode()),
                (b"retry-after", b"1"),
            ]
            await send({"type": "http.response.start", "status": 429, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._places.release()


def _is_expensive(scope: Scope) -> bool:
    """Tell whether a request reads much.

    Examples
    --------
    >>> [_is_expensive({"path": "/v1/alerts", "query_string": q}) for q in (b"q=x", b"node=n")]
    [True, False]
    """
    if scope["path"] in _ALWAYS:
        return True
    if scope["path"] in _BOARD:
        return bool(scope["method"] != "POST")
    if scope["path"] != "/v1/alerts":
        return False
    return not _SEARCHING.isdisjoint(parse_qs(scope["query_string"].decode("latin-1")))
