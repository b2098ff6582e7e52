"""The GPUs of this node, read by a child process that can be killed.

The parent makes no NVML call. A child that does not answer in time is killed and not waited for:
one stuck in the kernel ignores even that. Another one is started with growing pauses. What a new
process mends is mended by a new process: a library that was replaced under a running one, a
driver that was reloaded.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog

from collector.nvmlwire import (
    AskReading,
    Change,
    ChildSettings,
    Lines,
    SayEvents,
    SayHello,
    SayLog,
    SayReading,
    Stop,
    dump,
    load_word,
)
from collector.source import Reading
from schemas.sample import CollectorState, EventKind, SampleEvent

__all__ = ["NvmlChildSource"]

log = structlog.get_logger()

#: Pauses between two children: doubled from the first to the last, seconds.
FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
#: Children that were killed and are still there, stuck in the kernel: no more beside them.
MOST_DYING = 3
_STOP_SECONDS = 3.0  # for a child to finish its call and shut NVML down
_BIRTH_SECONDS = 20.0  # for the interpreter and its imports, on a machine that is fully used
_SLICE = 0.2  # how soon a wait notices that the service was told to stop
_PIECE = 1 << 16
# After these a new process is the only way: the old one keeps its library, or hangs.
_NEEDS_NEW = frozenset({CollectorState.VERSION_MISMATCH, CollectorState.UNRESPONSIVE})


@dataclass(slots=True)
class _Running:
    """One child: its process and the words that are on their way."""

    process: subprocess.Popen[bytes]
    poll: select.poll
    lines: Lines
    ready: bool = False


@dataclass(slots=True)
class _Question:
    """The reading that was asked for."""

    number: int
    ts: int
    begun: float
    sent: bool = False


class NvmlChildSource:
    """Source and reader in one: begins a reading, and hands it over when the child answers.

    Parameters
    ----------
    settings
        What the child is told.
    deadline_seconds
        A child that takes longer for an answer is killed.
    environment
        Of the child, None for that of this process.
    """

    kind = "nvml"

    def __init__(
        self,
        settings: ChildSettings,
        *,
        deadline_seconds: float = 10.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._deadline = deadline_seconds
        self._environment = None if environment is None else dict(environment)
        self._child: _Running | None = None
        self._dying: list[subprocess.Popen[bytes]] = []
        self._question: _Question | None = None
        self._number = 0
        self._answer: Reading | None = None
        self._events: list[SampleEvent] = []
        self._inventory = settings.known
        self._lost: set[str] = set(settings.lost)
        self._state: str = CollectorState.BLIND
        self._nvml_error: int | None = None
        self._pause = 0.0
        self._start_at = 0.0
        self._released_until: float | None = None
        #: How many children there have been.
        self.children_started = 0

    # -- the source --------------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """Never: GPUs have no end."""
        return False

    def read(self, ts_ms: int) -> list[Reading]:
        """Read once, waiting at most for the deadline."""
        self.begin(ts_ms)
        until = time.monotonic() + self._deadline + _BIRTH_SECONDS
        found = self.result(until, threading.Event())
        return found if found is not None else [self._without_child(ts_ms)]

    def close(self) -> None:
        """Let the child finish its call and shut NVML down; kill it if it takes too long."""
        self._question = None
        self._end_child(_STOP_SECONDS)

    # -- the reader --------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a reading was begun and has not been handed over."""
        return self._question is not None

    def begin(self, ts_ms: int) -> None:
        """Ask the child to read; start one if it is time to."""
        self._number += 1
        self._question = _Question(self._number, ts_ms, time.monotonic())
        self._ask()

    def result(self, until: float, stop: threading.Event) -> list[Reading] | None:
        """Return the reading, or None if it is not there at ``until`` (monotonic seconds)."""
        while True:
            question = self._question
            if question is None:
                return None
            if self._child is None:
                # Said at once: a node whose driver is away must not look slow.
                self._question = None
                return [self._without_child(question.ts)]
            now = time.monotonic()
            self._listen(max(0.0, min(until - now, _SLICE)))
            if self._answer is not None:
                reading, self._answer, self._question = self._answer, None, None
                return [self._noted(reading)]
            now = time.monotonic()
            if now - question.begun >= self._patience():
                self._give_up("no answer within the deadline", hangs=True)
                continue
            if now >= until or stop.is_set():
                return None

    def _patience(self) -> float:
        """Seconds that an answer may take; a child that is not up yet has some more."""
        up = self._child is None or self._child.ready
        return self._deadline if up else self._deadline + _BIRTH_SECONDS

    def heard(self) -> tuple[SampleEvent, ...]:
        """Return what the driver told by itself since the last call. Never waits."""
        if self._child is not None and self._question is None:
            self._listen(0.0)
        events, self._events = tuple(self._events), []
        return events

    def ears(self) -> tuple[int, ...] | None:
        """Return the descriptor on which the child tells; None while a reading is on its way."""
        if self._question is not None:
            return None
        child = self._child
        return (
            ()
            if child is None or child.process.stdout is None
            else (child.process.stdout.fileno(),)
        )

    # -- settings and signals ----------------------------------------------------------------

    def release(self, seconds: float) -> None:
        """Let go of the GPUs, so that they can be reset; take them back after so long."""
        log.info("gpus_released", seconds=seconds)
        self._released_until = time.monotonic() + seconds
        self._end_child(_STOP_SECONDS)
        self._state, self._nvml_error = CollectorState.RELEASED, None

    def take_back(self) -> None:
        """Read the GPUs again, from the next reading on."""
        log.info("gpus_taken_back")
        self._released_until = None
        self._pause = self._start_at = 0.0

    @property
    def released(self) -> bool:
        """Whether the GPUs are let go of."""
        return self._released_until is not None

    def change(self, settings: ChildSettings, deadline_seconds: float) -> None:
        """Go on with other settings, from the next reading on; the child stays the same one.

        Another library is loaded by the next child: at the latest after a release.
        """
        self._deadline = deadline_seconds
        self._settings = replace(settings, host=self._settings.host)
        self._tell(
            Change(
                groups=settings.groups,
                slow_seconds=settings.slow_seconds,
                device_deadline_seconds=settings.device_deadline_seconds,
            )
        )

    # -- the child ---------------------------------------------------------------------------

    def _ask(self) -> None:
        question = self._question
        self._bury()
        if self._child is None and self._may_start():
            self._start()
        if self._child is None or question is None or question.sent:
            return
        question.sent = self._tell(AskReading(question.number, question.ts))

    def _tell(self, word: ChildSettings | AskReading | Change) -> bool:
        """Say something to the child; part with it if it has ended."""
        if self._child is None:
            return False
        stdin = self._child.process.stdin
        assert stdin is not None  # noqa: S101 - a pipe, see _start; for the type checker
        try:
            stdin.write(dump(word))
            stdin.flush()
        except OSError:
            self._give_up("the child process has ended")
            return False
        return True

    def _may_start(self) -> bool:
        now = time.monotonic()
        if self._released_until is not None:
            if now < self._released_until:
                return False
            self.take_back()
        return now >= self._start_at and len(self._dying) < MOST_DYING

    def _start(self) -> None:
        gpus = tuple(gpu for gpu in self._inventory.gpus if gpu.parent is None)
        told = replace(
            self._settings,
            known=replace(self._inventory, gpus=gpus),
            lost=tuple(sorted(self._lost)),
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "collector.nvmlchild"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
        )
        assert process.stdout is not None  # noqa: S101 - a pipe, as asked for
        os.set_blocking(process.stdout.fileno(), False)
        poll = select.poll()
        poll.register(process.stdout.fileno(), select.POLLIN | select.POLLHUP)
        self._child = _Running(process, poll, Lines())
        self.children_started += 1
        self._tell(told)

    def _listen(self, seconds: float) -> None:
        """Take in what the child says, waiting so long for the first word."""
        child = self._child
        if child is None or not child.poll.poll(seconds * 1000):
            return
        stdout = child.process.stdout
        assert stdout is not None  # noqa: S101 - a pipe, see _start
        while True:
            try:
                piece = os.read(stdout.fileno(), _PIECE)
            except BlockingIOError:
                return
            if not piece:
                self._give_up("the child process has ended")
                return
            for line in child.lines.feed(piece):
                self._take(line)

    def _take(self, line: bytes) -> None:
        word = load_word(line, self._inventory)
        if isinstance(word, SayReading):
            if self._question is not None and word.number == self._question.number:
                self._answer = word.reading
        elif isinstance(word, SayEvents):
            self._events += word.events
        elif isinstance(word, SayHello):
            if self._child is not None:
                self._child.ready = True
            if self._question is not None:
                self._question.begun = time.monotonic()
        else:
            self._log(word)

    @staticmethod
    def _log(word: SayLog) -> None:
        say = {"debug": log.debug, "info": log.info, "warning": log.warning}
        say.get(word.level, log.error)(word.event, **word.facts)

    def _noted(self, reading: Reading) -> Reading:
        """Remember what the next child must know, and whether there has to be one."""
        self._inventory = reading.inventory
        self._state, self._nvml_error = reading.state, reading.nvml_error
        for event in reading.events:
            if event.gpu is not None and event.kind == EventKind.GPU_LOST:
                self._lost.add(event.gpu)
            elif event.gpu is not None and event.kind == EventKind.GPU_RETURNED:
                self._lost.discard(event.gpu)
        if reading.state in _NEEDS_NEW:
            self._plan_next()
            self._end_child(0.0 if reading.state == CollectorState.UNRESPONSIVE else 1.0)
        elif reading.state == CollectorState.OK:
            self._pause = 0.0
        return reading

    def _without_child(self, ts_ms: int) -> Reading:
        """Say the last known state while there is nobody to ask."""
        return Reading(
            node=self._settings.node,
            ts=ts_ms,
            state=self._state,
            nvml_error=self._nvml_error,
            inventory=self._inventory,
        )

    def _give_up(self, reason: str, *, hangs: bool = False) -> None:
        """Part with a child that hangs or has ended."""
        log.warning("nvml_child_given_up", reason=reason, hangs=hangs)
        self._state = CollectorState.UNRESPONSIVE if hangs else CollectorState.BLIND
        self._nvml_error = None
        self._plan_next()
        self._end_child(0.0)

    def _plan_next(self) -> None:
        self._pause = min(max(self._pause * 2, FIRST_PAUSE), LAST_PAUSE)
        self._start_at = time.monotonic() + self._pause

    def _end_child(self, patience: float) -> None:
        """Ask the child to end if there is patience for it, then kill it. Never waits longer."""
        child, self._child = self._child, None
        self._answer = None
        if child is None:
            return
        process = child.process
        assert process.stdin is not None  # noqa: S101 - pipes, see _start
        assert process.stdout is not None  # noqa: S101 - same
        try:
            if patience > 0.0:
                process.stdin.write(dump(Stop()))
            process.stdin.close()
        except OSError:
            pass  # it has ended already
        if patience > 0.0:
            self._wait_for(process, patience)
        process.stdout.close()
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            self._dying.append(process)
            self._wait_for(process, 0.05)
        self._bury()

    @staticmethod
    def _wait_for(process: subprocess.Popen[bytes], seconds: float) -> None:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return

    def _bury(self) -> None:
        self._dying = [process for process in self._dying if process.poll() is None]
