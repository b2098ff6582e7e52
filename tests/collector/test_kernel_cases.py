"""The cases of kernel.json: what the reader of the kernel log must make of real lines."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from collector.echoes import placed_events
from collector.host import HostFiles
from collector.kernel.lines import Fact, MessageReader
from collector.kernel.log import KernelLog
from collector.kernel.stamps import Prefixes
from collector.kernel.tail import FileFeed
from detector.xid import graded, xid_of
from schemas.sample import GpuInventory, Inventory, SampleEvent

NOW_MS = 1_790_000_000_000
Case = dict[str, Any]  # a case is free-form JSON


@pytest.fixture
def cases(shared: Path) -> dict[str, Case]:
    found = json.loads((shared / "cases" / "kernel.json").read_text())
    return {case["id"]: case for case in found}


def facts(lines: list[str]) -> list[Fact]:
    """Read lines as the log's reader does, each message by itself."""
    prefixes, reader = Prefixes(), MessageReader()
    found = []
    for line in lines:
        stamped = prefixes.take(line, now_ms=NOW_MS, boot_ms=NOW_MS - 10**9)
        if stamped is not None:
            found += [reader.read(message) for message in stamped.message.split("\n")]
    return [fact for fact in found if fact is not None]


def events(path: Path, tmp_path: Path) -> list[SampleEvent]:
    """Read a whole recorded log through the file reader, as if it were written now."""
    log = tmp_path / "kern.log"
    log.touch()
    source = KernelLog(FileFeed(log), host=HostFiles(uptime=tmp_path / "none"))
    with contextlib.closing(source):
        assert source.poll(NOW_MS) == []
        log.write_bytes(path.read_bytes())
        found = source.poll(NOW_MS)
        assert source.health()["malformed"] == 0
        return found


def recorded(shared: Path, case: Case) -> list[Path]:
    return [shared / "cases" / name for name in case["input"]["recordings"]]


def test_x01_every_line_gives_its_code_and_its_address(cases: dict[str, Case]) -> None:
    case = cases["X01"]
    expect = case["expect"]["collector"]
    found = [facts([line]) for line in case["input"]["lines"]]
    assert [len(one) for one in found] == [1] * len(expect["codes"])
    one_each = [one[0] for one in found]
    assert [fact.code for fact in one_each] == expect["codes"]
    assert [fact.pci for fact in one_each] == expect["bus"]
    for part, name in (
        ("gpu_instance", "gpu_instance"),
        ("compute_instance", "compute_instance"),
    ):
        said = {
            str(place): value
            for place, fact in enumerate(one_each)
            if (value := getattr(fact, name)) is not None
        }
        assert said == expect[part]
    for place, process in expect["process_name"].items():
        assert one_each[int(place)].process == process


def test_x01_messages_without_a_number_are_a_gpu_off_the_bus(cases: dict[str, Case]) -> None:
    for line in cases["X01"]["input"]["lines_without_a_number"]:
        for lines in ([line], line.split("\n")):  # one record, or one line each
            (fact,) = facts(lines)
            assert (fact.kind, fact.pci, fact.code) == ("kernel", "0000:41:00", None)
            event = SampleEvent(ts=0, kind=fact.kind, message=fact.message)
            assert xid_of(event) == 79


def test_x01_every_recorded_variant_gives_a_code_and_an_address(
    cases: dict[str, Case], shared: Path
) -> None:
    variants = recorded(shared, cases["X01"])[0].read_text().splitlines()
    rows = [line.split("\t") for line in variants if not line.startswith("#")]
    assert len(rows) == 85
    for _, _, line in rows:
        (fact,) = facts([line])
        assert fact.kind == "xid"
        assert f"): {fact.code}" in line
        assert fact.pci in line
    assert 99999 in {fact.code for _, _, line in rows for fact in facts([line])}


def test_x01_all_five_firmware_timeouts_of_the_recorded_log_are_found(
    cases: dict[str, Case], shared: Path, tmp_path: Path
) -> None:
    found = events(recorded(shared, cases["X01"])[1], tmp_path)
    assert sum(event.count for event in found if event.xid == 119) == 5
    assert {event.xid for event in found} == {119}


def test_x03_a_burst_of_an_application_is_one_record_with_a_count(
    cases: dict[str, Case], shared: Path, tmp_path: Path
) -> None:
    (path,) = recorded(shared, cases["X03"])
    found = events(path, tmp_path)
    assert {event.xid: event.count for event in found} == {13: 16, 43: 1}
    log = tmp_path / "storm.log"
    log.touch()
    source = KernelLog(FileFeed(log), host=HostFiles(uptime=tmp_path / "none"))
    assert source.poll(NOW_MS) == []
    storm = cases["X03"]["input"]["events"][0]
    line = "NVRM: Xid (PCI:0000:41:00): 45, pid=77, name=trainer, Ch 00000004\n"
    log.write_text(line * storm["count"])
    heard = [event for _ in range(4) for event in source.poll(NOW_MS)]
    assert sum(event.count for event in heard) == storm["count"]
    assert len(heard) <= 2
    source.close()
    for code in cases["X03"]["input"]["application_codes"]:
        assert graded(code).severity == "info"


def test_x09_the_line_names_gpu_and_caller(cases: dict[str, Case]) -> None:
    case = cases["X09"]
    expect = case["expect"]["collector"]
    (fact,) = facts([case["input"]["line"]])
    assert (fact.code, fact.pci) == (expect["xid"], expect["bus"])
    assert (fact.pid, fact.process) == (expect["pid"], expect["process_name"])


def test_x09_the_recorded_lines_are_of_one_gpu(
    cases: dict[str, Case], shared: Path, tmp_path: Path
) -> None:
    found = events(recorded(shared, cases["X09"])[0], tmp_path)
    inventory = Inventory(gpus=(GpuInventory(gpu="GPU-5", pci="00000000:9B:00.0"),))
    placed = placed_events(found, inventory)
    assert {event.gpu for event in placed} == {"GPU-5"}
    assert sum(event.count for event in placed) == 5


def test_x11_chatter_with_the_word_error_is_no_event(
    cases: dict[str, Case], shared: Path, tmp_path: Path
) -> None:
    case = cases["X11"]
    assert facts([case["input"]["line"]]) == []
    for path in recorded(shared, case):
        assert events(path, tmp_path) == []
        assert facts(path.read_text().splitlines()) == []


def test_logs_without_xids_give_nothing(shared: Path, tmp_path: Path) -> None:
    for name in ("gpud_dmesg_nccl_segfault_iso.log", "gpud_fabricmanager.log"):
        assert events(shared / "recordings" / "kernel" / name, tmp_path) == []


LOOK_ALIKES = [
    "Jan  6 10:00:00 node7 trainer[77]: NVRM: Xid (PCI:0000:41:00): 79, quoted by a program",
    '2025-01-06T10:00:00+00:00 node7 sudo: root : COMMAND=/usr/bin/grep "NVRM: Xid (PCI:0000"',
    "12,1200,437812449932,-;NVRM: Xid (PCI:0000:41:00): 79, written by a user",
    "<14>NVRM: Xid (PCI:0000:41:00): 79, written by a user",
    "user  :warn  : 2025-01-06T10:00:00,123456+00:00 NVRM: Xid (PCI:0000:41:00): 79",
    "4,1,1,-;audit: NVRM: Xid (PCI:0000:41:00): 79",
    "NVRM: the word Xid (PCI:0000:41:00): 79 in a sentence",
    "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d",
    "NVRM: Xid (PCI:0000:4",
    "NVRM: Xid (PCI:0000:41:00): ",
    "NVRM: Xid (PCI:0000:41:00): 79x",
    "NVRM: fallen off the bus and is not responding to commands.",
    "nvidia-nvswitch3: SXid (PCI:0000:8b:00.0): 20034, Severity 1 Engine instance 30",
    "nvidia-nvswitch3: SXid (PCI:0000:8b:00.0): 20034, Data {0x50610002, 0x10100030}",
    "usb 1-1: Xid (PCI:0000:41:00): 79",
]


@pytest.mark.parametrize("line", LOOK_ALIKES)
def test_what_only_looks_like_an_xid_is_none(line: str) -> None:
    assert facts([line]) == []


@pytest.mark.parametrize(
    ("line", "code", "pci"),
    [
        (
            "nvidia-nvswitch3: SXid (PCI:0000:8b:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            20034,
            "0000:8b:00",
        ),
        (
            "4,9,5,-;nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 28006, Non-fatal",
            28006,
            "0000:c1:00",
        ),
        ("NVRM: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 61", 12028, "0000:c1:00"),
    ],
)
def test_an_error_of_the_switch_is_an_event_of_its_own_kind(line: str, code: int, pci: str) -> None:
    (fact,) = facts([line])
    assert (fact.kind, fact.code, fact.pci) == ("sxid", code, pci)
    assert xid_of(SampleEvent(ts=0, kind=fact.kind, xid=fact.code, message=fact.message)) is None
