"""How the loop asks its source: directly, by a source that waits itself, or in a thread.

A call may never return and cannot be interrupted. The thread that made it is then left alone (it
is a daemon: it does not keep the process alive), no second call is started beside it, and the
loop goes on and says that the driver does not respond. NVML is read by a child process instead,
which can also be killed.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Protocol

import structlog

from collector.clock import Clock
from collector.source import Reading, Source

__all__ = ["DirectReader", "Reader", "SourceReader", "ThreadReader"]

log = structlog.get_logger()

_SLICE_SECONDS = 0.2  # how soon a wait notices that the service was told to stop


class Reader(Protocol):
    """Begins one reading at a time and hands it over when it is there."""

    @property
    def busy(self) -> bool:
        """Whether a reading was begun and has not been handed over."""
        ...

    def begin(self, ts_ms: int) -> None:
        """Begin a reading with this event time. Only while not busy."""
        ...

    def result(self, until: float, stop: threading.Event) -> list[Reading] | None:
        """Return the readings, or None if they are not there at ``until`` (monotonic seconds)."""
        ...


class SlowSource(Protocol):
    """A source that begins a reading and hands it over later, as its own reader would."""

    @property
    def busy(self) -> bool:
        """Whether a reading was begun and has not been handed over."""
        ...

    def begin(self, ts_ms: int) -> None:
        """Begin a reading."""
        ...

    def result(self, until: float, stop: threading.Event) -> list[Reading] | None:
        """Return the readings, or None if they are not there at ``until`` (system monotonic)."""
        ...


class SourceReader:
    """Leaves the reading to a source that can wait for itself, by the clock of the loop.

    Parameters
    ----------
    source
        What is read.
    clock
        Measures how long the loop waits; the source waits as long in real time.
    """

    def __init__(self, source: SlowSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock

    @property
    def busy(self) -> bool:
        """Whether a reading is on its way."""
        return self._source.busy

    def begin(self, ts_ms: int) -> None:
        """Let the source begin."""
        self._source.begin(ts_ms)

    def result(self, until: float, stop: threading.Event) -> list[Reading] | None:
        """Wait for the reading, at most until the given moment or until told to stop."""
        left = until - self._clock.monotonic()
        return self._source.result(time.monotonic() + left, stop)


class DirectReader:
    """Reads in the caller's thread: for sources that cannot hang."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._ts: int | None = None

    @property
    def busy(self) -> bool:
        """Whether ``begin`` was called and ``result`` was not."""
        return self._ts is not None

    def begin(self, ts_ms: int) -> None:
        """Note the event time."""
        self._ts = ts_ms

    def result(self, until: float, stop: threading.Event) -> list[Reading] | None:  # noqa: ARG002 - never waits
        """Read now."""
        ts_ms, self._ts = self._ts, None
        return None if ts_ms is None else self._source.read(ts_ms)


class ThreadReader:
    """Reads in a daemon thread.

    Parameters
    ----------
    source
        What is read.
    clock
        Measures how long the loop waits.
    """

    def __init__(self, source: Source, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._asked: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[list[Reading] | Exception] = queue.SimpleQueue()
        self._busy = False
        self._thread = threading.Thread(target=self._work, name="collector-read", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a reading is on its way."""
        return self._busy

    def begin(self, ts_ms: int) -> None:
        """Ask the thread to read."""
        self._busy = True
        self._asked.put(ts_ms)

    def result(self, until: float, stop: threading.Event) -> list[Reading] | None:
        """Wait for the reading, at most until the given moment or until told to stop."""
        while True:
            left = until - self._clock.monotonic()
            try:
                answer = self._answers.get(timeout=max(0.0, min(left, _SLICE_SECONDS)))
            except queue.Empty:
                if left <= 0 or stop.is_set():
                    return None
                continue
            self._busy = False
            if isinstance(answer, Exception):
                raise answer
            return answer

    def close(self, timeout_seconds: float = 1.0) -> bool:
        """End the thread; return False if it hangs in a call and was left behind."""
        self._asked.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (ts_ms := self._asked.get()) is not None:
            try:
                self._answers.put(self._source.read(ts_ms))
            except Exception as exc:  # noqa: BLE001 - handed to the loop, which counts and logs it
                self._answers.put(exc)
