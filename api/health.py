"""Whether the api does all of its work: store, reading from the bus, delivery."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from api.database import Database
from schemas.errors import DataDirError, StoreError

__all__ = ["Loop", "Readiness"]

#: A loop that has not come round for this long is stuck, whatever it says. Longer than one
#: transaction of 500 events waiting for the write lock (10 s) and a dead-letter flush (5 s).
STUCK_SECONDS = 30.0


class Loop(Protocol):
    """A thread's loop that shows that it comes round."""

    #: Monotonic seconds at which it last did.
    beat: float

    @property
    def problem(self) -> str | None:
        """Sentence that says what keeps it from its work, or None."""
        ...


class Readiness:
    """Checks what the service lives from. Safe from any thread.

    Parameters
    ----------
    database
        Must take writes.
    loops
        Name to loop.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        database: Database,
        loops: Mapping[str, Loop],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._loops = dict(loops)
        self._clock = clock

    def report(self) -> dict[str, Any]:  # JSON: booleans and sentences
        """Return ok, a sentence, and each check."""
        problems = {
            "store": _problem(self._database.check_writable),
            "schema": _problem(self._database.check_schema),
        }
        for name, loop in self._loops.items():
            silent = self._clock() - loop.beat
            problems[name] = loop.problem
            if silent > STUCK_SECONDS:
                problems[name] = f"The {name} loop has not come round for {silent:.0f} s."
        found = [text for text in problems.values() if text is not None]
        return {
            "ok": not found,
            "detail": " ".join(found) or "Store, ingest and delivery work.",
            "checks": {name: text or "ok" for name, text in problems.items()},
        }


def _problem(check: Callable[[], None]) -> str | None:
    try:
        check()
    except (StoreError, DataDirError) as exc:
        return str(exc)
    return None
