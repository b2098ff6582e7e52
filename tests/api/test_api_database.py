"""The store opens privately, migrates, refuses the future and names a full disk."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from api.database import Database
from api.ledger import Ledger
from api.queries import Queries
from api.tables import consumer, metadata
from schemas.alert import AlertEvent
from schemas.errors import ConfigError, DataDirError, StoreError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_can_read_the_store(
    sqlite_database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    with sqlite_database.write() as connection:
        Ledger().record(connection, make_event(), 0)
    files = sorted(sqlite_database.path.parent.iterdir())
    assert {f.name for f in files} >= {"alerts.sqlite", "alerts.sqlite-wal"}
    assert {mode(f) for f in files} == {0o600}
    assert mode(sqlite_database.path.parent) == 0o700


def test_the_migrations_give_exactly_the_tables_in_use(database: Database) -> None:
    with database.read() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, metadata) == []


def test_opening_again_keeps_the_content(
    tmp_path: Path, store_url: str | None, make_event: Callable[..., AlertEvent]
) -> None:
    first = Database.open(store_url, tmp_path)
    with first.write() as connection:
        Ledger().record(connection, make_event(), 0)
    first.close()
    again = Database.open(store_url, tmp_path)
    with again.read() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM alert")).scalar() == 1
    again.close()


def test_a_store_of_a_newer_version_is_refused_with_words(
    tmp_path: Path, store_url: str | None, database: Database
) -> None:
    with database.write() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DataDirError, match="schema 9999, newer than this foreshock"):
        Database.open(store_url, tmp_path)


def test_an_older_store_is_migrated(tmp_path: Path) -> None:
    """A store that stopped before the first step has no table, and gets them all."""
    path = tmp_path / "api" / "alerts.sqlite"
    path.parent.mkdir()
    path.touch()
    database = Database.open(None, tmp_path)
    assert database.revision() == "0005"
    database.close()


def test_a_lock_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    Database.open(None, tmp_path).close()
    (lock,) = tmp_path.rglob("*.lock")
    lock.unlink()
    lock.mkdir()  # as refused as on a disk that is read-only
    with pytest.raises(DataDirError, match=r"\.lock cannot be written: .*data_dir"):
        Database.open(None, tmp_path)


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "api" / "alerts.sqlite"
    path.parent.mkdir()
    path.write_bytes(b"this is no database at all, just text" * 100)
    with pytest.raises(DataDirError, match="damaged"):
        Database.open(None, tmp_path)


def test_a_full_disk_is_named_and_nothing_half_is_kept(
    sqlite_database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    with sqlite_database.read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()

    def limit(connection: Any, _record: Any, _proxy: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")

    sa.event.listen(sqlite_database.engine, "checkout", limit)

    def fill() -> None:
        with sqlite_database.write() as connection:
            for number in range(200):
                Ledger().record(connection, make_event(gpu=f"GPU-{number}"), 0)

    with pytest.raises(DataDirError, match="is full"):
        fill()
    with sqlite_database.read() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM alert")).scalar() == 0


def test_readers_that_then_write_never_meet_a_locked_database(database: Database) -> None:
    """With a deferred BEGIN a good part of these would fail."""
    key = {"consumer_group": "g", "topic": "t", "partition": 0}
    with database.write() as connection:
        connection.execute(sa.insert(consumer).values(next_offset=0, **key))
    failures: list[BaseException] = []

    def count() -> None:
        try:
            for _ in range(40):
                with database.write() as connection:
                    now = connection.execute(sa.select(consumer.c.next_offset)).scalar_one()
                    connection.execute(sa.update(consumer).values(next_offset=now + 1))
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            failures.append(exc)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with database.read() as connection:
        assert connection.execute(sa.select(consumer.c.next_offset)).scalar() == 160


@pytest.mark.parametrize(
    "url",
    ["mysql://db/alerts", "no url", "sqlite://", "sqlite:///a?mode=ro", "postgresql://planted@db"],
)
def test_other_databases_are_refused_with_words(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"api\.database") as caught:
        Database.open(url, tmp_path)
    assert "planted" not in str(caught.value)


def test_a_server_that_cannot_be_reached_is_named_without_its_password(tmp_path: Path) -> None:
    url = f"postgresql://fore:planted@/alerts?host={tmp_path}"
    with pytest.raises(
        StoreError, match=r"postgresql://fore:\*\*\*@/alerts cannot be reached"
    ) as caught:
        Database.open(url, tmp_path)
    assert "planted" not in str(caught.value)


def test_two_processes_may_find_an_empty_store_at_once(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres").create()
    for store in (None, url):
        with ThreadPoolExecutor(4) as pool:
            opened = list(pool.map(lambda _: Database.open(store, tmp_path), range(4)))  # noqa: B023
        for found in opened:
            found.check_schema()
            found.close()


def test_ids_of_the_event_log_become_visible_in_their_order(
    database: Database, make_event: Callable[..., AlertEvent]
) -> None:
    """A reader that goes on after the greatest id seen must never skip one that comes later."""
    stop = threading.Event()

    def write(number: int) -> None:
        for i in range(15):
            with database.write() as connection:
                Ledger().record(connection, make_event(gpu=f"GPU-{number}-{i}"), 0)
                time.sleep(0.001)  # time for another writer to overtake, if it could

    seen: list[int] = []

    def read() -> None:
        while not stop.is_set():
            after = seen[-1] if seen else 0
            seen.extend(e["id"] for e in Queries(database).events_after(after, 500))

    reader = threading.Thread(target=read)
    reader.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    stop.set()
    reader.join()
    seen.extend(e["id"] for e in Queries(database).events_after(seen[-1] if seen else 0, 500))
    assert len(seen) == 60
