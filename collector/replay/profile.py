"""A profile of a simulated NVML (YAML): one reading of a node that does not exist.

The keys are those of NVIDIA's mock of NVML in k8s-test-infra: ``device_defaults`` for every
device, ``devices`` with what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from collector.replay.lines import Line
from collector.replay.rounds import Booted
from collector.replay.smi_columns import REASON_BITS
from collector.replay.status import Status, StatusRows
from collector.replay.tables import Context

__all__ = ["Profile", "is_profile_line"]

Node = Mapping[str, Any]  # YAML holds anything
_MAX_LINES = 50_000

#: Path in a device to (column of nvidia-smi, unit behind the number).
_PATHS: dict[str, tuple[str, str]] = {
    "name": ("name", ""),
    "uuid": ("uuid", ""),
    "serial": ("serial", ""),
    "vbios_version": ("vbios_version", ""),
    "pci/bus_id": ("pci.bus_id", ""),
    "mig/mode_current": ("mig.mode.current", ""),
    "memory/total_bytes": ("memory.total", "B"),
    "memory/reserved_bytes": ("memory.reserved", "B"),
    "memory/used_bytes": ("memory.used", "B"),
    "memory/free_bytes": ("memory.free", "B"),
    "bar1_memory/used_bytes": ("bar1.used", "B"),
    "pcie/max_link_gen": ("pcie.link.gen.max", ""),
    "pcie/max_link_width": ("pcie.link.width.max", ""),
    "pcie/current_link_gen": ("pcie.link.gen.current", ""),
    "pcie/current_link_width": ("pcie.link.width.current", ""),
    "pcie/replay_counter": ("pcie.replays", ""),
    "power/current_draw_mw": ("power.draw", "mW"),
    "power/enforced_limit_mw": ("enforced.power.limit", "mW"),
    "power/default_limit_mw": ("power.default_limit", "mW"),
    "thermal/temperature_gpu_c": ("temperature.gpu", "C"),
    "thermal/temperature_memory_c": ("temperature.memory", "C"),
    "thermal/slowdown_threshold_c": ("limit.slowdown", "C"),
    "thermal/shutdown_threshold_c": ("limit.shutdown", "C"),
    "thermal/max_operating_c": ("limit.operating", "C"),
    "fan/speed_percent": ("fan.speed", "%"),
    "clocks/sm_current": ("clocks.current.sm", "MHz"),
    "clocks/sm_max": ("clocks.max.sm", "MHz"),
    "clocks/memory_current": ("clocks.current.memory", "MHz"),
    "utilization/gpu": ("utilization.gpu", "%"),
    "utilization/memory": ("utilization.memory", "%"),
    "utilization/encoder": ("utilization.encoder", "%"),
    "utilization/decoder": ("utilization.decoder", "%"),
    "performance_state": ("pstate", ""),
    "remapped_rows/correctable": ("remapped_rows.correctable", ""),
    "remapped_rows/uncorrectable": ("remapped_rows.uncorrectable", ""),
    "remapped_rows/pending": ("remapped_rows.pending", ""),
    "remapped_rows/failure_occurred": ("remapped_rows.failure", ""),
    "retired_pages/single_bit_retirement/count": ("retired_pages.sbe", ""),
    "retired_pages/double_bit_retirement/count": ("retired_pages.dbe", ""),
    "retired_pages/pending_retirement": ("retired_pages.pending", ""),
    **{
        f"ecc/errors/{life}/{bits}_bit/total": (f"ecc.errors.{kind}.{life}.total", "")
        for life in ("volatile", "aggregate")
        for bits, kind in (("single", "corrected"), ("double", "uncorrected"))
    },
}


def is_profile_line(text: str) -> bool:
    """Tell whether a line can only stand in a profile."""
    return text.rstrip() == "device_defaults:"


@dataclass(slots=True, kw_only=True)
class Profile:
    """A YAML profile of devices."""

    context: Context

    def readings(self, lines: Iterable[Line]) -> Iterator[Booted]:
        """Yield one reading."""
        held = [line.text for _, line in zip(range(_MAX_LINES), lines, strict=False)]
        begin = Line(1, held[0] if held else "")
        try:
            root = yaml.safe_load("\n".join(held))
        except yaml.YAMLError as exc:
            self.context.damage(begin, f"begins YAML that is damaged: {str(exc)[:120]}")
            return
        defaults = _part(root, "device_defaults")
        devices = root.get("devices") if isinstance(root, dict) else None
        listed = [one for one in devices or [] if isinstance(one, dict)]
        driver = _part(root, "system").get("driver_version")
        status = Status(
            line=begin,
            driver=None if driver is None else str(driver),
            devices=[_device(defaults, one) for one in listed],
        )
        yield from StatusRows(self.context).readings(status)


def _device(defaults: Node, own: Node) -> dict[str, str]:
    found: dict[str, str] = {}
    if isinstance(own.get("index"), int):
        found["index"] = str(own["index"])
    for path, (column, unit) in _PATHS.items():
        value = _at(own, path)
        value = _at(defaults, path) if value is None else value
        if value is not None:
            found[column] = _text(value, unit)
    for name in REASON_BITS:
        said = "display_clocks_setting" if name == "display_clock_setting" else name
        value = _at(own, f"clocks_throttle_reasons/{said}")
        value = _at(defaults, f"clocks_throttle_reasons/{said}") if value is None else value
        if isinstance(value, bool):
            found[f"clocks_event_reasons.{name}"] = "Active" if value else "Not Active"
    return found


def _at(node: Node, path: str) -> object:
    value: object = node
    for part in path.split("/"):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _part(root: object, name: str) -> Node:
    part = root.get(name) if isinstance(root, dict) else None
    return part if isinstance(part, dict) else {}


def _text(value: object, unit: str) -> str:
    if isinstance(value, bool):
        return "Yes" if value else "No"
    if isinstance(value, (int, float)):
        return f"{value} {unit}".strip()
    return str(value)
