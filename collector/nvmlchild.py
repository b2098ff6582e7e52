"""The child process that reads the driver: ``python -m collector.nvmlchild``, by the collector.

It imports little, makes every NVML call there is, and can be killed at any moment. SIGTERM, a
parent that is gone and the parent's word all end it the same way: the call in hand is finished,
NVML is shut down.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import BinaryIO, NoReturn

from collector.footprint import give_memory_back
from collector.nvml import NvmlSource, load_pynvml
from collector.nvmlevents import EventWatch
from collector.nvmlwire import (
    AskReading,
    Change,
    ChildSettings,
    SayEvents,
    SayHello,
    SayLog,
    SayReading,
    Stop,
    Word,
    dump,
    load_command,
    load_settings,
    without_inventory,
)
from collector.readings import Group
from collector.source import Reading
from collector.sweep import GuardedSweep
from schemas.errors import DeviceError
from schemas.sample import Inventory

__all__ = ["main"]

_WAIT_MS = 1000  # how long the listener is inside the driver before it lets others in


class _StopError(Exception):
    """SIGTERM came while the child waited for its parent."""


class _Mouth:
    """Writes whole lines to the parent, from any thread."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def say(self, word: Word) -> None:
        line = dump(word)
        with self._lock:
            self._pipe.write(line)
            self._pipe.flush()

    def log(self, level: str, event: str, /, **facts: object) -> None:
        self.say(SayLog(level, event, facts))


class _Listener:
    """Waits for the driver's events in a thread of its own.

    It is kept out of the driver while the list of GPUs changes or NVML is shut down.
    """

    def __init__(self, source: NvmlSource, mouth: _Mouth) -> None:
        self._source = source
        self._mouth = mouth
        self._watch: EventWatch | None = None
        self._listing = 0
        self._followed: frozenset[tuple[str, int]] = frozenset()
        self._inside = threading.Lock()
        self._open = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="nvml-events", daemon=True)
        self._thread.start()

    def follow(self) -> None:
        """Register anew if the GPUs were listed anew."""
        if self._listing == self._source.listings:
            return
        watch, gpus = self._source.watched()
        found = frozenset((gpu.uuid, gpu.number) for gpu in gpus)
        if found == self._followed and self._open.is_set():
            self._listing = self._source.listings  # listed anew, and all the same
            return
        self.pause()
        self._listing, self._followed = self._source.listings, found
        self._watch = watch
        watch.watch(gpus)
        if self._watch.watching:
            self._open.set()

    def pause(self) -> None:
        """Get the thread out of the driver, and give the event set back."""
        self._open.clear()
        with self._inside:
            if self._watch is not None:
                self._watch.close()
            self._watch = None
            self._listing = 0
            self._followed = frozenset()

    def _listen(self) -> None:
        while True:
            self._open.wait()
            with self._inside:
                watch = self._watch
                if watch is None or not self._open.is_set():
                    continue
                try:
                    event = watch.wait(_WAIT_MS)
                except DeviceError:
                    self._open.clear()  # until the GPUs are listed anew
                    continue
            if event is not None:
                self._mouth.say(SayEvents((event,)))


class _Child:
    """Answers the parent until it is told, or signalled, to stop."""

    def __init__(self, settings: ChildSettings, ears: BinaryIO, mouth: _Mouth) -> None:
        self._ears = ears
        self._mouth = mouth
        self._told: Inventory | None = None
        self._idle = False
        self._stopping = False
        self._sweep = GuardedSweep(settings.device_deadline_seconds)
        library = None if settings.library is None else Path(settings.library)
        self._source = NvmlSource(
            load_pynvml(library),
            node=settings.node,
            expected_gpus=settings.expected_gpus,
            host=settings.host,
            groups=frozenset(Group(name) for name in settings.groups),
            slow_seconds=settings.slow_seconds,
            sweep=self._sweep,
            known=settings.known,
            lost=settings.lost,
            say=mouth.log,
            before_detach=self._before_detach,
        )
        self._listener = _Listener(self._source, mouth)

    def serve(self) -> None:
        """Read whenever asked."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        while not self._stopping:
            command = self._next()
            if isinstance(command, Change):
                self._change(command)
                continue
            if not isinstance(command, AskReading):
                break
            (reading,) = self._source.read(command.ts)
            self._mouth.say(SayReading(command.number, self._shortened(reading)))
            self._listener.follow()

    def _change(self, wanted: Change) -> None:
        self._sweep.deadline_seconds = wanted.device_deadline_seconds
        groups = frozenset(Group(name) for name in wanted.groups)
        self._source.change(groups, wanted.slow_seconds)

    def close(self) -> None:
        """Shut NVML down, unless a call hangs in it: then shutting down would hang too."""
        if not self._sweep.stuck:
            self._source.close()

    def _next(self) -> AskReading | Change | Stop | None:
        try:
            self._idle = True
            line = b"" if self._stopping else self._ears.readline()
        except _StopError:
            return None
        finally:
            self._idle = False
        return load_command(line) if line else None

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        if self._idle:
            self._idle = False
            raise _StopError

    def _before_detach(self) -> None:
        self._listener.pause()

    def _shortened(self, reading: Reading) -> Reading:
        """Leave out an inventory that has not changed: most readings then are numbers alone."""
        steady = reading.inventory
        if self._told is not None and _same(steady, self._told):
            return without_inventory(reading)
        self._told = steady
        return reading


def _same(one: Inventory, other: Inventory) -> bool:
    return (one.gpus, one.expected_gpus, one.driver_version, one.nvml_version) == (
        other.gpus,
        other.expected_gpus,
        other.driver_version,
        other.nvml_version,
    )


def main() -> NoReturn:
    """Serve the parent at the other end of stdin and stdout."""
    # The terminal's Ctrl-C goes to the whole group; the parent decides for both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A library that prints must not print between the lines.
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    ears, mouth = sys.stdin.buffer, _Mouth(pipe)
    child = _Child(load_settings(ears.readline()), ears, mouth)
    give_memory_back()
    gc.freeze()  # the binding's thousand structures stay: no collection need look at them again
    with contextlib.suppress(BrokenPipeError):  # the parent is gone; nobody is left to tell
        mouth.say(SayHello())
        child.serve()
    child.close()
    # At once: a thread that hangs in the driver would keep any tidier end from coming.
    os._exit(0)


if __name__ == "__main__":
    main()
