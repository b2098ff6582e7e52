"""The field cases that the detectors of this version decide, each under its own id.

A constant is held for as long as the case says, a single snapshot for ten minutes: one sample
never alarms by being one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from telemetry import MIB, alerts_of, held, serious, telemetry, uuids

from schemas.sample import (
    CollectorState,
    CollectorStatus,
    GpuInventory,
    Inventory,
    NodeSample,
)

T0 = 1_790_000_000_000
SENSOR_NOISE = {"temperature_celsius": 0.4, "power_watts": 2.0}


@pytest.fixture(scope="module")
def cases(shared: Path) -> dict[str, Any]:
    """Id to case, over all files."""
    found: dict[str, Any] = {}
    for path in sorted((shared / "cases").glob("*.json")):
        found |= {case["id"]: case for case in orjson.loads(path.read_bytes())}
    return found


def ratio(percent: Any) -> Any:
    return np.array(percent, dtype=np.float64) / 100.0


# -- silent ------------------------------------------------------------------------------------


def test_t01_a_power_capped_gpu_at_full_load_is_no_alert(cases: dict[str, Any]) -> None:
    given = cases["T01"]["input"]
    ticks = held(given["minutes"])
    cap_seconds = given["counter_contrast"]["idle_node_power_cap_total_microseconds"] / 1e6
    samples = telemetry(
        {
            "power_watts": given["power_watts"],
            "power_limit_watts": given["power_limit_watts"],
            "power_default_limit_watts": given["power_default_limit_watts"],
            "gpu_utilization_ratio": ratio(given["gpu_utilization_percent"]),
            "clock_event_reasons": given["clock_event_reasons"],
            "temperature_celsius": 65,
            "throttle_power_cap_seconds_total": np.arange(ticks)[:, None] + cap_seconds,
            "throttle_hw_thermal_seconds_total": 0.0,
            "throttle_sw_thermal_seconds_total": 0.0,
            "throttle_power_brake_seconds_total": 0.0,
        },
        gpus=8,
        ticks=ticks,
        noise=SENSOR_NOISE,
    )
    assert serious(alerts_of(samples)) == []


@pytest.mark.parametrize("card", range(3))
def test_t03_low_clocks_on_an_idle_card_are_no_alert(cases: dict[str, Any], card: int) -> None:
    given = cases["T03"]["input"]
    values = given["cards"][card]
    samples = telemetry(
        {
            "performance_state": values["performance_state"],
            "sm_clock_hertz": values["sm_clock_mhz"] * 1e6,
            "sm_clock_max_hertz": values["sm_clock_max_mhz"] * 1e6,
            "gpu_utilization_ratio": ratio(values["gpu_utilization_percent"]),
            "power_watts": values["power_watts"],
            "clock_event_reasons": values["clock_event_reasons"],
        },
        gpus=1,
        ticks=held(given["minutes"], 5),
        interval=5,
        models=[values["model"]],
    )
    assert serious(alerts_of(samples)) == []


def test_t06_a_millisecond_of_thermal_time_is_no_alert(cases: dict[str, Any]) -> None:
    given = cases["T06"]["input"]
    seconds = np.array(given["thermal_violation_total_microseconds"], dtype=np.float64) / 1e6
    hold = np.concatenate([seconds, np.full(60, seconds[-1])])[:, None]
    samples = telemetry(
        {
            "throttle_hw_thermal_seconds_total": hold,
            "throttle_sw_thermal_seconds_total": hold,
            "clock_event_reasons": 0,
        },
        gpus=1,
        ticks=len(hold),
        interval=given["interval_seconds"],
    )
    assert serious(alerts_of(samples)) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("part", ["a", "b"])
def test_t10_the_spread_between_slots_is_no_alert(
    cases: dict[str, Any], part: str, seed: int
) -> None:
    given = cases["T10"]["input"][part]
    samples = telemetry(
        {
            "power_watts": given["power_watts"],
            "temperature_celsius": given["temperature_celsius"],
        },
        gpus=8,
        ticks=held(10),
        noise={"temperature_celsius": given.get("noise_celsius", 0.4), "power_watts": 2.0},
        models=[given["model"]] * 8,
        seed=seed,
    )
    assert serious(alerts_of(samples)) == []


def test_o02_memory_flat_near_the_top_is_no_alert(cases: dict[str, Any]) -> None:
    given = cases["O02"]["input"]
    second = given["second_series"]
    for series, interval, ticks in (
        (given, given["interval_seconds"], given["memory_used_mib"]["samples"]),
        (second, 1.0, second["seconds"]),
    ):
        samples = telemetry(
            {
                "memory_used_bytes": series["memory_used_mib"]["constant"] * MIB,
                "memory_total_bytes": series["memory_total_mib"] * MIB,
            },
            gpus=1,
            ticks=ticks,
            interval=interval,
            noise={"memory_used_bytes": 2 * MIB},
        )
        assert serious(alerts_of(samples)) == []


@pytest.mark.parametrize("names", ["with_jobs", "without_jobs"])
def test_b03_two_jobs_on_one_node_are_no_alert(cases: dict[str, Any], names: str) -> None:
    given = cases["B03"]["input"]
    samples = telemetry(
        {
            "gpu_utilization_ratio": ratio(given["gpu_utilization_percent"]),
            "power_watts": given["power_watts"],
            "memory_used_bytes": np.array(given["memory_used_mib"]) * MIB,
            "memory_total_bytes": 81559 * MIB,
            "temperature_celsius": given["temperature_celsius"],
        },
        gpus=8,
        ticks=held(max(given["minutes"], 10)),
        noise=SENSOR_NOISE,
        jobs=given[names] if names == "with_jobs" else None,
    )
    assert serious(alerts_of(samples)) == []


def test_b06_bursts_at_half_load_are_no_alert(cases: dict[str, Any]) -> None:
    given = cases["B06"]["input"]
    cycle = given["cycle"]
    times = np.arange(int(given["seconds"] / given["interval_seconds"])) * given["interval_seconds"]
    # Every GPU has its own phase, as in the recording.
    phase = (times[:, None] + np.linspace(0.0, 0.7, given["gpus"])) % cycle["period_seconds"]
    busy = phase < cycle["busy_seconds"]
    samples = telemetry(
        {
            "power_watts": np.where(busy, cycle["busy_power_watts"], cycle["idle_power_watts"]),
            "gpu_utilization_ratio": np.where(busy, 0.58, 0.03),
            "clock_event_reasons": np.where(
                busy, cycle["clock_event_reasons_busy"], cycle["clock_event_reasons_idle"]
            ),
            "memory_used_bytes": given["totals"]["memory_used_mib"]["constant"] * MIB,
            "memory_total_bytes": 81559 * MIB,
            "temperature_celsius": [36, 41, 38, 44, 40, 37, 45, 39],
        },
        gpus=given["gpus"],
        ticks=len(times),
        interval=given["interval_seconds"],
    )
    assert serious(alerts_of(samples)) == []


def test_b10_different_cards_in_one_host_are_no_alert(cases: dict[str, Any]) -> None:
    given = cases["B10"]["input"]
    cards = given["gpus"] * 4  # the same pair several times: neither kind is alone
    samples = telemetry(
        {
            "power_limit_watts": [card["power_limit_watts"] for card in cards],
            "gpu_utilization_ratio": ratio([card["gpu_utilization_percent"] for card in cards]),
            "temperature_celsius": [card["temperature_celsius"] for card in cards],
            "power_watts": [card["power_watts"] for card in cards],
        },
        gpus=len(cards),
        ticks=held(given["minutes"], 5),
        interval=5,
        models=[card["model"] for card in cards],
        noise=SENSOR_NOISE,
    )
    assert serious(alerts_of(samples)) == []


def test_v06_power_above_the_limit_for_a_moment_is_no_alert(cases: dict[str, Any]) -> None:
    given = cases["V06"]["input"]
    power = np.tile(given["power_watts"], 100)[:, None]
    samples = telemetry(
        {
            "power_watts": power,
            "power_limit_watts": given["power_limit_watts"],
            "gpu_utilization_ratio": ratio(given["gpu_utilization_percent"]),
            "clock_event_reasons": given["clock_event_reasons"],
            "temperature_celsius": 66,
        },
        gpus=8,
        ticks=len(power),
    )
    assert serious(alerts_of(samples)) == []


@pytest.mark.parametrize("card", range(2))
def test_v09_a_resting_fan_is_no_alert(cases: dict[str, Any], card: int) -> None:
    values = cases["V09"]["input"]["cards"][card]
    samples = telemetry(
        {
            "fan_ratio": ratio(values["fan_percent"]),
            "temperature_celsius": values["temperature_celsius"],
            "power_watts": values["power_watts"],
            "gpu_utilization_ratio": ratio(values["gpu_utilization_percent"]),
        },
        gpus=1,
        ticks=held(10),
    )
    assert serious(alerts_of(samples)) == []


def test_v10_another_memory_call_is_no_leak(cases: dict[str, Any]) -> None:
    given = cases["V10"]["input"]
    used = np.array(given["memory_used_mib"], dtype=np.float64)
    hold = np.concatenate([used, np.full(60, used[-1])])[:, None] * MIB
    samples = telemetry(
        {"memory_used_bytes": hold, "memory_total_bytes": 16376 * MIB},
        gpus=1,
        ticks=len(hold),
        interval=given["interval_seconds"],
    )
    assert serious(alerts_of(samples)) == []


@pytest.mark.parametrize("card", range(5))
def test_v13_a_negative_threshold_is_no_temperature(cases: dict[str, Any], card: int) -> None:
    given = cases["V13"]["input"]["cards"][card]
    margin = cases["V13"]["expect"]["collector"]["temperature_margin_celsius"][card]
    samples = telemetry(
        {
            "temperature_celsius": given["temperature_celsius"],
            "temperature_margin_celsius": margin,
            "power_watts": 70,
        },
        gpus=8,
        ticks=held(10, 5),
        interval=5,
        models=[given["model"]] * 8,
    )
    assert serious(alerts_of(samples)) == []


def test_v15_a_full_instance_alerts_and_its_parent_does_not(cases: dict[str, Any]) -> None:
    given = cases["V15"]["input"]
    parts = given["instances"]
    ids = ("GPU-parent", *(f"MIG-{number}" for number in range(len(parts))))
    parents = dict.fromkeys(ids[1:], ids[0])
    inventory = Inventory(
        gpus=(
            GpuInventory(gpu=ids[0], index=0, model=given["model"], mig_mode=True),
            *(
                GpuInventory(gpu=uuid, parent=ids[0], mig_profile=part["profile"])
                for uuid, part in zip(ids[1:], parts, strict=True)
            ),
        ),
        expected_gpus=1,
    )
    used = [given["parent"]["memory_used_mib"], *(part["memory_used_mib"] for part in parts)]
    total = [given["parent"]["memory_total_mib"], *(part["memory_total_mib"] for part in parts)]
    samples = [
        NodeSample(
            node="node",
            boot_id="boot",
            seq=tick,
            ts=(T0 + tick * given["interval_seconds"] * 1000,),
            gpu=ids,
            parents=parents,
            m={
                "memory_used_bytes": [series[tick] * MIB for series in used],
                "memory_total_bytes": [size * MIB for size in total],
                "gpu_utilization_ratio": [None] * len(ids),
                "power_watts": [given["parent"]["power_watts"], *[None] * len(parts)],
            },
            inventory=inventory if tick == 0 else None,
        )
        for tick in range(5)
    ]
    found = serious(alerts_of(samples))
    # The third instance has half a minute left, so it is critical, which is more than asked.
    assert found == [("oom_precursor", "leak", "critical", "MIG-2")]


@pytest.mark.parametrize("spike", [2, 3])
def test_v21_a_jump_of_one_sample_is_no_alert(cases: dict[str, Any], spike: int) -> None:
    given = cases["V21"]["input"]
    own = np.full(60, 27.0)
    own[spike] = given["temperature_celsius"][2]
    peers = np.full((60, 7), 27.0)
    samples = telemetry(
        {
            "temperature_celsius": np.column_stack([own, peers]),
            "power_watts": 40,
        },
        gpus=8,
        ticks=60,
        interval=given["interval_seconds"],
    )
    assert serious(alerts_of(samples)) == []


def test_v23_another_card_under_an_old_index_is_no_step(cases: dict[str, Any]) -> None:
    rows = cases["V23"]["input"]["rows"]
    first = telemetry(
        {"temperature_celsius": rows[0][3], "power_watts": 60},
        gpus=4,
        ticks=held(10),
        models=[rows[0][2]] * 4,
    )
    swapped = telemetry(
        {"temperature_celsius": [rows[1][3], *[rows[0][3]] * 3], "power_watts": 60},
        gpus=4,
        ticks=held(10),
        models=[rows[1][2], *[rows[0][2]] * 3],
    )
    last = first[-1].ts[0]
    second = [
        NodeSample(
            node="node",
            boot_id="boot",
            seq=first[-1].seq + 1 + tick,
            ts=(last + 1000 * (tick + 1),),
            gpu=("GPU-new", *uuids(4)[1:]),
            m=sample.m,
            inventory=Inventory(
                gpus=(
                    GpuInventory(gpu="GPU-new", index=0, model=rows[1][2]),
                    *(
                        GpuInventory(gpu=uuid, index=i + 1, model=rows[0][2])
                        for i, uuid in enumerate(uuids(4)[1:])
                    ),
                ),
                expected_gpus=4,
            )
            if tick == 0
            else None,
        )
        for tick, sample in enumerate(swapped)
    ]
    assert serious(alerts_of([*first, *second])) == []


# -- firing ------------------------------------------------------------------------------------


def test_t04_a_power_brake_is_critical_at_the_third_reading(cases: dict[str, Any]) -> None:
    given = cases["T04"]["input"]
    samples = telemetry(
        {
            "clock_event_reasons": np.array(given["clock_event_reasons"])[:, None],
            "power_watts": np.array(given["power_watts"])[:, None],
            "power_limit_watts": given["power_limit_watts"],
            "gpu_utilization_ratio": ratio(given["gpu_utilization_percent"]),
            "sm_clock_hertz": np.array(given["sm_clock_mhz"])[:, None] * 1e6,
        },
        gpus=1,
        ticks=5,
        interval=given["interval_seconds"],
    )
    alerts = alerts_of(samples)
    assert serious(alerts) == [("throttling", "power_brake", "critical", "GPU-0")]
    by, not_before = cases["T04"]["expect"]["detector"]["by_sample"], 3
    assert alerts[0].observed_at == _time(samples[by]) == _time(samples[not_before])


def test_t09_the_hot_gpu_of_an_idle_node_is_an_outlier(cases: dict[str, Any]) -> None:
    given = cases["T09"]["input"]
    for seed in range(3):
        samples = telemetry(
            {
                "temperature_celsius": given["temperature_celsius"],
                "power_watts": given["power_watts"],
            },
            gpus=8,
            ticks=held(given["minutes"]),
            noise=SENSOR_NOISE,
            seed=seed,
        )
        found = serious(alerts_of(samples))
        assert found == [("thermal_fault", "peer_outlier", "warning", "GPU-1")]


def test_t15_thermal_slowdown_is_found_by_its_bits(cases: dict[str, Any]) -> None:
    """The part of the case that throttling decides: bit 64 in three readings in a row."""
    given = cases["T15"]["input"]
    ticks = len(given["temperature_celsius"])
    samples = telemetry(
        {
            "power_watts": np.array(given["power_watts"])[:, None],
            "temperature_celsius": np.array(given["temperature_celsius"])[:, None],
            "fan_ratio": ratio(given["fan_percent"])[:, None],
            "clock_event_reasons": np.array(given["clock_event_reasons"])[:, None],
        },
        gpus=1,
        ticks=ticks,
        interval=given["interval_seconds"],
    )
    found = serious(alerts_of(samples))
    assert ("throttling", "hw_thermal", "critical", "GPU-0") in found
    assert {family for family, *_ in found} == {"throttling"}


def test_o01_a_leak_in_steps_is_warned_with_the_time_left(cases: dict[str, Any]) -> None:
    given = cases["O01"]["input"]
    used = np.array(given["memory_used_mib"], dtype=np.float64)[:, None] * MIB
    samples = telemetry(
        {"memory_used_bytes": used, "memory_total_bytes": given["memory_total_mib"] * MIB},
        gpus=1,
        ticks=len(used),
        interval=given["interval_seconds"],
    )
    alerts = alerts_of(samples)
    assert serious(alerts) == [("oom_precursor", "leak", "warning", "GPU-0")]
    assert alerts[0].observed_at <= _time(samples[cases["O01"]["expect"]["detector"]["by_sample"]])
    left = next(e for e in alerts[0].evidence if e.metric == "exhaustion_seconds")
    assert left.value is not None
    assert 1800 < left.value < 3 * 3600


# -- lifecycle ---------------------------------------------------------------------------------


def test_l03_a_blind_collector_is_not_eight_lost_gpus(cases: dict[str, Any]) -> None:
    given = cases["L03"]["input"]
    well = telemetry({"temperature_celsius": 40}, gpus=given["expected_gpus"], ticks=30)
    blind = [
        NodeSample(
            node="node",
            boot_id="boot",
            seq=30 + tick,
            ts=(well[-1].ts[0] + 1000 * (tick + 1),),
            gpu=(),
            m={},
            collector=CollectorStatus(state=CollectorState.VERSION_MISMATCH, nvml_error=18),
        )
        for tick in range(held(10))
    ]
    families = {family for family, *_ in serious(alerts_of([*well, *blind]))}
    assert "gpu_lost" not in families


def test_l05_a_lost_gpu_is_critical_at_once_and_its_neighbour_is_well(
    cases: dict[str, Any],
) -> None:
    polls = cases["L05"]["input"]["polls"]
    ids = tuple(cases["L05"]["input"]["known_gpus"])
    samples = [
        NodeSample(
            node="node",
            boot_id="boot",
            seq=tick,
            ts=(T0 + tick * 1000,),
            gpu=ids,
            m={
                "temperature_celsius": [None, poll["GPU-1"]["temperature_celsius"]],
                "gpu_utilization_ratio": [None, poll["GPU-1"]["gpu_utilization_percent"] / 100],
            },
            status={
                "temperature_celsius": {"0": f"error:{poll['GPU-0']['nvml_error']}"},
                "gpu_utilization_ratio": {"0": f"error:{poll['GPU-0']['nvml_error']}"},
            },
        )
        for tick, poll in enumerate(polls)
    ]
    assert serious(alerts_of(samples)) == [("gpu_lost", "lost", "critical", "GPU-0")]


def test_l07_a_gpu_that_left_is_missing_and_the_moved_index_is_no_step(
    cases: dict[str, Any],
) -> None:
    polls = cases["L07"]["input"]["polls"]
    readings = [polls[0]] * held(10) + [polls[1]] * held(10)
    samples = [
        NodeSample(
            node="node",
            boot_id="boot",
            seq=tick,
            ts=(T0 + tick * 1000,),
            gpu=tuple(gpu["uuid"] for gpu in poll.values()),
            m={"temperature_celsius": [gpu["temperature_celsius"] for gpu in poll.values()]},
        )
        for tick, poll in enumerate(readings)
    ]
    assert serious(alerts_of(samples)) == [("gpu_lost", "missing", "critical", "GPU-A")]


def test_l08_a_heartbeat_without_metrics_is_not_a_lost_gpu(cases: dict[str, Any]) -> None:
    given = cases["L08"]["input"]
    well = telemetry({"temperature_celsius": 40}, gpus=8, ticks=2, interval=5)
    silent = [
        NodeSample(
            node="node",
            boot_id="boot",
            seq=2 + number,
            ts=(T0 + second * 1000,),
            gpu=(),
            m={},
            collector=CollectorStatus(state=CollectorState.UNRESPONSIVE),
        )
        for number, second in enumerate([*given["heartbeat_at_seconds"][2:], *range(25, 600, 5)])
    ]
    families = {family for family, *_ in serious(alerts_of([*well, *silent]))}
    assert "gpu_lost" not in families


def test_a_node_that_comes_up_short_is_reported_as_a_node() -> None:
    samples = telemetry({"temperature_celsius": 40}, gpus=7, ticks=held(2))
    short = [
        NodeSample(
            node=s.node,
            boot_id=s.boot_id,
            seq=s.seq,
            ts=s.ts,
            gpu=s.gpu,
            m=s.m,
            inventory=Inventory(gpus=s.inventory.gpus, expected_gpus=8) if s.inventory else None,
        )
        for s in samples
    ]
    alerts = alerts_of(short)
    assert serious(alerts) == [("gpu_lost", "missing", "critical", None)]
    assert alerts[0].subject.scope == "node"
    assert "7 GPUs where 8 are expected" in alerts[0].summary


def _time(sample: NodeSample) -> str:
    from schemas.alert import rfc3339

    return rfc3339(sample.ts[-1])
