"""Tells open event streams that the log has grown, and that the service ends.

The ingest thread writes, coroutines of the web server wait; the only thing that passes between
them is the id of the newest event. A stream then reads the store itself, so a slow client
costs no memory here.
"""

from __future__ import annotations

import asyncio
import threading

__all__ = ["Feed", "Listener"]


class Listener:
    """One waiting stream. Made and used in the web server's event loop."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    async def wait(self, timeout_seconds: float) -> bool:
        """Wait for news or the end of the feed; False if neither came in time."""
        if self._feed.closed:
            return True
        try:
            await asyncio.wait_for(self._woken.wait(), timeout_seconds)
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    def wake(self) -> None:
        """Wake the stream from any thread."""
        # The loop may end between the two lines; a stream that is gone needs no waking.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    def close(self) -> None:
        """Stop listening."""
        self._feed.forget(self)


class Feed:
    """Fan-out of "there is news" to the open streams. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[Listener] = set()
        self._closed = threading.Event()

    @property
    def closed(self) -> bool:
        """Whether streams should end."""
        return self._closed.is_set()

    def listen(self) -> Listener:
        """Register the calling coroutine's stream; close the listener when it ends."""
        listener = Listener(self)
        with self._lock:
            self._listeners.add(listener)
        return listener

    def forget(self, listener: Listener) -> None:
        """Remove a listener; unknown ones are ignored."""
        with self._lock:
            self._listeners.discard(listener)

    def announce(self) -> None:
        """Wake every stream."""
        with self._lock:
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener.wake()

    def close(self) -> None:
        """Ask every stream to end."""
        self._closed.set()
        self.announce()
