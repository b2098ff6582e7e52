"""Cases of the detector whose collector part is "published as read": the way of each number."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collector.batching import Batching, NodeBatcher
from collector.host import HostFiles
from collector.nvml import NvmlSource
from collector.truth import refuse_impossible
from schemas.codec import decode_sample, encode
from schemas.sample import NodeSample
from tests.collector.fake_nvml import MIB, FakeGpu, FakeNvml, memory

T0 = 1_790_000_000_000
Point = dict[str, Any]

# Key of a case to (metric, factor to the base unit).
WAYS = {
    "power_watts": ("power_watts", 1.0),
    "power_limit_watts": ("power_limit_watts", 1.0),
    "power_default_limit_watts": ("power_default_limit_watts", 1.0),
    "gpu_utilization_percent": ("gpu_utilization_ratio", 0.01),
    "sm_clock_mhz": ("sm_clock_hertz", 1e6),
    "sm_clock_max_mhz": ("sm_clock_max_hertz", 1e6),
    "temperature_celsius": ("temperature_celsius", 1.0),
    "fan_percent": ("fan_ratio", 0.01),
    "clock_event_reasons": ("clock_event_reasons", 1.0),
    "performance_state": ("performance_state", 1.0),
    "memory_used_mib": ("memory_used_bytes", float(MIB)),
    "memory_total_mib": ("memory_total_bytes", float(MIB)),
    "thermal_violation_total_microseconds": ("throttle_sw_thermal_seconds_total", 1e-6),
}


def script(gpu: FakeGpu, point: Point) -> None:
    """Let the fake driver say what the case says, in the driver's own units."""
    plain = {
        "power_watts": ("nvmlDeviceGetPowerUsage", 1000),
        "power_limit_watts": ("nvmlDeviceGetEnforcedPowerLimit", 1000),
        "power_default_limit_watts": ("nvmlDeviceGetPowerManagementDefaultLimit", 1000),
        "temperature_celsius": ("nvmlDeviceGetTemperatureV", 1),
        "fan_percent": ("nvmlDeviceGetFanSpeed", 1),
        "clock_event_reasons": ("nvmlDeviceGetCurrentClocksEventReasons", 1),
        "performance_state": ("nvmlDeviceGetPerformanceState", 1),
        "sm_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", 1),
    }
    for key, (name, factor) in plain.items():
        if key in point:
            gpu.calls[name] = point[key] * factor
    if "power_watts" in point:
        gpu.fields[186] = point["power_watts"] * 1000  # instantaneous beside the average
    if "sm_clock_mhz" in point:
        gpu.calls["nvmlDeviceGetClockInfo"] = lambda kind, mhz=point["sm_clock_mhz"]: (
            mhz if kind == 1 else 2619
        )
    if "gpu_utilization_percent" in point:
        percent = point["gpu_utilization_percent"]
        gpu.calls["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=percent, memory=0)
    if "memory_used_mib" in point:
        total, used = point.get("memory_total_mib", 81559), point["memory_used_mib"]
        shape = memory(total, used, total - used, 0)
        gpu.calls["nvmlDeviceGetMemoryInfo"] = lambda *_: shape
    if "thermal_violation_total_microseconds" in point:
        gpu.fields[269] = point["thermal_violation_total_microseconds"] * 1000


def in_time(given: Point, *keys: str, **constant: Any) -> list[list[Point]]:
    """Series of one GPU: a point per tick."""
    length = len(given[keys[0]])
    return [[{key: given[key][tick] for key in keys} | constant] for tick in range(length)]


def on_node(given: Point, *keys: str) -> list[list[Point]]:
    """One tick of a node: a point per GPU."""
    return [[{key: given[key][gpu] for key in keys} for gpu in range(len(given[keys[0]]))]]


SHAPES: dict[str, Any] = {
    "T01": lambda c: [[{key: c[key] for key in WAYS if key in c}]],
    "T03": lambda c: [[{key: card[key] for key in WAYS if key in card} for card in c["cards"]]],
    "T04": lambda c: in_time(c, "clock_event_reasons", "power_watts", "sm_clock_mhz"),
    "T06": lambda c: in_time(c, "thermal_violation_total_microseconds"),
    "T09": lambda c: on_node(c, "temperature_celsius", "power_watts"),
    "T10": lambda c: (
        on_node(c["a"], "temperature_celsius", "power_watts")
        + on_node(c["b"], "temperature_celsius", "power_watts")
    ),
    "T12": lambda c: in_time(
        c,
        "gpu_utilization_percent",
        "sm_clock_mhz",
        "power_watts",
        sm_clock_max_mhz=c["sm_clock_max_mhz"],
        clock_event_reasons=c["clock_event_reasons"],
    ),
    "T15": lambda c: in_time(
        c, "power_watts", "temperature_celsius", "fan_percent", "clock_event_reasons"
    ),
    "O01": lambda c: in_time(c, "memory_used_mib", memory_total_mib=c["memory_total_mib"]),
    "O02": lambda c: (
        [
            [
                {
                    "memory_used_mib": c["memory_used_mib"]["constant"],
                    "memory_total_mib": c["memory_total_mib"],
                }
            ]
        ]
        * 3
    ),
    "B03": lambda c: on_node(
        c, "gpu_utilization_percent", "power_watts", "memory_used_mib", "temperature_celsius"
    ),
    "B09": lambda c: on_node(
        c, "gpu_utilization_percent", "power_watts", "sm_clock_mhz", "temperature_celsius"
    ),
    "B10": lambda c: [
        [{key: gpu[key] for key in WAYS if key in gpu} for gpu in c["gpus"]],
    ],
}


@pytest.fixture
def cases(shared: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("firing", "silent"):
        for case in json.loads((shared / "cases" / f"{name}.json").read_text()):
            found[case["id"]] = case["input"]
    return found


def publish(ticks: list[list[Point]]) -> list[NodeSample]:
    """Take the points through driver, source, door, batch and codec."""
    gpus = [FakeGpu(f"GPU-{number}") for number in range(len(ticks[0]))]
    nvml: Any = FakeNvml(*gpus)
    source = NvmlSource(nvml, node="n1", host=HostFiles(pci_devices=Path("/nonexistent")))
    rules = Batching(
        interval_seconds=10.0, flush_seconds=10.0, keyframe_seconds=60.0, source="nvml"
    )
    batcher = NodeBatcher("n1", "boot", rules)
    samples = []
    for tick, points in enumerate(ticks):
        for gpu, point in zip(gpus, points, strict=True):
            script(gpu, point)
        (reading,) = source.read(T0 + tick * 10_000)
        checked, refused = refuse_impossible(reading)
        assert refused == {}
        samples += [decode_sample(encode(sample)) for sample in batcher.add(checked)]
    return samples


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_case_is_published_as_read(name: str, cases: dict[str, Any]) -> None:
    ticks = SHAPES[name](cases[name])
    samples = publish(ticks)
    assert len(samples) == len(ticks)
    for sample, points in zip(samples, ticks, strict=True):
        for key in points[0]:
            metric, factor = WAYS[key]
            wanted = [point[key] * factor for point in points]
            assert sample.m[metric] == pytest.approx(wanted, rel=1e-12), key
            assert metric not in sample.status
        assert "temperature_margin_celsius" in sample.m


def test_t06_a_throttle_counter_is_exact_to_the_microsecond(cases: dict[str, Any]) -> None:
    samples = publish(SHAPES["T06"](cases["T06"]))
    name = "throttle_sw_thermal_seconds_total"
    assert [sample.m[name] for sample in samples] == [[0.0], [0.0], [0.0008], [0.0008]]


def test_b10_the_model_of_every_gpu_is_in_the_inventory() -> None:
    gpus = [FakeGpu("GPU-A", calls={"nvmlDeviceGetName": "A"})]
    gpus += [FakeGpu("GPU-B", calls={"nvmlDeviceGetName": "B"})]
    nvml: Any = FakeNvml(*gpus)
    (reading,) = NvmlSource(nvml, node="n1").read(T0)
    assert [facts.model for facts in reading.inventory.gpus] == ["A", "B"]
