"""Time as something that is passed in, and the steady beat made from it."""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock", "Tick", "Ticker"]


class Clock(Protocol):
    """The three questions the collector asks about time."""

    def monotonic(self) -> float:
        """Seconds of a clock that is never set."""
        ...

    def unix_ms(self) -> int:
        """Wall time as unix milliseconds."""
        ...

    def sleep_until(self, moment: float, stop: threading.Event) -> bool:
        """Wait until ``monotonic()`` reaches ``moment``; return True at once if ``stop`` is set."""
        ...


class SystemClock:
    """The clocks of the machine."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment."""
        return time.monotonic()

    def unix_ms(self) -> int:
        """Return wall time, unix milliseconds."""
        return time.time_ns() // 1_000_000

    def sleep_until(self, moment: float, stop: threading.Event) -> bool:
        """Wait for the moment or for ``stop``."""
        return stop.wait(max(0.0, moment - time.monotonic()))

    def listen_until(self, moment: float, stop: threading.Event, ears: Sequence[int]) -> bool:
        """Wait for the moment or until one of the descriptors has something to read.

        ``stop`` does not end this wait: whoever waits longer than may pass until the service
        notices it waits in pieces.
        """
        select.select(ears, (), (), max(0.0, moment - time.monotonic()))
        return stop.is_set()


class ManualClock:
    """A clock for tests: sleeping moves it, nothing else does.

    Parameters
    ----------
    start_ms
        Wall time at the beginning, unix milliseconds.
    stop_at
        Monotonic seconds at which ``sleep_until`` sets the stop event, or None for never.
    """

    def __init__(self, start_ms: int = 1_790_000_000_000, stop_at: float | None = None) -> None:
        self._now = 0.0
        self._start_ms = start_ms
        self.stop_at = stop_at

    def monotonic(self) -> float:
        """Return seconds slept and advanced so far."""
        return self._now

    def unix_ms(self) -> int:
        """Return the start plus the seconds so far."""
        return self._start_ms + round(self._now * 1000)

    def advance(self, seconds: float) -> None:
        """Let time pass, as a slow reading would."""
        self._now += seconds

    def step_wall(self, milliseconds: int) -> None:
        """Set the wall clock forward or back, as a time daemon would."""
        self._start_ms += milliseconds

    def sleep_until(self, moment: float, stop: threading.Event) -> bool:
        """Jump to the moment; set ``stop`` if ``stop_at`` lies before it."""
        if self.stop_at is not None and moment >= self.stop_at:
            self._now = max(self._now, self.stop_at)
            stop.set()
        if not stop.is_set():
            self._now = max(self._now, moment)
        return stop.is_set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One beat: when it is due (monotonic seconds) and how many before it were skipped."""

    due: float
    missed: int


class Ticker:
    """Beats at whole multiples of the interval after the start, whatever the work costs.

    A beat that is more than a quarter of the interval late is skipped and counted, so slow
    readings never pile up and never shift the beats that follow.

    Parameters
    ----------
    interval
        Seconds between beats, > 0.
    start
        Monotonic seconds of the first beat.

    Examples
    --------
    >>> ticker = Ticker(1.0, start=10.0)
    >>> ticker.next(10.0).due, ticker.next(10.4).due
    (10.0, 11.0)
    >>> ticker.next(13.5)
    Tick(due=14.0, missed=2)
    """

    LATE_SHARE = 0.25

    def __init__(self, interval: float, start: float) -> None:
        self.interval = interval
        self._start = start
        self._count = 0

    def next(self, now: float) -> Tick:
        """Take the next beat that is not too late."""
        late = (now - self._start) / self.interval - self.LATE_SHARE
        # The small number forgives rounding: a beat exactly on the bound is still taken.
        count = max(self._count, math.ceil(late - 1e-9))
        missed = count - self._count
        self._count = count + 1
        return Tick(due=self._start + count * self.interval, missed=missed)

    @property
    def due(self) -> float:
        """When the beat after the last one taken is due, monotonic seconds."""
        return self._start + self._count * self.interval
