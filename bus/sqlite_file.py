"""The file of the SQLite transport: opening, schema, and the rules every connection keeps.

Layout: a ``place`` is one partition of one topic. A record's row id is ``place << 40 | offset``,
so that one B-tree holds all partitions, each in order, without an index.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from bus.placement import spec_of
from bus.protocol import Headers
from bus.settings import SqliteSettings
from schemas.errors import BusUnavailableError

__all__ = [
    "OFFSET_BITS",
    "connect",
    "ensure_topic",
    "is_passing",
    "pack_headers",
    "unpack_headers",
    "writing",
]

OFFSET_BITS = 40  # 10^12 records per partition: 2.7 years at 12,500 messages per second

#: Marks the file as ours (``PRAGMA application_id``): the letters FSHB.
_APPLICATION_ID = 0x46534842

#: One step per schema version; a file of version n has had the first n steps.
_STEPS = (
    """
    CREATE TABLE topic (
        name TEXT PRIMARY KEY, retention_ms INTEGER, compacted INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE place (
        id INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL,
        low_offset INTEGER NOT NULL DEFAULT 0, next_offset INTEGER NOT NULL DEFAULT 0,
        bytes INTEGER NOT NULL DEFAULT 0, UNIQUE (topic, partition)
    );
    CREATE TABLE record (
        id INTEGER PRIMARY KEY, arrived_ms INTEGER NOT NULL, key BLOB, headers BLOB,
        value BLOB NOT NULL
    );
    CREATE TABLE position (
        group_name TEXT NOT NULL, place INTEGER NOT NULL, next_offset INTEGER NOT NULL,
        PRIMARY KEY (group_name, place)
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE member (
        group_name TEXT NOT NULL, name TEXT NOT NULL, topics TEXT NOT NULL, seen REAL NOT NULL,
        PRIMARY KEY (group_name, name)
    ) WITHOUT ROWID;
    CREATE TABLE claim (
        group_name TEXT NOT NULL, place INTEGER NOT NULL, member TEXT NOT NULL,
        PRIMARY KEY (group_name, place)
    ) WITHOUT ROWID;
    """,
)


def connect(path: Path, settings: SqliteSettings) -> sqlite3.Connection:
    """Open the file, creating or migrating it.

    Raises
    ------
    BusUnavailableError
        If the file is of a newer version, is not ours, or cannot be opened.
    """
    try:
        _own(path)
        connection = sqlite3.connect(
            path, timeout=settings.busy_seconds, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise BusUnavailableError(
            f"The message log {path} cannot be opened: {error}. Check the folder and its rights."
        ) from error
    try:
        _prepare(connection, path, settings)
    except sqlite3.Error as error:
        connection.close()
        raise BusUnavailableError(
            f"The message log {path} cannot be used: {error}. If it is damaged, move it away; "
            "foreshock then starts a new one."
        ) from error
    except BusUnavailableError:
        connection.close()
        raise
    return connection


def _own(path: Path) -> None:
    """Create the file for its owner alone; SQLite gives -wal and -shm the same mode.

    An existing file is never opened here: closing it would drop the locks of every connection that
    this process has to it (POSIX advisory locks belong to the process), and the next process that
    closes would take itself for the last one and delete the WAL under us.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


def _prepare(connection: sqlite3.Connection, path: Path, settings: SqliteSettings) -> None:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    if pages == 0:  # both count only before the first page is written
        connection.execute("PRAGMA page_size = 8192")  # records of 1 to 4 KB: fewer overflow pages
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    _use_wal(connection, settings.busy_seconds)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {64 * 1024**2}")
    if settings.max_file_bytes is not None:
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {settings.max_file_bytes // page_size}")
    if _version(connection, path) < len(_STEPS):
        with writing(connection):
            # Read again: another process may have migrated while this one waited for the lock.
            for step in _STEPS[_version(connection, path) :]:
                # Not executescript(): it would commit the transaction first.
                for statement in step.split(";"):
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(_STEPS)}")


def _use_wal(connection: sqlite3.Connection, busy_seconds: float) -> None:
    """Switch to WAL; two processes that create the file at once refuse each other at first."""
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _version(connection: sqlite3.Connection, path: Path) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if version > len(_STEPS):
        raise BusUnavailableError(
            f"The message log {path} has schema version {version}, this foreshock knows up to "
            f"{len(_STEPS)}. Use the newer foreshock that wrote it, or another file."
        )
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != _APPLICATION_ID and tables:
        raise BusUnavailableError(
            f"{path} is a database of another program, not a message log. Choose another path."
        )
    return int(version)


def is_passing(error: sqlite3.Error) -> bool:
    """Whether a failure mends by itself: another writer's lock, or a disk that gets room again."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL}


@contextlib.contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """One write transaction.

    It takes the write lock at once: a transaction that reads first and writes later fails with
    "database is locked" whenever another one wrote in between, whatever the busy time-out.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back when the disk is full
            connection.execute("ROLLBACK")
        raise


def ensure_topic(
    connection: sqlite3.Connection, topic: str, prefix: str, partitions: int
) -> dict[int, int]:
    """Create the topic if it is missing; return its places by partition.

    Must run inside :func:`writing`. The file has the last word on the number of partitions.
    """
    rows = connection.execute("SELECT partition, id FROM place WHERE topic = ?", (topic,))
    places: dict[int, int] = dict(rows.fetchall())
    if places:
        return places
    spec = spec_of(topic, prefix)
    count = min(partitions, spec.partitions) if spec else partitions
    connection.execute(
        "INSERT INTO topic VALUES (?, ?, ?)",
        (topic, spec.retention_ms if spec else None, int(spec.compacted) if spec else 0),
    )
    for number in range(count):
        row = connection.execute(
            "INSERT INTO place (topic, partition) VALUES (?, ?) RETURNING id", (topic, number)
        ).fetchone()
        places[number] = row[0]
    return places


def pack_headers(headers: Headers) -> bytes | None:
    """Write headers as length and bytes, name and content in turn; None if there are none."""
    if not headers:
        return None
    parts = []
    for name, content in headers:
        encoded = name.encode()
        parts += [struct.pack(">II", len(encoded), len(content)), encoded, content]
    return b"".join(parts)


def unpack_headers(packed: bytes | None) -> Headers:
    """Read what :func:`pack_headers` wrote.

    >>> unpack_headers(pack_headers((("ce_id", b"b:1"), ("empty", b""))))
    (('ce_id', b'b:1'), ('empty', b''))
    """
    headers = []
    at = 0
    while packed and at < len(packed):
        name_length, content_length = struct.unpack_from(">II", packed, at)
        at += 8
        name = packed[at : at + name_length].decode()
        at += name_length
        headers.append((name, packed[at : at + content_length]))
        at += content_length
    return tuple(headers)
