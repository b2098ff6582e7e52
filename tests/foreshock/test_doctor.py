"""Each check by itself, and that none hides another."""

from __future__ import annotations

import io
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from bus import open_bus
from collector.source import Reading
from foreshock import doctor
from foreshock.compose import placed
from foreshock.config import Loaded, load
from foreshock.doctor import Grade, Result, checks_for, examine
from foreshock.roles import Role
from foreshock.up import why_no_gpu
from schemas.sample import CollectorState

LoadedWith = Callable[..., Loaded]


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedWith:
    """Settings of a simulated node, with changes."""

    def make(**variables: str) -> Loaded:
        environ = {
            "FORESHOCK_DATA_DIR": str(tmp_path / "data"),
            "FORESHOCK_COLLECTOR__SOURCE": "simulated",
        }
        return load(environ=environ | variables, cwd=tmp_path)

    return make


def test_a_check_that_breaks_fails_and_hides_no_other(loaded: LoadedWith) -> None:
    def check_broken(_loaded: Loaded) -> Result:
        raise RuntimeError("no such thing")

    broken, clock = examine(loaded(), [check_broken, doctor.check_clock])
    assert (broken.grade, broken.name) == (Grade.FAIL, "broken")
    assert "no such thing" in broken.found
    assert clock.name == "clock"


def test_readable_secrets_are_a_warning(loaded: LoadedWith, tmp_path: Path) -> None:
    file = tmp_path / "foreshock.toml"
    file.write_text("[api]\napi_key = '0123456789abcdef'\n")
    file.chmod(0o644)
    found = doctor.check_settings(loaded())
    assert (found.grade, found.advice) == (Grade.WARN, f"chmod 600 {file}")
    file.chmod(0o600)
    assert doctor.check_settings(loaded()).grade == Grade.OK


def test_a_data_dir_open_to_others_is_a_warning(loaded: LoadedWith, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o755)  # whatever the umask is
    found = doctor.check_data_dir(loaded())
    assert found.grade == Grade.WARN
    assert found.advice == f"chmod 700 {tmp_path / 'data'}"


def test_a_newer_data_dir_fails(loaded: LoadedWith, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "version").write_text("99")
    assert doctor.check_data_dir(loaded()).grade == Grade.FAIL


def test_a_missing_data_dir_is_well(loaded: LoadedWith) -> None:
    assert doctor.check_data_dir(loaded()).grade == Grade.OK
    assert doctor.check_space(loaded()).grade in (Grade.OK, Grade.WARN)


def test_a_damaged_store_fails(loaded: LoadedWith, tmp_path: Path) -> None:
    file = tmp_path / "data" / "api" / "alerts.sqlite"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"this is no database, however long one looks at it" * 100)
    assert doctor.check_store(loaded()).grade == Grade.FAIL


def test_a_store_that_can_be_written_shows_its_schema(loaded: LoadedWith, tmp_path: Path) -> None:
    file = tmp_path / "data" / "api" / "alerts.sqlite"
    file.parent.mkdir(parents=True)
    store = sqlite3.connect(file)
    try:
        store.execute("CREATE TABLE alembic_version (version_num TEXT)")
        store.execute("INSERT INTO alembic_version VALUES ('0001')")
        store.commit()
    finally:
        store.close()
    found = doctor.check_store(loaded())
    assert found.grade == Grade.OK
    assert "schema 0001" in found.found


def test_a_taken_port_is_a_warning(loaded: LoadedWith) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = doctor.check_ports(loaded(FORESHOCK_API__PORT=str(port)))
    assert found.grade == Grade.WARN
    assert f"127.0.0.1:{port} (api)" in found.found


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("DETECTOR__HOST", "0.0.0.0", "detector.api_key is not set"),
        ("API__DATABASE", "mysql://db/alerts", "api.database names no store"),
        ("DETECTOR__DISABLED", "leek", "no detector 'leek'"),
        ("API__PORT", "8602", "detector.port and api.port are both 8602"),
    ],
)
def test_settings_with_which_no_service_starts_fail(
    loaded: LoadedWith, variable: str, value: str, words: str
) -> None:
    found = doctor.check_settings(loaded(**{f"FORESHOCK_{variable}": value}))
    assert found.grade == Grade.FAIL
    assert words in found.found


def test_a_data_dir_that_cannot_be_made_names_what_is_in_the_way(
    loaded: LoadedWith, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("a file")
    found = doctor.check_data_dir(loaded(FORESHOCK_DATA_DIR=str(tmp_path / "data" / "a" / "b")))
    assert found.grade == Grade.FAIL
    assert f"cannot be created in {tmp_path / 'data'}: that is a file" in found.found


def test_topics_of_an_existing_bus_are_looked_at(loaded: LoadedWith, tmp_path: Path) -> None:
    assert "will be created" in doctor.check_topics(loaded()).found
    (tmp_path / "data" / "bus").mkdir(parents=True)
    bus = open_bus(placed(loaded().settings).bus)
    bus.create_topics()
    bus.close()
    assert doctor.check_topics(loaded()).found.startswith("all ")


def test_an_absent_broker_is_waited_for_once(loaded: LoadedWith) -> None:
    absent = loaded(FORESHOCK_BUS__TRANSPORT="kafka", FORESHOCK_BUS__KAFKA__BOOTSTRAP="127.0.0.1:9")
    began = time.monotonic()
    bus, topics = examine(absent, [doctor.check_bus, doctor.check_topics])
    assert time.monotonic() - began < 10.0
    assert (bus.grade, topics.grade) == (Grade.FAIL, Grade.WARN)
    assert "bus.kafka.bootstrap" in bus.advice


def test_a_kafka_that_is_not_there_fails(loaded: LoadedWith) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        found = doctor.check_bus(
            loaded(
                FORESHOCK_BUS__TRANSPORT="kafka",
                FORESHOCK_BUS__KAFKA__BOOTSTRAP=f"127.0.0.1:{port}",
            )
        )
    assert found.grade == Grade.FAIL


def test_results_with_brackets_are_shown_as_they_are() -> None:
    """Rich reads brackets as mark-up; settings and addresses have them."""
    console = Console(file=io.StringIO(), record=True, width=200, force_terminal=True)
    doctor.show([Result(name="bus", grade=Grade.OK, found="see [bus] and [::1]:1")], console)
    assert "see [bus] and [::1]:1" in console.export_text()


@pytest.mark.parametrize(
    "state",
    [
        CollectorState.NO_DRIVER,
        CollectorState.NO_LIBRARY,
        CollectorState.NO_PERMISSION,
        CollectorState.VERSION_MISMATCH,
        CollectorState.BLIND,
        CollectorState.OK,
    ],
)
def test_every_way_to_have_no_gpu_names_the_demo(state: CollectorState) -> None:
    sentence = why_no_gpu([Reading(node="n", ts=0, state=state)])
    assert sentence is not None
    assert sentence.endswith("foreshock demo")


def test_one_gpu_is_enough() -> None:
    assert why_no_gpu([Reading(node="n", ts=0, gpus=("GPU-1",))]) is None


def test_a_machine_without_gpus_is_examined_for_what_it_runs() -> None:
    names = {check.__name__ for check in checks_for([Role.DETECT, Role.SERVE])}
    assert {"check_bus", "check_store", "check_clock"} <= names
    assert not {"check_driver", "check_devices"} & names
    assert checks_for([]) == doctor.CHECKS


def test_beyond_a_screen_every_result_is_one_line_that_can_be_copied() -> None:
    long = "/very/long/path" * 20
    out = io.StringIO()
    doctor.show(
        [Result(name="bus", grade=Grade.FAIL, found=long, advice="Mend it.")], Console(file=out)
    )
    assert out.getvalue().splitlines() == [f"fail  bus: {long}. What to do: Mend it."]
