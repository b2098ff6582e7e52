"""Writing the SQLite log: one thread per bus gathers what all publishers send.

``send`` only puts a message into memory, so it never waits for the disk. What gathers while one
transaction is written goes into the next; on an idle log a message is written at once. A
transaction that holds a message of a durable publisher is synced to the disk before its
reports.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from bus.placement import partition_of, payload_bytes
from bus.protocol import DeliveryReport, Headers
from bus.settings import SqliteSettings
from bus.sqlite_file import OFFSET_BITS, connect, ensure_topic, is_passing, pack_headers, writing
from bus.sqlite_retention import compact, expire, tidy

__all__ = ["Letter", "Sender", "SqliteWriter"]

_log = structlog.get_logger(__name__)

_BATCH_MESSAGES = 4_000
_BATCH_BYTES = 8 * 1024**2
_PAUSE_SECONDS = 1.0  # after a failed write: how long send refuses before the next try
_PASS_SECONDS = 0.2  # of retention between two looks at the queue

Write = tuple[int, int]  # partition and offset


class Sender(Protocol):
    """Who is told when a letter is written or failed. Called from the writer's thread."""

    def done(self, letter: Letter, written: Write | None, error: str | None) -> None:
        """Take the news of one letter."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One message on its way to the file."""

    sender: Sender
    topic: str
    key: bytes | None
    value: bytes
    headers: Headers
    durable: bool
    size: int
    on_delivery: Callable[[DeliveryReport], None] | None


class SqliteWriter:
    """The one thread of this process that writes records and keeps the file small.

    Parameters
    ----------
    path, settings, prefix
        As in ``BusSettings``.
    changed
        Notified after each transaction, for the readers of this process.
    """

    def __init__(
        self, path: Path, settings: SqliteSettings, prefix: str, changed: threading.Condition
    ) -> None:
        self._path = path
        self._settings = settings
        self._prefix = prefix
        self._changed = changed
        self._connection = connect(path, settings)
        self._queue: deque[Letter] = deque()
        self._wake = threading.Condition()
        self._places: dict[str, dict[int, int]] = {}
        self._null_key = itertools.count()
        self._trouble: tuple[str, float] | None = None
        self._stopping = False
        self._retention_due = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="bus-sqlite-writer", daemon=True)
        self._thread.start()

    def trouble(self) -> str | None:
        """Return why nothing can be written now, or None."""
        trouble = self._trouble
        return trouble[0] if trouble and time.monotonic() < trouble[1] else None

    def put(self, letter: Letter) -> None:
        """Take a letter; the sender keeps the bound."""
        with self._wake:
            self._queue.append(letter)
            self._wake.notify()

    def withdraw(self, sender: Sender) -> list[Letter]:
        """Take back what a sender put and the thread has not begun to write."""
        with self._wake:
            back = [letter for letter in self._queue if letter.sender is sender]
            self._queue = deque(letter for letter in self._queue if letter.sender is not sender)
        return back

    def stop(self, timeout_seconds: float) -> None:
        """Write what is queued, then end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_seconds)
        if not self._thread.is_alive():
            self._connection.close()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._stopping and not self._retention_left():
                    self._wake.wait(self._retention_left_seconds())
                batch = self._take()
                if not batch and self._stopping:
                    return
            if batch:
                self._deliver(batch)
            if self._retention_left():
                self._retain()

    def _take(self) -> list[Letter]:
        batch: list[Letter] = []
        size = 0
        while self._queue and len(batch) < _BATCH_MESSAGES and size < _BATCH_BYTES:
            letter = self._queue.popleft()
            size += letter.size
            batch.append(letter)
        return batch

    def _deliver(self, batch: list[Letter]) -> None:
        try:
            written = self._write(batch)
        except sqlite3.Error as error:
            sentence = self._explain(error)
            if self.trouble() is None:
                _log.warning("bus_write_failed", path=str(self._path), error=str(error))
            self._trouble = (sentence, time.monotonic() + _PAUSE_SECONDS)
            for letter in batch:
                letter.sender.done(letter, None, sentence)
            return
        self._trouble = None
        for letter, place in zip(batch, written, strict=True):
            letter.sender.done(letter, place, None)
        with self._changed:
            self._changed.notify_all()

    def _write(self, batch: list[Letter]) -> list[Write]:
        durable = any(letter.durable for letter in batch)
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        places: dict[str, dict[int, int]] = {}
        with writing(self._connection):
            heads: dict[int, list[int]] = {}  # place: next offset, bytes added
            now_ms = time.time_ns() // 1_000_000
            rows = []
            written = []
            for letter in batch:
                if letter.topic not in places:
                    places[letter.topic] = self._places_of(letter.topic)
                partition, place = self._choose(letter, places[letter.topic])
                head = heads.get(place) or heads.setdefault(place, [self._head(place), 0])
                packed = pack_headers(letter.headers)
                rows.append(
                    (place << OFFSET_BITS | head[0], now_ms, letter.key, packed, letter.value)
                )
                written.append((partition, head[0]))
                head[0] += 1
                # As retention counts it: by what lies in the file.
                head[1] += payload_bytes(letter.key, letter.value, ()) + len(packed or b"")
            self._connection.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?)", rows)
            self._connection.executemany(
                "UPDATE place SET next_offset = ?, bytes = bytes + ? WHERE id = ?",
                [(head, size, place) for place, (head, size) in heads.items()],
            )
        self._places.update(places)  # only now do topics that this batch created exist
        return written

    def _places_of(self, topic: str) -> dict[int, int]:
        known = self._places.get(topic)
        return known or ensure_topic(
            self._connection, topic, self._prefix, self._settings.partitions
        )

    def _choose(self, letter: Letter, places: dict[int, int]) -> Write:
        if letter.key is None:
            partition = next(self._null_key) % len(places)
        else:
            partition = partition_of(letter.key, len(places))
        return partition, places[partition]

    def _head(self, place: int) -> int:
        (offset,) = self._connection.execute(
            "SELECT next_offset FROM place WHERE id = ?", (place,)
        ).fetchone()
        return int(offset)

    def _explain(self, error: sqlite3.Error) -> str:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            return (
                f"The disk that holds {self._path} is full, or the file reached max_file_bytes. "
                "Make room, or lower retention_bytes."
            )
        if is_passing(error):
            return f"Another process holds the write lock of {self._path} for too long: {error}."
        return f"The message log {self._path} cannot be written: {error}. Check the disk."

    def _retention_left_seconds(self) -> float:
        return max(0.0, self._retention_due - time.monotonic())

    def _retention_left(self) -> bool:
        return self._retention_left_seconds() == 0.0

    def _retain(self) -> None:
        """Delete for a fifth of a second at most, then let messages through before going on."""
        until = time.monotonic() + _PASS_SECONDS
        wait = self._settings.retention_check_seconds
        with contextlib.suppress(sqlite3.Error):  # a full or busy disk: the next pass tries again
            self._connection.execute("PRAGMA synchronous = NORMAL")
            now_ms = time.time_ns() // 1_000_000
            while expire(self._connection, now_ms, self._settings.retention_bytes):
                if time.monotonic() > until:
                    wait = _PASS_SECONDS
                    break
            else:
                compact(self._connection)
                tidy(self._connection)
        self._retention_due = time.monotonic() + wait
