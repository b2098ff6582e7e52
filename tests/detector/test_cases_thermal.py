"""Heat beyond the peer comparison: runaway, margins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from telemetry import alerts_of, held, serious
from telemetry import telemetry as typed_telemetry

from detector.detectors.degraded_cooling import DegradedCooling
from detector.engine import Engine
from schemas.alert import AlertEvent, parse_time
from schemas.sample import NodeSample

T0 = 1_790_000_000_000


def telemetry(metrics: dict[str, Any], **shape: Any) -> list[NodeSample]:
    """Hand-built messages of columns that are numbers or arrays."""
    return typed_telemetry(metrics, **shape)


@pytest.fixture(scope="module")
def t15(shared: Path) -> dict[str, Any]:
    cases = orjson.loads((shared / "cases" / "firing.json").read_bytes())
    given: dict[str, Any] = next(case for case in cases if case["id"] == "T15")["input"]
    return given


def failing_fan(given: dict[str, Any], interval: float, noise: float = 0.0) -> list[AlertEvent]:
    """The case's curve after its steady minutes, read every ``interval`` seconds."""
    own = given["interval_seconds"]
    end = own * (len(given["power_watts"]) - 1)
    times = np.arange(-given["steady_before_minutes"] * 60, end + interval / 2, interval)

    def curve(values: list[float]) -> np.ndarray[Any, Any]:
        return np.interp(times, own * np.arange(len(values)), values)[:, None]

    step = np.clip(times // own, 0, len(given["clock_event_reasons"]) - 1).astype(int)
    samples = telemetry(
        {
            "power_watts": curve(given["power_watts"]),
            "temperature_celsius": np.round(curve(given["temperature_celsius"])),
            "fan_ratio": curve(given["fan_percent"]) / 100,
            "clock_event_reasons": np.array(given["clock_event_reasons"])[step][:, None],
            "gpu_utilization_ratio": 0.95,
        },
        gpus=1,
        ticks=len(times),
        interval=interval,
        noise={"temperature_celsius": noise, "power_watts": 4 * noise},
    )
    return [a for a in alerts_of(samples) if a.kind == "runaway"]


def seconds_into_fault(alert: AlertEvent, given: dict[str, Any]) -> float:
    before: float = given["steady_before_minutes"] * 60
    return (parse_time(alert.observed_at) - T0) / 1000 - before


@pytest.mark.parametrize("interval", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_t15_a_failed_fan_is_a_warning_before_sample_7_and_critical_with_bit_64(
    t15: dict[str, Any], interval: float, noise: float
) -> None:
    alerts = failing_fan(t15, interval, noise)
    assert [a.severity for a in alerts] == ["warning", "critical"]
    assert 0 < seconds_into_fault(alerts[0], t15) < 7 * t15["interval_seconds"]
    assert seconds_into_fault(alerts[1], t15) == 9 * t15["interval_seconds"]
    if not noise:
        assert "climbed from 67 to" in alerts[0].summary
        assert "at unchanged power (320 W)" in alerts[0].summary


@pytest.mark.parametrize("interval", [1.0, 5.0, 10.0])
@pytest.mark.parametrize("pole", [15.0, 57.0])
def test_t15_contrast_a_warm_up_after_a_load_step_is_no_runaway(
    interval: float, pole: float
) -> None:
    """From a short and from a long idle, after a start of the collector in the middle too."""
    times = np.arange(0, 1800, interval)
    busy = ((times >= 5) & (times < 400)) | (times >= 700)
    power = np.where(busy, 690.0, 75.0)
    slow = np.zeros(len(times))
    for i in range(1, len(times)):
        slow[i] = slow[i - 1] + (1 - np.exp(-interval / pole)) * (power[i] - slow[i - 1])
    heat = 27.0 + 0.086 * (0.45 * power + 0.55 * slow)
    for begin in (0, int(20 / interval)):
        samples = telemetry(
            {"power_watts": power[begin:, None], "temperature_celsius": heat[begin:, None]},
            gpus=1,
            ticks=len(times) - begin,
            interval=interval,
            noise={"temperature_celsius": 0.7, "power_watts": 8.0},
        )
        assert [a for a in alerts_of(samples) if a.kind == "runaway"] == []


@pytest.mark.parametrize("period", [3.5, 20.0, 60.0, 240.0])
def test_a_load_that_comes_and_goes_is_no_runaway(period: float) -> None:
    times = np.arange(0, 1800.0)
    power = np.where(times % period < period / 2, 690.0, 120.0)
    slow = np.zeros(len(times))
    for i in range(1, len(times)):
        slow[i] = slow[i - 1] + (1 - np.exp(-1 / 30.0)) * (power[i] - slow[i - 1])
    heat = 27.0 + 0.07 * (0.45 * power + 0.55 * slow)
    samples = telemetry(
        {"power_watts": power[:, None], "temperature_celsius": heat[:, None]},
        gpus=1,
        ticks=len(times),
        noise={"temperature_celsius": 0.7, "power_watts": 8.0},
    )
    assert serious(alerts_of(samples)) == []


def margins(series: np.ndarray[Any, Any], heat: Any = None) -> list[AlertEvent]:
    samples = telemetry(
        {
            "temperature_margin_celsius": series,
            "temperature_celsius": 87.0 - series if heat is None else heat,
            "power_watts": 650.0,
        },
        gpus=series.shape[1],
        ticks=len(series),
    )
    return [a for a in alerts_of(samples) if a.kind == "near_limit"]


def test_a_small_margin_is_a_warning_and_none_is_critical() -> None:
    series = np.full((held(3), 2), 12.0)
    series[60:120, 0] = 4.0
    series[60:120, 1] = -1.0
    alerts = margins(series)
    first = {a.subject.gpu_uuid: a.severity for a in alerts if a.seq == 1}
    worst = {a.subject.gpu_uuid: a.severity for a in alerts if a.state == "firing"}
    assert first == {"GPU-0": "warning", "GPU-1": "warning"}
    assert worst == {"GPU-0": "warning", "GPU-1": "critical"}
    # Both are over within the minute after the margin came back.
    assert sum(a.state == "resolved" for a in alerts) == 2 or len(series) < 190


def test_a_margin_of_one_reading_is_no_alert() -> None:
    series = np.full((held(3), 1), 12.0)
    series[60] = -20.0
    assert margins(series) == []


def test_a_margin_of_zero_on_a_cold_gpu_is_not_believed() -> None:
    """Some drivers return 0 or -5 where they do not know."""
    assert margins(np.full((held(3), 1), -5.0), heat=35.0) == []


def test_a_temperature_that_stands_still_while_the_power_moves_is_a_stuck_sensor() -> None:
    ticks = held(8)
    power = np.where((np.arange(ticks) // 120 % 2)[:, None] == 0, 100.0, 500.0)
    heat = 30.0 + 0.06 * np.column_stack([power[:, 0], power[:, 0]])
    heat[:, 1] = 41.0
    alerts = alerts_of(
        telemetry(
            {"temperature_celsius": heat, "power_watts": np.repeat(power, 2, axis=1)},
            gpus=2,
            ticks=ticks,
        )
    )
    stuck = [a for a in alerts if a.kind == "sensor_stuck" and a.state == "firing"]
    assert [(a.subject.gpu_uuid, a.severity) for a in stuck] == [("GPU-1", "warning")]
    assert "has shown 41 °C without any change for" in stuck[0].summary


def test_a_flat_temperature_at_flat_power_is_no_stuck_sensor() -> None:
    alerts = alerts_of(
        telemetry(
            {"temperature_celsius": 33.0, "power_watts": 75.0},
            gpus=4,
            ticks=held(15),
            noise={"power_watts": 5.0},
        )
    )
    assert serious(alerts) == []


# -- degraded cooling ------------------------------------------------------------------------------


def heat_paths(
    seed: int, *, hours: float, interval: float, fault: tuple[float, int, float] | None = None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Power and temperature, (ticks, 8): jobs of every level that come and go, one heat path per
    GPU with its own resistance and slow pole, air with a daily swing, dips, sensor noise. A fault
    is (second, GPU, share of resistance added); from five minutes before it the node is busy."""
    rng = np.random.default_rng(seed)
    times = np.arange(int(hours * 3600 / interval)) * interval
    resistance, tau = rng.uniform(0.050, 0.086, 8), rng.uniform(15, 57, 8)
    level, until, busy, slow = 0.0, 0.0, False, np.zeros(8)
    power, heat = np.zeros((len(times), 8)), np.zeros((len(times), 8))
    for tick, now in enumerate(times):
        if now >= until:
            busy, level = bool(rng.random() < 0.75), float(rng.uniform(300, 690))
            until = now + 60 + rng.exponential(1800)
        late = fault is not None and now >= fault[0] - 300
        if late:
            busy, level, until = True, 670.0, np.inf
        watts = level + rng.normal(0, 8, 8) if busy else 75.0 + rng.normal(0, 0.5, 8)
        watts = np.full(8, 130.0) if busy and rng.random() < interval / 300 else watts
        path = resistance.copy()
        if fault is not None and now >= fault[0]:
            path[fault[1]] *= 1.0 + fault[2]
        slow = slow + (1 - np.exp(-interval / tau)) * (0.55 * path * watts - slow)
        air = 26.0 + 2.0 * np.sin(2 * np.pi * now / 86400)
        power[tick] = watts
        heat[tick] = np.round(air + 0.45 * path * watts + slow + rng.normal(0, 0.4, 8))
    return power, heat


def cooling_alerts(
    power: np.ndarray[Any, Any], heat: np.ndarray[Any, Any], interval: float
) -> list[AlertEvent]:
    """Through the engine with this detector alone: hours of telemetry in seconds."""
    engine = Engine([DegradedCooling()], topic="gpu.samples", partition=0)
    columns = {"power_watts": power, "temperature_celsius": heat}
    samples = telemetry(columns, gpus=8, ticks=len(power), interval=interval)
    return engine.process(samples).alerts


@pytest.mark.parametrize("seed", range(3))
def test_hours_of_changing_load_are_no_degraded_cooling(seed: int) -> None:
    power, heat = heat_paths(seed, hours=6, interval=10.0)
    assert cooling_alerts(power, heat, 10.0) == []


@pytest.mark.parametrize("seed", range(3))
def test_fifteen_percent_of_thermal_resistance_are_found_within_120_s(seed: int) -> None:
    power, heat = heat_paths(seed, hours=1.6, interval=1.0, fault=(5400.0, 3, 0.15))
    alerts = cooling_alerts(power, heat, 1.0)
    assert {a.subject.gpu_uuid for a in alerts} == {"GPU-3"}
    assert {a.severity for a in alerts} == {"warning"}
    delay = (parse_time(alerts[0].observed_at) - T0) / 1000 - 5400.0
    assert 0 < delay <= 120.0


def test_warmer_air_for_the_whole_node_is_no_degraded_cooling() -> None:
    power, heat = heat_paths(5, hours=1.5, interval=5.0)
    heat[800:] += np.minimum(np.arange(len(heat) - 800) / 12.0, 8.0)[:, None].round()
    assert cooling_alerts(power, heat, 5.0) == []
