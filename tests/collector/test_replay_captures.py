"""Every capture of nvidia-smi gives the same numbers from its CSV as from its text form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from collector.source import Reading

CAPTURES = 9
STATES = ("idle", "load")
MIB = 2**20
CEILING = "GPU Ceiling Power Limit"  # driver 610 puts the limits one heading deeper


@dataclass(frozen=True)
class Capture:
    """One state of one capture: the imported CSV and the text form by section path."""

    name: str
    reading: Reading
    text: dict[str, str]

    def value(self, metric: str) -> float | None:
        column = self.reading.values.get(metric)
        return None if column is None else column[0]

    def number(self, path: str) -> float | None:
        match = re.match(r"-?[\d.]+", self.text[path])
        return float(match[0]) if match else None


def sections(text: str) -> dict[str, list[str]]:
    """Split a capture into its sections by title."""
    lines = text.split("\n")
    marks = [i for i, line in enumerate(lines) if re.match(r"# \w+ :: ", line)]
    found = {}
    for begin, end in zip(marks, [*marks[1:], len(lines)], strict=True):
        bar = next(i for i in range(begin, end) if lines[i].startswith("####"))
        found[lines[begin][2:]] = lines[bar + 1 : end - 1]
    return found


def query_text(lines: list[str]) -> dict[str, str]:
    """Read the text form: values by path of indented headings."""
    stack: list[tuple[int, str]] = []
    found: dict[str, str] = {}
    for line in lines:
        indent = len(line) - len(line.lstrip())
        name, colon, value = line.strip().partition(" : ")
        while stack and stack[-1][0] >= indent:
            stack.pop()
        path = "/".join([*(heading for _, heading in stack if heading != CEILING), name.strip()])
        if colon:
            found.setdefault(path, value.strip())
        stack.append((indent, name.strip()))
    return {
        path.split("/", 1)[-1] if path.startswith("GPU 0") else path: v for path, v in found.items()
    }


def csv_lines(found: dict[str, list[str]], state: str) -> list[str]:
    return [
        line
        for line in found[f"{state} :: query-gpu (csv, what the exporter parses)"]
        if line and line[0] != "#"
    ]


def captures(shared: Path, tmp_path: Path) -> Iterator[Capture]:
    files = sorted((shared / "recordings" / "smi_captures").glob("*.txt"))
    assert len(files) == CAPTURES
    for file in files:
        found = sections(file.read_text())
        for state in STATES:
            copy = tmp_path / f"{file.stem}.{state}.csv"
            copy.write_text("\n".join(csv_lines(found, state)) + "\n")
            source = ReplaySource(ReplaySettings(files=(copy,)))
            readings = source.read(0)
            assert source.exhausted, copy.name
            assert source.stats.damaged == 0, source.stats.complaints
            assert len(readings) == 1
            yield Capture(copy.name, readings[0], query_text(found[f"{state} :: query (-q)"]))


@pytest.fixture
def every(shared: Path, tmp_path: Path) -> list[Capture]:
    return list(captures(shared, tmp_path))


# Metric, path in the text form, factor, and how far the two may lie apart: they are read some
# seconds after each other, so what moves may have moved.
COMPARED = [
    ("temperature_celsius", "Temperature/GPU Current Temp", 1, 4.0),
    ("memory_temperature_celsius", "Temperature/Memory Current Temp", 1, 4.0),
    ("temperature_margin_celsius", "Temperature/GPU T.Limit Temp", 1, 4.0),
    ("power_instant_watts", "GPU Power Readings/Instantaneous Power Draw", 1, 60.0),
    ("power_limit_watts", "GPU Power Readings/Current Power Limit", 1, 0.0),
    ("power_default_limit_watts", "GPU Power Readings/Default Power Limit", 1, 0.0),
    ("gpu_utilization_ratio", "Utilization/GPU", 0.01, 0.1),
    ("memory_utilization_ratio", "Utilization/Memory", 0.01, 0.1),
    ("encoder_utilization_ratio", "Utilization/Encoder", 0.01, 0.1),
    ("memory_total_bytes", "FB Memory Usage/Total", MIB, 0.0),
    ("memory_reserved_bytes", "FB Memory Usage/Reserved", MIB, 0.0),
    ("memory_used_bytes", "FB Memory Usage/Used", MIB, 128.0 * MIB),
    ("memory_free_bytes", "FB Memory Usage/Free", MIB, 128.0 * MIB),
    # An idle GeForce leaves its lowest clocks between the two readings.
    ("sm_clock_hertz", "Clocks/SM", 1e6, 500e6),
    ("memory_clock_hertz", "Clocks/Memory", 1e6, 405e6),
    ("sm_clock_max_hertz", "Max Clocks/SM", 1e6, 0.0),
    ("fan_ratio", "Fan Speed", 0.01, 0.05),
    ("performance_state", "Performance State", 1, 0.0),
    ("pcie_width_lanes", "PCI/GPU Link Info/Link Width/Current", 1, 0.0),
    ("pcie_generation", "PCI/GPU Link Info/PCIe Generation/Current", 1, 0.0),
    ("remapped_rows_correctable_total", "Remapped Rows/Correctable Error", 1, 0.0),
    (
        "throttle_power_cap_seconds_total",
        "Clocks Event Reasons Counters/SW Power Capping",
        1e-6,
        30.0,
    ),
]


def test_every_capture_has_two_states(every: list[Capture]) -> None:
    assert len(every) == len(STATES) * CAPTURES


@pytest.mark.parametrize(("metric", "path", "factor", "tolerance"), COMPARED)
def test_csv_agrees_with_the_text_form(
    every: list[Capture], metric: str, path: str, factor: float, tolerance: float
) -> None:
    seen = 0
    for capture in every:
        value = capture.value(metric)
        if metric == "performance_state":
            expected: float | None = float(capture.text[path].removeprefix("P"))
        else:
            expected = capture.number(path) if path in capture.text else None
        if expected is None:
            assert value is None, (capture.name, metric)
            continue
        seen += 1
        assert value == pytest.approx(expected * factor, abs=tolerance, rel=1e-12), capture.name
    assert seen >= 2


def test_absent_values_are_left_out_when_no_gpu_offers_them(every: list[Capture]) -> None:
    mig = [capture for capture in every if "mig" in capture.name]
    assert len(mig) == 4
    assert all("gpu_utilization_ratio" not in capture.reading.values for capture in mig)
    assert all(capture.reading.inventory.gpus[0].mig_mode for capture in mig)


def test_inventory_names_model_bus_and_driver(every: list[Capture]) -> None:
    for capture in every:
        (gpu,) = capture.reading.inventory.gpus
        assert gpu.model == capture.text["Product Name"]
        assert gpu.vbios == capture.text["VBIOS Version"]
        assert gpu.pci == capture.text["PCI/Bus Id"]
        assert gpu.index == 0
        assert capture.reading.inventory.driver_version in capture.name


def test_a_masked_uuid_of_zeros_is_no_identity(every: list[Capture]) -> None:
    assert all("00000000-0000" not in capture.reading.gpus[0] for capture in every)


def test_whole_mask_and_single_reasons_agree(shared: Path, tmp_path: Path) -> None:
    masks = 0
    for capture in captures(shared, tmp_path):
        original = tmp_path / capture.name
        header, row = (line.split(", ") for line in original.read_text().strip().split("\n"))
        kept = [i for i, name in enumerate(header) if name != "clocks_event_reasons.active"]
        single = tmp_path / f"single-{capture.name}"
        single.write_text(
            "".join(", ".join(line[i] for i in kept) + "\n" for line in (header, row))
        )
        (reading,) = ReplaySource(ReplaySettings(files=(single,))).read(0)
        whole = capture.value("clock_event_reasons")
        assert whole is not None
        assert reading.values["clock_event_reasons"] == [whole], capture.name
        masks |= int(whole)
    assert masks & 0x5 == 0x5  # idle and the power cap both occur in the captures
