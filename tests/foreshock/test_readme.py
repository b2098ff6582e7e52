"""Every command of the README is run, as far as a test can: bounded in time, on free ports."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import Processes

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMI = """timestamp, index, uuid, name, temperature.gpu, power.draw [W], utilization.gpu [%]
2026/01/06 10:00:00.000, 0, GPU-a, NVIDIA L40S, 41, 145.02 W, 0 %
2026/01/06 10:00:01.000, 0, GPU-a, NVIDIA L40S, 42, 145.20 W, 1 %
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """Commands of all sh blocks, comments cut off."""
    lines = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


def settings_block(word: str) -> str:
    return next(block for block in blocks("toml") if word in block)


@pytest.fixture
def here(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def run(processes: Processes, command: str, seconds: float = 60.0) -> tuple[int, str]:
    """Run one foreshock command of the README and return its exit code and output."""
    assert command in commands(), f"the README no longer has {command!r}"
    process = processes.start(*command.split()[1:])
    code = process.wait(timeout=seconds)
    return code, processes.log(command.split()[1]).read_text()


def test_the_commands_are_those_that_are_tested_here() -> None:
    assert commands() == [
        "make demo",
        "make test",
        ". .venv/bin/activate",
        "foreshock doctor",
        "foreshock up",
        "foreshock replay recording.csv --alerts alerts.jsonl",
        "foreshock config show",
        "foreshock topics create",
        "foreshock topics describe",
        "foreshock detect",
        "foreshock serve",
        "foreshock collect",
    ]


@pytest.mark.timeout(300)
def test_make_demo_finds_its_first_fault_and_says_nothing_wrong() -> None:
    """The very command, shortened by its own option, in this checkout's environment."""
    done = subprocess.run(
        ["make", "--no-print-directory", "demo", "ARGS=--for 25 --port 0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "throttling/power_brake" in done.stdout
    assert "signature verified" in done.stdout


def test_make_test_runs_format_lint_types_contracts_and_tests() -> None:
    """A test cannot run the suite that it is part of: make says what it would run."""
    done = subprocess.run(
        ["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for tool in ("ruff format --check", "ruff check", "mypy", "lint-imports", "pytest"):
        assert tool in done.stdout


def test_the_environment_has_the_command() -> None:
    assert (Path(sys.executable).parent / "foreshock").exists()


def test_doctor_says_what_is_wrong_and_what_to_do(here: Processes) -> None:
    code, said = run(here, "foreshock doctor")
    assert code in {0, 1}
    assert "driver" in said.lower()


def test_up_without_a_gpu_names_the_demo(here: Processes) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU, so `foreshock up` would run")
    code, said = run(here, "foreshock up")
    assert code == 2
    assert "foreshock demo" in said


def test_replay_reads_a_recording_of_nvidia_smi(here: Processes) -> None:
    (here.folder / "recording.csv").write_text(SMI)
    code, said = run(here, "foreshock replay recording.csv --alerts alerts.jsonl")
    assert code == 0, said
    assert (here.folder / "alerts.jsonl").read_text() == ""


def test_config_show_masks_the_secret_of_the_endpoint(here: Processes) -> None:
    (here.folder / "foreshock.toml").write_text(settings_block("api.endpoints"))
    code, said = run(here, "foreshock config show")
    assert code == 0, said
    assert "noc" in said
    assert "whsec_AAEC" not in said


@pytest.mark.kafka
@pytest.mark.timeout(240)
def test_the_kafka_commands_work_with_the_settings_shown(
    here: Processes, real_kafka: str, topic_prefix: str
) -> None:
    settings = settings_block("bus.kafka").replace("kafka-1:9092,kafka-2:9092", real_kafka)
    prefixed = settings.replace("[bus]\n", f'[bus]\nprefix = "{topic_prefix}"\n')
    few = prefixed.replace("[bus.kafka]\n", "[bus.kafka]\npartitions = 2\n")
    (here.folder / "foreshock.toml").write_text(few)
    try:
        code, said = run(here, "foreshock topics create")
        assert code == 0, said
        code, said = run(here, "foreshock topics describe")
        assert code == 0, said
        assert f"{topic_prefix}gpu.samples" in said
        for service in ("detect", "serve", "collect"):
            assert f"foreshock {service}" in commands()
            process = here.start(service)
            here.wait_for(f"{service} to start", lambda name=service: _started(here, name))
            assert process.poll() is None, here.log(service).read_text()
            begun = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=15) == 0, here.log(service).read_text()
            assert time.monotonic() - begun < 10
    finally:
        here.end()


def _started(processes: Processes, service: str) -> bool:
    words = {"detect": "partitions_assigned", "serve": "api_listening", "collect": "collector_"}
    return words[service] in processes.log(service).read_text()
