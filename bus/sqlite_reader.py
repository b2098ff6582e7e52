"""Reading the SQLite log: records, claims and positions of one member of a group.

Claims live in the file. A member says with every beat that it lives; one that has not done so
for a lease is dead, and its claims fall to those to whom they are due. The clock is the
machine's monotonic one, which all processes share; a beat further ahead than the present is from
before a reboot and counts as dead.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import structlog

from bus.embedded import Shares
from bus.placement import fair_share
from bus.protocol import Record, TopicPartition
from bus.settings import SqliteSettings
from bus.sqlite_file import (
    OFFSET_BITS,
    connect,
    ensure_topic,
    is_passing,
    unpack_headers,
    writing,
)
from schemas.errors import BusUnavailableError

__all__ = ["SqliteLog"]

_log = structlog.get_logger(__name__)
_LAST = (1 << OFFSET_BITS) - 1


class SqliteLog:
    """One connection that reads. Implements ``bus.embedded.Log``.

    Parameters
    ----------
    path, settings, prefix
        As in ``BusSettings``.
    changed
        Notified when a publisher of this process has written.
    """

    def __init__(
        self, path: Path, settings: SqliteSettings, prefix: str, changed: threading.Condition
    ) -> None:
        self._connection = connect(path, settings)
        self._settings = settings
        self._prefix = prefix
        self._changed = changed
        self._ids: dict[TopicPartition, int] = {}
        self._version = -1
        self._path = path
        self._shares = Shares(held=frozenset(), due=frozenset())

    def prepare(self, topics: Sequence[str]) -> None:
        """Create the topics that are missing, so that a reader may come before any writer."""
        with writing(self._connection):
            for topic in topics:
                places = ensure_topic(
                    self._connection, topic, self._prefix, self._settings.partitions
                )
                for partition, number in places.items():
                    self._ids[TopicPartition(topic, partition)] = number

    def partitions(self, topic: str) -> int:
        """Count the partitions of a topic that was prepared."""
        return sum(place.topic == topic for place in self._ids)

    def beat(self, group: str, member: str, topics: Sequence[str]) -> Shares:
        """Say that the member lives, bury the dead, and return the member's shares.

        While the file cannot be written, the shares stay as they were: a full disk must not
        stop reading.
        """
        try:
            self._shares = self._beat(group, member, topics)
        except sqlite3.Error as error:
            self._survive(error, "bus_beat_failed")
        return self._shares

    def _survive(self, error: sqlite3.Error, event: str) -> None:
        """Log what will mend by itself; raise what will not."""
        if not is_passing(error):
            raise BusUnavailableError(
                f"The message log {self._path} cannot be read: {error}. Check the disk; move a "
                "damaged file away and start again."
            ) from error
        _log.warning(event, path=str(self._path), error=str(error))

    def _beat(self, group: str, member: str, topics: Sequence[str]) -> Shares:
        now = time.monotonic()
        with writing(self._connection):
            self._connection.execute(
                "INSERT OR REPLACE INTO member VALUES (?, ?, ?, ?)",
                (group, member, "\n".join(topics), now),
            )
            self._connection.execute(
                "DELETE FROM member WHERE group_name = ? AND (seen < ? OR seen > ?)",
                (group, now - self._settings.lease_seconds, now + 1.0),
            )
            self._connection.execute(
                "DELETE FROM claim WHERE group_name = ? AND member NOT IN"
                " (SELECT name FROM member WHERE group_name = ?)",
                (group, group),
            )
            members = {
                name: text.split("\n")
                for name, text in self._connection.execute(
                    "SELECT name, topics FROM member WHERE group_name = ?", (group,)
                )
            }
            mine = {
                number
                for (number,) in self._connection.execute(
                    "SELECT place FROM claim WHERE group_name = ? AND member = ?", (group, member)
                )
            }
        held = frozenset(place for place, number in self._ids.items() if number in mine)
        return Shares(held=held, due=fair_share(self._ids, members, member))

    def claim(
        self, group: str, member: str, places: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """Take those of the places that nobody holds; none while the file cannot be written."""
        try:
            with writing(self._connection):
                taken = [
                    place
                    for place in places
                    if self._connection.execute(
                        "INSERT INTO claim VALUES (?, ?, ?) ON CONFLICT DO UPDATE"
                        " SET member = excluded.member WHERE member = excluded.member",
                        (group, self._ids[place], member),
                    ).rowcount
                    == 1
                ]
        except sqlite3.Error as error:
            self._survive(error, "bus_claim_failed")
            return []
        self._shares = Shares(held=self._shares.held | set(taken), due=self._shares.due)
        return taken

    def release(self, group: str, member: str, places: Iterable[TopicPartition]) -> None:
        """Give back the member's claims on the places; a failure is made good at a later beat."""
        gone = frozenset(places)
        if not gone:
            return
        self._shares = Shares(held=self._shares.held - gone, due=self._shares.due)
        try:
            with writing(self._connection):
                self._connection.executemany(
                    "DELETE FROM claim WHERE group_name = ? AND place = ? AND member = ?",
                    [(group, self._ids[place], member) for place in gone],
                )
        except sqlite3.Error as error:
            self._survive(error, "bus_release_failed")

    def leave(self, group: str, member: str) -> None:
        """Forget the member and its claims; a failure leaves that to the lease."""
        try:
            with writing(self._connection):
                for table, column in (("member", "name"), ("claim", "member")):
                    self._connection.execute(
                        f"DELETE FROM {table} WHERE group_name = ? AND {column} = ?",  # noqa: S608 - two constants
                        (group, member),
                    )
        except sqlite3.Error as error:
            _log.warning("bus_leave_failed", group=group, error=str(error))

    def bounds(self, place: TopicPartition) -> tuple[int, int]:
        """Return the first offset kept and the next one to be written."""
        low, high = self._connection.execute(
            "SELECT low_offset, next_offset FROM place WHERE id = ?", (self._ids[place],)
        ).fetchone()
        return low, high

    def committed(self, group: str, place: TopicPartition) -> int | None:
        """Return the group's position, or None."""
        row = self._connection.execute(
            "SELECT next_offset FROM position WHERE group_name = ? AND place = ?",
            (group, self._ids[place]),
        ).fetchone()
        return None if row is None else int(row[0])

    def commit(self, group: str, member: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Record positions of the places that the member still holds.

        On a full disk they are not recorded, which costs reading again, never a record.
        """
        try:
            with writing(self._connection):
                self._connection.executemany(
                    "INSERT OR REPLACE INTO position SELECT group_name, place, ? FROM claim"
                    " WHERE group_name = ? AND place = ? AND member = ?",
                    [
                        (offset, group, self._ids[place], member)
                        for place, offset in offsets.items()
                    ],
                )
        except sqlite3.Error as error:
            self._survive(error, "bus_commit_failed")

    def read(self, place: TopicPartition, offset: int, limit: int) -> list[Record]:
        """Return up to ``limit`` records from ``offset`` on."""
        base = self._ids[place] << OFFSET_BITS
        try:
            rows = self._connection.execute(
                "SELECT id, arrived_ms, key, headers, value FROM record WHERE id BETWEEN ? AND ?"
                " ORDER BY id LIMIT ?",
                (base + offset, base + _LAST, limit),
            ).fetchall()
        except sqlite3.Error as error:
            self._survive(error, "bus_read_failed")
            return []
        return [
            Record(
                topic=place.topic,
                partition=place.partition,
                offset=number - base,
                arrived_ms=arrived_ms,
                key=key,
                value=value,
                headers=unpack_headers(headers),
            )
            for number, arrived_ms, key, headers, value in rows
        ]

    def wait(self, timeout_seconds: float) -> None:
        """Return when any connection has written, at the latest after the time-out."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            remaining = deadline - time.monotonic()
            if version != self._version or remaining <= 0:
                self._version = version
                return
            with self._changed:
                self._changed.wait(min(remaining, self._settings.poll_seconds))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
