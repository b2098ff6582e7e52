"""Every recording of the list of healthy ones, and the cases whose detector verdict is silence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from telemetry import MIB, alerts_of, held, serious, telemetry

from collector.replay.samples import samples_of
from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from detector.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[2]
LIST: dict[str, Any] = tomllib.loads((ROOT / "tests" / "healthy_recordings.toml").read_text())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(LIST["timeseries"]))
def test_healthy_telemetry_gives_no_alert(shared: Path, name: str) -> None:
    settings = ReplaySettings(
        files=(shared / "recordings" / name,), map=ROOT / "maps" / LIST["timeseries"][name]
    )
    assert serious(Pipeline().feed(list(samples_of(ReplaySource(settings))))) == []


@pytest.mark.parametrize("name", LIST["status"]["files"])
def test_the_status_of_a_healthy_gpu_gives_no_alert(shared: Path, name: str) -> None:
    source = ReplaySource(ReplaySettings(files=(shared / "recordings" / name,)))
    samples = list(samples_of(source))
    assert sum(len(sample.gpu) for sample in samples) > 0
    assert serious(Pipeline().feed(samples)) == []


def test_v03_values_that_are_missing_are_no_alert() -> None:
    """One will never come, one failed in this poll; neither of them is zero."""
    missing = np.full((held(10, 5.0), 2), np.nan)
    columns: dict[str, Any] = {
        "power_watts": 228.82,
        "power_default_limit_watts": missing,
        "memory_temperature_celsius": missing,
        "temperature_celsius": 55.0,
    }
    samples = telemetry(columns, gpus=2, ticks=len(missing), interval=5.0)
    assert serious(alerts_of(samples)) == []


def test_l12_many_clients_behind_one_server_are_no_alert() -> None:
    columns: dict[str, Any] = {
        "gpu_utilization_ratio": 0.99,
        "memory_used_bytes": 8060 * MIB,
        "memory_total_bytes": 81559 * MIB,
    }
    samples = telemetry(columns, gpus=1, ticks=held(10, 5.0), interval=5.0)
    assert serious(alerts_of(samples)) == []


def test_v17_a_list_of_processes_that_is_refused_is_no_alert() -> None:
    """Nothing of it reaches the detector; what the card holds does, and it is flat."""
    columns: dict[str, Any] = {
        "memory_used_bytes": 6498025472.0,
        "memory_total_bytes": 85899345920.0,
    }
    samples = telemetry(columns, gpus=1, ticks=held(10, 5.0), interval=5.0)
    assert serious(alerts_of(samples)) == []
