"""What people copy from a terminal imports to the values that the full status has."""

from __future__ import annotations

from pathlib import Path

import pytest

from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from collector.source import Reading

MIB = 2**20


def imported(path: Path) -> list[Reading]:
    source = ReplaySource(ReplaySettings(files=(path,)))
    found = []
    while not source.exhausted:
        found += source.read(0)
    assert source.stats.damaged == 0, source.stats.complaints
    return found


def section(capture: Path, title: str, folder: Path) -> Path:
    lines = capture.read_text().split("\n")
    begin = lines.index(f"# {title}")
    bar = next(n for n in range(begin, len(lines)) if lines[n].startswith("####"))
    end = next(n for n in range(bar + 1, len(lines)) if lines[n].startswith("####"))
    path = folder / f"{capture.stem}.{title.split(maxsplit=1)[0]}.txt"
    path.write_text("\n".join(lines[bar + 1 : end]) + "\n")
    return path


def test_the_table_of_every_capture_agrees_with_its_status(shared: Path, tmp_path: Path) -> None:
    captures = sorted((shared / "recordings" / "smi_captures").glob("*.txt"))
    compared = 0
    for capture in captures:
        for state, status in zip(("idle", "load"), imported(capture), strict=True):
            path = section(capture, f"{state} :: nvidia-smi (default table)", tmp_path)
            (table,) = imported(path)
            assert table.inventory.driver_version == status.inventory.driver_version
            assert abs(table.ts - status.ts) < 60_000
            for metric, spread in (
                ("temperature_celsius", 4.0),
                ("power_watts", 60.0),
                ("power_limit_watts", 0.5),
                ("memory_used_bytes", 700.0 * MIB),  # the table may count what is reserved
                ("memory_total_bytes", 1.0 * MIB),
                ("gpu_utilization_ratio", 0.3),
                ("fan_ratio", 0.05),
                ("performance_state", 5.0),
            ):
                expected = status.values.get(metric, [None])[0]
                found = table.values.get(metric, [None])[0]
                if expected is None:
                    assert found is None, (capture.name, metric)
                else:
                    compared += 1
                    assert found == pytest.approx(expected, abs=spread), (capture.name, metric)
    assert compared > 100


def test_a_table_of_two_cards_is_two_gpus(shared: Path) -> None:
    (reading,) = imported(shared / "recordings" / "text" / "asus_bifurcation_nvidia-smi.log")
    assert reading.values["temperature_celsius"] == [30.0, 33.0]
    assert reading.values["power_watts"] == [29.0, 22.0]
    assert reading.values["power_limit_watts"] == [400.0, 400.0]
    assert reading.values["fan_ratio"] == [0.0, 0.0]
    assert reading.values["memory_used_bytes"] == [1583 * MIB] * 2
    assert [gpu.pci for gpu in reading.inventory.gpus] == ["00000000:01:00.0", "00000000:03:00.0"]
    assert [gpu.index for gpu in reading.inventory.gpus] == [0, 1]
    assert reading.ts == 1_769_870_165_000  # Sat Jan 31 14:36:05 2026


def test_links_are_counted_whether_up_down_or_unknown(shared: Path, tmp_path: Path) -> None:
    text = shared / "recordings" / "text"
    (good,) = imported(text / "azure_good_nvlink_status.txt")
    assert good.values == {"nvlink_active_links": [12.0]}
    assert good.inventory.gpus[0].nvlink_links == 12
    (bad,) = imported(text / "azure_bad_nvlink_status.txt")
    assert bad.values == {"nvlink_active_links": [0.0]}
    (eight,) = imported(shared / "recordings" / "kernel" / "gpud_nvlink_status_a100.txt")
    assert eight.values["nvlink_active_links"] == [12.0] * 8
    some = (text / "azure_good_nvlink_status.txt").read_text()
    path = tmp_path / "some.txt"
    path.write_text(some.replace("Link 3: 25 GB/s", "Link 3: <inactive>"))
    (reading,) = imported(path)
    assert reading.values["nvlink_active_links"] == [11.0]
    assert reading.inventory.gpus[0].nvlink_links == 12


def test_a_list_that_comes_again_is_the_next_reading(shared: Path, tmp_path: Path) -> None:
    once = (shared / "recordings" / "text" / "azure_good_nvlink_status.txt").read_text()
    path = tmp_path / "twice.txt"
    path.write_text(once + once)
    assert [reading.values["nvlink_active_links"] for reading in imported(path)] == [[12.0]] * 2
