"""The collector on a real NVIDIA GPU: agreement with nvidia-smi, cost, letting go."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.nvmlparent import NvmlChildSource
from collector.nvmlwire import ChildSettings
from collector.source import Reading
from collector.truth import refuse_impossible
from schemas.pci import canonical_pci

pytestmark = pytest.mark.gpu

T0 = time.time_ns() // 1_000_000
MIB = 2**20
# Query of nvidia-smi to (metric, factor to the base unit, tolerance relative and absolute in that
# unit): two programs cannot ask at the same instant.
AGREEMENT: dict[str, tuple[str, float, float, float]] = {
    "temperature.gpu": ("temperature_celsius", 1.0, 0.0, 3.0),
    "power.draw": ("power_watts", 1.0, 0.15, 15.0),
    "power.limit": ("power_limit_watts", 1.0, 0.0, 0.01),
    "power.default_limit": ("power_default_limit_watts", 1.0, 0.0, 0.01),
    "memory.total": ("memory_total_bytes", MIB, 0.0, MIB),
    "memory.used": ("memory_used_bytes", MIB, 0.02, 64 * MIB),
    "memory.reserved": ("memory_reserved_bytes", MIB, 0.0, 2 * MIB),
    "utilization.gpu": ("gpu_utilization_ratio", 0.01, 0.0, 0.25),
    "clocks.max.sm": ("sm_clock_max_hertz", 1e6, 0.0, 1.0),
    "clocks.max.memory": ("memory_clock_max_hertz", 1e6, 0.0, 1.0),
    "clocks.sm": ("sm_clock_hertz", 1e6, 0.3, 600e6),
    "pcie.link.width.current": ("pcie_width_lanes", 1.0, 0.0, 0.0),
    "fan.speed": ("fan_ratio", 0.01, 0.0, 0.1),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected_total", 1.0, 0.0, 0.0),
    "ecc.errors.corrected.aggregate.total": ("ecc_corrected_aggregate_total", 1.0, 0.0, 0.0),
    "retired_pages.double_bit.count": ("retired_pages_double_bit_total", 1.0, 0.0, 0.0),
}


@pytest.fixture(scope="module")
def readings() -> Iterator[list[Reading]]:
    """Five readings a second apart of the GPUs of this machine."""
    if not Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is None:
        pytest.skip("this machine has no NVIDIA GPU with its driver and nvidia-smi")
    source = NvmlChildSource(ChildSettings(node="n1", slow_seconds=0.0))
    try:
        found = []
        for tick in range(5):
            found += source.read(T0 + tick * 1000)
            time.sleep(1.0)
        yield found
    finally:
        source.close()


def smi(*queries: str) -> dict[str, dict[str, str]]:
    """Ask nvidia-smi; answers by UUID."""
    wanted = ",".join(("uuid", "pci.bus_id", *queries))
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={wanted}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [[cell.strip() for cell in row] for row in csv.reader(done.stdout.splitlines())]
    return {row[0]: dict(zip(("pci.bus_id", *queries), row[1:], strict=True)) for row in rows}


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # absence has many spellings


def test_every_gpu_of_nvidia_smi_is_read(readings: list[Reading]) -> None:
    last = readings[-1]
    assert last.state == "ok"
    listed = smi()
    assert set(listed) == {gpu for gpu in last.gpus if gpu not in last.parents}
    for facts in last.inventory.gpus:
        if facts.parent is None:
            assert facts.pci == canonical_pci(listed[facts.gpu]["pci.bus_id"])
            assert facts.model


@pytest.mark.parametrize("query", AGREEMENT)
def test_values_agree_with_nvidia_smi(query: str, readings: list[Reading]) -> None:
    metric, factor, relative, absolute = AGREEMENT[query]
    last = readings[-1]
    for uuid, row in smi(query).items():
        wanted = number(row[query])
        column = last.values.get(metric)
        got = None if column is None else column[last.gpus.index(uuid)]
        if wanted is None:
            continue  # what nvidia-smi cannot say the collector may still know
        assert got is not None, f"{query}={row[query]}, {last.status.get(metric)}"
        assert got == pytest.approx(wanted * factor, rel=relative, abs=absolute)


def test_nothing_of_a_healthy_gpu_is_refused_or_fails(readings: list[Reading]) -> None:
    for reading in readings[1:]:
        assert refuse_impossible(reading)[1] == {}
        assert {
            code
            for codes in reading.status.values()
            for code in codes.values()
            if code.startswith("error")
        } == set()


def test_counters_grow_and_a_reading_is_quick(readings: list[Reading]) -> None:
    energy = [reading.values["energy_joules_total"][0] for reading in readings]
    known = [joules for joules in energy if joules is not None]
    assert known == sorted(known)
    latency = [reading.values["driver_latency_seconds"][0] for reading in readings[1:]]
    assert all(seconds is None or seconds < 1.0 for seconds in latency)


def test_after_a_release_no_process_of_ours_holds_the_devices() -> None:
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has no NVIDIA GPU with its driver")
    source = NvmlChildSource(ChildSettings(node="n1"))
    try:
        assert source.read(T0)[0].state == "ok"
        source.release(60.0)
        held = [
            link
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and is_child_of_ours(int(entry.name))
            for link in open_files(int(entry.name))
            if link.startswith("/dev/nvidia")
        ]
        assert held == []
        source.take_back()
        assert source.read(T0 + 1000)[0].state == "ok"
    finally:
        source.close()


def open_files(pid: int) -> list[str]:
    try:
        return [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


def is_child_of_ours(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return f"PPid:\t{os.getpid()}\n" in status
