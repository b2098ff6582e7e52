"""uvicorn inside a service: no signal handlers, ends with the service, closes its streams."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from api.feed import Feed
from schemas.errors import ConfigError

__all__ = ["StoppableServer", "listening_socket"]

_BACKLOG = 128
#: Streams end by themselves when the feed closes; this is for clients that do not read.
_GRACE_SECONDS = 2


class StoppableServer(uvicorn.Server):
    """A server that runs until it is told to end.

    Parameters
    ----------
    app
        The application.
    stop
        Tells whether to end; asked ten times a second.
    feed
        Closed first at the end: an open event stream would otherwise hold up the shutdown.
    """

    def __init__(self, app: FastAPI, *, stop: Callable[[], bool], feed: Feed) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",  # the service itself says when it starts and stops
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            # Nobody stands before us unless the operator puts a proxy there.
            proxy_headers=False,
        )
        super().__init__(config)
        self._stop = stop
        self._feed = feed

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the front door."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """End when told to."""
        return await super().on_tick(counter) or self._stop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the event streams end, then the server."""
        self._feed.close()
        await super().shutdown(sockets)


def listening_socket(host: str, port: int) -> socket.socket:
    """Open the listening socket, so that a taken port is a sentence and port 0 is known.

    Raises
    ------
    ConfigError
        If the address cannot be had.
    """
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as exc:
        raise ConfigError(f"api.host {host} cannot be used: {exc.strerror}.") from exc
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        raise ConfigError(
            f"The api cannot listen on {host}:{port}: {exc.strerror}. "
            "Another program may serve there; choose another api.port."
        ) from exc
    listener.setblocking(False)
    return listener
