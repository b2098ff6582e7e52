"""What people copy from a terminal: the table of ``nvidia-smi`` and its list of NVLink links."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collector.replay.lines import Line, short_lines
from collector.replay.rounds import Booted
from collector.replay.status import Status, StatusRows
from collector.replay.tables import Context

__all__ = ["NvlinkList", "SmiTable", "is_link_line", "is_table_start"]

_TABLE = re.compile(r"\| NVIDIA-SMI ")
_DRIVER = re.compile(r"(?:Driver|KMD) Version: (\d+(?:\.\d+)+)")
_TIME = re.compile(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\s*$")
_PARTS = 3
_NAMES = re.compile(r"\s*(\d{1,3})\s+(\S.*?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM)\s*$")
_BUS = re.compile(r"\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s")
_STATE = re.compile(r"\s*(\S+)\s+(\S+)\s+(P\d+|N/A|ERR!)\s+(\S.*?)\s*/\s*(\S+)\s*$")
_MEMORY = re.compile(r"\s*(\S.*?)\s*/\s*(\S+)\s*$")
_LINK_GPU = re.compile(r"GPU (\d{1,3}): (.+?) \(UUID: ((?:GPU|MIG)-[0-9a-zA-Z/-]{1,64})\)\s*$")
_LINK = re.compile(r"\s+Link \d{1,2}: (?:(<inactive>)|[\d.]+ GB/s)\s*$")
_NO_LINK = re.compile(r"NVML: Unable to retrieve NVLink information as all links are inactive")


def is_table_start(text: str) -> bool:
    """Tell whether a line is the head of nvidia-smi's table."""
    return _TABLE.match(text) is not None


def is_link_line(text: str) -> bool:
    """Tell whether a line can only stand in ``nvidia-smi nvlink --status``."""
    return _LINK.match(text) is not None or _NO_LINK.match(text) is not None


@dataclass(slots=True, kw_only=True)
class SmiTable:
    """The table that ``nvidia-smi`` prints, once or repeated with ``-l``."""

    context: Context

    def readings(self, lines: Iterable[Line]) -> Iterator[Booted]:
        """Yield the readings. Names that the table cuts short stay as they are written."""
        rows = StatusRows(self.context)
        status: Status | None = None
        time: str | None = None
        for line in short_lines(lines):
            text = line.text
            if _TIME.match(text):
                time = text.strip()
            elif is_table_start(text):
                if status is not None:
                    yield from rows.readings(status)
                driver = _DRIVER.search(text)
                status = Status(line=line, time=time, driver=driver[1] if driver else None)
                time = None
            elif status is not None:
                _take(status, text)
        if status is not None:
            yield from rows.readings(status)


def _take(status: Status, text: str) -> None:
    parts = text.strip().strip("|").split("|")
    if len(parts) != _PARTS or not text.startswith("|"):
        return
    names, bus = _NAMES.match(parts[0]), _BUS.match(parts[1])
    if names is not None and bus is not None:
        device = {"index": names[1], "name": names[2], "pci.bus_id": bus[1]}
        errors = parts[2].strip()
        if errors.isdecimal():
            device["ecc.errors.uncorrected.volatile.total"] = errors
        status.devices.append(device)
        return
    state, memory = _STATE.match(parts[0]), _MEMORY.match(parts[1])
    if state is None or memory is None or not status.devices:
        return
    load = parts[2].split()
    status.devices[-1].update(
        {
            "fan.speed": state[1],
            "temperature.gpu": state[2],
            "pstate": state[3],
            "power.draw": state[4],
            "enforced.power.limit": state[5],
            "memory.used": memory[1],
            "memory.total": memory[2],
            "utilization.gpu": load[0] if load else "",
        }
    )


@dataclass(slots=True, kw_only=True)
class NvlinkList:
    """``nvidia-smi nvlink --status``: how many links of each GPU are up."""

    context: Context

    def readings(self, lines: Iterable[Line]) -> Iterator[Booted]:
        """Yield the readings; a GPU that is listed again begins the next one."""
        rows = StatusRows(self.context)
        status: Status | None = None
        for line in short_lines(lines):
            gpu = _LINK_GPU.match(line.text)
            if gpu is not None:
                if status is not None and any(d["index"] == gpu[1] for d in status.devices):
                    yield from rows.readings(status)
                    status = None
                status = status or Status(line=line)
                status.devices.append({"index": gpu[1], "name": gpu[2], "uuid": gpu[3]})
            elif status is not None:
                _count(status.devices[-1], line.text)
        if status is not None:
            yield from rows.readings(status)


def _count(device: dict[str, str], text: str) -> None:
    link = _LINK.match(text)
    if link is not None:
        up = int(device.get("nvlink.active", "0")) + (link[1] is None)
        device["nvlink.active"] = str(up)
        device["nvlink.links"] = str(int(device.get("nvlink.links", "0")) + 1)
    elif _NO_LINK.match(text):
        device["nvlink.active"] = "0"
