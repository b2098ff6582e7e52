"""The cases of ``values.json``: odd, missing or impossible values at the collector's door."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collector.host import HostFiles
from collector.nvml import NvmlSource
from collector.source import Reading
from collector.truth import refuse_impossible
from tests.collector.fake_nvml import MIB, Err, FakeGpu, FakeNvml, memory

T0 = 1_790_000_000_000
NOWHERE = HostFiles(
    boot_id=Path("/nonexistent/boot"),
    uptime=Path("/nonexistent/uptime"),
    driver_version=Path("/nonexistent/version"),
    pci_devices=Path("/nonexistent/pci"),
)


def source_of(*gpus: FakeGpu, **options: Any) -> NvmlSource:
    return NvmlSource(FakeNvml(*gpus, **options), node="n1", host=NOWHERE)  # type: ignore[arg-type]


def read(source: NvmlSource, ts: int = T0) -> Reading:
    (reading,) = source.read(ts)
    return reading


@pytest.fixture
def case(shared: Path) -> Any:
    cases = json.loads((shared / "cases" / "values.json").read_text())
    return {item["id"]: item for item in cases}.__getitem__


def error_or(value: Any) -> Any:
    return Err(value["nvml_error"]) if isinstance(value, dict) else value


def test_v01_impossible_utilisation_becomes_a_gap_and_is_counted(case: Any) -> None:
    v01 = case("V01")
    script = [
        *v01["input"]["gpu_utilization_percent"],
        *v01["input"]["more_impossible_values_percent"],
    ]
    gpu = FakeGpu("GPU-A")
    source = source_of(gpu)
    published, refused = [], 0
    for tick, percent in enumerate(script):
        gpu.calls["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=percent, memory=50)
        reading, counts = refuse_impossible(read(source, T0 + tick * 60_000))
        published += reading.values["gpu_utilization_ratio"]
        refused += sum(counts.values())
        assert reading.values["memory_utilization_ratio"] == [0.5]
        if published[-1] is None:
            assert reading.status["gpu_utilization_ratio"] == {0: "implausible"}
    expected = v01["expect"]["collector"]["gpu_utilization_percent"]
    wanted = [None if percent is None else percent / 100 for percent in expected]
    assert published == [*wanted, None, None, None, None, None]
    assert refused == v01["expect"]["collector"]["rejected_values"] + 5


def test_v03_unsupported_failed_and_zero_are_three_states(case: Any) -> None:
    given = case("V03")["input"]["nvml"]
    gpu = FakeGpu(
        "GPU-A",
        calls={
            "nvmlDeviceGetPowerUsage": round(given["power_watts"] * 1000),
            "nvmlDeviceGetPowerManagementDefaultLimit": error_or(
                given["power_default_limit_watts"]
            ),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
        },
        fields={82: error_or(given["memory_temperature_celsius"])},
    )
    other = FakeGpu("GPU-B")
    reading = read(source_of(gpu, other))
    assert reading.values["power_watts"][0] == 228.82
    assert reading.values["power_default_limit_watts"] == [None, 700.0]
    assert reading.status["power_default_limit_watts"] == {0: "error:999"}
    assert reading.values["memory_temperature_celsius"] == [None, 45.0]
    assert reading.status["memory_temperature_celsius"] == {0: "unsupported"}
    assert reading.values["gpu_utilization_ratio"] == [0.0, 0.99]
    # A metric that no GPU offers is absent, one that failed on every GPU is not.
    alone = read(source_of(gpu))
    assert "memory_temperature_celsius" not in alone.values
    assert alone.values["power_default_limit_watts"] == [None]


@pytest.mark.parametrize(
    ("code", "status"),
    [(3, "unsupported"), (13, "unsupported"), (4, "no_permission"), (17, "error:17")],
)
def test_v03_every_call_fails_alone_with_its_reason(code: int, status: str) -> None:
    for name, metric in [
        ("nvmlDeviceGetTotalEccErrors", "ecc_uncorrected_total"),
        ("nvmlDeviceGetPerformanceState", "performance_state"),
        ("nvmlDeviceGetRemappedRows", "row_remap_pending"),
    ]:
        reading = read(source_of(FakeGpu("GPU-A", calls={name: Err(code)}), FakeGpu("GPU-B")))
        assert reading.values[metric] == [None, 0.0]
        assert reading.status[metric] == {0: status}
        assert reading.values["temperature_celsius"] == [40.0, 40.0]


def test_v05_recovery_action_is_published_beside_a_failed_fan(case: Any) -> None:
    gpus = case("V05")["input"]["gpus"]
    actions = {"None": 0, "Reset": 1}
    devices = [
        FakeGpu(
            f"GPU-{name}",
            calls={
                "nvmlDeviceGetFanSpeed": error_or(given["fan_percent"]),
                "nvmlDeviceGetTemperatureV": given["temperature_celsius"],
                "nvmlDeviceGetPowerUsage": given["power_watts"] * 1000,
                "nvmlDeviceGetUtilizationRates": SimpleNamespace(
                    gpu=given["gpu_utilization_percent"], memory=0
                ),
            },
            fields={230: actions[given["recovery_action"]]},
        )
        for name, given in gpus.items()
    ]
    reading = read(source_of(*devices))
    assert reading.gpus == ("GPU-13", "GPU-14")
    assert reading.values["recovery_action"] == [0.0, 1.0]
    assert reading.values["fan_ratio"] == [0.30, None]
    assert reading.status["fan_ratio"] == {1: "error:999"}
    assert reading.values["gpu_utilization_ratio"] == [0.0, 0.93]
    older = read(source_of(FakeGpu("GPU-A", fields={230: Err(2)}), FakeGpu("GPU-B")))
    assert older.values["recovery_action"] == [None, 0.0]
    assert older.status["recovery_action"] == {0: "unsupported"}


def test_v06_power_a_little_above_the_limit_stays(case: Any) -> None:
    given = case("V06")["input"]
    gpu = FakeGpu(
        "GPU-A",
        calls={"nvmlDeviceGetEnforcedPowerLimit": given["power_limit_watts"] * 1000},
    )
    source = source_of(gpu)
    published = []
    for tick, watts in enumerate(given["power_watts"]):
        gpu.calls["nvmlDeviceGetPowerUsage"] = round(watts * 1000)
        reading, refused = refuse_impossible(read(source, T0 + tick * 1000))
        published += reading.values["power_watts"]
        assert refused == {}
    assert published == given["power_watts"]


def test_v07_milliwatts_under_a_watt_label_are_refused(case: Any) -> None:
    v07 = case("V07")
    # The replayed logger stored milliwatts as watts; NVML's own milliwatts are converted once.
    readings = [
        Reading(node="n", ts=T0, gpus=("GPU-A",), values={"power_watts": [watts]})
        for watts in v07["input"]["power_watts"]
    ]
    checked = [refuse_impossible(reading) for reading in readings]
    assert [r.values["power_watts"] for r, _ in checked] == [[None]] * 3
    assert [counts for _, counts in checked] == [{"power_watts": 1}] * 3
    contrast = v07["input"]["contrast"]["nvml_power_milliwatts"]
    gpu = FakeGpu("GPU-A", calls={"nvmlDeviceGetPowerUsage": contrast})
    assert read(source_of(gpu)).values["power_watts"] == [692.0]


def test_v09_fan_at_zero_is_a_value(case: Any) -> None:
    cards = case("V09")["input"]["cards"]
    gpus = [
        FakeGpu(f"GPU-{i}", calls={"nvmlDeviceGetFanSpeed": card["fan_percent"]})
        for i, card in enumerate(cards)
    ]
    reading, refused = refuse_impossible(read(source_of(*gpus)))
    assert reading.values["fan_ratio"] == [0.0, 0.0]
    assert "fan_ratio" not in reading.status
    assert refused == {}


def test_v10_the_older_memory_call_is_the_fallback_and_shows(case: Any) -> None:
    given = case("V10")["input"]
    gpu = FakeGpu("GPU-A")
    source = source_of(gpu, FakeGpu("GPU-B"))
    used, reserved = [], []
    for tick, (mib, version) in enumerate(
        zip(given["memory_used_mib"], given["memory_call"], strict=True)
    ):
        newer = memory(8192, mib, 7571, 408) if version == "v2" else Err(13)
        older = memory(8192, mib, 7571)
        gpu.calls["nvmlDeviceGetMemoryInfo"] = lambda v=None, n=newer, o=older: n if v else o
        reading = read(source, T0 + tick * 10_000)
        used.append(reading.values["memory_used_bytes"][0])
        reserved.append(reading.values["memory_reserved_bytes"][0])
        if version == "v1":
            assert reading.status["memory_reserved_bytes"] == {0: "unsupported"}
    assert used == [mib * MIB for mib in given["memory_used_mib"]]
    assert reserved == [408 * MIB, 408 * MIB, None, None]


def test_v10_sums_that_miss_or_exceed_the_total_are_accepted(case: Any) -> None:
    for parts in case("V10")["input"]["sums"]:
        shape = memory(
            parts["memory_total_mib"],
            parts["memory_used_mib"],
            parts["memory_free_mib"],
            parts["memory_reserved_mib"],
        )
        gpu = FakeGpu("GPU-A", calls={"nvmlDeviceGetMemoryInfo": lambda *_, s=shape: s})
        reading, refused = refuse_impossible(read(source_of(gpu)))
        assert refused == {}
        assert reading.values["memory_free_bytes"] == [parts["memory_free_mib"] * MIB]


def test_v13_margin_from_the_device_else_from_the_absolute_threshold(case: Any) -> None:
    v13 = case("V13")
    gpus = []
    for number, card in enumerate(v13["input"]["cards"]):
        calls = {
            "nvmlDeviceGetName": card["model"],
            "nvmlDeviceGetTemperatureV": card["temperature_celsius"],
            "nvmlDeviceGetMarginTemperature": error_or(card["margin_to_limit_celsius"]),
        }
        fields: dict[int, Any] = {193: Err(3), 194: Err(3), 196: Err(3)}
        thresholds = {
            0: card["shutdown_threshold_celsius"],
            1: card["slowdown_threshold_celsius"],
        }
        if card["threshold_kind"] == "margin" and number == 0:
            fields = {193: thresholds[0], 194: thresholds[1], 196: 0}  # stated as fields
        else:  # a negative number of the threshold call, as some drivers hand it over
            calls["nvmlDeviceGetTemperatureThreshold"] = lambda which, t=thresholds: (
                t[which] % 2**32 if which in t else Err(3)
            )
        gpus.append(FakeGpu(f"GPU-{number}", calls=calls, fields=fields))
    reading = read(source_of(*gpus))
    wanted = v13["expect"]["collector"]["temperature_margin_celsius"]
    assert reading.values["temperature_margin_celsius"] == wanted
    facts = reading.inventory.gpus
    assert [f.threshold_kind for f in facts] == [c["threshold_kind"] for c in v13["input"]["cards"]]
    assert [f.slowdown_celsius for f in facts] == [-2, -3, -2, 89, 93]
    assert [f.shutdown_celsius for f in facts] == [-8, -5, -7, 92, 96]
    assert "temperature_margin_celsius" not in reading.status


def mig_gpu(given: dict[str, Any], tick: int) -> FakeGpu:
    total = given["parent"]["memory_total_mib"]
    used = given["parent"]["memory_used_mib"][tick]
    parent = memory(total, used, total - used, 479)
    instances = []
    for number, item in enumerate(given["instances"]):
        size, taken = item["memory_total_mib"], item["memory_used_mib"][tick]
        shape = memory(size, taken, size - taken, 0)
        instances.append(
            FakeGpu(
                f"MIG-{number}",
                calls={
                    "nvmlDeviceGetName": f"{given['model']} MIG {item['profile']}",
                    "nvmlDeviceGetMemoryInfo": lambda *_, s=shape: s,
                },
            )
        )
    return FakeGpu(
        "GPU-A",
        calls={
            "nvmlDeviceGetMigMode": [1, 1],
            "nvmlDeviceGetUtilizationRates": error_or(given["parent"]["gpu_utilization_percent"]),
            "nvmlDeviceGetPowerUsage": round(given["parent"]["power_watts"] * 1000),
            "nvmlDeviceGetMemoryInfo": lambda *_, s=parent: s,
        },
        instances=instances,
    )


def test_v15_a_partitioned_gpu_has_no_utilisation_and_instances_have_memory(case: Any) -> None:
    given = case("V15")["input"]
    for tick in range(5):
        reading = read(source_of(mig_gpu(given, tick), FakeGpu("GPU-B")))
        assert reading.gpus == ("GPU-A", "MIG-0", "MIG-1", "MIG-2", "MIG-3", "GPU-B")
        assert reading.parents == {f"MIG-{i}": "GPU-A" for i in range(4)}
        for metric in ("gpu_utilization_ratio", "memory_utilization_ratio"):
            assert reading.values[metric][:5] == [None] * 5
            assert reading.values[metric][5] is not None
            assert reading.status[metric][0] == "unsupported"
        assert reading.values["power_watts"] == [433.78, None, None, None, None, 692.0]
        used = [given["parent"]["memory_used_mib"][tick]]
        used += [item["memory_used_mib"][tick] for item in given["instances"]]
        assert reading.values["memory_used_bytes"][:5] == [mib * MIB for mib in used]
    facts = {item.gpu: item for item in reading.inventory.gpus}
    assert facts["GPU-A"].mig_mode is True
    assert facts["GPU-B"].mig_mode is False
    assert facts["MIG-2"].mig_profile == "1g.10gb"
    assert facts["MIG-2"].parent == "GPU-A"


def test_v21_a_single_jump_is_published_as_read(case: Any) -> None:
    given = case("V21")["input"]["temperature_celsius"]
    gpu = FakeGpu("GPU-A")
    source = source_of(gpu)
    published = []
    for tick, degrees in enumerate(given):
        gpu.calls["nvmlDeviceGetTemperatureV"] = degrees
        reading, refused = refuse_impossible(read(source, T0 + tick * 11_000))
        published += reading.values["temperature_celsius"]
        assert refused == {}
    assert published == given
