"""One piece of work per device, so that a device that hangs delays the others once.

A driver call that hangs cannot be interrupted. The guarded sweep does the work in a thread of its
own; when one piece takes longer than its deadline the thread is left with it, another thread goes
on with the rest, and the device is not asked again until the lost thread comes back.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

__all__ = ["HUNG", "DirectSweep", "GuardedSweep", "Hung", "Sweep"]

Key = int
Item = TypeVar("Item")
Result = TypeVar("Result")


class Hung:
    """Stands for the result of a piece of work that did not come back."""


HUNG = Hung()


class Sweep(Protocol):
    """Does one piece of work for each of several devices."""

    def each(
        self, items: Iterable[tuple[Key, Item]], work: Callable[[Item], Result]
    ) -> list[Result | Hung]:
        """Return the results in order.

        Parameters
        ----------
        items
            Number of the device, and what the work is given.
        work
            Must not raise.
        """
        ...


class DirectSweep:
    """Does the work in the caller's thread, one piece after the other."""

    def each(
        self, items: Iterable[tuple[Key, Item]], work: Callable[[Item], Result]
    ) -> list[Result | Hung]:
        """Return the results in order."""
        return [work(item) for _, item in items]


class _Round(Generic[Result]):
    """The work of one call of ``each``: shared by the caller and its threads."""

    def __init__(self, size: int) -> None:
        self.results: list[Result | Hung] = [HUNG] * size
        self.place = 0  # of the piece that is being done
        self.begun = time.monotonic()
        self.done = threading.Event()


class GuardedSweep:
    """Does the work in a thread under a deadline per device.

    Parameters
    ----------
    deadline_seconds
        How long the work for one device may take.
    """

    def __init__(self, deadline_seconds: float) -> None:
        self.deadline_seconds = deadline_seconds
        self._stuck: set[Key] = set()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def stuck(self) -> frozenset[Key]:
        """Devices whose work has not come back."""
        with self._lock:
            return frozenset(self._stuck)

    def each(
        self, items: Iterable[tuple[Key, Item]], work: Callable[[Item], Result]
    ) -> list[Result | Hung]:
        """Return the results in order, HUNG for a device that did not come back in time."""
        pieces = list(items)
        stuck = self.stuck
        todo = [place for place, (key, _) in enumerate(pieces) if key not in stuck]
        results: list[Result | Hung] = [HUNG] * len(pieces)
        while todo:
            todo = self._some(pieces, todo, work, results)
        return results

    def _some(
        self,
        pieces: list[tuple[Key, Item]],
        todo: list[int],
        work: Callable[[Item], Result],
        results: list[Result | Hung],
    ) -> list[int]:
        """Work in the thread until all is done or one piece hangs; return what is left."""
        turn: _Round[Result] = _Round(len(todo))

        def run() -> None:
            for number, place in enumerate(todo):
                key, item = pieces[place]
                with self._lock:
                    if turn.done.is_set():
                        return
                    turn.place, turn.begun = number, time.monotonic()
                result = work(item)
                with self._lock:
                    if turn.done.is_set():  # given up meanwhile: the device may be asked again
                        self._stuck.discard(key)
                        return
                    turn.results[number] = result
            turn.done.set()

        self._begin(run)
        while not turn.done.wait(max(0.0, turn.begun + self.deadline_seconds - time.monotonic())):
            with self._lock:
                if turn.done.is_set() or time.monotonic() - turn.begun < self.deadline_seconds:
                    continue
                turn.done.set()
                self._jobs.put(None)  # the thread ends when it comes back
                self._thread = None
                self._stuck.add(pieces[todo[turn.place]][0])
                left = todo[turn.place + 1 :]
                self._keep(todo[: turn.place], turn, results)
                return left
        self._keep(todo, turn, results)
        return []

    def _begin(self, job: Callable[[], None]) -> None:
        """Give the job to the thread of the rounds before, or to a new one after a hang."""
        if self._thread is None:
            jobs = self._jobs = queue.SimpleQueue()

            def work() -> None:
                while (taken := jobs.get()) is not None:
                    taken()

            self._thread = threading.Thread(target=work, name="nvml-sweep", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    @staticmethod
    def _keep(places: list[int], turn: _Round[Result], results: list[Result | Hung]) -> None:
        for number, place in enumerate(places):
            results[place] = turn.results[number]
