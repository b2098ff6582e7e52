"""Answers HEAD as GET without the body: what probes and link checkers send first."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HeadAsGet"]


class HeadAsGet:
    """Turns HEAD into GET and drops the body of the answer.

    Here and not in the routes: OpenAPI would list every operation twice.

    Parameters
    ----------
    app
        The application behind it.
    endless
        Paths whose answers never end; their routes refuse HEAD.
    """

    def __init__(self, app: ASGIApp, *, endless: frozenset[str]) -> None:
        self._app = app
        self._endless = endless

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"] in self._endless:
            await self._app(scope, receive, send)
            return

        async def bodiless(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, bodiless)
