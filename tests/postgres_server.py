"""A real PostgreSQL server for tests and benchmarks: own user, own folder, a Unix socket only.

In this order:

1. ``FORESHOCK_TEST_POSTGRES=postgresql://user@host/postgres``: a server that somebody else runs;
   the user must be allowed to create databases.
2. The PostgreSQL of the machine (Debian's package ``postgresql``), started in a temporary folder.
   It refuses to run as root, so root starts it as the user ``postgres``.

With ``FORESHOCK_REQUIRE_SERVICES=1`` a missing server is a failure, never a skip.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

__all__ = ["Postgres", "PostgresMissingError", "open_postgres"]

_USER = "postgres"
#: A test loses nothing that matters with the machine.
_QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=100")


class PostgresMissingError(RuntimeError):
    """No PostgreSQL server can be had here; the text says why."""


@dataclass(slots=True)
class Postgres:
    """A running server.

    Parameters
    ----------
    admin
        URL of a database from which others can be made.
    """

    admin: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _template: str | None = None

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.admin, autocommit=True) as connection:
            connection.execute(statement.encode())

    def create(self, template: str | None = None) -> str:
        """Make a new database and return its URL."""
        name = f"foreshock_{os.getpid()}_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template or 'template0'}")
        url = sa.make_url(self.admin).set(database=name)
        return url.render_as_string(hide_password=False)

    def drop(self, url: str) -> None:
        """Remove a database, whoever is still connected."""
        self._execute(f"DROP DATABASE IF EXISTS {sa.make_url(url).database} WITH (FORCE)")

    def create_migrated(self, migrate: Callable[[str], None]) -> str:
        """Make a database like one that ``migrate`` has made ready: once, then by copying."""
        if self._template is None:
            url = self.create()
            migrate(url)
            self._template = sa.make_url(url).database
        return self.create(self._template)


@contextmanager
def open_postgres() -> Iterator[Postgres]:
    """Give a server, ended afterwards if it was started here.

    Raises
    ------
    PostgresMissingError
        If there is none and none can be started.
    """
    given = os.environ.get("FORESHOCK_TEST_POSTGRES")
    if given:
        yield Postgres(given)
        return
    binaries = _binaries()
    folder = Path(tempfile.mkdtemp(prefix="foreshock-pg-"))  # short: a socket's path has 107 bytes
    process = None
    try:
        account = _account()
        if account is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
        _run([binaries / "initdb", "-D", folder / "data", "-U", _USER, *_INITDB], account)
        settings = [f"unix_socket_directories={folder}", "listen_addresses=", *_QUICK]
        options = [part for setting in settings for part in ("-c", setting)]
        process = _spawn([binaries / "postgres", "-D", folder / "data", *options], account, folder)
        admin = f"postgresql://{_USER}@/postgres?host={folder}"
        _wait(admin, process, folder)
        yield Postgres(admin)
    finally:
        if process is not None:
            process.send_signal(signal.SIGQUIT)  # at once: nothing in it is needed
            process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


_INITDB = ("--auth=trust", "--no-sync", "--no-instructions", "--encoding=UTF8", "--locale=C.UTF-8")


def _binaries() -> Path:
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[-3])
    )
    on_path = shutil.which("postgres")
    if found:
        return found[-1].parent
    if on_path:
        return Path(on_path).resolve().parent
    raise PostgresMissingError("there is no postgres here (Debian's package postgresql)")


def _account() -> pwd.struct_passwd | None:
    """Return the user to become; None to stay who we are."""
    if os.getuid() != 0:
        return None
    try:
        return pwd.getpwnam(_USER)
    except KeyError:
        raise PostgresMissingError(
            "PostgreSQL does not run as root, and there is no user postgres"
        ) from None


def _command(words: list[str | Path], account: pwd.struct_passwd | None) -> list[str]:
    plain = [str(word) for word in words]
    if account is None:
        return plain
    who = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    return ["setpriv", *who, *plain]


def _run(words: list[str | Path], account: pwd.struct_passwd | None) -> None:
    done = subprocess.run(
        _command(words, account), capture_output=True, text=True, check=False, cwd="/"
    )
    if done.returncode:
        raise PostgresMissingError(f"initdb failed: {done.stderr.strip()[-500:]}")


def _spawn(
    words: list[str | Path], account: pwd.struct_passwd | None, folder: Path
) -> subprocess.Popen[bytes]:
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            _command(words, account),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,  # Ctrl-C in the tests ends it by us, not by itself
        )


def _wait(admin: str, process: subprocess.Popen[bytes], folder: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            psycopg.connect(admin).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = (folder / "log").read_text(errors="replace")[-500:]
                raise PostgresMissingError(f"PostgreSQL did not start: {tail}") from None
            time.sleep(0.05)
        else:
            return


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server of this session; a skip with its reason where there is none."""
    try:
        with open_postgres() as server:
            yield server
    except PostgresMissingError as exc:
        if os.environ.get("FORESHOCK_REQUIRE_SERVICES") == "1":
            pytest.fail(f"FORESHOCK_REQUIRE_SERVICES=1, but {exc}")
        pytest.skip(f"no PostgreSQL: {exc}")


if __name__ == "__main__":
    with open_postgres() as running:
        sys.stdout.write(running.admin + "\n")
