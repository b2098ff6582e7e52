"""Memory that fills fast, and memory at its end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from telemetry import MIB, alerts_of, held, serious, telemetry

from schemas.alert import AlertEvent, parse_time

T0 = 1_790_000_000_000
TOTAL = 81559 * MIB


def alerts_for(used: np.ndarray[Any, Any], busy: Any = 0.9, interval: float = 1.0) -> list[Any]:
    columns: dict[str, Any] = {
        "memory_used_bytes": used[:, None] * MIB,
        "memory_total_bytes": TOTAL,
        "gpu_utilization_ratio": np.broadcast_to(busy, len(used))[:, None],
    }
    noise = {"memory_used_bytes": 2 * MIB}
    return alerts_of(telemetry(columns, gpus=1, ticks=len(used), interval=interval, noise=noise))


def of_kind(alerts: list[AlertEvent], kind: str) -> list[AlertEvent]:
    return [a for a in alerts if a.kind == kind and a.state == "firing"]


@pytest.mark.parametrize("rate", [30.0, 60.0, 100.0])
def test_growth_that_fills_the_memory_within_minutes_is_critical_in_time(rate: float) -> None:
    """30 to 100 MiB/s from a plateau of ten minutes at 68 %."""
    start = 600
    ticks = start + int((TOTAL / MIB - 56_000) / rate)
    used = 56_000 + rate * np.maximum(np.arange(ticks) - start, 0)
    found = of_kind(alerts_for(used), "fast_growth")
    assert found
    assert found[0].severity == "critical"
    left = ticks - (parse_time(found[0].observed_at) - T0) / 1000
    assert left >= 45
    assert "GiB/h and will be full in" in found[0].summary


@pytest.mark.parametrize("interval", [1.0, 10.0])
def test_loading_a_model_is_no_fast_growth(interval: float) -> None:
    """At 200 MiB/s to 1 GiB/s onto an empty card, then a plateau at 93 %."""
    for rate in (200.0, 400.0, 1000.0):
        times = np.arange(0, 1500, interval)
        used = np.minimum(500 + rate * np.maximum(times - 60, 0), 76_000)
        assert serious(alerts_for(used, interval=interval)) == []


def test_a_bump_of_an_evaluation_is_no_fast_growth() -> None:
    ticks = np.arange(held(30))
    used = np.where(ticks % 600 < 40, 66_000.0, 56_000.0)
    assert serious(alerts_for(used)) == []


@pytest.mark.parametrize("level", [0.86, 0.95, 0.97, 0.995])
@pytest.mark.parametrize("busy", [0.0, 0.9])
def test_o02_a_flat_level_is_no_alert(level: float, busy: float) -> None:
    used = np.full(held(20), level * TOTAL / MIB)
    found = alerts_for(used, busy)
    assert of_kind(found, "at_limit") == []
    assert serious(found) == []


def test_a_server_that_reserves_all_and_waits_is_no_alert() -> None:
    ticks = held(20)
    used = np.minimum(500 + 600.0 * np.arange(ticks), 0.993 * TOTAL / MIB)
    busy = np.where(np.arange(ticks) < 200, 0.5, 0.0)
    assert serious(alerts_for(used, busy)) == []


def wall(ticks: int) -> np.ndarray[Any, Any]:
    """A plateau of ten minutes at 88 %, then 20 MiB/s to the last 0.5 %."""
    used = 0.88 * TOTAL / MIB + 20.0 * np.maximum(np.arange(ticks) - 600, 0)
    return np.minimum(used, 0.995 * TOTAL / MIB)


def test_a_job_at_the_end_of_its_memory_is_a_note_while_it_works() -> None:
    found = of_kind(alerts_for(wall(held(25)), 0.9), "at_limit")
    assert {a.severity for a in found} == {"info"}


def test_a_job_that_stopped_at_the_wall_is_critical() -> None:
    ticks = held(25)
    busy = np.where(np.arange(ticks) < 1150, 0.9, 0.0)
    found = of_kind(alerts_for(wall(ticks), busy), "at_limit")
    assert [a.severity for a in found] == ["info", "critical"]
    stopped = (parse_time(found[-1].observed_at) - T0) / 1000
    assert 1150 + 55 <= stopped <= 1150 + 120
    assert found[-1].action == "restart_app"
    assert "nothing has run for" in found[-1].summary
