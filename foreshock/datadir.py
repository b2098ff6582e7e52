"""The data directory: private, versioned, and never used by two of the same service.

Layout: ``<data_dir>/version`` and one folder per service (``collector``, ``detector``, ``api``,
``bus``). Each running service holds a lock on its own folder, so that ``collect``, ``detect``
and ``serve`` may share one data directory but two of one kind may not.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Self

from schemas.errors import DataDirError

__all__ = [
    "DATA_VERSION",
    "MIGRATIONS",
    "Migration",
    "ServiceLock",
    "disk_sentence",
    "open_data_dir",
    "read_version",
    "restrict_new_files",
    "service_folder",
]

#: Version of the layout that this release writes.
DATA_VERSION = 1

#: Changes the layout of a data directory by one version, in place.
Migration = Callable[[Path], None]

#: Version to the migration that leads from it to the next one.
MIGRATIONS: Mapping[int, Migration] = MappingProxyType({})

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space and start again",
    errno.EDQUOT: "the disk quota is used up; free some space and start again",
    errno.EROFS: "the file system is read-only; set data_dir to a place that can be written",
    errno.EACCES: "permission denied; set data_dir to a folder of this user, or change its owner",
    errno.EPERM: "operation not permitted; set data_dir to a folder of this user",
    errno.ENOTDIR: "a part of the path is a file, not a folder; set data_dir to another path",
    errno.EEXIST: "it is a file, not a folder; set data_dir to another path",
    errno.EIO: "the disk reports an input/output error; look at the kernel log",
}
_MOVE_AWAY = "Move that file away and start again: this foreshock writes a new one."
# SQLite has its own words and no errno; texts of sqlite3_errstr for SQLITE_FULL, _READONLY,
# _IOERR and _CANTOPEN.
_SQLITE_REASONS = {
    "disk is full": _REASONS[errno.ENOSPC],
    "readonly database": _REASONS[errno.EROFS],
    "disk i/o error": _REASONS[errno.EIO],
    "unable to open database file": _REASONS[errno.EACCES],
}


def restrict_new_files() -> None:
    """Make every file this process creates from now on private (0600, folders 0700)."""
    os.umask(0o077)


def disk_sentence(exc: BaseException) -> str | None:
    """Say in words what a disk fault is, looking through the chain of causes.

    Parameters
    ----------
    exc
        Any exception, for example one from SQLAlchemy that wraps SQLite's.

    Returns
    -------
    str or None
        A sentence, or None if no cause of it is a fault of the disk.

    Examples
    --------
    >>> disk_sentence(OSError(28, "No space left on device", "/data/x"))
    'Cannot write /data/x: the disk is full; free some space and start again.'
    >>> disk_sentence(ValueError("other")) is None
    True
    """
    seen: set[int] = set()
    cause: BaseException | None = exc
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, OSError) and cause.errno in _REASONS:
            where = cause.filename or "the data directory"
            return f"Cannot write {where}: {_REASONS[cause.errno]}."
        if isinstance(cause, sqlite3.Error):
            text = str(cause).lower()
            for words, reason in _SQLITE_REASONS.items():
                if words in text:
                    return f"Cannot write the database: {reason}."
        cause = cause.__cause__ or cause.__context__
    return None


@contextmanager
def _disk_faults(path: Path) -> Iterator[None]:
    """Turn faults of the disk into a DataDirError that names the path."""
    try:
        yield
    except OSError as exc:
        reason = _REASONS.get(exc.errno or 0, exc.strerror or str(exc))
        raise DataDirError(f"Cannot use the data directory {path}: {reason}.") from exc


class ServiceLock:
    """Holds a service's folder against a second process; released by ``close`` or by death.

    Parameters
    ----------
    folder
        The service's folder inside the data directory.

    Raises
    ------
    DataDirError
        If another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        # Not truncated before the lock is ours: the text names the holder.
        with _disk_faults(folder):
            number = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file: IO[str] = os.fdopen(number, "r+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = self._file.read().strip()
            self._file.close()
            by = f" (process {holder})" if holder else ""
            raise DataDirError(
                f"Another {folder.name}{by} already uses {folder}. "
                "Stop it, or give this one a data_dir of its own."
            ) from exc
        with _disk_faults(folder):
            self._file.seek(0)
            self._file.truncate()
            self._file.write(f"{os.getpid()}\n")
            self._file.flush()

    def close(self) -> None:
        """Let another process have the folder."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_version(path: Path) -> int | None:
    """Return the version of a data directory, or None if it has none yet.

    Raises
    ------
    DataDirError
        If the version file holds anything but a number.
    """
    file = path / "version"
    try:
        with _disk_faults(path):
            text = file.read_text().strip() if file.exists() else ""
    except UnicodeDecodeError as exc:
        raise DataDirError(f"{file} is damaged: it is not text. {_MOVE_AWAY}") from exc
    if not text:
        return None
    if not text.isdecimal():
        raise DataDirError(
            f"{file} is damaged: it should hold a number, it holds {text[:40]!r}. {_MOVE_AWAY}"
        )
    return int(text)


def _write_version(path: Path, version: int) -> None:
    """Replace the version file in one step: a crash leaves the old or the new one."""
    fresh = path / "version.new"
    with fresh.open("w") as file:
        file.write(f"{version}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.chmod(0o600)
    fresh.replace(path / "version")


def _migrate(path: Path, found: int, current: int, migrations: Mapping[int, Migration]) -> None:
    if found > current:
        raise DataDirError(
            f"The data directory {path} has version {found}, this foreshock knows only up to "
            f"{current}. Install the newer foreshock again, or set data_dir to another folder."
        )
    # No service may run on the old layout while it changes.
    locks = [ServiceLock(file.parent) for file in sorted(path.glob("*/lock"))]
    try:
        for version in range(found, current):
            if version not in migrations:
                raise DataDirError(
                    f"The data directory {path} has version {found}, too old for this foreshock. "
                    "Set data_dir to another folder."
                )
            migrations[version](path)
            _write_version(path, version + 1)
    finally:
        for lock in locks:
            lock.close()


def open_data_dir(
    path: Path,
    *,
    current: int = DATA_VERSION,
    migrations: Mapping[int, Migration] = MIGRATIONS,
) -> Path:
    """Create the data directory if it is missing, bring it to this version, and try to write.

    Parameters
    ----------
    path
        The directory; created with mode 0700, its parents too.
    current, migrations
        Version to reach and the steps to it; given by tests.

    Returns
    -------
    Path
        The directory, absolute.

    Raises
    ------
    DataDirError
        If it cannot be written, can be written by everybody, is of a newer version, or is in use
        while it must be migrated.
    """
    path = path.absolute()
    with _disk_faults(path):
        if not path.exists():
            path.mkdir(mode=0o700, parents=True)
        _refuse_open(path)
        probe = os.open(path / ".open", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(probe, fcntl.LOCK_EX)  # two services that start together take turns
            os.write(probe, b"\n")  # a full disk shows itself here, not in the middle of work
            found = read_version(path)
            if found is None:
                _write_version(path, current)
            elif found != current:
                _migrate(path, found, current, migrations)
        finally:
            os.close(probe)
    return path


def _refuse_open(path: Path) -> None:
    """Refuse a folder in which every user could put files of their own in place of ours."""
    if stat.S_IMODE(path.stat().st_mode) & stat.S_IWOTH:
        raise DataDirError(
            f"The data directory {path} can be written by every user of this machine. "
            f"Run `chmod 700 {path}`, or set data_dir to a folder of its own."
        )


def service_folder(path: Path, service: str) -> Path:
    """Return the folder of one service inside the data directory, created with mode 0700."""
    folder = path / service
    with _disk_faults(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder
