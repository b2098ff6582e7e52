"""The database behind the alert store: opening, migrating, transactions, errors in words.

The same code for SQLite and PostgreSQL; :mod:`api.storekinds` holds what differs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from api.storekinds import StoreKind, file_of, kind_of
from schemas.errors import DataDirError, StoreError

__all__ = ["Database", "RefusedRowError", "file_of", "insert_of"]

_MIGRATIONS = Path(__file__).parent / "migrations"


class RefusedRowError(StoreError):
    """The store refused one row for good; trying again cannot help."""


class Database:
    """One alert store. Safe to share between threads.

    Parameters
    ----------
    kind
        SQLite file or PostgreSQL database.
    """

    def __init__(self, kind: StoreKind) -> None:
        self.kind = kind
        self.engine = kind.engine()
        self._reader = kind.reader(self.engine)
        self._writer = kind.writer(self.engine)

    @classmethod
    def open(cls, url: str | None, data_dir: Path) -> Database:
        """Open the store, private to its owner, and bring it to the present schema.

        Parameters
        ----------
        url
            ``sqlite:///path`` or ``postgresql://user:password@host/database``; None for
            ``api/alerts.sqlite`` in the data directory.
        data_dir
            Data directory of this installation.

        Raises
        ------
        ConfigError
            If the URL is of another kind.
        DataDirError
            If the disk is full or read-only, or the store was written by a newer foreshock.
        StoreError
            If the server cannot be reached.
        """
        database = cls(kind_of(url, data_dir))
        try:
            database.migrate()
        except BaseException:
            database.close()
            raise
        return database

    @property
    def path(self) -> Path | None:
        """File of the store, or None if a server holds it."""
        return self.kind.path

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Run a write transaction that may append to the event log, one at a time.

        Committed at the end of the block, rolled back on an error.
        """
        with _translated(self.kind), self._writer.connect() as connection, connection.begin():
            self.kind.lock_log(connection)
            yield connection

    @contextmanager
    def write_beside(self) -> Iterator[sa.Connection]:
        """Run a write transaction that leaves the event log alone; on PostgreSQL many at once."""
        with _translated(self.kind), self._writer.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Run a read transaction: one consistent view for the block."""
        with _translated(self.kind), self._reader.connect() as connection, connection.begin():
            yield connection

    def check_writable(self) -> None:
        """Take and release the write lock. Raises StoreError or DataDirError if that fails."""
        with self.write_beside() as connection:
            connection.execute(sa.text("UPDATE consumer SET next_offset = next_offset WHERE 1 = 0"))

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
        with _translated(self.kind), self.kind.migration_lock(self.engine) as connection:
            _upgrade(connection, self.kind.name)

    def revision(self) -> str | None:
        """Return the schema revision of the store."""
        with self.read() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


# Any: the two Insert classes share their methods and no base that has them.
def insert_of(connection: sa.Connection) -> Callable[[sa.Table], Any]:
    """Return the ``insert`` of the connection's dialect: it knows ``ON CONFLICT``."""
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


@cache
def _head() -> str:
    return ScriptDirectory(str(_MIGRATIONS)).get_current_head() or ""


def _upgrade(connection: sa.Connection, name: str) -> None:
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
            f"The alert store {name} has schema {current}, newer than this foreshock, which knows "
            f"up to {head}. Run the newer foreshock, or give this one another data_dir."
        ) from exc

    # Any: alembic passes the revision as one of several tuple shapes.
    def steps(revision: Any, _context: MigrationContext) -> Any:
        return script._upgrade_revs(head, revision)  # noqa: SLF001 - as alembic's own upgrade

    with EnvironmentContext(Config(), script, fn=steps, destination_rev=head) as environment:
        environment.configure(connection=connection, render_as_batch=True)
        environment.run_migrations()


@contextmanager
def _translated(kind: StoreKind) -> Iterator[None]:
    """Turn the driver's errors into sentences; they never carry SQL or parameters."""
    try:
        yield
    except (IntegrityError, DataError) as exc:
        raise RefusedRowError(f"The alert store refused a row: {kind.refusal(exc)}") from exc
    except DBAPIError as exc:
        raise kind.in_words(exc) from exc
    except sqlite3.Error as exc:
        raise StoreError(f"The alert store {kind.name} failed: {exc}") from exc
