"""Field cases and rules of the family telemetry: who watches, and whether the numbers live."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from telemetry import T0, alerts_of, held, serious, telemetry

from schemas.alert import AlertEvent, parse_time, rfc3339
from schemas.metrics import METRICS
from schemas.sample import CollectorState, CollectorStatus, NodeSample, ValueStatus


@pytest.fixture(scope="module")
def cases(shared: Path) -> dict[str, Any]:
    """Id to case of the lifecycle file."""
    text = (shared / "cases" / "lifecycle.json").read_bytes()
    return {case["id"]: case for case in orjson.loads(text)}


@pytest.fixture(scope="module")
def all_cases(shared: Path) -> dict[str, Any]:
    """Id to case of the file of values."""
    text = (shared / "cases" / "values.json").read_bytes()
    return {case["id"]: case for case in orjson.loads(text)}


def heartbeat(
    seq: int, second: float, state: CollectorState, code: int | None = None
) -> NodeSample:
    """A message without GPUs, so many seconds after T0."""
    return NodeSample(
        node="node",
        boot_id="boot",
        seq=seq,
        ts=(T0 + round(second * 1000),),
        gpu=(),
        m={},
        collector=CollectorStatus(state=state, nvml_error=code),
    )


def of_family(alerts: list[AlertEvent], family: str = "telemetry") -> list[AlertEvent]:
    return [alert for alert in alerts if alert.family == family]


# -- collector_blind -------------------------------------------------------------------------------


def test_l03_a_version_mismatch_is_one_warning_of_the_node(cases: dict[str, Any]) -> None:
    given, expected = cases["L03"]["input"], cases["L03"]["expect"]["detector"]
    well = telemetry({"temperature_celsius": 40}, gpus=given["expected_gpus"], ticks=30)
    code = given["nvml_init"][0]["nvml_error"]
    blind = [
        heartbeat(30 + tick, 30 + tick, CollectorState.VERSION_MISMATCH, code)
        for tick in range(held(10))
    ]
    alerts = alerts_of([*well, *blind])
    assert serious(alerts) == [("telemetry", "collector_blind", expected["severity"], None)]
    assert len(of_family(alerts)) == expected["count"]
    assert alerts[0].subject.scope == "node"
    assert "different versions (NVML error 18); its 8 GPUs are not watched" in alerts[0].summary


@pytest.mark.parametrize("interval", [1.0, 10.0, 60.0])
@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        (CollectorState.NO_DRIVER, 9, "the NVIDIA driver is not loaded (NVML error 9)"),
        (CollectorState.NO_LIBRARY, 12, "libnvidia-ml.so.1 is not found (NVML error 12)"),
        (CollectorState.NO_PERMISSION, 4, "refuses the collector access (NVML error 4)"),
        (CollectorState.BLIND, 999, "no GPU answers the collector (NVML error 999)"),
        (CollectorState.BLIND, None, "no GPU answers the collector"),
    ],
)
def test_every_blind_state_is_a_warning_in_its_own_words(
    state: CollectorState, code: int | None, words: str, interval: float
) -> None:
    """Also of a node that never was well, at any rate of heartbeats."""
    found = alerts_of([heartbeat(n, n * interval, state, code) for n in range(held(10, interval))])
    assert serious(found) == [("telemetry", "collector_blind", "warning", None)]
    assert words in found[0].summary
    assert found[0].started_at == rfc3339(T0)


def test_a_reload_of_the_driver_is_no_alert() -> None:
    well = telemetry({"temperature_celsius": 40}, gpus=8, ticks=60)
    reload = [heartbeat(60 + n, 60 + n, CollectorState.NO_DRIVER, 9) for n in range(25)]
    back = telemetry({"temperature_celsius": 40}, gpus=8, ticks=120)
    again = [_later(sample, 85 + n) for n, sample in enumerate(back)]
    assert of_family(alerts_of([*well, *reload, *again])) == []


def test_a_blind_collector_that_sees_again_ends_its_alert() -> None:
    blind = [heartbeat(n, n, CollectorState.BLIND, 999) for n in range(120)]
    back = telemetry({"temperature_celsius": 40}, gpus=8, ticks=60)
    alerts = alerts_of([*blind, *(_later(sample, 120 + n) for n, sample in enumerate(back))])
    assert [(a.kind, a.state) for a in of_family(alerts)] == [
        ("collector_blind", "firing"),
        ("collector_blind", "resolved"),
    ]
    assert of_family(alerts)[1].ended_at == rfc3339(T0 + 120_000)


def test_a_well_collector_that_lists_none_of_its_gpus_is_blind() -> None:
    """The only GPU of a node fell off the bus: nothing else would say so."""
    well = telemetry({"temperature_celsius": 40}, gpus=1, ticks=60)
    empty = [heartbeat(60 + n, 60 + n, CollectorState.OK) for n in range(120)]
    alerts = alerts_of([*well, *empty])
    assert serious(alerts) == [("telemetry", "collector_blind", "warning", None)]
    assert "lists no GPU any more; its GPU is not watched" in alerts[0].summary


def test_a_node_without_gpus_is_no_alert() -> None:
    assert alerts_of([heartbeat(n, n, CollectorState.OK) for n in range(300)]) == []


def test_a_collector_that_stops_says_nothing_of_the_driver() -> None:
    well = telemetry({"temperature_celsius": 40}, gpus=8, ticks=60)
    assert alerts_of([*well, heartbeat(60, 60, CollectorState.STOPPING)]) == []


# -- driver_unresponsive ---------------------------------------------------------------------------


@pytest.mark.parametrize("first", [2, 3])
def test_l08_a_call_that_never_returns_is_critical_between_15_and_20_s(
    cases: dict[str, Any], first: int
) -> None:
    """Whether the collector says so at the first missed reading or at its own deadline."""
    given, expected = cases["L08"]["input"], cases["L08"]["expect"]["detector"]
    beats = given["heartbeat_at_seconds"]
    metrics = telemetry(
        {"temperature_celsius": 40}, gpus=8, ticks=len(given["metrics_at_seconds"]), interval=5
    )
    hung = [heartbeat(n, beats[n], CollectorState.UNRESPONSIVE) for n in range(first, len(beats))]
    alerts = alerts_of([*metrics, *hung])
    assert serious(alerts) == [("telemetry", "driver_unresponsive", expected["severity"], None)]
    earliest = rfc3339(T0 + expected["not_before_seconds"] * 1000)
    latest = rfc3339(T0 + expected["by_seconds"] * 1000)
    assert earliest <= alerts[0].observed_at <= latest


def test_a_driver_that_is_slow_once_is_no_alert() -> None:
    well = telemetry({"temperature_celsius": 40}, gpus=8, ticks=60)
    slow = [heartbeat(60 + n, 60 + n, CollectorState.UNRESPONSIVE) for n in range(4)]
    back = telemetry({"temperature_celsius": 40}, gpus=8, ticks=60)
    again = [_later(sample, 64 + n) for n, sample in enumerate(back)]
    assert of_family(alerts_of([*well, *slow, *again])) == []


def test_a_hung_driver_that_turns_blind_changes_its_alert() -> None:
    hung = [heartbeat(n, n, CollectorState.UNRESPONSIVE) for n in range(60)]
    blind = [heartbeat(60 + n, 60 + n, CollectorState.BLIND, 999) for n in range(60)]
    alerts = alerts_of([*hung, *blind])
    assert [(a.kind, a.state) for a in alerts] == [
        ("driver_unresponsive", "firing"),
        ("driver_unresponsive", "resolved"),
        ("collector_blind", "firing"),
    ]


# -- stale_values ----------------------------------------------------------------------------------

WORKING: dict[str, Any] = {
    "power_watts": 612.4,
    "temperature_celsius": 61.0,
    "gpu_utilization_ratio": 0.98,
    "memory_utilization_ratio": 0.55,
    "sm_clock_hertz": 1.71e9,
}
NOISE = {"power_watts": 4.0, "temperature_celsius": 0.5, "memory_utilization_ratio": 0.02}


@pytest.mark.parametrize("interval", [0.3, 1.0, 10.0, 30.0])
def test_a_working_gpu_whose_values_stand_still_is_a_warning_after_a_minute(
    interval: float,
) -> None:
    alive = telemetry(
        WORKING, gpus=4, ticks=held(2, interval), interval=interval, noise=NOISE, seed=1
    )
    since = len(alive) * interval
    stuck = alive[-1]
    # GPU 2 shows its last values for ever, its neighbours live on.
    later = telemetry(
        WORKING, gpus=4, ticks=held(4, interval), interval=interval, noise=NOISE, seed=2
    )
    frozen = [
        replace(
            sample,
            seq=len(alive) + n,
            ts=(sample.ts[0] + round(since * 1000),),
            m={name: [*c[:2], stuck.m[name][2], c[3]] for name, c in sample.m.items()},
            inventory=None,
        )
        for n, sample in enumerate(later)
    ]
    alerts = alerts_of([*alive, *frozen])
    assert serious(alerts) == [("telemetry", "stale_values", "warning", "GPU-2")]
    waited = (parse_time(alerts[0].observed_at) - T0) / 1000 - since
    assert 60 - 2 * interval <= waited <= 60 + 5 * interval
    assert "612" in alerts[0].summary or "W and 98% utilisation" in alerts[0].summary


def test_an_energy_counter_that_stands_still_under_power_is_stale_also_at_rest() -> None:
    rest = WORKING | {"gpu_utilization_ratio": 0.0, "power_watts": 70.0}
    still = telemetry(rest | {"energy_joules_total": 5e6}, gpus=1, ticks=held(3))
    assert serious(alerts_of(still)) == [("telemetry", "stale_values", "warning", "GPU-0")]


def test_a_gpu_at_rest_without_that_counter_may_stand_still() -> None:
    rest = WORKING | {"gpu_utilization_ratio": 0.0, "power_watts": 70.0}
    assert serious(alerts_of(telemetry(rest, gpus=1, ticks=held(10)))) == []


@pytest.mark.parametrize("moves", sorted(WORKING))
def test_one_reading_that_moves_is_enough_life(moves: str) -> None:
    ticks = held(5)
    step = METRICS[moves].resolution or 0.01
    wave = WORKING[moves] - step * (np.arange(ticks) // 20 % 2)[:, None]
    assert of_family(alerts_of(telemetry(WORKING | {moves: wave}, gpus=2, ticks=ticks))) == []


def test_values_that_move_again_end_the_alert() -> None:
    ticks = 400
    power = np.where(np.arange(ticks) < 200, 612.4, 600.0 + np.arange(ticks) % 7)[:, None]
    alerts = of_family(alerts_of(telemetry(WORKING | {"power_watts": power}, gpus=1, ticks=ticks)))
    assert [alert.state for alert in alerts] == ["firing", "resolved"]


# -- bad_data --------------------------------------------------------------------------------------


def refused(metrics: list[str], *, ticks: int, every: int = 1) -> list[NodeSample]:
    """Messages in which the collector refused readings of GPU 1 in every so many samples."""
    samples = telemetry(WORKING, gpus=3, ticks=ticks, noise=NOISE)
    return [
        replace(
            sample,
            m={name: [c[0], None, c[2]] if name in metrics else c for name, c in sample.m.items()},
            status={name: {"1": str(ValueStatus.IMPLAUSIBLE)} for name in metrics},
        )
        if n % every == 0
        else sample
        for n, sample in enumerate(samples)
    ]


def test_v01_two_impossible_values_in_eight_are_no_alert(all_cases: dict[str, Any]) -> None:
    given = all_cases["V01"]["input"]
    series = np.array([*given["gpu_utilization_percent"] * 10], dtype=np.float64)
    samples = telemetry(
        WORKING | {"gpu_utilization_ratio": series[:, None] / 100},
        gpus=4,
        ticks=len(series),
        interval=given["interval_seconds"],
        noise=NOISE,
    )
    assert of_family(alerts_of(samples)) == []


def test_v07_a_wrong_unit_is_a_note_with_the_metric_and_no_power_alert(
    all_cases: dict[str, Any],
) -> None:
    given = all_cases["V07"]["input"]
    power = np.tile(given["power_watts"], 200)[:, None]
    alerts = alerts_of(
        telemetry({"power_watts": power, "temperature_celsius": 45}, gpus=1, ticks=len(power))
    )
    assert serious(alerts) == []
    assert [(a.kind, a.severity) for a in of_family(alerts)] == [("bad_data", "info")]
    assert "in power_watts; they are taken as missing" in alerts[0].summary


def test_a_metric_refused_by_the_collector_is_a_note_of_that_gpu() -> None:
    alerts = alerts_of(refused(["sm_clock_hertz"], ticks=600))
    assert [(a.kind, a.severity, a.subject.gpu_uuid) for a in alerts] == [
        ("bad_data", "info", "GPU-1")
    ]
    assert "sm_clock_hertz" in alerts[0].summary


def test_a_gpu_of_which_most_is_impossible_is_a_warning() -> None:
    metrics = ["sm_clock_hertz", "power_watts", "memory_utilization_ratio", "temperature_celsius"]
    alerts = alerts_of(refused(metrics, ticks=900))
    assert serious(alerts) == [("telemetry", "bad_data", "warning", "GPU-1")]


def test_an_impossible_value_now_and_then_is_no_note() -> None:
    assert of_family(alerts_of(refused(["sm_clock_hertz"], ticks=900, every=4))) == []


def _later(sample: NodeSample, second: float) -> NodeSample:
    """The same readings at another time, in order of the time."""
    return replace(sample, seq=round(second), ts=(T0 + round(second * 1000),))
