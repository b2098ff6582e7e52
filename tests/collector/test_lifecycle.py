"""The cases of ``lifecycle.json``: identity, loss and return of devices and drivers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collector.host import HostFiles
from collector.nvml import NvmlSource
from collector.source import Reading
from schemas.pci import canonical_pci
from tests.collector.fake_nvml import Err, FakeGpu, FakeNvml

T0 = 1_790_000_000_000


@pytest.fixture
def case(shared: Path) -> Any:
    cases = json.loads((shared / "cases" / "lifecycle.json").read_text())
    return {item["id"]: item for item in cases}.__getitem__


@pytest.fixture
def host(tmp_path: Path) -> HostFiles:
    """A node with eight GPUs of ours and a sound device of theirs on the PCI bus."""
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC\n"
    )
    uptime = tmp_path / "uptime"
    uptime.write_text("1234.56 999.00\n")
    devices = tmp_path / "pci"
    for number in range(8):
        add_pci(devices, f"0000:{number:02x}:00.0", "0x10de", "0x030200")
    add_pci(devices, "0000:09:00.1", "0x10de", "0x040300")
    add_pci(devices, "0000:0a:00.0", "0x1a03", "0x030000")
    return HostFiles(
        boot_id=tmp_path / "none", uptime=uptime, driver_version=version, pci_devices=devices
    )


def add_pci(devices: Path, address: str, vendor: str, kind: str) -> None:
    folder = devices / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")


def read(source: NvmlSource, tick: int = 0) -> Reading:
    (reading,) = source.read(T0 + tick * 1000)
    return reading


def make(nvml: FakeNvml, host: HostFiles) -> NvmlSource:
    return NvmlSource(nvml, node="n1", host=host)  # type: ignore[arg-type]


def kinds(reading: Reading) -> list[tuple[str, str | None]]:
    return [(str(event.kind), event.gpu) for event in reading.events]


def test_l01_one_pci_address_in_several_spellings(case: Any) -> None:
    given = case("L01")["input"]
    for one, other in given["equal_pairs"]:
        assert canonical_pci(one) is not None
        assert canonical_pci(one) == canonical_pci(other)
    for one, other in given["different_pairs"]:
        assert canonical_pci(one) != canonical_pci(other)
    assert canonical_pci("not an address") is None


def test_l01_the_inventory_carries_the_canonical_address(host: HostFiles) -> None:
    reading = read(make(FakeNvml(FakeGpu("GPU-A", bus="00008ED0:00:00.0")), host))
    assert reading.inventory.gpus[0].pci == "8ed0:00:00.0"


def test_l03_versions_that_differ_are_a_state_of_the_host(case: Any, host: HostFiles) -> None:
    given = case("L03")["input"]
    nvml = FakeNvml(
        system={"nvmlInit": Err(18), "nvmlSystemGetNVMLVersion": given["library_version"]}
    )
    source = make(nvml, host)
    for tick in range(300):
        reading = read(source, tick)
        assert reading.state == "version_mismatch"
        assert reading.nvml_error == 18
        assert reading.gpus == ()
        assert reading.events == ()
        assert reading.inventory.driver_version == given["driver_version"]
        assert reading.inventory.nvml_version == given["library_version"]
        assert reading.inventory.expected_gpus == given["expected_gpus"]
    # Pauses of 1, 2, 4 ... 60 s: nine attempts in five minutes instead of 300.
    assert 5 <= nvml.counts["nvmlInit"] <= 12


def test_l03_the_driver_comes_back_without_a_restart(host: HostFiles) -> None:
    nvml = FakeNvml(FakeGpu("GPU-A"), system={"nvmlInit": Err(9)})
    source = make(nvml, host)
    assert read(source, 0).state == "no_driver"
    del nvml.system["nvmlInit"]
    assert read(source, 0).state == "no_driver"  # the pause is not over
    reading = read(source, 2)
    assert reading.state == "ok"
    assert reading.gpus == ("GPU-A",)
    assert kinds(reading) == [("driver_changed", None)]


@pytest.mark.parametrize(
    ("code", "state"),
    [(12, "no_library"), (9, "no_driver"), (4, "no_permission"), (999, "blind"), (77, "blind")],
)
def test_l03_every_reason_not_to_attach_has_its_state(
    code: int, state: str, host: HostFiles
) -> None:
    reading = read(make(FakeNvml(system={"nvmlInit": Err(code)}), host))
    assert (reading.state, reading.nvml_error) == (state, code)


def test_l05_a_lost_gpu_keeps_its_uuid_and_hides_nobody(case: Any, host: HostFiles) -> None:
    given = case("L05")["input"]
    lost, well = (FakeGpu(uuid) for uuid in given["known_gpus"])
    well.calls["nvmlDeviceGetTemperatureV"] = 40
    source = make(FakeNvml(lost, well), host)
    before = read(source, 0)
    assert before.events == ()
    lost.everything = Err(15)
    for tick in (1, 2):
        reading = read(source, tick)
        assert reading.state == "ok"
        assert reading.gpus == ("GPU-0", "GPU-1")
        assert kinds(reading) == ([("gpu_lost", "GPU-0")] if tick == 1 else [])
        assert set(reading.values) == set(before.values)
        for name, column in reading.values.items():
            assert column[0] is None
            assert column[1] == before.values[name][1]
            assert reading.status[name] == {0: "error:15"}
        assert reading.inventory.gpus[0].model == "NVIDIA H100 80GB HBM3"
    lost.everything = None
    reading = read(source, 3)
    assert kinds(reading) == [("gpu_returned", "GPU-0")]
    assert reading.values["temperature_celsius"] == [40.0, 40.0]
    assert reading.status == before.status


def test_l05_a_gpu_lost_in_the_middle_of_a_reading_is_lost_throughout(host: HostFiles) -> None:
    gpu = FakeGpu("GPU-0")
    source = make(FakeNvml(gpu, FakeGpu("GPU-1")), host)
    read(source, 0)
    for fault in ("nvmlDeviceGetClockInfo", "nvmlDeviceGetFieldValues", "nvmlDeviceGetNvLinkState"):
        gpu.calls[fault] = Err(15)
        reading = read(source, 1)
        assert {codes[0] for codes in reading.status.values()} == {"error:15"}
        assert all(column[0] is None for column in reading.values.values())
        assert kinds(reading) == [("gpu_lost", "GPU-0")]
        del gpu.calls[fault]
        assert kinds(read(source, 2)) == [("gpu_returned", "GPU-0")]


def test_l05_the_only_gpu_lost_is_lost_not_blind(host: HostFiles) -> None:
    gpu = FakeGpu("GPU-0")
    source = make(FakeNvml(gpu), host)
    read(source, 0)
    gpu.everything = Err(15)
    reading = read(source, 1)
    assert reading.state == "ok"
    assert reading.gpus == ("GPU-0",)
    assert kinds(reading) == [("gpu_lost", "GPU-0")]


def test_one_gpu_with_another_fault_stays_with_its_code(host: HostFiles) -> None:
    gpu = FakeGpu("GPU-0")
    source = make(FakeNvml(gpu, FakeGpu("GPU-1")), host)
    read(source, 0)
    gpu.everything = Err(999)
    reading = read(source, 1)
    assert reading.state == "ok"
    assert reading.status["temperature_celsius"] == {0: "error:999"}
    assert reading.events == ()


@pytest.mark.parametrize("code", [999, 15, 1])
def test_all_gpus_failing_at_once_is_one_event_of_the_host(code: int, host: HostFiles) -> None:
    gpus = [FakeGpu(f"GPU-{i}") for i in range(8)]
    nvml = FakeNvml(*gpus)
    source = make(nvml, host)
    read(source, 0)
    for gpu in gpus:
        gpu.everything = Err(code)
    reading = read(source, 1)
    assert (reading.state, reading.nvml_error) == ("blind", code)
    assert reading.gpus == ()
    assert reading.events == ()
    assert len(reading.inventory.gpus) == 8
    for gpu in gpus:
        gpu.everything = None
    states = [read(source, tick).state for tick in range(2, 8)]
    assert states[-1] == "ok"
    assert read(source, 9).gpus == tuple(gpu.uuid for gpu in gpus)


def test_l07_series_follow_the_uuid_when_indices_move(case: Any, host: HostFiles) -> None:
    first = case("L07")["input"]["polls"][0]
    gpus = [
        FakeGpu(item["uuid"], calls={"nvmlDeviceGetTemperatureV": item["temperature_celsius"]})
        for item in first.values()
    ]
    nvml = FakeNvml(*gpus)
    source = make(nvml, host)
    before = read(source, 0)
    assert dict(zip(before.gpus, before.values["temperature_celsius"], strict=True)) == {
        "GPU-A": 70,
        "GPU-B": 40,
    }
    nvml.gpus.pop(0)
    after = read(source, 1)
    assert after.gpus == ("GPU-B",)
    assert after.values["temperature_celsius"] == [40.0]
    assert after.inventory.expected_gpus == 8
    assert after.inventory.gpus[0].index == 0
    assert after.events == ()


def test_expected_gpus_come_from_the_settings_or_the_bus(host: HostFiles) -> None:
    nvml: Any = FakeNvml(FakeGpu("GPU-A"))
    assert read(NvmlSource(nvml, node="n", host=host)).inventory.expected_gpus == 8
    told = NvmlSource(nvml, node="n", host=host, expected_gpus=4)
    assert read(told).inventory.expected_gpus == 4
    bare = HostFiles(pci_devices=Path("/nonexistent"))
    assert read(NvmlSource(nvml, node="n", host=bare)).inventory.expected_gpus is None
