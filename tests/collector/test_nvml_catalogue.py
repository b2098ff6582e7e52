"""Every reading of the catalogue through the real binding, from a library that is scripted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector.nvmlparent import NvmlChildSource
from collector.readings import Group
from collector.source import Reading
from collector.truth import refuse_impossible
from schemas.metrics import METRICS
from tests.collector.conftest import T0, read
from tests.nvml_standin.standin import MIB, Standin, h100

Watch = Callable[..., NvmlChildSource]


@pytest.fixture
def case(shared: Path) -> Any:
    found: dict[str, Any] = {}
    for name in ("values", "lifecycle"):
        for item in json.loads((shared / "cases" / f"{name}.json").read_text()):
            found[item["id"]] = item
    return found.__getitem__


def second(source: NvmlChildSource) -> Reading:
    """Read twice: what is a difference has no value at the first reading."""
    read(source)
    time.sleep(0.15)  # GPM wants 100 ms between two snapshots
    return read(source, 1)


# What a healthy H100 does not offer: it has no fan, and remaps rows instead of retiring pages.
NOT_ON_H100 = {
    "fan_ratio",
    "fan_rpm",
    "retired_pages_single_bit_total",
    "retired_pages_double_bit_total",
    "retired_pages_pending",
}


def test_an_h100_offers_the_whole_catalogue_in_base_units(standin: Standin, watch: Watch) -> None:
    source = watch(standin)
    first = read(source)
    assert first.status["sm_activity_ratio"] == dict.fromkeys(range(8), "stale")
    reading = second(source)
    assert set(METRICS) - set(reading.values) == NOT_ON_H100
    assert reading.status == {}
    assert refuse_impossible(reading)[1] == {}
    got = {name: column[0] for name, column in reading.values.items()}
    steady = {
        "temperature_celsius": 40.0,
        "memory_temperature_celsius": 45.0,
        "temperature_margin_celsius": 47.0,
        "power_watts": 692.0,
        "power_instant_watts": 695.0,
        "memory_used_bytes": 40000.0 * MIB,
        "memory_reserved_bytes": 479.0 * MIB,
        "bar1_total_bytes": 131072.0 * MIB,
        "sm_clock_hertz": 1980e6,
        "memory_clock_hertz": 2619e6,
        "video_clock_hertz": 1545e6,
        "clock_event_reasons": 4.0,
        "nvlink_active_links": 18.0,
        "row_remap_banks_max": 2560.0,
        "row_remap_banks_none": 0.0,
        "sram_threshold_exceeded": 0.0,
        "process_count": 0.0,
        "graphics_activity_ratio": 0.99,
        "sm_activity_ratio": 0.965,
        "sm_occupancy_ratio": 0.40,
        "tensor_activity_ratio": 0.55,
        "dram_activity_ratio": 0.62,
        "pcie_transmit_bytes_per_second": 120.0 * MIB,
        "nvlink_receive_bytes_per_second": 9000.0 * MIB,
        "nvlink_transmit_bytes_per_second": 9100.0 * MIB,
    }
    assert {name: got[name] for name in steady} == pytest.approx(steady)
    assert 0.0 < got["driver_latency_seconds"] < 1.0  # type: ignore[operator]
    assert got["throttle_power_cap_seconds_total"] > 1.5  # type: ignore[operator]
    facts = reading.inventory.gpus[0]
    assert facts.threshold_kind == "margin"
    assert (facts.shutdown_celsius, facts.slowdown_celsius) == (-8.0, -2.0)
    assert (facts.max_operating_celsius, facts.memory_max_celsius) == (0.0, -4.0)
    assert (facts.persistence_mode, facts.nvlink_links) == (True, 18)
    assert [word for word, _ in standin.log()] == ["init"]  # no call that blocks 20 ms


def test_the_drivers_own_samples_show_what_a_reading_a_second_misses(
    standin: Standin, watch: Watch
) -> None:
    standin.say(
        {
            "0.nvmlDeviceGetSamples.0": "100000 200000 900000 200000",
            "0.nvmlDeviceGetSamples.1": "0 0 100 0",
            "1.nvmlDeviceGetSamples.0": "!6",
        }
    )
    reading = read(watch(standin))
    watts = [reading.values[f"power_{which}_watts"][0] for which in ("lowest", "mean", "highest")]
    assert watts == [100.0, 350.0, 900.0]
    assert reading.values["gpu_utilization_highest_ratio"][0] == 1.0
    assert reading.values["gpu_utilization_mean_ratio"][0] == 0.25
    assert reading.values["power_mean_watts"][1] is None
    assert reading.status["power_mean_watts"] == {1: "stale"}


def test_no_sample_is_counted_twice(standin: Standin, watch: Watch) -> None:
    # Six samples 20 ms apart, the newest always "now": the second reading sees the new ones only.
    standin.say({"0.nvmlDeviceGetSamples.0": "1000 2000 3000 4000 5000 6000"})
    source = watch(standin, groups=(Group.CORE, Group.SAMPLES))
    assert read(source).values["power_lowest_watts"][0] == 1.0
    time.sleep(0.05)
    later = read(source, 1).values["power_lowest_watts"][0]
    assert later is not None
    assert later > 1.0


def test_ecc_errors_are_told_by_location_on_old_and_new_cards(
    standin: Standin, watch: Watch
) -> None:
    corrected, uncorrected = (
        "nvmlDeviceGetMemoryErrorCounter.0",
        "nvmlDeviceGetMemoryErrorCounter.1",
    )
    standin.say(
        {
            f"0.{corrected}.0.2": 11,
            f"0.{uncorrected}.0.2": 2,
            f"0.{uncorrected}.1.7": 5,
            "0.nvmlDeviceGetSramEccErrorStatus": "5 0 0 5 0 0 5 0 0 0 0 1",
            "0.nvmlDeviceGetRowRemapperHistogram": "2500 40 12 6 2",
            # A Volta counts caches, registers and textures apart, and retires pages.
            **{f"1.{kind}.{life}.7": "!3" for kind in (corrected, uncorrected) for life in (0, 1)},
            "1.field.8": 1,
            "1.field.10": 2,
            "1.field.14": 4,
            "1.nvmlDeviceGetRetiredPages.0": 3,
            "1.nvmlDeviceGetRetiredPages.1": 1,
            "1.nvmlDeviceGetRetiredPagesPendingStatus": 1,
            "1.nvmlDeviceGetRemappedRows": "!3",
            "2.nvmlDeviceGetRemappedRows": "4 1 1 0",
        }
    )
    values = read(watch(standin)).values
    assert values["ecc_corrected_dram_total"][:2] == [11.0, 0.0]
    assert values["ecc_uncorrected_dram_total"][:2] == [2.0, 0.0]
    assert values["ecc_uncorrected_sram_aggregate_total"][0] == 5.0
    assert values["ecc_uncorrected_sram_total"][:2] == [0.0, 7.0]
    assert values["sram_threshold_exceeded"][:2] == [1.0, 0.0]
    assert [values[f"row_remap_banks_{left}"][0] for left in ("max", "low", "none")] == [2500, 6, 2]
    assert values["retired_pages_single_bit_total"][:2] == [None, 3.0]
    assert values["retired_pages_double_bit_total"][1] == 1.0
    assert values["retired_pages_pending"][1] == 1.0
    assert values["row_remap_pending"][:3] == [0.0, None, 1.0]
    assert values["remapped_rows_correctable_total"][2] == 4.0


def test_what_moves_slowly_is_repeated_and_hard_facts_are_not(
    standin: Standin, watch: Watch
) -> None:
    source = watch(standin, slow_seconds=10.0)
    read(source)
    standin.say(
        {
            "0.nvmlDeviceGetEnforcedPowerLimit": 500_000,
            "0.nvmlDeviceGetRemappedRows": "0 1 1 0",
            "0.field.230": 1,
            "0.nvmlDeviceGetTotalEccErrors.1.0": 9,
        }
    )
    soon = read(source, 1).values
    assert soon["power_limit_watts"][0] == 700.0
    assert soon["row_remap_pending"][0] == 1.0
    assert soon["recovery_action"][0] == 1.0
    assert soon["ecc_uncorrected_total"][0] == 9.0
    assert read(source, 10).values["power_limit_watts"][0] == 500.0


def test_v01_v07_impossible_numbers_become_gaps(case: Any, standin: Standin, watch: Watch) -> None:
    v01 = case("V01")
    source = watch(standin, groups=(Group.CORE,))
    published = []
    for tick, percent in enumerate(v01["input"]["gpu_utilization_percent"]):
        standin.say({"0.nvmlDeviceGetUtilizationRates": f"{percent} 50"})
        reading, counts = refuse_impossible(read(source, tick))
        published.append(reading.values["gpu_utilization_ratio"][0])
        assert reading.values["memory_utilization_ratio"][0] == 0.5
        assert sum(counts.values()) == (1 if published[-1] is None else 0)
    wanted = v01["expect"]["collector"]["gpu_utilization_percent"]
    assert published == [None if percent is None else percent / 100 for percent in wanted]
    blank = 2**64 - 1
    standin.say(
        {"0.nvmlDeviceGetTotalEnergyConsumption": blank, "0.nvmlDeviceGetPowerUsage": 2**32 - 1}
    )
    reading, counts = refuse_impossible(read(source, 99))
    assert counts == {"energy_joules_total": 1, "power_watts": 1}
    assert reading.values["power_watts"][1] == 692.0
    standin.say(
        {"0.nvmlDeviceGetPowerUsage": case("V07")["input"]["contrast"]["nvml_power_milliwatts"]}
    )
    assert read(source, 100).values["power_watts"][0] == 692.0


def test_v03_v05_unsupported_failed_and_zero_are_three_states(
    case: Any, standin: Standin, watch: Watch
) -> None:
    given = case("V03")["input"]["nvml"]
    standin.say(
        {
            "0.nvmlDeviceGetPowerUsage": round(given["power_watts"] * 1000),
            "0.nvmlDeviceGetPowerManagementDefaultLimit": "!999",
            "0.field.82": "!3",
            "0.nvmlDeviceGetUtilizationRates": "0 0",
            "0.nvmlDeviceGetFanSpeed": "!999",
            "0.field.230": 1,
            "1.nvmlDeviceGetFanSpeed": 0,
            "1.nvmlDeviceGetTotalEccErrors.0.0": "!4",
        }
    )
    reading = read(watch(standin))
    assert reading.values["power_watts"][0] == 228.82
    assert reading.values["power_default_limit_watts"][0] is None
    assert reading.status["power_default_limit_watts"] == {0: "error:999"}
    assert reading.status["memory_temperature_celsius"] == {0: "unsupported"}
    assert reading.values["gpu_utilization_ratio"][0] == 0.0
    assert reading.values["fan_ratio"][:2] == [None, 0.0]
    assert reading.status["fan_ratio"][0] == "error:999"
    assert reading.status["fan_ratio"][2] == "unsupported"
    assert reading.values["recovery_action"][0] == 1.0
    assert reading.status["ecc_corrected_total"] == {1: "no_permission"}


def test_v10_the_older_memory_call_is_the_fallback_and_shows(
    case: Any, standin: Standin, watch: Watch
) -> None:
    given = case("V10")["input"]
    source = watch(standin, groups=(Group.CORE,))
    used, reserved = [], []
    for tick, (mib, call) in enumerate(
        zip(given["memory_used_mib"], given["memory_call"], strict=True)
    ):
        parts = f"{8192 * MIB} {7571 * MIB} {mib * MIB}"
        standin.say(
            {
                "0.nvmlDeviceGetMemoryInfo_v2": f"{parts} {408 * MIB}" if call == "v2" else "!13",
                "0.nvmlDeviceGetMemoryInfo": parts,
            }
        )
        reading = read(source, tick)
        used.append(reading.values["memory_used_bytes"][0])
        reserved.append(reading.values["memory_reserved_bytes"][0])
    assert used == [mib * MIB for mib in given["memory_used_mib"]]
    assert reserved == [408 * MIB, 408 * MIB, None, None]
    assert reading.status["memory_reserved_bytes"] == {0: "unsupported"}


def test_v13_negative_thresholds_are_margins(case: Any, standin: Standin, watch: Watch) -> None:
    v13 = case("V13")
    script: dict[str, object] = {"-.nvmlDeviceGetCount": len(v13["input"]["cards"])}
    for number, card in enumerate(v13["input"]["cards"]):
        margin = card["margin_to_limit_celsius"]
        script |= {
            f"{number}.nvmlDeviceGetTemperature.0": card["temperature_celsius"],
            f"{number}.nvmlDeviceGetMarginTemperature": "!3"
            if isinstance(margin, dict)
            else margin,
            f"{number}.field.195": "!3",
            f"{number}.field.196": "!3",
        }
        limits = (card["shutdown_threshold_celsius"], card["slowdown_threshold_celsius"])
        if card["threshold_kind"] == "margin":
            script |= {f"{number}.field.193": limits[0], f"{number}.field.194": limits[1]}
        else:
            script |= {f"{number}.field.193": "!3", f"{number}.field.194": "!3"}
            script |= {
                f"{number}.nvmlDeviceGetTemperatureThreshold.{which}": limit
                for which, limit in enumerate(limits)
            }
    standin.say(script)
    reading = read(watch(standin))
    wanted = v13["expect"]["collector"]["temperature_margin_celsius"]
    assert reading.values["temperature_margin_celsius"] == wanted
    kinds = [facts.threshold_kind for facts in reading.inventory.gpus]
    assert kinds == [card["threshold_kind"] for card in v13["input"]["cards"]]


def partition(standin: Standin, given: Any) -> None:
    """Split GPU 0 as the case says."""
    script: dict[str, object] = {
        "0.nvmlDeviceGetMigMode": "1 1",
        "0.nvmlDeviceGetUtilizationRates": "!3",
        "0.nvmlDeviceGetSamples.1": "!3",
    }
    for number, item in enumerate(given["instances"]):
        total, used = item["memory_total_mib"] * MIB, item["memory_used_mib"][0] * MIB
        script |= {
            f"0/{number}.nvmlDeviceGetUUID": f"MIG-{number}",
            f"0/{number}.nvmlDeviceGetName": f"{given['model']} MIG {item['profile']}",
            f"0/{number}.nvmlDeviceGetGpuInstanceId": number + 1,
            f"0/{number}.nvmlDeviceGetMemoryInfo": f"{total} {total - used} {used} 0",
            f"0/{number}.nvmlDeviceGetComputeRunningProcesses": f"{1000 + number} {used}",
            f"0.gpm.2.{number + 1}": 10.0 * (number + 1),
        }
    standin.say(script)


def test_v15_a_partitioned_gpu_has_memory_processes_and_activity_per_instance(
    case: Any, standin: Standin, watch: Watch
) -> None:
    given = case("V15")["input"]
    partition(standin, given)
    source = watch(standin)
    reading = second(source)
    instances = tuple(f"MIG-{number}" for number in range(4))
    assert reading.gpus[1:5] == instances
    assert set(reading.parents) == set(instances)
    assert reading.values["gpu_utilization_ratio"][:5] == [None] * 5
    assert reading.status["gpu_utilization_ratio"][0] == "unsupported"
    used = [item["memory_used_mib"][0] * MIB for item in given["instances"]]
    assert reading.values["memory_used_bytes"][1:5] == used
    assert reading.values["sm_activity_ratio"][1:5] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert reading.values["process_count"][1:5] == [1.0] * 4
    assert reading.pids is not None
    assert reading.pids["MIG-2"] == (1002,)
    facts = {item.gpu: item for item in reading.inventory.gpus}
    assert facts["MIG-2"].mig_profile == "1g.10gb"
    # Another partition is found with the next refresh, a minute later.
    standin.say({"0/4.nvmlDeviceGetUUID": "MIG-4", "0/4.nvmlDeviceGetName": "x MIG 1g.10gb"})
    assert "MIG-4" in read(source, 70).gpus


def test_v17_a_shifted_process_list_is_refused_whole(
    case: Any, standin: Standin, watch: Watch
) -> None:
    first = case("V17")["input"]["processes"][0]
    standin.say(
        {
            # Through the structure of the first R535 drivers: 32 bytes where 24 are read.
            "-.process_layout": 535,
            "0.nvmlDeviceGetComputeRunningProcesses": (
                f"{first['pid']} {first['gpu_memory_used_bytes']} 10121 6521094144 20 4096"
            ),
            "1.nvmlDeviceGetComputeRunningProcesses": f"9980 {90_000 * MIB}",
        }
    )
    reading = read(watch(standin))
    assert reading.values["process_count"][:3] == [None, None, 0.0]
    assert reading.status["process_count"] == {0: "implausible", 1: "implausible"}
    assert reading.values["power_watts"] == [692.0] * 8
    assert reading.pids is not None
    assert reading.gpus[0] not in reading.pids  # not known, rather than empty
    assert reading.pids[reading.gpus[2]] == ()


def test_v17_processes_as_they_should_be(standin: Standin, watch: Watch) -> None:
    standin.say({"0.nvmlDeviceGetComputeRunningProcesses": f"9980 {6197 * MIB} 10121 -1"})
    reading = read(watch(standin))
    assert reading.values["process_count"][0] == 2.0
    assert reading.pids is not None
    assert reading.pids[reading.gpus[0]] == (9980, 10121)  # memory "not available" is no fault


def test_l12_clients_of_the_sharing_server_are_counted_once(
    case: Any, standin: Standin, watch: Watch
) -> None:
    l12 = case("L12")
    lists = {
        "Compute": [*l12["input"]["compute_processes"], *l12["input"]["mps_processes"][:1]],
        "MPSCompute": l12["input"]["mps_processes"],
    }
    standin.say(
        {
            f"0.nvmlDeviceGet{name}RunningProcesses": " ".join(
                f"{item['pid']} {item['gpu_memory_used_mib'] * MIB}" for item in processes
            )
            for name, processes in lists.items()
        }
    )
    reading = read(watch(standin))
    assert reading.values["process_count"][0] == l12["expect"]["collector"]["process_count"]


def test_a_masked_uuid_is_replaced_by_node_and_address(standin: Standin, watch: Watch) -> None:
    blank = "GPU-00000000-0000-0000-0000-000000000000"
    standin.say({f"{gpu}.nvmlDeviceGetUUID": blank for gpu in range(2)})
    reading = read(watch(standin))
    assert reading.gpus[:2] == ("GPU-n1-0000:1a:00.0", "GPU-n1-0000:1b:00.0")
    assert len(set(reading.gpus)) == 8


def test_l07_series_follow_the_uuid_when_indices_move(standin: Standin, watch: Watch) -> None:
    standin.say({"-.nvmlDeviceGetCount": 2, "0.nvmlDeviceGetTemperature.0": 70})
    source = watch(standin)
    before = read(source)
    assert before.values["temperature_celsius"] == [70.0, 40.0]
    standin.say({"-.nvmlDeviceGetCount": 1, "-.index.0": 1})
    after = read(source, 1)
    assert after.gpus == before.gpus[1:]
    assert after.values["temperature_celsius"] == [40.0]
    assert after.inventory.gpus[0].index == 0


@pytest.mark.parametrize("branch", [470, 700])
def test_a_driver_of_another_branch_offers_what_it_knows(
    branch: int, nvml_library: Callable[[int], Path], watch: Watch, tmp_path: Path
) -> None:
    driver = Standin(nvml_library(branch), tmp_path)
    driver.say(h100(1))
    reading = second(watch(driver))
    assert reading.status == {}
    missing = set(METRICS) - set(reading.values) - NOT_ON_H100
    if branch == 700:
        assert missing == set()
        return
    assert {"memory_reserved_bytes", "sm_activity_ratio", "sram_threshold_exceeded"} <= missing
    assert reading.values["clock_event_reasons"] == [4.0]
    assert reading.ts == T0 + 1000
