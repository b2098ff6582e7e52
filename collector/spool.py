"""Messages that wait on disk until the bus takes them again.

Bounded by bytes and by age: when the bus is away for long, the oldest go first, counted. One
SQLite file with a write-ahead log; without a path it lives in memory and is smaller.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import orjson

from bus.protocol import Headers
from schemas.errors import DataDirError

__all__ = ["MEMORY_BYTES", "Message", "Spool", "Waiting"]

#: Bound of a spool without a file, in bytes.
MEMORY_BYTES = 16 * 2**20
_ROW_BYTES = 64  # what a row costs beside its payload, roughly
_HOUR_MS = 3_600_000
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message for the bus."""

    topic: str
    key: bytes | None
    value: bytes
    headers: Headers = ()

    @property
    def size(self) -> int:
        """Bytes that count against the bound."""
        extra = sum(len(name) + len(value) for name, value in self.headers)
        return len(self.value) + len(self.key or b"") + extra + _ROW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message in the spool and its place in the queue."""

    place: int
    message: Message


class Spool:
    """A bounded queue of messages on disk. Belongs to one thread.

    Parameters
    ----------
    path
        File; None keeps the queue in memory, bounded to 16 MiB.
    max_bytes
        Largest sum of message sizes, in bytes.
    max_hours
        Longest time a message may wait, in hours.

    Raises
    ------
    DataDirError
        If the file cannot be opened or was written by a newer version.
    """

    def __init__(self, path: Path | None, *, max_bytes: int, max_hours: float) -> None:
        self._max_bytes = max_bytes if path is not None else min(max_bytes, MEMORY_BYTES)
        self._max_age_ms = round(max_hours * _HOUR_MS)
        self._db = _open(path)
        (self._bytes, self._count) = self._db.execute(
            "SELECT coalesce(sum(size), 0), count(*) FROM message"
        ).fetchone()

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of what waits, in bytes."""
        return int(self._bytes)

    def __len__(self) -> int:
        return int(self._count)

    def append(self, message: Message, now_ms: int) -> int:
        """Add a message at the end; return how many old ones had to go for it.

        Parameters
        ----------
        message
            What to keep.
        now_ms
            Wall time, unix milliseconds.

        Raises
        ------
        DataDirError
            If the disk takes no more; nothing was added.
        """
        headers = orjson.dumps([[name, value.decode("latin-1")] for name, value in message.headers])
        try:
            with self._db:
                self._db.execute(
                    "INSERT INTO message (added_ms, topic, key, value, headers, size)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (now_ms, message.topic, message.key, message.value, headers, message.size),
                )
        except sqlite3.Error as exc:
            raise DataDirError(f"the spool takes no message: {exc}") from exc
        self._bytes += message.size
        self._count += 1
        return self._drop_over_bound() + self.drop_old(now_ms)

    def oldest(self, limit: int, after: int = 0) -> list[Waiting]:
        """Return up to ``limit`` messages behind the place ``after``, oldest first."""
        rows = self._db.execute(
            "SELECT id, topic, key, value, headers FROM message WHERE id > ? ORDER BY id LIMIT ?",
            (after, limit),
        )
        return [
            Waiting(
                place=place,
                message=Message(topic=topic, key=key, value=value, headers=_headers(headers)),
            )
            for place, topic, key, value, headers in rows
        ]

    def remove(self, place: int) -> None:
        """Take a delivered message out; nothing happens if it is not there any more."""
        with self._db:
            row = self._db.execute("SELECT size FROM message WHERE id = ?", (place,)).fetchone()
            if row is not None:
                self._db.execute("DELETE FROM message WHERE id = ?", (place,))
                self._bytes -= row[0]
                self._count -= 1

    def drop_old(self, now_ms: int) -> int:
        """Drop what waited too long; return how many messages that were."""
        limit = now_ms - self._max_age_ms
        (first,) = self._db.execute(
            "SELECT added_ms FROM message ORDER BY id LIMIT 1"
        ).fetchone() or (None,)
        if first is None or first >= limit:
            return 0
        return self._delete("SELECT id, size FROM message WHERE added_ms < ?", limit)

    def close(self) -> None:
        """Let go of the file; what waits stays in it."""
        self._db.close()

    def _drop_over_bound(self) -> int:
        dropped = 0
        while self._bytes > self._max_bytes and self._count > 0:
            dropped += self._delete("SELECT id, size FROM message ORDER BY id LIMIT ?", 1)
        return dropped

    def _delete(self, query: str, argument: int) -> int:
        with self._db:
            rows = self._db.execute(query, (argument,)).fetchall()
            self._db.executemany("DELETE FROM message WHERE id = ?", [(row[0],) for row in rows])
        self._bytes -= sum(row[1] for row in rows)
        self._count -= len(rows)
        return len(rows)


def _open(path: Path | None) -> sqlite3.Connection:
    try:
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # before SQLite widens the mode
        # The service is built in one thread and run in another, never in two at once.
        db = sqlite3.connect(
            str(path) if path is not None else ":memory:", check_same_thread=False, timeout=5.0
        )
    except (OSError, sqlite3.Error) as exc:
        raise DataDirError(f"the spool {path} cannot be opened: {exc}") from exc
    try:
        _prepare(db, path)
    except sqlite3.Error as exc:
        db.close()
        raise DataDirError(
            f"the spool {path} cannot be used: {exc}. If it is damaged, move it away: "
            "a new one is made, and what waited in it is not sent"
        ) from exc
    except DataDirError:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path | None) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > _VERSION:
        raise DataDirError(
            f"the spool {path} was written by a newer foreshock (version {version}, this one "
            f"knows {_VERSION}); use that version, or move the file away"
        )
    db.execute("PRAGMA auto_vacuum = FULL")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    with db:
        # AUTOINCREMENT: a place is never used twice, so a late delivery report cannot
        # remove another message.
        db.execute(
            "CREATE TABLE IF NOT EXISTS message (id INTEGER PRIMARY KEY AUTOINCREMENT,"
            " added_ms INTEGER NOT NULL, topic TEXT NOT NULL, key BLOB, value BLOB NOT NULL,"
            " headers BLOB NOT NULL, size INTEGER NOT NULL)"
        )
        db.execute(f"PRAGMA user_version = {_VERSION}")


def _headers(text: bytes) -> Headers:
    return tuple((name, value.encode("latin-1")) for name, value in orjson.loads(text))
