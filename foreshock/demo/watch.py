"""Watches the running demo from outside: reads the alerts topic and the webhook receiver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.live import Live
from rich.text import Text

from bus import Bus
from foreshock.demo.clock import ScaledClock
from foreshock.demo.progress import Progress
from foreshock.demo.receiver import WebhookReceiver
from foreshock.demo.screen import Screen
from foreshock.demo.stack import CountedSource
from foreshock.demo.view import delivery_line, event_line, status_line
from schemas.codec import decode_alert
from schemas.errors import DecodeError
from schemas.topics import ALERTS

__all__ = ["DemoWatch"]

_POLL_SECONDS = 0.2
_STATUS_SECONDS = 5.0
_DRAIN_POLLS = 3


class DemoWatch:
    """A service like the others: it follows what they do and shows it.

    Parameters
    ----------
    bus, prefix
        Where the alerts are.
    receiver, source
        What arrived, and how much was read.
    progress
        Filled as the demo goes on.
    clock
        Simulated time.
    console
        Where to show it; a terminal gets the live screen, anything else plain lines.
    url
        Returns where the dashboard is, empty while nothing listens.
    seconds
        Wall seconds after which everything is stopped; None for never.
    """

    name = "demo"

    def __init__(
        self,
        bus: Bus,
        *,
        prefix: str,
        receiver: WebhookReceiver,
        source: CountedSource,
        progress: Progress,
        clock: ScaledClock,
        console: Console,
        url: Callable[[], str],
        seconds: float | None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._bus = bus
        self._topic = ALERTS.full_name(prefix)
        self._receiver = receiver
        self._source = source
        self._progress = progress
        self._clock = clock
        self._console = console
        self._seconds = seconds
        self._screen = Screen(progress, clock, url)
        self._said = 0.0
        self._counted = (0.0, 0)

    def health(self) -> Mapping[str, object]:
        """Return that it watches."""
        return {"ok": True, "detail": "The demo is being watched."}

    def run(self, stop: threading.Event) -> None:
        """Follow until told to stop, or stop everything when the time is over."""
        subscriber = self._bus.subscriber(
            group="foreshock-demo", topics=(self._topic,), client_id="demo"
        )
        try:
            with self._live():
                while not stop.is_set():
                    records = subscriber.poll(500, _POLL_SECONDS)
                    self._take([record.value for record in records])
                    if self._seconds is not None and self._clock.wall_seconds() >= self._seconds:
                        stop.set()
                self._screen.end()
                # What was under way when the stop came still counts.
                for _ in range(_DRAIN_POLLS):
                    self._take([r.value for r in subscriber.poll(500, _POLL_SECONDS)])
        finally:
            subscriber.close()

    def _live(self) -> AbstractContextManager[object]:
        if not self._console.is_terminal:
            return nullcontext()
        return Live(self._screen, console=self._console, refresh_per_second=4)

    def _take(self, values: list[bytes]) -> None:
        for value in values:
            try:
                event = decode_alert(value)
            except DecodeError as exc:
                self._say(f"an alert event could not be read: {exc}")
                continue
            self._progress.events.append(event)
            self._say(event_line(self._progress, event))
        for delivery in self._receiver.take():
            self._progress.deliveries.append(delivery)
            self._say(delivery_line(delivery))
        self._progress.samples = self._source.samples
        self._measure()

    def _measure(self) -> None:
        if self._screen.ended:
            return
        wall = self._clock.wall_seconds()
        since, before = self._counted
        if wall - since >= 1.0:
            self._screen.rate = (self._source.samples - before) / (wall - since)
            self._counted = (wall, self._source.samples)
        if wall - self._said >= _STATUS_SECONDS:
            self._said = wall
            line = status_line(self._progress, self._clock, self._screen.rate, self._screen.url())
            self._say(line)

    def _say(self, line: str) -> None:
        """Write a plain line where there is no live screen."""
        if not self._console.is_terminal:
            stamp = f"[{self._clock.wall_seconds():6.1f} s] "
            self._console.print(Text(stamp + line), soft_wrap=True)
