"""Collect, detect and serve as three processes over one sqlite bus, and a crash in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

ROOT = Path(__file__).resolve().parents[2]
MAP = str(ROOT / "maps" / "hopper_sxm_x8.toml")
DEADLINE_SECONDS = 120.0


class Processes:
    """Commands of foreshock that share one data directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        kept = {name: text for name, text in os.environ.items() if "FORESHOCK" not in name}
        self._environment = kept | {
            "FORESHOCK_DATA_DIR": str(folder / "data"),
            "FORESHOCK_LOG_FORMAT": "json",
            "FORESHOCK_COLLECTOR__PORT": "0",
            "FORESHOCK_DETECTOR__PORT": "0",
            "FORESHOCK_DETECTOR__CHECKPOINT_SECONDS": "0.5",
            "FORESHOCK_API__PORT": "0",
        }

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log(arguments[0]).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "foreshock", *arguments],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        self._running.append(process)
        return process

    def log(self, command: str) -> Path:
        return self.folder / f"{command}.log"

    def wait_for(self, what: str, look: Callable[[], Any]) -> Any:
        """Look until there is something; a process that ends meanwhile fails the test."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            time.sleep(0.1)
        logs = "\n".join(f"{file}:\n{file.read_text()[-2000:]}" for file in self._logs())
        return pytest.fail(f"{what} did not come within {DEADLINE_SECONDS:.0f} s\n{logs}")

    def _logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait(timeout=10)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.end()


def api_url(processes: Processes) -> str | None:
    """Where the api listens, from its own log."""
    for line in processes.log("serve").read_text().splitlines():
        fields = json.loads(line) if line.startswith("{") else {}
        if fields.get("event") == "api_listening":
            return f"http://{fields['host']}:{fields['port']}"
    return None


def alerts(url: str) -> dict[str, str]:
    """Alert id to family and kind, of warning and above."""
    answer = httpx2.get(f"{url}/v1/alerts?limit=100", timeout=10)
    found = answer.raise_for_status().json()["alerts"]
    return {one["alert_id"]: f"{one['family']}/{one['kind']}" for one in found}


@pytest.fixture
def replayed(shared: Path, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """The recording of a real fault, and what the same files give in one process."""
    recording = str(shared / "recordings/timeseries/hopper_sxm_x8_run_0317_0339.csv.gz")
    out = tmp_path / "alerts.jsonl"
    subprocess.run(
        [sys.executable, "-m", "foreshock", "replay", recording, "--map", MAP, "--alerts", out],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        timeout=DEADLINE_SECONDS,
        check=True,
    )
    events = [json.loads(line) for line in out.read_text().splitlines()]
    return recording, {one["alert_id"]: f"{one['family']}/{one['kind']}" for one in events}


@pytest.mark.timeout(420)  # five starts of Python and a recording, on two busy cores
def test_three_processes_and_a_crash_give_the_alerts_of_a_replay(
    processes: Processes, replayed: tuple[str, dict[str, str]]
) -> None:
    """Kill -9 of the detector after its first snapshot: nothing is lost, nothing comes twice."""
    recording, expected = replayed
    assert "thermal_fault/peer_outlier" in expected.values()
    serve, detect = processes.start("serve"), processes.start("detect")
    url = processes.wait_for("the api", lambda: api_url(processes))
    collect = processes.start("collect", "--replay", recording, "--map", MAP)
    snapshots = processes.folder / "data" / "detector" / "snapshots"
    processes.wait_for("a snapshot", lambda: list(snapshots.glob("gpu.samples*")))
    detect.kill()
    detect.wait(timeout=10)
    detect = processes.start("detect")
    assert collect.wait(timeout=DEADLINE_SECONDS) == 0, processes.log("collect").read_text()
    processes.wait_for("the alerts", lambda: alerts(url).keys() >= expected.keys())
    for process in (detect, serve):
        process.send_signal(signal.SIGTERM)
    assert [process.wait(timeout=15) for process in (detect, serve)] == [0, 0]
    # Everything that the detector still had to say was flushed; the api starts again and reads it.
    processes.log("serve").unlink()
    processes.start("serve")
    url = processes.wait_for(
        "the api", lambda: processes.log("serve").exists() and api_url(processes)
    )
    assert alerts(url) == expected


def test_what_the_processes_leave_is_private(processes: Processes) -> None:
    processes.start("serve")
    processes.wait_for("the api", lambda: api_url(processes))
    for path in (processes.folder / "data").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
