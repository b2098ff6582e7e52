"""What differs between the databases that hold the alert store: SQLite and PostgreSQL.

SQLite in WAL mode. Every write transaction begins with ``BEGIN IMMEDIATE``: with a deferred
begin, a transaction that reads and then writes lost 979 of 2,400 to "database is locked" in our
measurement, with an immediate one none. ``synchronous`` is NORMAL: a power cut may take the last
transactions, but they take the read offsets with them, so the alerts are read again from the
bus; a lost "delivered" mark repeats a notification under the same id. Nothing is lost either way.

PostgreSQL through psycopg 3. Whoever appends to the event log takes one advisory lock for the
transaction: ids of the log then become visible in their order, and a stream that resumes after
an id misses nothing. Deliveries are claimed and finished beside that lock, by row locks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

import sqlalchemy as sa
from psycopg.types.string import StrDumper
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from schemas.errors import ConfigError, DataDirError, StoreError

__all__ = ["Postgres", "Sqlite", "StoreKind", "file_of", "kind_of"]

_BUSY_MS = 10_000
_STATEMENT_MS = 30_000
_WRITE = "foreshock_write"
#: Any fixed numbers serve; PostgreSQL compares advisory locks by number alone.
_LOG_LOCK = 0x666F7265
_MIGRATION_LOCK = 0x666F7266


class StoreKind(Protocol):
    """One kind of database: how to open, lock and explain it."""

    #: How messages name this store; never a password.
    name: str
    #: File of the store, or None if a server holds it.
    path: Path | None

    def engine(self) -> sa.Engine:
        """Make the engine; nothing is connected yet, folders and files exist afterwards."""
        ...

    def reader(self, engine: sa.Engine) -> sa.Engine:
        """Return the engine for transactions that see one consistent state and write nothing."""
        ...

    def writer(self, engine: sa.Engine) -> sa.Engine:
        """Return the engine for transactions that write."""
        ...

    def lock_log(self, connection: sa.Connection) -> None:
        """Make this write transaction the only one that appends to the event log."""
        ...

    def migration_lock(self, engine: sa.Engine) -> Any:  # a context manager of sa.Connection
        """Hold the lock of migrations; gives the connection, inside a transaction."""
        ...

    def in_words(self, exc: DBAPIError) -> StoreError | DataDirError:
        """Return a sentence for a driver's error, without SQL or parameters."""
        ...

    def refusal(self, exc: IntegrityError | DataError) -> str:
        """Return why a row was refused, without its values."""
        ...


class Sqlite:
    """One file in WAL mode, private to its owner.

    Parameters
    ----------
    path
        The database file.
    """

    def __init__(self, path: Path) -> None:
        self.path: Path | None = path
        self.name = str(path)
        self._file = path

    def engine(self) -> sa.Engine:
        """Make the engine and the private file behind it."""
        path = self._file
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
        url = sa.URL.create("sqlite", database=str(path))
        engine = sa.create_engine(url, pool_size=8, max_overflow=40)
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine

    def reader(self, engine: sa.Engine) -> sa.Engine:
        """Read transactions of WAL see one state by themselves."""
        return engine

    def writer(self, engine: sa.Engine) -> sa.Engine:
        """Begin immediately."""
        return engine.execution_options(**{_WRITE: True})

    def lock_log(self, connection: sa.Connection) -> None:
        """Nothing: SQLite has one writer at a time."""

    @contextmanager
    def migration_lock(self, engine: sa.Engine) -> Iterator[sa.Connection]:
        """Lock a file beside the store: two processes may find an empty store at once."""
        with self._lock_file() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with self.writer(engine).connect() as connection, connection.begin():
                yield connection

    def _lock_file(self) -> TextIO:
        path = self._file.with_suffix(".lock")
        try:
            lock = path.open("a")
            os.fchmod(lock.fileno(), 0o600)
        except OSError as exc:
            raise DataDirError(
                f"{path} cannot be written: {exc.strerror or exc}. Give data_dir a place that this "
                "user may write to."
            ) from exc
        return lock

    def in_words(self, exc: DBAPIError) -> StoreError | DataDirError:
        """Name a full disk, a read-only file, a damaged file."""
        text = str(exc.orig)
        if "disk is full" in text:
            return DataDirError(
                f"The disk that holds the alert store {self.name} is full. Free some space: "
                "nothing is lost, reading goes on where it stopped."
            )
        if "readonly" in text or "read-only" in text:
            return DataDirError(
                f"The alert store {self.name} is read-only. Check the file's owner."
            )
        if "malformed" in text or "not a database" in text:
            return DataDirError(
                f"The alert store {self.name} is damaged ({text}). Move it away: a new one is "
                "filled from the bus."
            )
        return StoreError(f"The alert store {self.name} failed: {text}")

    def refusal(self, exc: IntegrityError | DataError) -> str:
        """SQLite names the constraint and no value."""
        return str(exc.orig)


class Postgres:
    """A database of a PostgreSQL server.

    Parameters
    ----------
    url
        ``postgresql://user:password@host/database``.
    """

    def __init__(self, url: sa.URL) -> None:
        self.path: Path | None = None
        self.name = url.set(query={}).render_as_string(hide_password=True)
        self._url = url.set(drivername="postgresql+psycopg")

    def engine(self) -> sa.Engine:
        """Make the engine; a connection that the server has dropped is noticed and replaced."""
        engine = sa.create_engine(
            self._url,
            pool_size=8,
            max_overflow=40,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={
                "connect_timeout": 5,
                "application_name": "foreshock",
                "options": f"-c lock_timeout={_BUSY_MS} -c statement_timeout={_STATEMENT_MS} "
                "-c timezone=UTC",
            },
        )
        sa.event.listen(engine, "connect", _prepare_postgres)
        return engine

    def reader(self, engine: sa.Engine) -> sa.Engine:
        """One snapshot for the whole block."""
        return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def writer(self, engine: sa.Engine) -> sa.Engine:
        """Read committed: what a lock waited for is seen."""
        return engine

    def lock_log(self, connection: sa.Connection) -> None:
        """Take the advisory lock of the log until the transaction ends."""
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOG_LOCK})")

    @contextmanager
    def migration_lock(self, engine: sa.Engine) -> Iterator[sa.Connection]:
        """Take the advisory lock of migrations; a long migration is not cut by time-outs."""
        with engine.connect() as connection, connection.begin():
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            yield connection

    def in_words(self, exc: DBAPIError) -> StoreError | DataDirError:
        """Name a full disk, a read-only server, a server that cannot be reached."""
        state = getattr(exc.orig, "sqlstate", None)
        text = _primary(exc)
        if state == "53100":
            return DataDirError(
                f"The disk of the alert store {self.name} is full. Free some space."
            )
        if state == "25006":
            return DataDirError(f"The alert store {self.name} is read-only: is it a standby?")
        if state in {"28000", "28P01", "3D000", "42501"}:
            return DataDirError(
                f"The alert store {self.name} refuses this user: {text}. Create the database and "
                "grant its user CREATE and CONNECT, or correct api.database."
            )
        if state is None or state.startswith(("08", "57")):
            return StoreError(f"The alert store {self.name} cannot be reached: {text}")
        return StoreError(f"The alert store {self.name} failed: {text}")

    def refusal(self, exc: IntegrityError | DataError) -> str:
        """Return the first line alone: the DETAIL line quotes the row."""
        return _primary(exc)


def file_of(url: str | None, data_dir: Path) -> Path | None:
    """Return the file of the store that ``url`` names; None if a server holds it.

    Raises
    ------
    ConfigError
        If the URL is of another kind.
    """
    return kind_of(url, data_dir).path


def kind_of(url: str | None, data_dir: Path) -> StoreKind:
    """Return the kind of store that ``url`` names; ``api/alerts.sqlite`` if it names none.

    Raises
    ------
    ConfigError
        If the URL is of another kind.
    """
    if url is None:
        return Sqlite(data_dir / "api" / "alerts.sqlite")
    known = "write sqlite:///path or postgresql://user:password@host/database"
    try:
        parsed = sa.make_url(url)
    except SQLAlchemyError:
        raise ConfigError(f"api.database is no database URL; {known}") from None
    if parsed.drivername in {"postgresql", "postgres", "postgresql+psycopg"}:
        if not parsed.database:
            raise ConfigError(f"api.database names a server and no database; {known}")
        return Postgres(parsed)
    if parsed.drivername == "sqlite" and parsed.database and not parsed.query:
        return Sqlite(Path(parsed.database))
    raise ConfigError(f"api.database names no store that foreshock knows; {known}")


def _primary(exc: DBAPIError) -> str:
    """First line of a server's message; of a connection that failed, psycopg's own words."""
    diagnostics = getattr(exc.orig, "diag", None)
    primary = getattr(diagnostics, "message_primary", None)
    return str(primary or str(exc.orig).strip().partition("\n")[0])


# Any: the DBAPI connection and its pool record are untyped in SQLAlchemy's event signatures.
def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun by _begin_sqlite
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={_BUSY_MS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


class _Text(StrDumper):
    """PostgreSQL's text holds every character but NUL, which a search or a name may bring."""

    def dump(self, obj: str) -> Any:  # as psycopg's own: bytes or a view of them
        """Write the text, NUL replaced."""
        return super().dump(obj.replace("\0", "\ufffd"))


def _prepare_postgres(connection: Any, _record: Any) -> None:
    connection.adapters.register_dumper(str, _Text)


def _begin_sqlite(connection: sa.Connection) -> None:
    immediate = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
