"""Whose heat is it: one GPU's, a node's, or everybody's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from telemetry import alerts_of, telemetry
from test_cases_thermal import heat_paths

from detector.detectors.degraded_cooling import DegradedCooling
from detector.detectors.near_limit import NearLimit
from detector.detectors.node_airflow import NodeAirflow
from detector.engine import Engine
from schemas.alert import AlertEvent, fingerprint_of, parse_time

T0 = 1_790_000_000_000
Array = np.ndarray[Any, np.dtype[np.float64]]


def alerts_for(
    power: Array, heat: Array, interval: float, *detectors: Any, **more: Any
) -> list[AlertEvent]:
    chosen: tuple[Any, ...] = detectors or (NodeAirflow(), DegradedCooling())
    engine = Engine(chosen, topic="t", partition=0)
    limit = {"power_limit_watts": 700.0}
    columns = {"power_watts": power, "temperature_celsius": heat, **limit, **more}
    samples = telemetry(columns, gpus=power.shape[1], ticks=len(power), interval=interval)
    return engine.process(samples).alerts


def said(alerts: list[AlertEvent]) -> list[tuple[str, str, str | None]]:
    return [(a.kind, a.subject.scope, a.subject.gpu_uuid) for a in alerts if a.state == "firing"]


@pytest.mark.parametrize(("interval", "rise"), [(5.0, 8.0), (10.0, 15.0)])
def test_a_node_that_becomes_hot_at_the_same_power_is_one_alert(
    interval: float, rise: float
) -> None:
    power, heat = heat_paths(2, hours=1.4, interval=interval, fault=(4320.0, 0, 0.0))
    start = int(4320 / interval)
    heat[start:] += rise
    alerts = alerts_for(power, heat, interval)
    assert said(alerts) == [("node_airflow", "node", None)]
    assert 0 < (parse_time(alerts[0].observed_at) - T0) / 1000 - 4320 <= 180
    assert alerts[0].severity == "warning"
    assert "has 8 of 8 GPUs hotter than their own past at the same power, by" in alerts[0].summary


@pytest.mark.parametrize("seed", range(3))
def test_hours_of_changing_load_and_a_daily_swing_are_no_airflow(seed: int) -> None:
    power, heat = heat_paths(seed, hours=12, interval=30.0)
    times = np.arange(len(power)) * 30.0
    # 2 °C of swing are in the generator already; this makes it 6.
    swing = 4.0 * np.sin(2 * np.pi * times / 86400)
    assert alerts_for(power, heat + swing[:, None], 30.0) == []


def test_a_lone_hot_gpu_is_its_own_alert_and_no_airflow() -> None:
    power, heat = heat_paths(4, hours=1.4, interval=5.0, fault=(4500.0, 5, 0.25))
    assert said(alerts_for(power, heat, 5.0)) == [("degraded_cooling", "gpu", "GPU-5")]


def test_half_of_a_node_is_not_the_air_of_all() -> None:
    power, heat = heat_paths(6, hours=1.4, interval=5.0, fault=(4320.0, 0, 0.0))
    heat[432:, :4] += 9.0
    assert ("node_airflow", "node", None) not in said(alerts_for(power, heat, 10.0))


def test_a_room_that_becomes_warm_blames_no_gpu_on_any_node() -> None:
    """Every node of the rack says that it is hot; none says so of one of its GPUs."""
    found = []
    for seed in range(3):
        power, heat = heat_paths(seed, hours=1.5, interval=15.0, fault=(4500.0, 0, 0.0))
        ramp = np.clip((np.arange(len(heat)) - 300) / 20.0, 0, 1) * 10.0
        found += alerts_for(power, heat + ramp[:, None], 15.0)
    assert set(said(found)) == {("node_airflow", "node", None)}


def test_the_work_of_other_tenants_is_no_airflow() -> None:
    """Four GPUs begin to work at full power beside four that idle; then the other way round."""
    times = np.arange(0, 7200.0, 10.0)
    busy = (times // 1800 % 2).astype(bool)
    power = np.where(busy[:, None] == (np.arange(8) < 4), 680.0, 75.0)
    slow = np.full(8, 75.0)
    heat = np.zeros(power.shape)
    resistance = np.linspace(0.05, 0.08, 8)
    for tick, watts in enumerate(power):
        slow = slow + (1 - np.exp(-10 / 40)) * (watts - slow)
        heat[tick] = 26 + resistance * (0.45 * watts + 0.55 * slow)
    assert alerts_for(power, np.round(heat), 10.0) == []


def test_alerts_of_its_gpus_name_the_airflow_as_their_cause() -> None:
    power, heat = heat_paths(7, hours=1.4, interval=10.0, fault=(4320.0, 0, 0.0))
    late = np.maximum(np.arange(len(heat)) * 10.0 - 4320.0, 0.0)
    heat = heat + np.minimum(late / 10.0, 25.0)[:, None]
    watch = (NodeAirflow(), DegradedCooling(), NearLimit())
    alerts = alerts_for(power, heat, 10.0, *watch, temperature_margin_celsius=87.0 - heat)
    assert {a.kind for a in alerts} == {"node_airflow", "near_limit"}
    node = next(a for a in alerts if a.kind == "node_airflow")
    assert node.fingerprint == fingerprint_of("thermal_fault", "node_airflow", node.subject)
    later = alerts[alerts.index(node) :]
    assert {a.caused_by for a in later if a.kind == "near_limit"} == {node.fingerprint}


def test_a_gpu_that_leaves_the_node_does_not_make_the_others_new() -> None:
    power, heat = heat_paths(8, hours=1.4, interval=10.0, fault=(4320.0, 0, 0.0))
    heat[432:] += 9.0
    power, heat = power.copy(), heat.copy()
    power[350:, 2] = heat[350:, 2] = np.nan
    alerts = alerts_for(power, heat, 10.0, NodeAirflow())
    assert said(alerts) == [("node_airflow", "node", None)]
    assert "has 7 of 7 GPUs" in alerts[0].summary


@pytest.mark.parametrize("limits", [True, False])
def test_small_cards_that_begin_to_work_are_not_overheating(limits: bool) -> None:
    """70 W cards rise by 45 °C, ten times as much per watt as the boards of 700 W."""
    times = np.arange(0, 5400.0, 15.0)
    power = np.where(times > 2700, 68.0, 10.0)[:, None] * np.ones(4)
    slow, heat = np.full(4, 10.0), np.zeros_like(power)
    for tick, watts in enumerate(power):
        slow = slow + (1 - np.exp(-15 / 50)) * (watts - slow)
        heat[tick] = 28 + np.array([0.6, 0.65, 0.7, 0.66]) * (0.4 * watts + 0.6 * slow)
    known: dict[str, Any] = {"power_limit_watts": 70.0} if limits else {}
    columns = {"power_watts": power, "temperature_celsius": np.round(heat), **known}
    samples = telemetry(columns, gpus=4, ticks=len(power), interval=15.0, models=["T4"] * 4)
    assert [a for a in alerts_of(samples) if a.family == "thermal_fault"] == []
