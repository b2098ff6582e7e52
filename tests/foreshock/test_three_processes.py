"""Collect, detect and serve as three processes over one sqlite bus, and a crash in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import DEADLINE_SECONDS, Processes, alerts, api_url

ROOT = Path(__file__).resolve().parents[2]
MAP = str(ROOT / "maps" / "hopper_sxm_x8.toml")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.end()


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


@pytest.mark.timeout(900)  # five starts of Python and a recording, on two busy cores
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
