"""The transport of one machine: a durable log in one SQLite file, no server.

Several processes may open the file at once, each with any number of publishers and readers. The
file must lie on a local disk: write-ahead logging does not work on network shares.

* A message that ``flush`` confirmed survives ``kill -9`` of every process; one of a *durable*
  publisher survives power loss too.
* A group shares the partitions of a topic among its live members by claims in the file. A member
  that dies is replaced after ``lease_seconds`` (see :mod:`bus.sqlite_reader`).
* Size is bounded by retention per topic (age) and over all (bytes), see
  :mod:`bus.sqlite_retention`.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import structlog

from bus.embedded import EmbeddedSubscriber, scan
from bus.placement import check_size, payload_bytes, spec_of
from bus.protocol import (
    AssignmentListener,
    DeliveryReport,
    Headers,
    Record,
    Start,
    TopicDescription,
)
from bus.settings import BusSettings, SqliteSettings
from bus.sqlite_file import connect, ensure_topic, writing
from bus.sqlite_reader import SqliteLog
from bus.sqlite_writer import Letter, SqliteWriter, Write
from schemas.errors import BusFullError, BusUnavailableError
from schemas.topics import ALL_TOPICS

__all__ = ["SqliteBus", "SqlitePublisher"]

_log = structlog.get_logger(__name__)
_MAX_BYTES = 1_048_576  # of topics that the contract does not name; Kafka's usual limit


class SqlitePublisher:
    """Sends into the file. Implements :class:`bus.protocol.Publisher`."""

    def __init__(
        self, writer: SqliteWriter, settings: SqliteSettings, prefix: str, *, durable: bool
    ) -> None:
        self._writer = writer
        self._settings = settings
        self._prefix = prefix
        self._durable = durable
        self._news = threading.Condition()
        self._unwritten = 0
        self._unwritten_bytes = 0
        self._due: deque[tuple[Callable[[DeliveryReport], None], DeliveryReport]] = deque()

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes,
        headers: Headers = (),
        on_delivery: Callable[[DeliveryReport], None] | None = None,
    ) -> None:
        """Take one message for delivery."""
        size = payload_bytes(key, value, headers)
        spec = spec_of(topic, self._prefix)
        check_size(topic, size, spec.max_message_bytes if spec else _MAX_BYTES)
        trouble = self._writer.trouble()
        if trouble is not None:
            raise BusFullError(trouble)
        with self._news:
            waiting = self._unwritten + len(self._due)
            if (
                waiting >= self._settings.queue_messages
                or self._unwritten_bytes >= self._settings.queue_bytes
            ):
                raise BusFullError(
                    f"{waiting} messages wait for the disk or for their delivery report. Poll the "
                    "publisher; if that does not help, the disk is too slow."
                )
            self._unwritten += 1
            self._unwritten_bytes += size
        self._writer.put(
            Letter(
                sender=self,
                topic=topic,
                key=key,
                value=value,
                headers=headers,
                durable=self._durable,
                size=size,
                on_delivery=on_delivery,
            )
        )

    def done(self, letter: Letter, written: Write | None, error: str | None) -> None:
        """Take the news of one letter; called by the writer's thread."""
        with self._news:
            self._unwritten -= 1
            self._unwritten_bytes -= letter.size
            if letter.on_delivery is not None:
                report = DeliveryReport(
                    topic=letter.topic,
                    key=letter.key,
                    value=letter.value,
                    headers=letter.headers,
                    partition=written[0] if written else None,
                    offset=written[1] if written else None,
                    error=error,
                )
                self._due.append((letter.on_delivery, report))
            if self._unwritten == 0:
                self._news.notify_all()

    def poll(self) -> None:
        """Run the delivery reports that are due."""
        for _ in range(len(self._due)):
            tell, report = self._due.popleft()
            tell(report)

    def flush(self, timeout_seconds: float) -> int:
        """Wait until everything taken is written or failed; return how many are neither."""
        with self._news:
            self._news.wait_for(lambda: self._unwritten == 0, timeout_seconds)
            left = self._unwritten
        self.poll()
        return left

    def close(self, timeout_seconds: float = 5.0) -> int:
        """Flush; hand back what could not be written; return how many that were."""
        left = self.flush(timeout_seconds)
        for letter in self._writer.withdraw(self):
            self.done(letter, None, "The publisher was closed before the message was written.")
        self.poll()
        return left


class SqliteBus:
    """One file. Implements :class:`bus.protocol.Bus`.

    Parameters
    ----------
    settings
        ``path``, ``prefix`` and ``sqlite`` count.

    Raises
    ------
    BusUnavailableError
        If the file cannot be used.
    """

    def __init__(self, settings: BusSettings) -> None:
        self._settings = settings
        self._changed = threading.Condition()
        self._lock = threading.Lock()
        self._writer: SqliteWriter | None = None
        connect(settings.path, settings.sqlite).close()  # a bad file is named now, not later

    def publisher(self, *, client_id: str, durable: bool = False) -> SqlitePublisher:  # noqa: ARG002 - the file keeps no client names
        """Make a publisher; the first one starts the writer's thread."""
        with self._lock:
            if self._writer is None:
                self._writer = SqliteWriter(
                    self._settings.path, self._settings.sqlite, self._settings.prefix, self._changed
                )
            return SqlitePublisher(
                self._writer, self._settings.sqlite, self._settings.prefix, durable=durable
            )

    def subscriber(
        self,
        *,
        group: str,
        topics: Sequence[str],
        listener: AssignmentListener | None = None,
        start: str = Start.EARLIEST,
        client_id: str = "foreshock",  # noqa: ARG002 - members are named by themselves
    ) -> EmbeddedSubscriber:
        """Join ``group`` and read ``topics`` (full names)."""
        log = SqliteLog(
            self._settings.path, self._settings.sqlite, self._settings.prefix, self._changed
        )
        log.prepare(topics)
        return EmbeddedSubscriber(
            log,
            group=group,
            topics=topics,
            listener=listener,
            start=start,
            beat_seconds=self._settings.sqlite.lease_seconds / 3,
        )

    def read_all(self, topic: str) -> Iterator[Record]:
        """Yield what a topic keeps now, in order within each partition."""
        log = SqliteLog(
            self._settings.path, self._settings.sqlite, self._settings.prefix, self._changed
        )
        try:
            log.prepare([topic])
            yield from scan(log, topic, log.partitions(topic))
        finally:
            log.close()

    def create_topics(self) -> list[str]:
        """Create what ``schemas.topics`` declares and is missing; return the names created."""
        there = {topic.name for topic in self.describe_topics()}
        names = [spec.full_name(self._settings.prefix) for spec in ALL_TOPICS]
        connection = connect(self._settings.path, self._settings.sqlite)
        try:
            with writing(connection):
                for name in names:
                    ensure_topic(
                        connection, name, self._settings.prefix, self._settings.sqlite.partitions
                    )
        except sqlite3.Error as error:
            raise BusUnavailableError(
                f"Topics cannot be created in {self._settings.path}: {error}."
            ) from error
        finally:
            connection.close()
        return [name for name in names if name not in there]

    def describe_topics(self) -> list[TopicDescription]:
        """Describe those of our topics that exist, in the order of ``schemas.topics``."""
        connection = connect(self._settings.path, self._settings.sqlite)
        try:
            rows = connection.execute(
                "SELECT name, retention_ms, compacted, count(*) FROM topic"
                " JOIN place ON place.topic = topic.name GROUP BY name"
            ).fetchall()
        except sqlite3.Error as error:
            raise BusUnavailableError(
                f"The topics in {self._settings.path} cannot be read: {error}. If the file is "
                "damaged, move it away; foreshock then starts a new one."
            ) from error
        finally:
            connection.close()
        found = {}
        for name, retention_ms, compacted, partitions in rows:
            config = {"cleanup.policy": "compact" if compacted else "delete"}
            if retention_ms is not None:
                config["retention.ms"] = str(retention_ms)
            found[name] = TopicDescription(name=name, partitions=partitions, config=config)
        names = [spec.full_name(self._settings.prefix) for spec in ALL_TOPICS]
        return [found[name] for name in names if name in found]

    def check(self, timeout_seconds: float) -> str:
        """Return one sentence that says the file can be read and written."""
        path = self._settings.path
        busy = self._settings.sqlite.model_copy(update={"busy_seconds": timeout_seconds})
        started = time.monotonic()
        connection = connect(path, busy)
        try:
            with writing(connection):
                (size,) = connection.execute("SELECT coalesce(sum(bytes), 0) FROM place").fetchone()
        except sqlite3.Error as error:
            raise BusUnavailableError(
                f"The message log {path} cannot be written: {error}. Stop the process that holds "
                "it, or make room on its disk."
            ) from error
        finally:
            connection.close()
        free = shutil.disk_usage(path.parent).free
        took_ms = (time.monotonic() - started) * 1000
        return (
            f"The message log {path} works: {size / 2**20:.1f} MiB of messages, "
            f"{free / 2**30:.1f} GiB free on its disk, answered in {took_ms:.0f} ms."
        )

    def close(self) -> None:
        """Write what is queued and end the writer's thread."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.stop(self._settings.sqlite.busy_seconds + 1.0)
