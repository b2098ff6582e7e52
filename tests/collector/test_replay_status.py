"""Every status of nvidia-smi imports to the right values, told by another form of the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from collector.source import Reading
from schemas.sample import GpuInventory

MIB = 2**20


def imported(path: Path) -> tuple[list[Reading], ReplaySource]:
    source = ReplaySource(ReplaySettings(files=(path,)))
    found = []
    while not source.exhausted:
        found += source.read(0)
    return found, source


def only(path: Path) -> Reading:
    readings, source = imported(path)
    assert source.stats.damaged == 0, source.stats.complaints
    (reading,) = readings
    return reading


def facts(reading: Reading, place: int = 0) -> GpuInventory:
    return reading.inventory.gpus[place]


# -- XML -------------------------------------------------------------------------------------

# Metric, XML path, factor. Old and new spellings of one thing stand in one row.
NUMBERS = [
    ("temperature_celsius", ("temperature/gpu_temp",), 1.0),
    ("memory_temperature_celsius", ("temperature/memory_temp",), 1.0),
    (
        "power_watts",
        (
            "gpu_power_readings/average_power_draw",
            "gpu_power_readings/power_draw",
            "power_readings/power_draw",
            "gpu_power_readings/instant_power_draw",
        ),
        1.0,
    ),
    (
        "power_limit_watts",
        ("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit"),
        1.0,
    ),
    (
        "power_default_limit_watts",
        ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
        1.0,
    ),
    ("gpu_utilization_ratio", ("utilization/gpu_util",), 0.01),
    ("memory_utilization_ratio", ("utilization/memory_util",), 0.01),
    ("encoder_utilization_ratio", ("utilization/encoder_util",), 0.01),
    ("memory_total_bytes", ("fb_memory_usage/total",), MIB),
    ("memory_reserved_bytes", ("fb_memory_usage/reserved",), MIB),
    ("memory_used_bytes", ("fb_memory_usage/used",), MIB),
    ("memory_free_bytes", ("fb_memory_usage/free",), MIB),
    ("bar1_used_bytes", ("bar1_memory_usage/used",), MIB),
    ("sm_clock_hertz", ("clocks/sm_clock",), 1e6),
    ("sm_clock_max_hertz", ("max_clocks/sm_clock",), 1e6),
    ("memory_clock_hertz", ("clocks/mem_clock",), 1e6),
    ("fan_ratio", ("fan_speed",), 0.01),
    ("pcie_generation", ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",), 1.0),
    ("pcie_width_lanes", ("pci/pci_gpu_link_info/link_widths/current_link_width",), 1.0),
    ("pcie_replay_total", ("pci/replay_counter",), 1.0),
    ("remapped_rows_correctable_total", ("remapped_rows/remapped_row_corr",), 1.0),
    ("remapped_rows_uncorrectable_total", ("remapped_rows/remapped_row_unc",), 1.0),
    (
        "throttle_power_cap_seconds_total",
        ("clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap",),
        1e-6,
    ),
    (
        "retired_pages_double_bit_total",
        ("retired_pages/double_bit_retirement/retired_count",),
        1.0,
    ),
]


@pytest.fixture(scope="module")
def documents(shared: Path) -> list[tuple[str, Reading, list[ET.Element]]]:
    files = sorted((shared / "recordings" / "smi_xml").glob("*.xml"))
    assert len(files) == 23
    return [
        (file.name, only(file), ET.parse(file).getroot().findall("gpu"))  # noqa: S314 - recordings
        for file in files
    ]


def said(gpu: ET.Element, paths: tuple[str, ...]) -> float | None:
    for path in paths:
        match = re.match(r"-?\d+(\.\d+)?", (gpu.findtext(path) or "").strip())
        if match is not None:
            return float(match[0])
    return None


@pytest.mark.parametrize(("metric", "paths", "factor"), NUMBERS, ids=[row[0] for row in NUMBERS])
def test_every_number_of_every_xml_stands_in_the_reading(
    documents: list[tuple[str, Reading, list[ET.Element]]],
    metric: str,
    paths: tuple[str, ...],
    factor: float,
) -> None:
    seen = 0
    for name, reading, gpus in documents:
        assert len(reading.gpus) - len(reading.parents) == len(gpus)
        whole = [place for place, gpu in enumerate(reading.gpus) if gpu not in reading.parents]
        column = [reading.values.get(metric, [None] * len(reading.gpus))[n] for n in whole]
        for value, gpu in zip(column, gpus, strict=True):
            expected = said(gpu, paths)
            if expected is None:
                assert value is None, (name, metric)
            else:
                seen += 1
                assert value == pytest.approx(expected * factor, rel=1e-12), (name, metric)
    assert seen >= 3, "a row of the table that no file has"


def test_reasons_of_every_xml_are_the_bits_that_it_calls_active(
    documents: list[tuple[str, Reading, list[ET.Element]]],
) -> None:
    bits = {
        "gpu_idle": 1, "applications_clocks_setting": 2, "sw_power_cap": 4, "hw_slowdown": 8,
        "sync_boost": 16, "sw_thermal_slowdown": 32, "hw_thermal_slowdown": 64,
        "hw_power_brake_slowdown": 128, "display_clocks_setting": 256,
    }  # fmt: skip
    seen = set()
    for name, reading, gpus in documents:
        for place, gpu in enumerate(gpus):
            states = {
                element.tag.partition("_reason_")[2]: (element.text or "").strip()
                for block in ("clocks_event_reasons", "clocks_throttle_reasons")
                for element in gpu.iterfind(f"{block}/*")
            }
            column = reading.values.get("clock_event_reasons")
            if not states or set(states.values()) <= {"N/A", "GPU is lost"}:
                assert column is None or column[place] is None, name
                continue
            mask = sum(bits.get(reason, 0) for reason, state in states.items() if state == "Active")
            assert column is not None
            assert column[place] == mask, name
            seen.add(mask)
    assert seen == {0, 1}, "the recordings are all healthy"


def test_errors_of_old_and_new_layouts_are_summed(
    documents: list[tuple[str, Reading, list[ET.Element]]],
) -> None:
    by_name = {name: reading for name, reading, _ in documents}
    injected = by_name["mock_qx-gb200-ecc-injected.xml"]
    assert injected.values["ecc_uncorrected_total"] == [5.0, 0.0]
    assert injected.values["ecc_uncorrected_aggregate_total"] == [8.0, 0.0]
    assert injected.values["row_remap_failed"] == [1.0, 0.0]
    assert injected.values["remapped_rows_uncorrectable_total"] == [1.0, 0.0]
    assert by_name["real_qx-h100.xml"].values["ecc_corrected_total"] == [0.0] * 8
    assert "ecc_corrected_total" not in by_name["telegraf_quadro-p400.xml"].values


def test_a_lost_gpu_is_lost_and_its_neighbour_is_not(
    documents: list[tuple[str, Reading, list[ET.Element]]],
) -> None:
    (lost,) = [reading for name, reading, _ in documents if name == "mock_qx-gb200-lost.xml"]
    assert lost.status["temperature_celsius"] == {1: "error:15"}
    assert lost.values["temperature_celsius"][1] is None
    assert lost.values["temperature_celsius"][0] == 63.0
    (event,) = lost.events
    assert (event.kind, event.gpu) == ("gpu_lost", lost.gpus[1])


def test_thresholds_keep_their_kind_and_absolute_ones_give_the_margin(
    documents: list[tuple[str, Reading, list[ET.Element]]],
) -> None:
    by_name = {name: reading for name, reading, _ in documents}
    h100 = facts(by_name["real_qx-h100.xml"])
    assert (h100.threshold_kind, h100.slowdown_celsius, h100.shutdown_celsius) == ("margin", -2, -8)
    assert by_name["real_qx-l40s.xml"].values["temperature_margin_celsius"] == [59.0]
    t4 = facts(by_name["real_qx-t4.xml"])
    assert (t4.threshold_kind, t4.slowdown_celsius, t4.shutdown_celsius) == ("absolute", 93, 96)
    assert by_name["real_qx-t4.xml"].values["temperature_margin_celsius"] == [60.0]


def test_identity_time_and_driver_come_from_the_document(
    documents: list[tuple[str, Reading, list[ET.Element]]],
) -> None:
    by_name = {name: reading for name, reading, _ in documents}
    b200 = by_name["real_qx-b200.xml"]
    assert len(set(b200.gpus)) == 8
    assert b200.values["temperature_celsius"] == [39, 53, 38, 52, 38, 51, 37, 51]
    assert b200.inventory.driver_version == "580.105.08"
    assert {gpu.model for gpu in b200.inventory.gpus} == {"NVIDIA B200"}
    assert [gpu.index for gpu in b200.inventory.gpus] == list(range(8))
    # One of four is listed: which one it is the document does not say.
    assert by_name["telegraf_a100-sxm4-v12.xml"].inventory.gpus[0].index is None
    assert b200.ts == 1_787_301_572_000  # Fri Aug 21 08:39:32 2026, UTC


def test_mig_instances_of_a_document_stand_beside_their_gpu(
    documents: list[tuple[str, Reading, list[ET.Element]]],
) -> None:
    (found,) = [(r, gpus) for name, r, gpus in documents if name == "telegraf_a100-sxm4-v12.xml"]
    reading, (gpu,) = found
    parent, *instances = reading.gpus
    assert reading.parents == dict.fromkeys(instances, parent)
    said = [
        (one.findtext("gpu_instance_id"), float((one.findtext("fb_memory_usage/used") or "")[:-4]))
        for one in gpu.iterfind("mig_devices/mig_device")
    ]
    assert len(said) == 4
    assert [name.split("/")[-2] for name in instances] == [number for number, _ in said]
    assert reading.values["memory_used_bytes"][1:] == [used * MIB for _, used in said]
    assert reading.values["temperature_celsius"][1:] == [None] * 4


# -- text ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def captures(shared: Path) -> list[Path]:
    files = sorted((shared / "recordings" / "smi_captures").glob("*.txt"))
    assert len(files) == 9
    return files


def csv_of(capture: Path, folder: Path) -> Iterator[Path]:
    """Take the two CSV tables out of a capture."""
    for state in ("idle", "load"):
        lines = capture.read_text().split("\n")
        begin = next(
            i for i, line in enumerate(lines) if line.startswith(f"# {state} :: query-gpu")
        )
        begin = next(i for i in range(begin, len(lines)) if lines[i].startswith("timestamp"))
        path = folder / f"{capture.stem}.{state}.csv"
        path.write_text("\n".join(lines[begin : begin + 2]) + "\n")
        yield path


# What moves between the two calls may move so far; everything else must be equal.
MOVES = {
    "temperature_celsius": 4.0,
    "memory_temperature_celsius": 4.0,
    "temperature_margin_celsius": 4.0,
    "power_watts": 60.0,
    "power_instant_watts": 60.0,
    "gpu_utilization_ratio": 0.1,
    "memory_utilization_ratio": 0.1,
    "encoder_utilization_ratio": 0.1,
    "decoder_utilization_ratio": 0.1,
    "memory_used_bytes": 128.0 * MIB,
    "memory_free_bytes": 128.0 * MIB,
    "sm_clock_hertz": 500e6,
    "memory_clock_hertz": 405e6,
    "fan_ratio": 0.05,
    "throttle_power_cap_seconds_total": 30.0,
    # An idle card turns from "held by the power cap" to "idle" between two calls.
    "clock_event_reasons": 3.0,
}


def test_the_text_of_every_capture_gives_what_its_csv_gives(
    captures: list[Path], tmp_path: Path
) -> None:
    compared = 0
    for capture in captures:
        from_text, source = imported(capture)
        assert source.stats.damaged == 0, source.stats.complaints
        assert len(from_text) == 2
        for text, path in zip(from_text, csv_of(capture, tmp_path), strict=True):
            table = only(path)
            assert text.inventory.driver_version == table.inventory.driver_version
            assert facts(text).model == facts(table).model
            assert facts(text).mig_mode == facts(table).mig_mode
            for metric, column in table.values.items():
                if metric == "recovery_action" and metric not in text.values:
                    continue  # older drivers have it in the table only
                found = text.values[metric][0]
                (expected,) = column
                assert found == pytest.approx(expected, abs=MOVES.get(metric, 0.0), rel=1e-12), (
                    capture.name,
                    metric,
                )
                compared += 1
            extra = set(text.values) - set(table.values)
            assert extra <= {"pcie_replay_total", "bar1_used_bytes", "temperature_margin_celsius"}
    assert compared > 400


def test_mig_instances_of_a_capture_hold_the_memory_that_the_gpu_has_in_use(
    captures: list[Path],
) -> None:
    seen = 0
    for capture in captures:
        for reading in imported(capture)[0]:
            if "-mig__" not in capture.name:
                assert not reading.parents
                continue
            seen += 1
            used, total = reading.values["memory_used_bytes"], reading.values["memory_total_bytes"]
            assert len(reading.parents) in {4, 5}
            assert used[0] is not None
            assert total[0] is not None
            of_instances = {
                name.split("/")[-2]: value
                for name, value in zip(reading.gpus[1:], used[1:], strict=True)
            }
            assert sum(value or 0.0 for value in of_instances.values()) == pytest.approx(
                used[0], rel=0.05, abs=200.0 * MIB
            )
            assert all(value is not None and value < total[0] for value in total[1:])
    assert seen == 4


def test_the_scrape_of_a_capture_gives_what_its_csv_gives(
    captures: list[Path], shared: Path, tmp_path: Path
) -> None:
    scrapes = sorted((shared / "recordings" / "scrapes").glob("*.prom"))
    assert len(scrapes) == 3
    for scrape in scrapes:
        reading = only(scrape)
        (capture,) = [file for file in captures if file.stem in scrape.name]
        *_, load = csv_of(capture, tmp_path)
        table = only(load)
        assert facts(reading).model == facts(table).model
        same = set(reading.values) & set(table.values)
        assert len(same) >= 20
        assert "power_watts" in same
        for metric in same:
            assert reading.values[metric] == pytest.approx(table.values[metric]), metric
        assert set(reading.values) <= set(table.values), "a number from nowhere"


def test_the_monitor_mode_of_a_capture_agrees_with_its_status(
    captures: list[Path], tmp_path: Path
) -> None:
    for capture in captures:
        _, load = imported(capture)[0]
        text = capture.read_text()
        section = text[text.index("# load :: dmon") :].split("\n\n")[0]
        path = tmp_path / f"{capture.stem}.dmon"
        path.write_text(section[section.index("\n# gpu") :])
        rows, source = imported(path)
        assert len(rows) == 5
        assert source.stats.damaged == 0
        assert [row.ts - rows[0].ts for row in rows] == [0, 1000, 2000, 3000, 4000]
        for row in rows:
            for metric in ("sm_clock_hertz", "memory_clock_hertz"):
                assert row.values[metric][0] == pytest.approx(load.values[metric][0], rel=0.2)
            limit = load.values["power_limit_watts"][0]
            watts = row.values["power_watts"][0]
            assert watts is not None
            assert limit is not None
            assert 0.0 < watts <= 1.05 * limit
            if "gpu_utilization_ratio" not in load.values:  # divided into instances
                assert "gpu_utilization_ratio" not in row.values


def test_a_status_of_retired_pages_alone_is_read_by_bus_address(shared: Path) -> None:
    bad = only(shared / "recordings" / "text" / "azure_bad_nvsmi8_output.txt")
    domains = [int(gpu.pci.partition(":")[0], 16) for gpu in bad.inventory.gpus if gpu.pci]
    table = {
        domain: tuple(bad.values[metric][place] for metric in (
            "retired_pages_single_bit_total",
            "retired_pages_double_bit_total",
            "retired_pages_pending",
        ))
        for place, domain in enumerate(domains)
    }  # fmt: skip
    assert table == {
        1: (60, 5, 0), 2: (2, 61, 1), 3: (0, 0, 0), 4: (6, 0, 1),
        5: (0, 0, 0), 6: (20, 45, 1), 7: (0, 0, 0), 8: (8, 56, 1),
    }  # fmt: skip
    good = only(shared / "recordings" / "text" / "azure_orig_nvsmi8_output.txt")
    assert all(set(column) == {0.0} for column in good.values.values())


# -- profiles --------------------------------------------------------------------------------


def test_every_profile_gives_its_devices(shared: Path) -> None:
    files = sorted((shared / "recordings" / "nvml_profiles").glob("*.yaml"))
    assert len(files) == 6
    watts = {"a100": 400, "b200": 1000, "gb200": 1000, "h100": 700, "l40s": 350, "t4": 70}
    for file in files:
        reading = only(file)
        model = file.stem.rpartition("-")[2]
        limits = reading.values["power_limit_watts"]
        assert limits == [watts[model]] * len(reading.gpus)
        text = file.read_text()
        for metric, key, factor in (
            ("memory_total_bytes", "total_bytes", 1.0),
            ("temperature_celsius", "temperature_gpu_c", 1.0),
            ("power_watts", "current_draw_mw", 1e-3),
            ("sm_clock_max_hertz", "sm_max", 1e6),
        ):
            match = re.search(rf"^ *{key}: (\d+)", text, re.MULTILINE)
            assert match is not None
            assert reading.values[metric][0] == pytest.approx(float(match[1]) * factor)
        assert sorted(reading.gpus) == sorted(re.findall(r'uuid: "(GPU-[^"]+)"', text))
        assert facts(reading).threshold_kind == "absolute"
