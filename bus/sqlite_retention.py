"""What the SQLite log forgets: by age, by size, and old versions of a key.

Each step is one short transaction, so that writers never wait long.
"""

from __future__ import annotations

import sqlite3

from bus.sqlite_file import OFFSET_BITS, writing

__all__ = ["compact", "expire", "tidy"]

_BATCH = 1_000  # records per transaction: about 10 ms
_WAL_LIMIT_PAGES = 4_096  # 32 MiB of 8 KiB pages


def expire(connection: sqlite3.Connection, now_ms: int, retention_bytes: int) -> int:
    """Delete one batch of what is too old, else of what is too much.

    Parameters
    ----------
    connection
        To an open log.
    now_ms
        The present, unix milliseconds.
    retention_bytes
        Payload that may stay, over all topics.

    Returns
    -------
    int
        Records deleted; 0 when there is nothing left to do.
    """
    with writing(connection):
        rows = connection.execute(
            "SELECT place.id, retention_ms FROM place JOIN topic ON topic.name = place.topic"
            " WHERE retention_ms IS NOT NULL AND next_offset > low_offset"
        ).fetchall()
        for place, retention_ms in rows:
            deleted = _drop_oldest(connection, place, before_ms=now_ms - retention_ms)
            if deleted:
                return deleted
        (total,) = connection.execute("SELECT coalesce(sum(bytes), 0) FROM place").fetchone()
        if total <= retention_bytes:
            return 0
        # Samples outweigh everything else, so alerts stay when samples fill the disk.
        (place,) = connection.execute("SELECT id FROM place ORDER BY bytes DESC LIMIT 1").fetchone()
        return _drop_oldest(connection, place, surplus=total - retention_bytes)


def _drop_oldest(
    connection: sqlite3.Connection,
    place: int,
    *,
    before_ms: int | None = None,
    surplus: int | None = None,
) -> int:
    """Delete from the front of a place what arrived before a time, or until bytes are gone."""
    base = place << OFFSET_BITS
    rows = connection.execute(
        "SELECT id, arrived_ms, length(value) + coalesce(length(key), 0)"
        " + coalesce(length(headers), 0) FROM record WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
        (base, (place + 1) << OFFSET_BITS, _BATCH),
    ).fetchall()
    count = size = 0
    for _, arrived_ms, length in rows:
        if before_ms is not None and arrived_ms >= before_ms:
            break
        if surplus is not None and size >= surplus:
            break
        count += 1
        size += length
    if count:
        last = rows[count - 1][0]
        connection.execute("DELETE FROM record WHERE id BETWEEN ? AND ?", (base, last))
        connection.execute(
            "UPDATE place SET low_offset = ?, bytes = max(0, bytes - ?) WHERE id = ?",
            (last - base + 1, size, place),
        )
    return count


def compact(connection: sqlite3.Connection) -> int:
    """Delete, in compacted topics, the records of which the key has a newer one.

    Returns
    -------
    int
        Records deleted.
    """
    rows = connection.execute(
        "SELECT place.id FROM place JOIN topic ON topic.name = place.topic WHERE compacted = 1"
    ).fetchall()
    deleted = 0
    for (place,) in rows:
        span = (place << OFFSET_BITS, ((place + 1) << OFFSET_BITS) - 1)
        with writing(connection):
            gone = connection.execute(
                "DELETE FROM record WHERE id BETWEEN ? AND ? AND key IS NOT NULL AND id NOT IN"
                " (SELECT max(id) FROM record WHERE id BETWEEN ? AND ? GROUP BY key)"
                " RETURNING length(value) + length(key) + coalesce(length(headers), 0)",
                (*span, *span),
            ).fetchall()
            if gone:
                connection.execute(
                    "UPDATE place SET bytes = max(0, bytes - ?) WHERE id = ?",
                    (sum(size for (size,) in gone), place),
                )
        deleted += len(gone)
    return deleted


def tidy(connection: sqlite3.Connection) -> None:
    """Give pages back to the disk and keep the WAL short, in bounded steps."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    if free > pages // 4:  # a log in steady state reuses its pages; only a surplus goes back
        # Not execute(): it stops after the first step, which frees one page.
        connection.executescript("PRAGMA incremental_vacuum(2000)")
    _, in_wal, done = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if in_wal == done and in_wal > _WAL_LIMIT_PAGES:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
