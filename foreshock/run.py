"""Runs services in one process: signals, failures, and an end within ten seconds."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

import structlog

from foreshock.datadir import disk_sentence
from foreshock.service import Service
from schemas.errors import ConfigError, ForeshockError, SourceError

__all__ = ["GRACE_SECONDS", "Outcome", "abandon", "error_sentence", "run_services"]

#: Seconds that services have to end; one less than promised, for the exit itself.
GRACE_SECONDS = 9.0
_POLL_SECONDS = 1.0  # for a stop that somebody else asked for; signals and endings come by queue
_ENDED = 0  # no signal: a service has ended

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended.

    Parameters
    ----------
    problems
        One sentence per service that failed or hung.
    hung
        Names of services that did not end in time. Their threads still run: the process has to
        leave without waiting for them.
    misused
        Whether a service refused its settings or its input.
    """

    problems: tuple[str, ...] = ()
    hung: tuple[str, ...] = ()
    misused: bool = False

    @property
    def exit_code(self) -> int:
        """0 if every service ended cleanly, 2 if settings or input were to blame, else 1."""
        if not self.problems:
            return 0
        return 2 if self.misused else 1


def abandon(outcome: Outcome) -> NoReturn:
    """Leave the process at once: threads that hang could keep any tidier end from coming."""
    for sentence in outcome.problems:
        sys.stderr.write(f"foreshock: {sentence}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(outcome.exit_code)


def error_sentence(name: str, exc: BaseException) -> str:
    """Say what stopped a service, in words for people."""
    if isinstance(exc, ForeshockError):
        return f"The {name} stopped: {exc}"
    disk = disk_sentence(exc)
    if disk is not None:
        return f"The {name} stopped: {disk}"
    return (
        f"The {name} stopped by an unexpected error, {type(exc).__name__}: {exc}. "
        "This is a fault of foreshock; the log has the details."
    )


class _Runner:
    """One service in its thread."""

    def __init__(self, service: Service, stop: threading.Event) -> None:
        self.name = service.name
        self.problem: str | None = None
        self.misused = False
        self._service = service
        self._stop = stop
        self.ended = False
        self.on_end: Callable[[], None] = lambda: None
        # A daemon thread: one that hangs must not keep the process alive.
        self.thread = threading.Thread(target=self._run, name=service.name, daemon=True)

    def _run(self) -> None:
        try:
            self._service.run(self._stop)
        except Exception as exc:  # noqa: BLE001 - the outermost loop: told, and all others stop
            self.problem = error_sentence(self.name, exc)
            self.misused = isinstance(exc, (ConfigError, SourceError))
            expected = isinstance(exc, ForeshockError) or disk_sentence(exc) is not None
            _log.error("service_failed", service=self.name, error=str(exc), exc_info=not expected)
            self._stop.set()
        finally:
            self.ended = True
            self.on_end()


#: Signals that end a run; others are asked of the services.
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT})


@contextmanager
def _signals(on_signal: Callable[[int], None], others: Iterable[int]) -> Iterator[None]:
    """Call ``on_signal`` on SIGTERM, SIGINT and others; only the main thread may do so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    interrupted: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if interrupted:
                os._exit(128 + number)  # a second Ctrl-C: the user does not want to wait
            interrupted.append(number)
        on_signal(number)

    before = {number: signal.signal(number, handle) for number in (*_ENDING, *others)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_services(
    services: Sequence[Service],
    stop: threading.Event,
    *,
    grace_seconds: float = GRACE_SECONDS,
    on_signals: Mapping[int, Callable[[], None]] | None = None,
) -> Outcome:
    """Run each service in a thread until ``stop`` is set, a signal comes, or all have ended.

    A service that returns by itself (a recording that has ended) leaves the others running. One
    that raises stops them all.

    Parameters
    ----------
    services
        What to run.
    stop
        Set by SIGTERM, SIGINT or a failing service; may be set by the caller.
    grace_seconds
        How long services may take to end once ``stop`` is set.
    on_signals
        What is done for signals besides SIGTERM and SIGINT, by number; called in the main
        thread within a moment, not in the handler. Must not raise.
    """
    runners = [_Runner(service, stop) for service in services]
    received: queue.SimpleQueue[int] = queue.SimpleQueue()
    asked = on_signals or {}
    for runner in runners:
        runner.on_end = lambda: received.put(_ENDED)
    # The handler only notes the signal: setting an Event inside it can deadlock with the wait
    # that it interrupts, whose lock is not reentrant. This queue's put is.
    with _signals(received.put, asked):
        # Before the threads, so that it never follows the line of one that failed at once.
        _log.info("service_running", services=[runner.name for runner in runners])
        for runner in runners:
            runner.thread.start()
        while not stop.is_set():
            number = _next(received)
            if number in _ENDING:
                _log.info("stop_requested", signal=signal.Signals(number).name)
                stop.set()
            elif number in asked:
                asked[number]()
            if all(runner.ended for runner in runners):
                stop.set()
        hung = _join(runners, grace_seconds)
    problems = [runner.problem for runner in runners if runner.problem is not None]
    problems += [f"The {name} did not end within {grace_seconds:.0f} s." for name in hung]
    misused = any(runner.misused for runner in runners)
    return Outcome(problems=tuple(problems), hung=hung, misused=misused)


def _next(received: queue.SimpleQueue[int]) -> int:
    """Return the next signal, or ``_ENDED`` if a service ended or nothing came for a while."""
    try:
        return received.get(timeout=_POLL_SECONDS)
    except queue.Empty:
        return _ENDED


def _join(runners: Sequence[_Runner], grace_seconds: float) -> tuple[str, ...]:
    deadline = time.monotonic() + grace_seconds
    for runner in runners:
        runner.thread.join(max(0.0, deadline - time.monotonic()))
    return tuple(runner.name for runner in runners if runner.thread.is_alive())
