"""Hot memory, and fans that do not do their part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from telemetry import alerts_of, held, serious, telemetry

from detector.detectors.fan import Fan
from detector.detectors.memory_hot import MemoryHot
from detector.engine import Engine
from schemas.alert import AlertEvent, parse_time

T0 = 1_790_000_000_000
Array = np.ndarray[Any, np.dtype[np.float64]]


def seconds(alert: AlertEvent) -> float:
    return (parse_time(alert.observed_at) - T0) / 1000


def alone(
    detector: MemoryHot | Fan, columns: dict[str, Any], interval: float = 5.0, **shape: Any
) -> list[AlertEvent]:
    """Through the engine with one detector: hours in seconds."""
    samples = telemetry(columns, interval=interval, **shape)
    return Engine([detector], topic="gpu.samples", partition=0).process(samples).alerts


# -- memory ----------------------------------------------------------------------------------------


def changing_load(hours: float, interval: float, gpus: int = 4) -> tuple[Array, Array]:
    """Temperatures of chip and memory, (ticks, gpus), of jobs that come and go."""
    rng = np.random.default_rng(3)
    ticks = int(hours * 3600 / interval)
    level = np.repeat(rng.uniform(75, 690, ticks // 120 + 1), 120)[:ticks, None]
    slow = np.zeros((ticks, gpus))
    for tick in range(1, ticks):
        step = (1 - np.exp(-interval / 35)) * (level[tick] - slow[tick - 1])
        slow[tick] = slow[tick - 1] + step
    chip = 26 + rng.uniform(0.05, 0.08, gpus) * (0.45 * level + 0.55 * slow)
    busy = np.repeat(rng.uniform(0, 1, ticks // 60 + 1), 60)[:ticks, None]
    memory = chip + 2 + 0.006 * level + 3.0 * busy  # jobs that read memory much are warmer
    noise = rng.normal(0, 0.4, (2, ticks, gpus))
    return np.round(chip + noise[0]), np.round(memory + noise[1])


def test_memory_that_follows_the_chip_is_no_alert() -> None:
    chip, memory = changing_load(6, 10.0)
    columns = {"temperature_celsius": chip, "memory_temperature_celsius": memory}
    assert alone(MemoryHot(), columns, 10.0, gpus=4, ticks=len(chip)) == []


@pytest.mark.parametrize("interval", [1.0, 10.0])
def test_memory_near_its_limit_is_a_warning_and_at_it_critical(interval: float) -> None:
    ticks = held(20, interval)
    times = np.arange(ticks)[:, None] * interval
    memory = np.where(times < 300, 80.0, np.where(times < 600, 91.0, 96.0)) * np.ones(2)
    memory[:, 1] = 80.0
    columns = {
        "memory_temperature_celsius": memory,
        "temperature_celsius": memory - 8.0,  # the whole GPU is hot: no excess, but the limit
        "power_watts": 600.0,
    }
    alerts = alone(MemoryHot(), columns, interval, gpus=2, ticks=ticks)
    assert [(a.severity, a.subject.gpu_uuid) for a in alerts] == [
        ("warning", "GPU-0"),
        ("critical", "GPU-0"),
    ]
    assert 300 + 60 <= seconds(alerts[0]) <= 300 + 120
    assert 600 <= seconds(alerts[1]) <= 600 + 60
    assert "has its memory at 9" in alerts[0].summary
    assert "limit 95 °C" in alerts[0].summary


def test_memory_that_leaves_its_own_past_beside_a_well_chip_is_a_warning() -> None:
    ticks = held(80, 5.0)
    chip = np.where(np.arange(ticks)[:, None] % 240 < 160, 62.0, 35.0) * np.ones(4)
    memory = chip + 8.0
    fault = 720
    memory[fault:, 2] += 14.0
    columns = {"temperature_celsius": chip, "memory_temperature_celsius": memory}
    alerts = alone(MemoryHot(), columns, gpus=4, ticks=ticks)
    first = alerts[0]
    assert {a.subject.gpu_uuid for a in alerts} == {"GPU-2"}
    assert first.severity == "warning"
    assert fault * 5 < seconds(first) <= fault * 5 + 180
    assert "against its own past" in first.summary


def test_memory_without_a_sensor_is_not_judged() -> None:
    columns = {"temperature_celsius": 84.0, "power_watts": 400.0}
    assert alone(MemoryHot(), columns, gpus=2, ticks=200) == []


def test_memory_of_a_gpu_whose_chip_is_not_read_is_judged_by_its_limit_alone() -> None:
    columns = {"memory_temperature_celsius": [80.0, 92.0], "power_watts": 400.0}
    alerts = alone(MemoryHot(), columns, gpus=2, ticks=60)
    assert [(a.subject.gpu_uuid, a.unmeasured) for a in alerts] == [
        ("GPU-1", ("temperature_celsius", "memory_utilization_ratio"))
    ]


# -- fans ------------------------------------------------------------------------------------------


def card(**columns: Any) -> dict[str, Any]:
    known = {"power_limit_watts": 320.0, "gpu_utilization_ratio": 0.95}
    return known | columns


@pytest.mark.parametrize("interval", [1.0, 10.0])
def test_a_fan_that_stops_on_a_hot_card_at_work_is_critical(interval: float) -> None:
    ticks = held(20, interval)
    times = np.arange(ticks)[:, None] * interval
    heat = np.where(times < 600, 68.0, np.minimum(68.0 + (times - 600) / 20.0, 84.0))
    columns = card(
        fan_ratio=np.where(times < 600, 0.55, 0.0), temperature_celsius=heat, power_watts=280.0
    )
    alerts = alone(Fan(), columns, interval, gpus=1, ticks=ticks)
    assert [(a.kind, a.severity, a.state) for a in alerts] == [("fan", "critical", "firing")]
    assert 0 < seconds(alerts[0]) - 600 <= 90
    assert "at 280 W with its fan at 0%" in alerts[0].summary


def test_a_fan_that_rests_on_a_card_below_60_degrees_is_no_alert() -> None:
    """Many cards stop their fan until 50 to 60 °C, at some power too."""
    ticks = held(60, 5.0)
    heat = 45.0 + 14.0 * np.sin(np.arange(ticks) / 30.0)[:, None]
    columns = card(fan_ratio=np.where(heat > 55, 0.3, 0.0), temperature_celsius=heat)
    columns["power_watts"] = 150.0
    assert alone(Fan(), columns, gpus=1, ticks=ticks) == []


def test_a_water_cooled_card_without_a_fan_is_no_alert() -> None:
    columns = card(fan_ratio=0.0, temperature_celsius=66.0, power_watts=310.0)
    assert alone(Fan(), columns, gpus=4, ticks=held(30, 5.0)) == []


def test_a_hot_idle_card_with_a_resting_fan_is_no_alert() -> None:
    columns = card(fan_ratio=0.0, temperature_celsius=63.0, power_watts=25.0)
    columns["gpu_utilization_ratio"] = 0.0
    assert alone(Fan(), columns, gpus=1, ticks=held(30, 5.0)) == []


def dusty(extra: float, duty: float) -> list[AlertEvent]:
    """An hour at 66 °C and 60 %; then so much hotter with the fan at another duty."""
    ticks, fault = held(90, 5.0), held(60, 5.0)
    late = (np.arange(ticks) >= fault)[:, None]
    columns = card(
        fan_ratio=np.where(late, duty, 0.6),
        temperature_celsius=np.where(late, 66.0 + extra, 66.0),
        power_watts=300.0,
    )
    noise = {"temperature_celsius": 0.5, "power_watts": 5.0}
    return alone(Fan(), columns, gpus=1, ticks=ticks, noise=noise)


def test_a_fan_at_its_end_on_a_card_hotter_than_its_past_is_a_warning() -> None:
    alerts = dusty(7.0, 1.0)
    assert [(a.severity, a.state) for a in alerts] == [("warning", "firing")]
    assert 0 < seconds(alerts[0]) - 3600 <= 120
    assert "with its fan at 100%, +" in alerts[0].summary
    assert "°C against its own past at this power" in alerts[0].summary


@pytest.mark.parametrize(("extra", "duty"), [(-8.0, 1.0), (0.0, 1.0), (7.0, 0.8)])
def test_a_fan_at_its_end_that_cools_is_no_alert(extra: float, duty: float) -> None:
    """Somebody set it to 100 %; or it has room left, and the cooling is judged elsewhere."""
    assert dusty(extra, duty) == []


def test_a_fan_at_its_end_since_more_power_is_drawn_is_no_alert() -> None:
    ticks, fault = held(90, 5.0), held(60, 5.0)
    late = (np.arange(ticks) >= fault)[:, None]
    columns = card(
        fan_ratio=np.where(late, 1.0, 0.6),
        temperature_celsius=np.where(late, 82.0, 62.0),
        power_watts=np.where(late, 318.0, 160.0),
    )
    assert alone(Fan(), columns, gpus=1, ticks=ticks) == []


def test_a_fan_that_lags_behind_its_peers_on_a_hotter_card_is_a_warning() -> None:
    columns = card(
        fan_ratio=[0.7, 0.72, 0.3, 0.69],
        temperature_celsius=[70.0, 71.0, 84.0, 69.0],
        power_watts=300.0,
    )
    alerts = alone(Fan(), columns, gpus=4, ticks=held(10, 5.0))
    assert [(a.subject.gpu_uuid, a.severity) for a in alerts] == [("GPU-2", "warning")]
    assert "with its fan at 30% where its peers' are at 70%" in alerts[0].summary


@pytest.mark.parametrize(
    "change",
    [
        {"temperature_celsius": [70.0, 71.0, 62.0, 69.0]},  # cool: it needs no more
        {"power_watts": [300.0, 300.0, 40.0, 300.0], "gpu_utilization_ratio": [1, 1, 0, 1]},
    ],
    ids=["cooler", "idle"],
)
def test_a_slow_fan_on_a_card_that_needs_no_more_is_no_alert(change: dict[str, Any]) -> None:
    columns = card(
        fan_ratio=[0.7, 0.72, 0.3, 0.69],
        temperature_celsius=[70.0, 71.0, 84.0, 69.0],
        power_watts=300.0,
    )
    assert alone(Fan(), columns | change, gpus=4, ticks=held(10, 5.0)) == []


def test_v09_a_resting_fan_says_something_only_with_heat() -> None:
    """The two cards of the case and their contrast, through all detectors."""
    columns = card(
        fan_ratio=0.0, temperature_celsius=[46.0, 27.0, 86.0], power_watts=[84.0, 140.0, 250.0]
    )
    found = serious(alerts_of(telemetry(columns, gpus=3, ticks=held(10, 5.0), interval=5.0)))
    assert found == [("thermal_fault", "fan", "critical", "GPU-2")]


def test_v05_a_fan_that_cannot_be_read_is_no_fan_alert() -> None:
    columns = {
        "fan_ratio": [0.3, np.nan],
        "temperature_celsius": [33.0, 68.0],
        "power_watts": [4.0, 99.0],
        "power_limit_watts": 130.0,
        "gpu_utilization_ratio": [0.0, 0.93],
    }
    assert alone(Fan(), columns, gpus=2, ticks=held(10)) == []
