"""The data directory: private, locked, versioned, and its faults in words."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from foreshock.datadir import (
    DATA_VERSION,
    ServiceLock,
    disk_sentence,
    open_data_dir,
    read_version,
    service_folder,
)
from schemas.errors import DataDirError


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_it_is_created_private_with_a_version(tmp_path: Path) -> None:
    path = open_data_dir(tmp_path / "a" / "data")
    assert mode(path) == 0o700
    assert mode(service_folder(path, "api")) == 0o700
    assert mode(path / "version") == 0o600
    assert read_version(path) == DATA_VERSION


def test_a_newer_version_is_refused_in_words(tmp_path: Path) -> None:
    open_data_dir(tmp_path)
    (tmp_path / "version").write_text("99\n")
    with pytest.raises(DataDirError, match="version 99, this foreshock knows only up to"):
        open_data_dir(tmp_path)


def test_an_older_version_is_migrated_step_by_step(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("1\n")
    steps: list[int] = []
    migrations = {1: lambda _: steps.append(1), 2: lambda _: steps.append(2)}
    open_data_dir(tmp_path, current=3, migrations=migrations)
    assert steps == [1, 2]
    assert read_version(tmp_path) == 3


def test_a_migration_that_fails_leaves_the_version_it_had(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    (tmp_path / "version").write_text("1\n")
    with pytest.raises(DataDirError, match="disk is full"):
        open_data_dir(tmp_path, current=2, migrations={1: fail})
    assert read_version(tmp_path) == 1


def test_a_version_without_a_migration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("1\n")
    with pytest.raises(DataDirError, match="too old"):
        open_data_dir(tmp_path, current=2, migrations={})


def test_nothing_is_migrated_under_a_running_service(tmp_path: Path) -> None:
    open_data_dir(tmp_path)
    with (
        ServiceLock(service_folder(tmp_path, "detector")),
        pytest.raises(DataDirError, match="Another detector"),
    ):
        open_data_dir(tmp_path, current=2, migrations={1: lambda _: None})


@pytest.mark.parametrize("content", [b"x", b"\xff"])
def test_a_damaged_version_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "version").write_bytes(content)
    with pytest.raises(DataDirError, match=r"version is damaged.* Move that file away"):
        open_data_dir(tmp_path)


def test_two_of_one_service_are_refused_and_two_services_are_not(tmp_path: Path) -> None:
    with ServiceLock(service_folder(tmp_path, "collector")):
        with pytest.raises(DataDirError, match=rf"Another collector \(process {os.getpid()}\)"):
            ServiceLock(service_folder(tmp_path, "collector"))
        ServiceLock(service_folder(tmp_path, "detector")).close()
    ServiceLock(service_folder(tmp_path, "collector")).close()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    """No stale lock after kill -9: the kernel lets go of it."""
    folder = service_folder(tmp_path, "collector")
    code = (
        "import sys, time; from pathlib import Path; from foreshock.datadir import ServiceLock;"
        "lock = ServiceLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(DataDirError, match=str(process.pid)):
            ServiceLock(folder)
        process.kill()
        process.wait(timeout=10)
    ServiceLock(folder).close()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataDirError, match="a part of the path is a file"):
        open_data_dir(tmp_path / "file" / "data")


def test_a_full_disk_is_found_behind_other_errors() -> None:
    """SQLAlchemy wraps what SQLite says."""
    wrapped = RuntimeError("statement failed")
    wrapped.__cause__ = sqlite3.OperationalError("database or disk is full")
    assert disk_sentence(wrapped) == (
        "Cannot write the database: the disk is full; free some space and start again."
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_real_full_device_is_named() -> None:
    number = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError) as caught:
            os.write(number, b"x")
    finally:
        os.close(number)
    assert "the disk is full" in (disk_sentence(caught.value) or "")


def test_a_folder_that_everybody_can_write_is_refused(tmp_path: Path) -> None:
    """Another user could put a snapshot or a store of their own in place of ours."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(DataDirError, match="chmod 700"):
        open_data_dir(folder)
    assert list(folder.iterdir()) == []
    folder.chmod(0o700)
    assert open_data_dir(folder) == folder
