"""Signals to a running collector: SIGHUP reads the settings anew, SIGUSR1 lets go of the GPUs."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Processes


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[tuple[Processes, Path]]:
    """The command that collects from a simulated fleet, and its settings file."""
    file = tmp_path / "foreshock.toml"
    file.write_text("[collector]\ninterval_seconds = 0.5\n")
    processes = Processes(tmp_path)
    yield processes, file
    processes.end()


def logged(processes: Processes, event: str) -> Callable[[], list[dict[str, Any]]]:
    def look() -> list[dict[str, Any]]:
        lines = processes.log("collect").read_text().splitlines()
        fields = [json.loads(line) for line in lines if line.startswith("{")]
        return [item for item in fields if item.get("event") == event]

    return look


def test_sighup_and_sigusr1_reach_the_collector_and_leave_it_running(
    collector: tuple[Processes, Path],
) -> None:
    processes, file = collector
    process = processes.start("collect", "--source", "simulated", "--config", str(file))
    processes.wait_for("the start", logged(processes, "collector_started"))
    file.write_text("[collector]\ninterval_seconds = 0.2\n")
    process.send_signal(signal.SIGHUP)
    (changed,) = processes.wait_for("the change", logged(processes, "settings_changed"))
    assert changed["interval_seconds"] == 0.2
    file.write_text("[collector]\ninterval_seconds = 'often'\n")
    process.send_signal(signal.SIGHUP)
    (kept,) = processes.wait_for("the refusal", logged(processes, "settings_not_reloaded"))
    assert "interval_seconds" in kept["reason"]
    process.send_signal(signal.SIGUSR1)
    (told,) = processes.wait_for("the answer", logged(processes, "nothing_to_release"))
    assert told["source"] == "simulated"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
