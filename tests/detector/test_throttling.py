"""When a slowdown ends: at its end, not minutes later, and not between two bursts."""

from __future__ import annotations

import numpy as np
import pytest
from telemetry import alerts_of, telemetry

from schemas.alert import parse_time

COUNTER = "throttle_power_brake_seconds_total"


def braked(seconds: np.ndarray, *, counters: bool) -> dict[str, np.ndarray]:
    """Reason bits, or the cumulative counter, of one GPU braked in these seconds."""
    bits = np.where(seconds, 0x80, 0.0)[:, None]
    if not counters:
        return {"clock_event_reasons": bits}
    return {"clock_event_reasons": bits, COUNTER: np.cumsum(seconds.astype(float))[:, None]}


@pytest.mark.parametrize("counters", [True, False], ids=["counters", "bits"])
def test_a_brake_of_45_seconds_has_ended_after_45_seconds(counters: bool) -> None:
    seconds = np.zeros(600, dtype=bool)
    seconds[100:145] = True
    samples = telemetry(braked(seconds, counters=counters), gpus=1, ticks=600)
    first, last = alerts_of(samples)
    assert (first.state, last.state) == ("firing", "resolved")
    assert last.ended_at is not None
    lasted = (parse_time(last.ended_at) - parse_time(last.started_at)) / 1000
    assert lasted == pytest.approx(45, abs=3)
    assert "after 4" in last.summary


def test_bursts_of_one_cause_are_one_alert() -> None:
    seconds = np.arange(900) % 60 < 3
    alerts = alerts_of(telemetry(braked(seconds, counters=True), gpus=1, ticks=900))
    assert [alert.state for alert in alerts] == ["firing"]


def shares(counter: str, each: np.ndarray) -> dict[str, np.ndarray]:
    """A GPU at work whose counter moves by a share of each second."""
    ticks = len(each)
    return {
        counter: np.cumsum(each)[:, None],
        "clock_event_reasons": np.zeros((ticks, 1)),
        "gpu_utilization_ratio": np.ones((ticks, 1)),
    }


@pytest.mark.parametrize("kind", ["hw_thermal", "power_brake"])
def test_hardware_that_slows_a_tenth_of_the_time_is_told_within_5_seconds(kind: str) -> None:
    each = np.where(np.arange(300) < 200, 0.0, 0.1)
    columns = shares(f"throttle_{kind}_seconds_total", each)
    (alert,) = alerts_of(telemetry(columns, gpus=1, ticks=300))
    assert alert.kind == kind
    begun = telemetry(columns, gpus=1, ticks=300)[200].ts[0]
    assert 0 < parse_time(alert.observed_at) - begun <= 5000
    assert "10% of the time since the reading before" in alert.summary


@pytest.mark.parametrize("readings", [1, 2])
def test_a_change_of_clocks_that_moves_the_counter_is_no_slowdown(readings: int) -> None:
    each = np.zeros(300)
    each[200 : 200 + readings] = 0.1
    columns = shares("throttle_power_brake_seconds_total", each)
    assert alerts_of(telemetry(columns, gpus=1, ticks=300)) == []


def test_the_drivers_own_slowdown_is_judged_by_its_share_of_the_minute() -> None:
    each = np.where(np.arange(300) < 200, 0.0, 0.1)
    columns = shares("throttle_sw_thermal_seconds_total", each)
    alerts = alerts_of(telemetry(columns, gpus=1, ticks=300))
    begun = telemetry(columns, gpus=1, ticks=300)[200].ts[0]
    assert all(parse_time(alert.observed_at) - begun > 5000 for alert in alerts)
