"""What only the SQLite transport must do: one file, many processes, crashes, bounds, versions."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bus import BusSettings, DeliveryReport, SqliteSettings, open_bus
from bus.sqlite_file import _APPLICATION_ID, _STEPS, connect, writing
from bus.sqlite_retention import compact, expire, tidy
from schemas.errors import BusFullError, BusUnavailableError

from .conftest import Stage, Witness, numbers

TOPIC = "gpu.samples"
DAY_MS = 86_400_000

WRITER = """
import sys
from pathlib import Path
from bus import BusSettings, open_bus
path, name, rounds, size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
bus = open_bus(BusSettings(path=path))
writer = bus.publisher(client_id=name)
print("ready", flush=True)
for number in range(rounds):
    for part in range(10):
        text = f"{name}:{number * 10 + part}".encode()
        writer.send("gpu.samples", key=name.encode(), value=text.ljust(size))
    assert writer.flush(30) == 0
    print((number + 1) * 10, flush=True)
"""

READER = """
import sys, time
from pathlib import Path
from bus import BusSettings, SqliteSettings, open_bus
bus = open_bus(BusSettings(path=Path(sys.argv[1]), sqlite=SqliteSettings(lease_seconds=1.0)))
reader = bus.subscriber(group="g", topics=["gpu.samples"])
while True:
    records = reader.poll(10, 0.5)
    if records:
        print(len(records), flush=True)
"""


def _run(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )


def _settings(path: Path, **sqlite: float) -> BusSettings:
    return BusSettings(path=path, sqlite=SqliteSettings(**sqlite))


def _fill(path: Path, count: int, size: int = 100, topic: str = TOPIC) -> None:
    bus = open_bus(_settings(path))
    writer = bus.publisher(client_id="fill")
    for number in range(count):
        writer.send(topic, key=b"n%d" % (number % 5), value=(b"%d" % number).ljust(size))
    assert writer.flush(30) == 0
    bus.close()


def _read_all(path: Path, group: str = "probe") -> list[bytes]:
    bus = open_bus(_settings(path))
    reader = bus.subscriber(group=group, topics=[TOPIC])
    values = []
    while records := reader.poll(1000, 0.1):
        values += [record.value for record in records]
    reader.close()
    bus.close()
    return values


def test_the_file_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    path.touch(mode=0o644)
    bus = open_bus(_settings(path))
    writer = bus.publisher(client_id="w")
    writer.send(TOPIC, key=b"k", value=b"v")
    assert writer.flush(10) == 0
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    bus.close()
    assert set(modes) == {"bus.sqlite", "bus.sqlite-wal", "bus.sqlite-shm"}
    assert set(modes.values()) == {0o600}


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    processes = [_run(WRITER, path, name, 40, 20) for name in ("a", "b")]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    values = [value.decode().strip() for value in _read_all(path)]
    for name in ("a", "b"):
        mine = [value for value in values if value.startswith(name)]
        assert mine == [f"{name}:{number}" for number in range(400)]


def test_a_reader_is_woken_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    bus = open_bus(_settings(path))
    reader = bus.subscriber(group="g", topics=[TOPIC])
    assert reader.poll(10, 0.0) == []
    process = _run(WRITER, path, "a", 1, 20)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    started = time.monotonic()
    records = reader.poll(10, 20.0)
    assert len(records) > 0
    assert time.monotonic() - started < 10.0  # far less than its time-out
    process.communicate(timeout=30)
    reader.close()
    bus.close()


def test_kill_9_of_a_writer_loses_nothing_that_flush_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    process = _run(WRITER, path, "a", 1_000_000, 2_000)
    assert process.stdout is not None
    confirmed = 0
    while confirmed < 500:
        line = process.stdout.readline().strip()
        confirmed = int(line) if line.isdigit() else 0
    process.kill()
    rest = process.communicate(timeout=10)[0].split()
    confirmed = max([confirmed, *(int(line) for line in rest if line.isdigit())])
    values = [value.decode().strip() for value in _read_all(path)]
    assert values == [f"a:{number}" for number in range(len(values))]
    assert len(values) >= confirmed
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    _fill(path, 5)  # and the log goes on


def test_kill_9_of_a_reader_hands_its_partitions_over(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    _fill(path, 50)
    process = _run(READER, path)
    assert process.stdout is not None
    assert process.stdout.readline().strip()
    process.kill()
    process.communicate(timeout=10)
    bus = open_bus(_settings(path, lease_seconds=1.0))
    reader = bus.subscriber(group="g", topics=[TOPIC])
    started = time.monotonic()
    records = Stage.drain(reader, 50)
    assert time.monotonic() - started < 10.0
    assert len(records) == 50  # the dead one committed nothing
    reader.close()
    bus.close()


def test_a_reader_that_slept_through_its_lease_is_told_that_it_lost(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    _fill(path, 10)
    bus = open_bus(_settings(path, lease_seconds=0.3))
    asleep = Witness()
    first = bus.subscriber(group="g", topics=[TOPIC], listener=asleep)
    records = Stage.drain(first, 10)
    second = bus.subscriber(group="g", topics=[TOPIC])
    assert len(Stage.drain(second, 10)) == 10
    first.commit({record.place: record.offset + 1 for record in records})  # too late: no claim
    first.poll(10, 0.0)
    assert asleep.log[-1][0] == "lost" or ("lost", asleep.log[0][1]) in asleep.log
    first.close()
    second.close()
    third = bus.subscriber(group="g", topics=[TOPIC])
    assert len(Stage.drain(third, 10)) == 10
    third.close()
    bus.close()


def test_a_file_of_a_newer_version_is_refused_with_words(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    _fill(path, 1)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {len(_STEPS) + 1}")
    connection.close()
    with pytest.raises(BusUnavailableError, match=r"schema version 3.*newer foreshock"):
        open_bus(_settings(path))


def test_a_file_of_an_older_version_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(_STEPS[0])
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 1")
    connection.execute("INSERT INTO topic VALUES (?, 604800000, 0)", (TOPIC,))
    connection.execute("INSERT INTO place VALUES (1, ?, 0, 0, 1, 3)", (TOPIC,))
    connection.execute("INSERT INTO record VALUES (?, ?, NULL, NULL, 'old')", (1 << 40, 2**41))
    connection.execute("UPDATE record SET value = CAST(value AS BLOB)")
    connection.close()
    assert _read_all(path) == [b"old"]
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(_STEPS),)
    connection.close()


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs (title TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(BusUnavailableError, match="another program"):
        open_bus(_settings(path))


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    path.write_bytes(b"certainly not a database " * 1000)
    with pytest.raises(BusUnavailableError, match=r"bus\.sqlite cannot be used.*move it away"):
        open_bus(_settings(path))
    with pytest.raises(BusUnavailableError, match="cannot be opened"):
        open_bus(_settings(tmp_path / "no" / "such" / "folder" / "bus.sqlite"))


def test_retention_by_age_takes_only_what_is_too_old(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    _fill(path, 2500)
    connection = connect(path, SqliteSettings())
    now_ms = time.time_ns() // 1_000_000
    assert expire(connection, now_ms + 6 * DAY_MS, 2**40) == 0
    with writing(connection):  # half of them arrived two days earlier
        connection.execute(
            "UPDATE record SET arrived_ms = arrived_ms - ? WHERE CAST(value AS TEXT) + 0 < 1000",
            (2 * DAY_MS,),
        )
    deleted = []
    while batch := expire(connection, now_ms + 6 * DAY_MS, 2**40):
        deleted.append(batch)
    connection.close()
    assert sum(deleted) == 1000
    assert max(deleted) <= 1000  # bounded steps
    assert sorted(int(value) for value in _read_all(path)) == list(range(1000, 2500))


def test_retention_by_size_takes_the_oldest_of_the_largest(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    _fill(path, 20, topic="gpu.alerts")
    _fill(path, 3000, size=1000)
    connection = connect(path, SqliteSettings())
    now_ms = time.time_ns() // 1_000_000
    while expire(connection, now_ms, 1_000_000):
        tidy(connection)
    (left,) = connection.execute("SELECT sum(bytes) FROM place").fetchone()
    (truth,) = connection.execute(
        "SELECT sum(length(value) + coalesce(length(key), 0)) FROM record"
    ).fetchone()
    (alerts,) = connection.execute(
        "SELECT count(*) FROM record JOIN place ON record.id >> 40 = place.id"
        " WHERE topic = 'gpu.alerts'"
    ).fetchone()
    connection.close()
    assert left == truth
    assert 900_000 < left <= 1_000_000
    assert alerts == 20
    values = [int(value) for value in _read_all(path)]
    assert max(values) == 2999


def test_the_file_shrinks_after_retention(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    _fill(path, 5000, size=1000)
    connection = connect(path, SqliteSettings())
    before = path.stat().st_size
    while expire(connection, time.time_ns() // 1_000_000, 1_000_000):
        pass
    for _ in range(5):
        tidy(connection)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    assert path.stat().st_size < before / 2


def test_compaction_keeps_the_newest_of_each_key(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    _fill(path, 100, topic="gpu.detector.state")
    _fill(path, 10)
    connection = connect(path, SqliteSettings())
    compact(connection)  # the writer's thread may have been faster
    assert compact(connection) == 0
    rows = connection.execute(
        "SELECT value FROM record JOIN place ON record.id >> 40 = place.id"
        " WHERE topic = 'gpu.detector.state'"
    ).fetchall()
    connection.close()
    assert sorted(int(value) for (value,) in rows) == [95, 96, 97, 98, 99]
    assert len(_read_all(path)) == 10


def test_the_writer_forgets_by_itself(tmp_path: Path) -> None:
    settings = _settings(
        tmp_path / "bus.sqlite", retention_bytes=2**20, retention_check_seconds=0.05
    )
    bus = open_bus(settings)
    writer = bus.publisher(client_id="w")
    for number in range(3000):
        writer.send(TOPIC, key=b"k", value=(b"%d" % number).ljust(1000))
    assert writer.flush(30) == 0
    connection = connect(settings.path, settings.sqlite)
    deadline = time.monotonic() + 20
    while connection.execute("SELECT sum(bytes) FROM place").fetchone()[0] > 2**20:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    connection.close()
    bus.close()


def test_a_full_disk_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    settings = _settings(tmp_path / "bus.sqlite", max_file_bytes=2 * 2**20)
    bus = open_bus(settings)
    writer = bus.publisher(client_id="w", durable=True)
    reports: list[DeliveryReport] = []
    sent = 0

    def fill() -> None:
        nonlocal sent
        while sent < 10_000:
            writer.send(
                TOPIC, key=b"k", value=(b"%d" % sent).ljust(5_000), on_delivery=reports.append
            )
            sent += 1
            if sent % 50 == 0:
                writer.flush(10)

    with pytest.raises(BusFullError, match=r"disk that holds .*bus\.sqlite is full"):
        fill()
    assert writer.flush(10) == 0
    written = [report.value for report in reports if report.error is None]
    refused = [report for report in reports if report.error is not None]
    assert len(written) + len(refused) == sent
    assert refused
    assert all("is full" in (report.error or "") for report in refused)
    assert {len(report.value) for report in refused} == {5_000}  # handed back whole
    reader = bus.subscriber(group="g", topics=[TOPIC])
    records = Stage.drain(reader, len(written))
    assert [record.value for record in records] == written  # reading goes on
    reader.commit({record.place: record.offset + 1 for record in records})
    connection = connect(settings.path, settings.sqlite)
    while expire(connection, time.time_ns() // 1_000_000, 500_000):
        pass  # room again
    connection.close()
    deadline = time.monotonic() + 10
    while True:
        try:
            writer.send(TOPIC, key=b"k", value=b"after", on_delivery=reports.append)
            break
        except BusFullError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert writer.flush(10) == 0
    assert reports[-1].error is None
    reader.close()
    bus.close()


def test_send_does_not_wait_while_another_process_holds_the_lock(tmp_path: Path) -> None:
    settings = _settings(tmp_path / "bus.sqlite", busy_seconds=60.0)
    bus = open_bus(settings)
    writer = bus.publisher(client_id="w")
    blocker = connect(settings.path, settings.sqlite)
    blocker.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    for number in range(100):
        writer.send(TOPIC, key=b"k", value=b"%d" % number)
    assert time.monotonic() - started < 10.0  # far less than one wait for the lock
    assert writer.flush(0.1) == 100
    blocker.execute("ROLLBACK")
    blocker.close()
    assert writer.flush(10) == 0
    bus.close()


def test_close_hands_back_what_could_not_be_written(tmp_path: Path) -> None:
    settings = _settings(tmp_path / "bus.sqlite", busy_seconds=1.0)
    bus = open_bus(settings)
    writer = bus.publisher(client_id="w")
    blocker = connect(settings.path, settings.sqlite)
    blocker.execute("BEGIN IMMEDIATE")
    reports: list[DeliveryReport] = []
    writer.send(TOPIC, key=b"k", value=b"first", on_delivery=reports.append)
    deadline = time.monotonic() + 5
    while bus._writer._queue:  # until the thread has begun with the first
        assert time.monotonic() < deadline
        time.sleep(0.005)
    writer.send(TOPIC, key=b"k", value=b"second", on_delivery=reports.append)
    assert writer.close(0.1) == 2
    assert [(r.value, r.error) for r in reports] == [
        (b"second", "The publisher was closed before the message was written.")
    ]
    assert writer.flush(10) == 0  # the first is told when its fate is known
    assert [r.value for r in reports] == [b"second", b"first"]
    blocker.execute("ROLLBACK")
    blocker.close()
    bus.close()


def test_several_threads_may_each_have_a_publisher(tmp_path: Path) -> None:
    bus = open_bus(_settings(tmp_path / "bus.sqlite"))

    def work(name: int) -> None:
        writer = bus.publisher(client_id=str(name))
        for number in range(200):
            writer.send(TOPIC, key=b"%d" % name, value=b"%d" % (name * 200 + number))
        assert writer.close() == 0

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader = bus.subscriber(group="g", topics=[TOPIC])
    assert numbers(Stage.drain(reader, 800)) == list(range(800))
    reader.close()
    bus.close()


def test_check_names_a_lock_that_is_held(tmp_path: Path) -> None:
    settings = _settings(tmp_path / "bus.sqlite")
    bus = open_bus(settings)
    assert "bus.sqlite works" in bus.check(5.0)
    blocker = connect(settings.path, settings.sqlite)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(BusUnavailableError, match="cannot be written"):
        bus.check(0.2)
    blocker.close()
    bus.close()


def test_one_machine_never_loads_the_kafka_library(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from bus import *; "
        "open_bus(BusSettings(path=Path(sys.argv[1]))); print('confluent_kafka' in sys.modules)"
    )
    process = _run(code, tmp_path / "bus.sqlite")
    assert process.communicate(timeout=30)[0].strip() == "False"


def test_a_folder_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "bus.sqlite").mkdir()
    with pytest.raises(BusUnavailableError, match=r"bus\.sqlite cannot be opened"):
        open_bus(_settings(tmp_path / "bus.sqlite"))


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    _fill(path, 2000, size=500)
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\x5a" * 900_000)
    bus = open_bus(_settings(path))
    for ask in (bus.describe_topics, bus.create_topics, lambda: bus.check(1.0)):
        with pytest.raises(BusUnavailableError, match=r"bus\.sqlite"):
            ask()
    bus.close()
