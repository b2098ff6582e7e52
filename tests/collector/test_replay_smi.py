"""The CSV of nvidia-smi: absence, units, identity, reasons, times and loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from collector.source import Reading
from schemas.sample import EventKind, ValueStatus

UUID_A = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
UUID_B = "GPU-bbbbbbbb-0000-4000-8000-000000000002"
Replay = Callable[..., tuple[list[Reading], ReplaySource]]


@pytest.fixture
def replay(tmp_path: Path) -> Replay:
    """Replay the given texts, each as one file."""

    def run(*texts: str, **settings: Any) -> tuple[list[Reading], ReplaySource]:
        files = []
        for number, text in enumerate(texts):
            path = tmp_path / f"node7-{number}.csv"
            path.write_text(text)
            files.append(path)
        source = ReplaySource(ReplaySettings(files=tuple(files), **settings))
        readings = []
        while not source.exhausted:
            readings += source.read(0)
        return readings, source

    return run


def one_gpu(columns: str, cells: str) -> str:
    return f"timestamp, uuid, {columns}\n2025/01/06 10:00:00.123, {UUID_A}, {cells}\n"


def case(shared: Path, name: str) -> Any:
    cases = json.loads((shared / "cases" / "values.json").read_text())
    return next(entry for entry in cases if entry["id"] == name)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("N/A", ValueStatus.UNSUPPORTED),
        ("[N/A]", ValueStatus.UNSUPPORTED),
        ("[Not Supported]", ValueStatus.UNSUPPORTED),
        ("[Requested functionality has been deprecated]", ValueStatus.UNSUPPORTED),
        ("", ValueStatus.UNSUPPORTED),
        ("[Insufficient Permissions]", ValueStatus.NO_PERMISSION),
        ("[Unknown Error]", "error:999"),
        ("ERR!", "error:999"),
        ("[Some Future Words]", "error:999"),
        ("[Function Not Found]", "error:13"),
        ("GPU is lost", "error:15"),
        ("[GPU is lost]", "error:15"),
        ("[GPU requires reset]", "error:16"),
    ],
)
def test_v03_every_spelling_of_absence_is_null_with_its_reason(
    replay: Replay, text: str, status: str
) -> None:
    first = one_gpu("power.draw [W], temperature.gpu", f"{text}, 41")
    second = f"2025/01/06 10:00:00.130, {UUID_B}, 99.50 W, 40\n"
    (reading,), source = replay(first + second)
    assert reading.values["power_watts"] == [None, 99.5]
    assert reading.status["power_watts"] == {0: status}
    assert reading.values["temperature_celsius"] == [41.0, 40.0]
    assert source.stats.damaged == 0


def test_v03_spellings_of_the_case_are_all_known(replay: Replay, shared: Path) -> None:
    given = case(shared, "V03")["input"]
    for text in given["text_forms_without_value"] + given["text_forms_that_carry_a_state"]:
        (reading,), source = replay(one_gpu("power.draw [W], temperature.gpu", f"{text}, 41"))
        assert reading.values.get("power_watts", [None]) == [None]
        assert reading.values["temperature_celsius"] == [41.0]
        assert source.stats.damaged == 0


def test_v07_milliwatts_under_a_watt_label_are_refused(replay: Replay, shared: Path) -> None:
    given = case(shared, "V07")["input"]["power_watts"]
    rows = "".join(
        f"2025/01/06 10:00:0{second}.000, {UUID_A}, {watts}\n" for second, watts in enumerate(given)
    )
    readings, source = replay("timestamp, uuid, power.draw [W]\n" + rows)
    assert [reading.values["power_watts"] for reading in readings] == [[None]] * len(given)
    assert all(r.status["power_watts"] == {0: ValueStatus.IMPLAUSIBLE} for r in readings)
    assert source.stats.implausible == len(given)


def test_v13_margin_comes_from_the_device(replay: Replay) -> None:
    (reading,), _ = replay(one_gpu("temperature.gpu, temperature.gpu.tlimit", "29, 58"))
    assert reading.values["temperature_margin_celsius"] == [58.0]
    (reading,), _ = replay(one_gpu("temperature.gpu, temperature.gpu.tlimit", "29, -2"))
    assert reading.values["temperature_margin_celsius"] == [-2.0]


def test_v23_a_new_model_under_an_old_index_is_another_device(replay: Replay, shared: Path) -> None:
    given = case(shared, "V23")["input"]["rows"]
    rows = [
        f"2025/01/06 10:00:00.{50 * number:03d}, {index}, {model}, {celsius}"
        for number, (_, index, model, celsius) in enumerate(given)
    ]
    readings, _ = replay("\n".join(["timestamp, index, name, temperature.gpu", *rows]))
    assert [reading.values["temperature_celsius"] for reading in readings] == [[41.0], [65.0]]
    assert readings[0].gpus != readings[1].gpus
    assert [r.inventory.gpus[0].model for r in readings] == [row[2] for row in given]


def test_v23_a_new_uuid_under_an_old_index_is_another_device(replay: Replay) -> None:
    readings, _ = replay(
        "timestamp, index, uuid, temperature.gpu\n"
        f"2025/01/06 10:00:00, 0, {UUID_A}, 41\n2025/01/06 10:00:01, 0, {UUID_B}, 65\n"
    )
    assert [reading.gpus for reading in readings] == [(UUID_A,), (UUID_B,)]


def test_v23_repeated_headers_are_skipped_wherever_they_stand(replay: Replay, shared: Path) -> None:
    repeated = case(shared, "V23")["input"]["header_repeated"]
    rows = repeated["lines"] - repeated["header_lines"]
    text = "".join(
        "timestamp, uuid, temperature.gpu\n"
        f"2025/01/06 10:{second // 60:02d}:{second % 60:02d}, {UUID_A}, {30 + second % 9}\n"
        for second in range(rows)
    )
    readings, source = replay(text)
    assert len(readings) == rows
    assert source.stats.headers == repeated["header_lines"]
    assert source.stats.damaged == 0


def test_v23_a_second_sample_of_one_device_at_one_time_is_dropped(replay: Replay) -> None:
    (reading,), source = replay(
        "timestamp, uuid, temperature.gpu\n"
        f"2025/01/06 10:00:00, {UUID_A}, 29\n"
        f"2025/01/06 10:00:00, {UUID_A}, 29\n"
        f"2025/01/06 10:00:00, {UUID_B}, 26\n"
    )
    assert reading.gpus == (UUID_A, UUID_B)
    assert reading.values["temperature_celsius"] == [29.0, 26.0]
    assert source.stats.duplicates == 1


def test_backward_time_is_counted_and_dropped(replay: Replay) -> None:
    readings, source = replay(
        "timestamp, uuid, temperature.gpu\n"
        f"2025/01/06 10:00:05, {UUID_A}, 29\n"
        f"2025/01/06 10:00:03, {UUID_A}, 99\n"
        f"2025/01/06 10:00:06, {UUID_A}, 30\n"
    )
    assert [r.values["temperature_celsius"][0] for r in readings] == [29.0, 30.0]
    assert source.stats.backwards == 1


def test_rows_of_one_sweep_are_one_reading(replay: Replay) -> None:
    """nvidia-smi stamps each GPU's row on its own, some milliseconds apart."""
    rows = "".join(
        f"2025/01/06 10:00:{tick:02d}.{100 + 3 * gpu}, {gpu}, {40 + gpu}\n"
        for tick in range(3)
        for gpu in range(4)
    )
    readings, source = replay("timestamp, index, temperature.gpu\n" + rows)
    assert [len(reading.gpus) for reading in readings] == [4, 4, 4]
    assert source.interval_seconds == 1.0


def test_after_damage_a_sweep_does_not_complete_the_one_before(replay: Replay) -> None:
    rows = [
        f"2025/01/06 10:00:{tick // 4:02d}.{tick % 4 * 250 + gpu:03d}, {gpu}, {40 + gpu}\n"
        for tick in range(8)
        for gpu in range(4)
    ]
    del rows[8:10]  # the third sweep has lost its first two rows
    readings, _ = replay("timestamp, index, temperature.gpu\n" + "".join(rows))
    celsius = [
        sorted(v for v in r.values["temperature_celsius"] if v is not None) for r in readings
    ]
    assert [len(values) for values in celsius] == [4, 4, 2, 4, 4, 4, 4, 4]
    assert celsius[2] == [42.0, 43.0]


def test_fast_sampling_of_one_gpu_is_not_joined(replay: Replay) -> None:
    rows = "".join(f"2025/01/06 10:00:00.{20 * n:03d}, 0, {40 + n}\n" for n in range(10))
    readings, _ = replay("timestamp, index, temperature.gpu\n" + rows)
    assert len(readings) == 10


def test_units_in_the_cell_win_over_the_header_and_none_means_the_usual(replay: Replay) -> None:
    for columns, cells in (
        ("memory.used [MiB], clocks.sm [MHz]", "1024 MiB, 345 MHz"),
        ("memory.used [MiB], clocks.sm [MHz]", "1024, 345"),
        ("memory.used, clocks.sm", "1024, 345"),
        ("memory.used [MiB], clocks.sm [MHz]", "1 GiB, 0.345 GHz"),
    ):
        (reading,), _ = replay(one_gpu(columns, cells))
        assert reading.values["memory_used_bytes"] == [2.0**30]
        assert reading.values["sm_clock_hertz"] == [345e6]


def test_power_falls_back_from_draw_to_average_to_instant(replay: Replay) -> None:
    columns = "power.draw [W], power.draw.average [W], power.draw.instant [W]"
    for cells, expected in (
        ("10 W, 20 W, 30 W", 10.0),
        ("[N/A], 20 W, 30 W", 20.0),
        ("[N/A], [N/A], 30 W", 30.0),
    ):
        (reading,), _ = replay(one_gpu(columns, cells))
        assert reading.values["power_watts"] == [expected]
        assert reading.values["power_instant_watts"] == [30.0]


def test_enforced_limit_wins_over_the_requested_one(replay: Replay) -> None:
    (reading,), _ = replay(
        one_gpu(
            "power.limit [W], enforced.power.limit [W], power.default_limit [W]", "700, 500, 700"
        )
    )
    assert reading.values["power_limit_watts"] == [500.0]
    assert reading.values["power_default_limit_watts"] == [700.0]


@pytest.mark.parametrize("prefix", ["clocks_event_reasons", "clocks_throttle_reasons"])
def test_single_reasons_become_bits(replay: Replay, prefix: str) -> None:
    columns = f"{prefix}.sw_power_cap, {prefix}.hw_thermal_slowdown, {prefix}.sync_boost"
    (reading,), _ = replay(one_gpu(columns, "Active, Active, Not Active"))
    assert reading.values["clock_event_reasons"] == [float(0x44)]
    (reading,), _ = replay(one_gpu(columns, "[N/A], Not Active, [N/A]"))
    assert reading.values["clock_event_reasons"] == [0.0]
    (reading,), _ = replay(one_gpu(f"{columns}, pstate", "[N/A], [N/A], [N/A], P0"))
    assert "clock_event_reasons" not in reading.values


@pytest.mark.parametrize("prefix", ["clocks_event_reasons", "clocks_throttle_reasons"])
def test_the_whole_mask_is_read_as_hexadecimal(replay: Replay, prefix: str) -> None:
    (reading,), _ = replay(one_gpu(f"{prefix}.active", "0x0000000000000104"))
    assert reading.values["clock_event_reasons"] == [float(0x104)]


def test_throttle_counters_are_seconds(replay: Replay) -> None:
    (reading,), _ = replay(
        one_gpu("clocks_event_reasons_counters.sw_power_cap [us]", "221310321 us")
    )
    assert reading.values["throttle_power_cap_seconds_total"] == [pytest.approx(221.310321)]


def test_ecc_total_wins_and_parts_are_added_where_there_is_none(replay: Replay) -> None:
    base = "ecc.errors.uncorrected.volatile"
    (reading,), _ = replay(one_gpu(f"{base}.total, {base}.dram", "7, 3"))
    assert reading.values["ecc_uncorrected_total"] == [7.0]
    (reading,), _ = replay(one_gpu(f"{base}.device_memory, {base}.dram, {base}.sram", "3, 3, 2"))
    assert reading.values["ecc_uncorrected_total"] == [5.0]
    (reading,), _ = replay(one_gpu(f"{base}.device_memory, {base}.l1_cache", "3, [N/A]"))
    assert reading.values["ecc_uncorrected_total"] == [3.0]


@pytest.mark.parametrize(
    ("words", "code"),
    [("None", 0), ("Reset", 1), ("Reboot", 2), ("Drain P2P", 3), ("Drain and Reset", 4)],
)
def test_recovery_action_is_the_code_of_nvml(replay: Replay, words: str, code: int) -> None:
    (reading,), _ = replay(one_gpu("gpu_recovery_action", words))
    assert reading.values["recovery_action"] == [float(code)]


def test_an_unknown_recovery_action_means_act(replay: Replay) -> None:
    (reading,), _ = replay(one_gpu("gpu_recovery_action", "Call Somebody"))
    assert reading.values["recovery_action"] == [255.0]


def test_requires_reset_is_a_recovery_action(replay: Replay) -> None:
    (reading,), _ = replay(one_gpu("temperature.gpu, power.draw", "[GPU requires reset], 60 W"))
    assert reading.values["recovery_action"] == [1.0]
    assert reading.values["power_watts"] == [60.0]


def test_flags_and_states(replay: Replay) -> None:
    (reading,), _ = replay(
        one_gpu(
            "pstate, remapped_rows.pending, remapped_rows.failure, retired_pages.pending, "
            "fan.speed [%]",
            "P8, Yes, No, No, 37 %",
        )
    )
    assert reading.values["performance_state"] == [8.0]
    assert reading.values["row_remap_pending"] == [1.0]
    assert reading.values["row_remap_failed"] == [0.0]
    assert reading.values["retired_pages_pending"] == [0.0]
    assert reading.values["fan_ratio"] == [0.37]


def test_l05_a_lost_gpu_keeps_its_id_and_is_said_once(replay: Replay) -> None:
    lost = "GPU is lost"
    readings, _ = replay(
        "timestamp, index, uuid, pci.bus_id, name, temperature.gpu\n"
        f"2025/01/06 10:00:00, 0, {UUID_A}, 00000000:3B:00.0, H100, 40\n"
        f"2025/01/06 10:00:00, 1, {UUID_B}, 00000000:5D:00.0, H100, 41\n"
        f"2025/01/06 10:00:01, 0, {lost}, 00000000:3B:00.0, {lost}, {lost}\n"
        f"2025/01/06 10:00:01, 1, {UUID_B}, 00000000:5D:00.0, H100, 41\n"
        f"2025/01/06 10:00:02, 0, {lost}, 00000000:3B:00.0, {lost}, {lost}\n"
        f"2025/01/06 10:00:02, 1, {UUID_B}, 00000000:5D:00.0, H100, 42\n"
        f"2025/01/06 10:00:03, 0, {UUID_A}, 00000000:3B:00.0, H100, 39\n"
    )
    assert [reading.gpus for reading in readings[:3]] == [(UUID_A, UUID_B)] * 3
    assert readings[1].status["temperature_celsius"] == {0: "error:15"}
    assert readings[1].values["temperature_celsius"] == [None, 41.0]
    kinds = [[(event.kind, event.gpu) for event in reading.events] for reading in readings]
    assert kinds == [[], [(EventKind.GPU_LOST, UUID_A)], [], [(EventKind.GPU_RETURNED, UUID_A)]]
    assert readings[2].inventory.gpus[0].model == "H100"


def test_the_drivers_line_about_a_gone_gpu_is_an_event(replay: Replay) -> None:
    readings, source = replay(
        "timestamp, uuid, pci.bus_id, temperature.gpu\n"
        f"2025/01/06 10:00:00, {UUID_A}, 00000000:3B:00.0, 40\n"
        f"2025/01/06 10:00:00, {UUID_B}, 00000000:5D:00.0, 41\n"
        "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  "
        "Reboot the system to recover this GPU\n"
        f"2025/01/06 10:00:01, {UUID_B}, 00000000:5D:00.0, 41\n"
    )
    events = [event for reading in readings for event in reading.events]
    assert [(event.kind, event.gpu) for event in events] == [(EventKind.GPU_LOST, UUID_A)]
    assert source.stats.damaged == 1


def test_another_set_of_columns_may_begin_in_the_middle(replay: Replay) -> None:
    readings, source = replay(
        f"timestamp, uuid, temperature.gpu\n2025/01/06 10:00:00, {UUID_A}, 40\n"
        f"uuid, power.draw [W], timestamp\n{UUID_A}, 70 W, 2025/01/06 10:00:01\n"
    )
    assert readings[0].values == {"temperature_celsius": [40.0]}
    assert readings[1].values == {"power_watts": [70.0]}
    assert source.stats.headers == 2


def test_without_ids_the_place_is_the_identity_and_repeats(replay: Replay) -> None:
    rows = "".join(f"2025/01/06 10:00:00, {index}, 40\n" for index in range(2))
    text = "timestamp, index, temperature.gpu\n" + rows
    (first,), _ = replay(text, node="n1")
    (again,), _ = replay(text, node="n1")
    (other,), _ = replay(text, node="n2")
    assert first.gpus == again.gpus
    assert len(set(first.gpus) | set(other.gpus)) == 4


def test_node_comes_from_the_flag_else_the_host_column_else_the_file(replay: Replay) -> None:
    text = one_gpu("temperature.gpu", "40")
    assert replay(text)[0][0].node == "node7-0"
    assert replay(text, node="n1")[0][0].node == "n1"
    assert replay(one_gpu("temperature.gpu, hostname", "40, h9"))[0][0].node == "h9"
    assert replay(one_gpu("temperature.gpu, hostname", "40, [N/A]"), node="n1")[0][0].node == "n1"
