"""The NVML source: names, units, capabilities, and the real binding without a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collector.gpu import ALL_GROUPS, metrics_of
from collector.host import HostFiles
from collector.nvml import NvmlSource, load_pynvml
from collector.readings import ROWS
from collector.source import Reading
from collector.truth import refuse_impossible
from schemas.metrics import METRICS
from tests.collector.fake_nvml import MIB, MODERN_FIELDS, Err, FakeGpu, FakeNvml

T0 = 1_790_000_000_000
HOST = HostFiles(pci_devices=Path("/nonexistent"))


def make(*gpus: FakeGpu, **options: Any) -> tuple[NvmlSource, FakeNvml]:
    nvml = FakeNvml(*gpus, **options)
    return NvmlSource(nvml, node="n1", host=HOST), nvml  # type: ignore[arg-type]


def read(source: NvmlSource, tick: int = 0) -> Reading:
    (reading,) = source.read(T0 + tick * 1000)
    return reading


def test_every_value_arrives_in_the_base_unit_of_the_catalogue() -> None:
    source, _ = make(FakeGpu("GPU-A"))
    values = {name: column[0] for name, column in read(source).values.items()}
    assert values == {
        "temperature_celsius": 40.0,
        "memory_temperature_celsius": 45.0,
        "temperature_margin_celsius": 47.0,
        "power_watts": 692.0,
        "power_instant_watts": 695.0,
        "power_limit_watts": 700.0,
        "power_default_limit_watts": 700.0,
        "energy_joules_total": 123_456.789,
        "gpu_utilization_ratio": 0.99,
        "memory_utilization_ratio": 0.6,
        "encoder_utilization_ratio": 0.0,
        "decoder_utilization_ratio": 0.0,
        "memory_used_bytes": 40000 * MIB,
        "memory_free_bytes": 41080 * MIB,
        "memory_total_bytes": 81559 * MIB,
        "memory_reserved_bytes": 479 * MIB,
        "bar1_total_bytes": 131072.0 * MIB,
        "graphics_clock_hertz": 1980e6,
        "video_clock_hertz": 1545e6,
        "memory_clock_max_hertz": 1980e6,
        "nvlink_crc_errors_total": 3.0,
        "nvlink_replay_errors_total": 3.0,
        "nvlink_recovery_errors_total": 4.0,
        "bar1_used_bytes": 2 * MIB,
        "sm_clock_hertz": 1.98e9,
        "sm_clock_max_hertz": 1.98e9,
        "memory_clock_hertz": 2.619e9,
        "performance_state": 0.0,
        "clock_event_reasons": 4.0,
        "throttle_power_cap_seconds_total": 1.5,
        "throttle_sw_thermal_seconds_total": 0.0,
        "throttle_hw_thermal_seconds_total": 2.5,
        "throttle_power_brake_seconds_total": 0.0,
        "throttle_sync_boost_seconds_total": 0.0,
        "pcie_generation": 5.0,
        "pcie_width_lanes": 16.0,
        "pcie_replay_total": 0.0,
        "pcie_transmit_bytes_total": 10_000.0,
        "pcie_receive_bytes_total": 20_000.0,
        "nvlink_active_links": 18.0,
        "nvlink_errors_total": 10.0,
        "ecc_corrected_total": 0.0,
        "ecc_uncorrected_total": 0.0,
        "ecc_corrected_aggregate_total": 0.0,
        "ecc_uncorrected_aggregate_total": 0.0,
        "remapped_rows_correctable_total": 0.0,
        "remapped_rows_uncorrectable_total": 0.0,
        "row_remap_pending": 0.0,
        "row_remap_failed": 0.0,
        "recovery_action": 0.0,
    }
    assert refuse_impossible(read(source))[1] == {}


def test_the_table_names_every_metric_of_the_catalogue_once() -> None:
    names = [row.metric for row in ROWS]
    assert len(names) == len(set(names))
    assert metrics_of(ALL_GROUPS) == set(METRICS)


def test_a_fall_back_feeds_the_same_metric_of_the_same_group() -> None:
    for row in ROWS:
        older = row.otherwise
        while older is not None:
            assert (older.metric, older.group) == (row.metric, row.group)
            older = older.otherwise


def test_the_blocking_pcie_call_is_never_made() -> None:
    source, nvml = make(FakeGpu("GPU-A"))
    read(source)
    assert nvml.counts["nvmlDeviceGetPcieThroughput"] == 0


def test_fields_travel_in_one_call_with_a_return_code_each() -> None:
    source, nvml = make(FakeGpu("GPU-A", fields={186: Err(999), 82: Err(3)}), FakeGpu("GPU-B"))
    read(source)
    before = nvml.counts["nvmlDeviceGetFieldValues"]
    reading = read(source, 1)
    assert nvml.counts["nvmlDeviceGetFieldValues"] - before == 2  # one per GPU
    assert reading.values["power_instant_watts"] == [None, 695.0]
    assert reading.status["power_instant_watts"] == {0: "error:999"}
    assert reading.values["throttle_hw_thermal_seconds_total"] == [2.5, 2.5]


def test_a_driver_without_the_field_call_loses_only_the_fields() -> None:
    gpu = FakeGpu("GPU-A", calls={"nvmlDeviceGetFieldValues": Err(13)})
    source, _ = make(gpu)
    reading = read(source)
    assert reading.values["power_watts"] == [692.0]
    assert "power_instant_watts" not in reading.values


def test_a_sum_of_link_errors_without_one_part_is_no_value() -> None:
    source, _ = make(FakeGpu("GPU-A", fields={45: Err(999)}), FakeGpu("GPU-B", fields={45: Err(3)}))
    reading = read(source)
    assert reading.values["nvlink_errors_total"] == [None, 8.0]
    assert reading.status["nvlink_errors_total"] == {0: "error:999"}


def test_old_names_are_used_where_the_new_ones_are_missing() -> None:
    gpu = FakeGpu("GPU-A", calls={"nvmlDeviceGetTemperature": 41})
    source, _ = make(
        gpu,
        without=frozenset(
            {
                "nvmlDeviceGetTemperatureV",
                "nvmlDeviceGetCurrentClocksEventReasons",
                "nvmlDeviceGetMarginTemperature",
            }
        ),
    )
    reading = read(source)
    assert reading.values["temperature_celsius"] == [41.0]
    assert reading.values["clock_event_reasons"] == [4.0]
    assert "temperature_margin_celsius" not in reading.values


def test_a_binding_without_the_memory_version_falls_back() -> None:
    def only_handle(*args: object) -> object:
        if args:
            raise TypeError("takes 1 positional argument but 2 were given")
        return SimpleNamespace(total=8 * MIB, used=3 * MIB, free=5 * MIB)

    source, _ = make(FakeGpu("GPU-A", calls={"nvmlDeviceGetMemoryInfo": only_handle}))
    reading = read(source)
    assert reading.values["memory_used_bytes"] == [3 * MIB]
    assert "memory_reserved_bytes" not in reading.values


def test_what_a_device_does_not_offer_is_asked_once_a_minute_only() -> None:
    source, nvml = make(FakeGpu("GPU-A"))
    for tick in range(60):
        read(source, tick)
    assert nvml.counts["nvmlDeviceGetFanSpeed"] == 1
    read(source, 61)
    assert nvml.counts["nvmlDeviceGetFanSpeed"] == 2


def test_a_metric_offered_later_appears_with_the_next_refresh() -> None:
    gpu = FakeGpu("GPU-A")
    source, _ = make(gpu)
    assert "fan_ratio" not in read(source, 0).values
    gpu.calls["nvmlDeviceGetFanSpeed"] = 30
    assert read(source, 60).values["fan_ratio"] == [0.3]


def test_text_of_older_bindings_is_bytes() -> None:
    calls = {"nvmlDeviceGetName": b"Tesla T4", "nvmlDeviceGetUUID": "GPU-A"}
    source, _ = make(FakeGpu("GPU-A", calls=calls))
    assert read(source).inventory.gpus[0].model == "Tesla T4"


def test_a_gpu_without_nvlink_does_not_offer_links() -> None:
    source, nvml = make(FakeGpu("GPU-A", fields={91: 0}))
    assert "nvlink_active_links" not in read(source).values
    assert nvml.counts["nvmlDeviceGetNvLinkState"] == 0


def test_links_that_are_down_are_not_counted() -> None:
    gpu = FakeGpu("GPU-A", calls={"nvmlDeviceGetNvLinkState": lambda link: 0 if link < 2 else 1})
    source, _ = make(gpu)
    assert read(source).values["nvlink_active_links"] == [16.0]


def test_an_unknown_performance_state_is_unsupported_not_32() -> None:
    calls = {"nvmlDeviceGetPerformanceState": 32}
    source, _ = make(FakeGpu("GPU-A", calls=calls), FakeGpu("GPU-B"))
    reading = read(source)
    assert reading.values["performance_state"] == [None, 0.0]
    assert reading.status["performance_state"] == {0: "unsupported"}


def test_throttle_bits_and_counters_are_published_as_read() -> None:
    """O01, T04, T09: bits combined, counters raw, a counter that fell is not hidden."""
    gpu = FakeGpu("GPU-A", calls={"nvmlDeviceGetCurrentClocksEventReasons": 0x8 | 0x40 | 0x4})
    source, _ = make(gpu)
    assert read(source, 0).values["clock_event_reasons"] == [float(0x4C)]
    gpu.fields[270] = 0
    assert read(source, 1).values["throttle_hw_thermal_seconds_total"] == [0.0]


def test_an_instance_created_later_is_found_within_a_minute() -> None:
    gpu = FakeGpu("GPU-A", calls={"nvmlDeviceGetMigMode": [1, 1]})
    source, _ = make(gpu)
    assert read(source, 0).gpus == ("GPU-A",)
    gpu.instances.append(FakeGpu("MIG-1"))
    assert read(source, 60).gpus == ("GPU-A", "MIG-1")


def test_an_instance_that_is_gone_leaves_with_the_next_reading() -> None:
    instance = FakeGpu("MIG-1")
    gpu = FakeGpu("GPU-A", calls={"nvmlDeviceGetMigMode": [1, 1]}, instances=[instance])
    source, _ = make(gpu)
    assert read(source, 0).gpus == ("GPU-A", "MIG-1")
    instance.everything = Err(2)
    gone = read(source, 1)
    assert gone.status["memory_used_bytes"] == {1: "error:2"}
    assert gone.values["memory_used_bytes"][0] == 40000 * MIB
    gpu.instances.clear()
    assert read(source, 2).gpus == ("GPU-A",)


def test_close_detaches_once() -> None:
    source, nvml = make(FakeGpu("GPU-A"))
    read(source)
    source.close()
    source.close()
    assert nvml.counts["nvmlShutdown"] == 1


def test_no_gpu_and_a_good_driver_is_an_empty_reading() -> None:
    source, _ = make()
    reading = read(source)
    assert (reading.state, reading.gpus, reading.values) == ("ok", (), {})


def test_field_numbers_are_those_of_the_binding() -> None:
    pynvml: Any = load_pynvml()
    names = {
        82: "MEMORY_TEMP",
        186: "POWER_INSTANT",
        74: "CLOCKS_EVENT_REASON_SW_POWER_CAP",
        76: "CLOCKS_EVENT_REASON_SYNC_BOOST",
        269: "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
        270: "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
        271: "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
        197: "PCIE_COUNT_TX_BYTES",
        198: "PCIE_COUNT_RX_BYTES",
        38: "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        45: "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        52: "NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        59: "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        91: "NVLINK_LINK_COUNT",
        193: "TEMPERATURE_SHUTDOWN_TLIMIT",
        194: "TEMPERATURE_SLOWDOWN_TLIMIT",
        196: "TEMPERATURE_GPU_MAX_TLIMIT",
        230: "GET_GPU_RECOVERY_ACTION",
    }
    assert set(names) == set(MODERN_FIELDS)
    assert {number: getattr(pynvml, f"NVML_FI_DEV_{name}") for number, name in names.items()} == {
        number: number for number in names
    }
    assert pynvml.nvmlMemory_v2 == 0x02000028
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM) == (1, 2)


def test_the_real_binding_has_every_name_of_the_table() -> None:
    pynvml = load_pynvml()
    for row in ROWS:
        question = getattr(row, "question", None)
        for name, _ in question.alternatives if question is not None else ():
            assert hasattr(pynvml, name), name


def test_the_real_binding_without_a_gpu_reports_its_state_and_stays_alive() -> None:
    source = NvmlSource(load_pynvml(), node="n1", host=HOST)
    readings = [read(source, tick) for tick in range(4)]
    if readings[0].gpus:
        pytest.skip("this machine has a GPU")
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    assert {reading.state for reading in readings} == {"no_library"}
    assert {reading.nvml_error for reading in readings} == {12}
    source.close()
