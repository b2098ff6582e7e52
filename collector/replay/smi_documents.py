"""Documents of ``nvidia-smi -q`` in a stream of lines: many, cut, glued, amid other text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from collector.replay.lines import Line, short_lines
from collector.replay.rounds import Booted
from collector.replay.smi_paths import SKIPPED_HEADINGS, TEXT_PATHS, XML_PATHS
from collector.replay.status import INSTANCE_MEMORY, Status, StatusRows
from collector.replay.tables import Context

__all__ = ["SmiText", "SmiXml", "is_text_start", "is_xml_start"]

_XML_BEGIN, _XML_END = "<nvidia_smi_log", "</nvidia_smi_log>"
# The status of sixteen B200 is 20,000 lines long.
_DOCUMENT_LINES = 200_000
_TEXT_BEGIN = re.compile(r"=+\s*NVSMI LOG\s*=+\s*$")
_DEVICE = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_LEAF = re.compile(r"(\s*)(.*?)\s+:(?: (.*))?$")
# Lists of things that are not the GPU itself: their names repeat those of the GPU.
_FOREIGN = frozenset(
    {
        *("processes", "accounted processes", "mig device", "supported clocks"),
        *("accounted_processes", "mig_devices", "supported_clocks"),
    }
)
_INSTANCE_PATHS = {
    "gpu instance id": "gi",
    "compute instance id": "ci",
    **{f"fb memory usage/{name}": name for name in INSTANCE_MEMORY},
    **{f"shared fb memory usage/{name}": name for name in INSTANCE_MEMORY},
}
_VERSION = re.compile(r"\d+(?:\.\d+)+")
_PARTS = re.compile(r"(.*\.sram)\+(?:parity|secded)$")


def is_xml_start(text: str) -> bool:
    """Tell whether a line begins an XML document of nvidia-smi."""
    return _XML_BEGIN in text and _XML_END not in text.partition(_XML_BEGIN)[0]


def is_text_start(text: str) -> bool:
    """Tell whether a line begins a status in text form."""
    return _TEXT_BEGIN.match(text) is not None


@dataclass(slots=True, kw_only=True)
class SmiXml:
    """The XML of ``nvidia-smi -q -x``, once or repeated with ``-l``."""

    context: Context

    def readings(self, lines: Iterable[Line]) -> Iterator[Booted]:
        """Yield the readings; a document that ends early is counted."""
        rows = StatusRows(self.context)
        begin: Line | None = None
        held: list[str] = []
        for line in lines:
            if is_xml_start(line.text):
                if begin is not None:
                    self.context.damage(begin, "begins a document that another one cuts off")
                begin, held = line, []
            if begin is None:
                continue
            held.append(line.text)
            if _XML_END in line.text or len(held) > _DOCUMENT_LINES:
                yield from self._document(rows, begin, held)
                begin, held = None, []
        if begin is not None:
            self.context.damage(begin, "begins a document that has no end")

    def _document(self, rows: StatusRows, begin: Line, held: list[str]) -> Iterator[Booted]:
        text = "\n".join(held)
        text = text[text.index(_XML_BEGIN) : text.rfind(_XML_END) + len(_XML_END)]
        if "<!" in text.replace("<!--", ""):  # entities have no business in a status
            self.context.damage(begin, "begins a document that declares entities")
            return
        try:
            root = ET.fromstring(text)  # noqa: S314 - declarations are refused above
        except ET.ParseError as exc:
            self.context.damage(begin, f"begins a document that is damaged: {exc}")
            return
        devices = [_xml_device(gpu) for gpu in root.iterfind("gpu")]
        time = _said(root.findtext("timestamp"))
        driver = _version(root.findtext("driver_version")) or _version(root.findtext("kmd_version"))
        instances = {n: _xml_instances(gpu) for n, gpu in enumerate(root.iterfind("gpu"))}
        yield from rows.readings(
            Status(
                line=begin,
                time=time,
                driver=driver,
                attached=_said(root.findtext("attached_gpus")),
                devices=devices,
                instances=instances,
            )
        )


def _xml_device(gpu: ET.Element) -> dict[str, str]:
    found = {"pci.bus_id": gpu.get("id", "")}
    for path, text in _leaves(gpu, ""):
        _keep(found, XML_PATHS.get(path), text)
    return _summed(found)


def _xml_instances(gpu: ET.Element) -> list[dict[str, str]]:
    found = []
    for one in gpu.iterfind("mig_devices/mig_device"):
        memory = {name: one.findtext(f"fb_memory_usage/{name}") for name in INSTANCE_MEMORY}
        numbers = {
            "gi": one.findtext("gpu_instance_id"),
            "ci": one.findtext("compute_instance_id"),
        }
        said = {**memory, **numbers}
        found.append({name: text.strip() for name, text in said.items() if text is not None})
    return found


def _leaves(element: ET.Element, prefix: str) -> Iterator[tuple[str, str]]:
    for child in element:
        if child.tag in _FOREIGN:
            continue
        path = f"{prefix}{child.tag}"
        if len(child) > 0:
            yield from _leaves(child, f"{path}/")
        elif child.text and child.text.strip():
            yield path, child.text.strip()


@dataclass(slots=True, kw_only=True)
class SmiText:
    """The text of ``nvidia-smi -q``, once or repeated, also amid other output."""

    context: Context

    def readings(self, lines: Iterable[Line]) -> Iterator[Booted]:
        """Yield the readings."""
        rows = StatusRows(self.context)
        open_status: _Open | None = None
        for line in short_lines(lines):
            if is_text_start(line.text):
                if open_status is not None:
                    yield from rows.readings(open_status.done())
                open_status = _Open(line)
            elif open_status is not None:
                if line.text.startswith("#"):  # another section of a longer capture
                    yield from rows.readings(open_status.done())
                    open_status = None
                else:
                    open_status.take(line.text)
        if open_status is not None:
            yield from rows.readings(open_status.done())


class _Open:
    """A status in text form that is being read."""

    def __init__(self, begin: Line) -> None:
        self._status = Status(line=begin)
        self._stack: list[tuple[int, str]] = []

    def take(self, text: str) -> None:
        """Take one line: a heading, or a name and its value."""
        device = _DEVICE.match(text)
        if device is not None:
            self._status.devices.append({"pci.bus_id": device[1]})
            self._stack = []
            return
        if not text.strip():
            return
        leaf = _LEAF.match(text)
        indent = len(text) - len(text.lstrip())
        name = (leaf[2] if leaf is not None else text).strip().lower()
        while self._stack and self._stack[-1][0] >= indent:
            self._stack.pop()
        headings = [heading for _, heading in self._stack if heading not in SKIPPED_HEADINGS]
        if leaf is None and name == "mig device" and self._status.devices:
            self._status.instances.setdefault(len(self._status.devices) - 1, []).append({})
        if leaf is not None:
            self._value(headings, name, (leaf[3] or "").strip())
        self._stack.append((indent, name))

    def _value(self, headings: list[str], name: str, value: str) -> None:
        if not self._status.devices:
            if name == "timestamp":
                self._status.time = _said(value)
            elif name == "attached gpus":
                self._status.attached = _said(value)
            elif name in {"driver version", "kmd version"}:
                self._status.driver = self._status.driver or _version(value)
        elif headings and headings[0] == "mig device":
            self._of_instance("/".join([*headings[1:], name]), value)
        elif not headings or headings[0] not in _FOREIGN:
            path = "/".join([*headings, name])
            _keep(self._status.devices[-1], TEXT_PATHS.get(path), value)

    def _of_instance(self, path: str, value: str) -> None:
        known = self._status.instances.get(len(self._status.devices) - 1)
        name = _INSTANCE_PATHS.get(path)
        if known and name is not None:
            known[-1].setdefault(name, value)

    def done(self) -> Status:
        """Return the status as far as it came."""
        self._status.devices = [_summed(device) for device in self._status.devices]
        return self._status


def _keep(found: dict[str, str], column: str | None, text: str) -> None:
    """Keep a value under its column: the first, but anything rather than an absence."""
    if column is None:
        return
    known = found.get(column)
    if known is None or (known.strip("[]").lower() == "n/a" and text):
        found[column] = text


def _summed(found: dict[str, str]) -> dict[str, str]:
    """Add up the two kinds of uncorrected SRAM errors, where they are given apart."""
    for column in [name for name in found if _PARTS.match(name)]:
        text = found.pop(column)
        whole = column.partition("+")[0]
        if text.isdecimal():
            before = found.get(whole, "0")
            found[whole] = str(int(text) + (int(before) if before.isdecimal() else 0))
        else:
            found.setdefault(whole, text)
    return found


def _version(text: str | None) -> str | None:
    """Return the number alone: newer drivers write behind it that the name is deprecated."""
    match = _VERSION.match((text or "").strip())
    return None if match is None else match[0]


def _said(text: str | None) -> str | None:
    stripped = (text or "").strip()
    return None if stripped in {"", "N/A", "[N/A]"} else stripped
