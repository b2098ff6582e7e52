"""The command as a user runs it: output, exit codes, signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

COMMANDS = ("up", "demo", "collect", "detect", "serve", "replay", "topics", "doctor", "config")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Nothing of the machine's own settings, and free ports."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FORESHOCK_")}
    return kept | {
        "FORESHOCK_DATA_DIR": str(tmp_path / "data"),
        "FORESHOCK_COLLECTOR__PORT": "0",
        "FORESHOCK_DETECTOR__PORT": "0",
        "FORESHOCK_API__PORT": "0",
    }


@pytest.fixture
def foreshock(
    environment: dict[str, str], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command to its end."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "foreshock", *arguments],
            env=environment | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_help_names_every_command(foreshock: Callable[..., Any]) -> None:
    result = foreshock("--help")
    assert result.returncode == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.stdout


def test_help_loads_nothing_heavy() -> None:
    """That is what keeps it fast; a clock would make a flaky test."""
    code = (
        "import sys, foreshock.cli;"
        "print([m for m in ('numpy', 'pydantic', 'fastapi', 'sqlalchemy', 'river', 'pynvml',"
        " 'confluent_kafka') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"


def test_a_node_agent_loads_no_web_framework_and_no_models() -> None:
    code = (
        "import sys, foreshock.compose, collector.agent, collector.sources;"
        "print([m for m in ('fastapi', 'uvicorn', 'sqlalchemy', 'alembic', 'river', 'scipy',"
        " 'confluent_kafka') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"


def test_looking_for_wrong_settings_loads_no_models_and_no_server() -> None:
    """``config show`` answers in a moment."""
    code = (
        "import sys, foreshock.config, foreshock.preflight, pathlib;"
        "loaded = foreshock.config.load(environ={}, cwd=pathlib.Path('/'));"
        "foreshock.preflight.wrong_settings(loaded.settings);"
        "print([m for m in ('fastapi', 'uvicorn', 'river', 'scipy') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("how", ["version", "--version"])
def test_version_is_printed(foreshock: Callable[..., Any], how: str) -> None:
    assert foreshock(how).stdout.startswith("foreshock 0.")


@pytest.mark.parametrize("of", [[], ["topics"], ["config"]])
def test_the_list_of_commands_cuts_no_sentence(
    foreshock: Callable[..., Any], of: list[str]
) -> None:
    assert "..." not in foreshock(*of, "--help").stdout.replace("[ARGS]...", "")


@pytest.mark.parametrize("port", ["70000", "-1"])
def test_a_port_that_is_none_is_wrong_usage(foreshock: Callable[..., Any], port: str) -> None:
    result = foreshock("demo", "--port", port)
    assert result.returncode == 2
    assert "--port" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_value_that_a_settings_class_refuses_is_a_sentence(
    foreshock: Callable[..., Any],
) -> None:
    result = foreshock("demo", "--seed", "-1", "--port", "0")
    assert result.returncode == 2
    assert result.stderr == "foreshock: seed must be at least 0.\n"


@pytest.fixture
def taken_port() -> Iterator[str]:
    """A port at which somebody else listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield str(other.getsockname()[1])


@pytest.mark.parametrize(
    ("command", "service"),
    [
        ("up", "COLLECTOR"),
        ("up", "DETECTOR"),
        ("up", "API"),
        ("collect", "COLLECTOR"),
        ("detect", "DETECTOR"),
        ("serve", "API"),
    ],
)
def test_a_taken_port_is_one_sentence_before_anything_starts(
    foreshock: Callable[..., Any], taken_port: str, command: str, service: str
) -> None:
    port = {f"FORESHOCK_{service}__PORT": taken_port}
    result = foreshock(command, FORESHOCK_COLLECTOR__SOURCE="simulated", **port)
    assert result.returncode == 2
    assert result.stderr == (
        f"foreshock: The {service.lower()} cannot listen on 127.0.0.1 port {taken_port}: Address "
        f"already in use. Stop the program that does, or set {service.lower()}.port to a free port."
        "\n"
    )


def test_a_taken_port_ends_the_demo_in_the_same_way(
    foreshock: Callable[..., Any], taken_port: str
) -> None:
    result = foreshock("demo", "--port", taken_port)
    assert result.returncode == 2
    assert result.stderr.startswith(f"foreshock: Port {taken_port} is in use.")


@pytest.mark.parametrize("command", [["config", "show"], ["up"]])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[api]\nhost = '0.0.0.0'\n", "api.api_key is not set"),
        ("[collector]\nhost = '0.0.0.0'\n", "collector.api_key is not set"),
        ("[detector.parameters.leek]\n", "Did you mean 'leak'?"),
        ("[detector.parameters.leak]\nslop = 1\n", "has no parameter 'slop'"),
        ("[api]\ndatabase = 'mysql://x/y'\n", "api.database names no store"),
        (
            "[[api.endpoints]]\nname = 'a'\nurl = 'https://a.example/'\nsecret_file = 'gone'\n",
            "secret_file of endpoint 'a' cannot be used",
        ),
    ],
)
def test_what_no_service_could_start_with_is_told_beforehand(
    foreshock: Callable[..., Any], tmp_path: Path, command: list[str], text: str, words: str
) -> None:
    (tmp_path / "foreshock.toml").write_text(text)
    result = foreshock(*command, FORESHOCK_COLLECTOR__SOURCE="simulated")
    assert result.returncode == 2
    assert words in result.stderr
    assert "service_running" not in result.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["replay"], ["collect", "--source", "crystal-ball"], ["up", "--nonsense"]],
)
def test_wrong_usage_ends_with_2(foreshock: Callable[..., Any], arguments: list[str]) -> None:
    result = foreshock(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_a_wrong_key_is_one_sentence_and_exit_code_2(foreshock: Callable[..., Any]) -> None:
    result = foreshock("config", "show", FORESHOCK_BUS__TRANSPOT="kafka")
    assert result.returncode == 2
    assert result.stderr == (
        "foreshock: The environment variable FORESHOCK_BUS__TRANSPOT is no setting. "
        "Did you mean FORESHOCK_BUS__TRANSPORT?\n"
    )


def test_config_show_is_toml_with_masked_secrets(foreshock: Callable[..., Any]) -> None:
    result = foreshock("config", "show", FORESHOCK_API__API_KEY="0123456789abcdef")
    assert result.returncode == 0
    assert tomllib.loads(result.stdout)["api"]["api_key"] == "********"


def test_config_sample_can_be_used_as_it_is(foreshock: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "foreshock.toml").write_text(foreshock("config", "sample").stdout)
    result = foreshock("config", "show")
    assert result.returncode == 0
    assert f"# Settings file: {tmp_path / 'foreshock.toml'}" in result.stdout


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_up_without_a_gpu_names_the_demo(foreshock: Callable[..., Any], tmp_path: Path) -> None:
    result = foreshock("up")
    assert result.returncode == 2
    assert "There is no GPU to watch" in result.stderr
    assert "foreshock demo" in result.stderr
    assert all(line.startswith("foreshock: ") for line in result.stderr.splitlines())
    assert not (tmp_path / "data").exists()


def test_replaying_nothing_is_a_sentence(foreshock: Callable[..., Any]) -> None:
    result = foreshock("collect", "--source", "replay")
    assert result.returncode == 2
    assert "name a recording with --replay" in result.stderr


def test_replaying_a_missing_file_is_a_sentence(foreshock: Callable[..., Any]) -> None:
    result = foreshock("replay", "missing.csv")
    assert result.returncode == 2
    assert "missing.csv" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("service", "command"), [("COLLECTOR", "collect"), ("DETECTOR", "detect"), ("API", "serve")]
)
def test_an_open_address_without_a_key_is_refused(
    foreshock: Callable[..., Any], service: str, command: str
) -> None:
    result = foreshock(command, **{f"FORESHOCK_{service}__HOST": "0.0.0.0"})
    assert result.returncode == 2
    assert "api_key" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["collect", "detect", "serve"])
def test_one_service_alone_on_the_memory_bus_is_refused(
    foreshock: Callable[..., Any], command: str
) -> None:
    result = foreshock(command, FORESHOCK_BUS__TRANSPORT="memory")
    assert result.returncode == 2
    assert "bus.transport is memory" in result.stderr


def test_a_data_dir_that_cannot_be_used_is_a_sentence(
    foreshock: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "data").touch()
    result = foreshock("collect", "--source", "simulated")
    assert result.returncode == 1
    assert result.stderr.startswith("foreshock: Cannot use the data directory")


def test_topics_are_created_and_described(foreshock: Callable[..., Any], tmp_path: Path) -> None:
    missing = foreshock("topics", "describe")
    assert missing.returncode == 1
    assert "foreshock topics create" in missing.stderr
    created = foreshock("topics", "create")
    assert created.returncode == 0, created.stderr
    assert "created gpu.samples" in created.stdout
    assert "gpu.alerts partitions=" in foreshock("topics", "describe").stdout
    assert "every topic exists" in foreshock("topics", "create").stdout
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "data" / "bus").iterdir()}
    assert modes == {0o600}


def test_topics_take_the_prefix(foreshock: Callable[..., Any]) -> None:
    assert (
        "created lab.gpu.samples"
        in foreshock("topics", "create", FORESHOCK_BUS__PREFIX="lab.").stdout
    )


def test_doctor_says_what_to_do(foreshock: Callable[..., Any]) -> None:
    result = foreshock("doctor", FORESHOCK_COLLECTOR__SOURCE="simulated", COLUMNS="200")
    assert result.returncode == 0, result.stdout + result.stderr
    for words in ("settings", "GPUs", "bus", "topics", "data directory", "clock", "ports"):
        assert words in result.stdout


def test_doctor_fails_where_foreshock_would(foreshock: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    result = foreshock("doctor", FORESHOCK_COLLECTOR__SOURCE="simulated", COLUMNS="200")
    assert result.returncode == 1
    assert "fail" in result.stdout


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a long-running command; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(module: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=environment | {"FORESHOCK_LOG_FORMAT": "json"} | variables,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=10)


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """Read the log until a line has the word; the pytest timeout bounds the wait."""
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if word in line:
            return line
    pytest.fail(f"no {word!r} in the log:\n{seen}")


@pytest.mark.parametrize(
    ("module", "name"), [("collector", "collector"), ("detector", "detector"), ("api", "api")]
)
def test_each_service_runs_as_a_module_and_ends_on_sigterm(
    start: Callable[..., Any], module: str, name: str
) -> None:
    process = start(module, FORESHOCK_COLLECTOR__SOURCE="simulated")
    read_until(process, "service_running")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    assert time.monotonic() - began < 10


def test_a_second_collector_on_one_data_dir_is_refused(
    start: Callable[..., Any], foreshock: Callable[..., Any]
) -> None:
    first = start("foreshock", "collect", "--source", "simulated")
    read_until(first, "service_running")
    second = foreshock("collect", "--source", "simulated")
    assert second.returncode == 1
    assert f"Another collector (process {first.pid})" in second.stderr


def test_health_is_served_while_a_service_runs(start: Callable[..., Any]) -> None:
    process = start("foreshock", "collect", "--source", "simulated")
    line = read_until(process, "health_listening")
    port = int(line.split('"port": ')[1].split(",")[0].rstrip("}\n"))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert b"foreshock_" in answer.read()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_a_collector_without_a_gpu_warns_once_and_stays(start: Callable[..., Any]) -> None:
    process = start("foreshock", "collect", FORESHOCK_COLLECTOR__INTERVAL_SECONDS="0.05")
    line = json.loads(read_until(process, "collector_state_changed"))
    assert line["level"] == "warning"
    assert "libnvidia-ml" in line["detail"] or "driver" in line["detail"]
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "collector_state_changed" not in rest


def test_up_says_where_its_page_is(start: Callable[..., Any]) -> None:
    process = start("foreshock", "up", FORESHOCK_COLLECTOR__SOURCE="simulated")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("Open http://127.0.0.1:")
    with urllib.request.urlopen(line.split()[1], timeout=10) as answer:  # noqa: S310 - checked above
        assert answer.status == 200
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=30)
    assert process.returncode == 0
    for service in ("collector", "detector", "api"):
        assert f"{service}_stopped" in log


class SilentBroker:
    """Takes a connection and never says a word."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(30)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._clients: list[socket.socket] = []

    def wait_for_a_client(self) -> None:
        self._clients.append(self._listener.accept()[0])

    def close(self) -> None:
        for one in (*self._clients, self._listener):
            one.close()


@pytest.fixture
def silent_broker() -> Iterator[SilentBroker]:
    broker = SilentBroker()
    yield broker
    broker.close()


@pytest.mark.parametrize("command", [["topics", "describe"], ["topics", "create"], ["doctor"]])
def test_an_interrupt_ends_the_wait_for_an_absent_broker_at_once(
    start: Callable[..., Any], silent_broker: SilentBroker, command: list[str]
) -> None:
    process = start(
        "foreshock",
        *command,
        FORESHOCK_COLLECTOR__SOURCE="simulated",
        FORESHOCK_BUS__TRANSPORT="kafka",
        FORESHOCK_BUS__KAFKA__BOOTSTRAP=silent_broker.address,
        FORESHOCK_LOG_LEVEL="debug",
    )
    silent_broker.wait_for_a_client()
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    process.communicate(timeout=10)
    assert process.returncode != 0
    assert time.monotonic() - began < 3.0
