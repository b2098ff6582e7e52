"""The CSV of ``nvidia-smi --query-gpu``: any set and order of columns, any driver.

Names and their second spellings follow ``nvidia-smi --help-query-gpu`` of the drivers 590 to 610
and older names that are still met in logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from collector.replay.cells import UNITS, Cell, DamagedCellError, absence
from collector.replay.table import Layout, Recipe, Role, number_at, one

__all__ = ["HEADER_NAMES", "is_header", "layout_of"]

_UUID = re.compile(r"(GPU|MIG)-[0-9a-zA-Z/-]{1,64}$")
_HEADER_CELL = re.compile(r"(.*?)\s*\[([^\]]*)\]$")

#: Role to the names of its column, best first.
_ROLES: dict[Role, tuple[str, ...]] = {
    Role.TIME: ("timestamp",),
    Role.NODE: ("hostname",),
    Role.GPU_INDEX: ("index",),
    Role.GPU_UUID: ("uuid", "gpu_uuid"),
    Role.PCI: ("pci.bus_id", "gpu_bus_id"),
    Role.MODEL: ("name", "gpu_name"),
    Role.SERIAL: ("serial", "gpu_serial"),
    Role.VBIOS: ("vbios_version",),
    Role.DRIVER: ("driver_version",),
    Role.MIG_MODE: ("mig.mode.current",),
    Role.PCIE_GENERATION_MAX: ("pcie.link.gen.gpumax", "pcie.link.gen.max"),
    Role.PCIE_WIDTH_MAX: ("pcie.link.width.max",),
}

#: Metric to (unit where none is written, names best first).
_NUMBERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "temperature_celsius": ("C", ("temperature.gpu",)),
    "memory_temperature_celsius": ("C", ("temperature.memory",)),
    "temperature_margin_celsius": ("C", ("temperature.gpu.tlimit",)),
    "power_watts": (
        "W",
        (
            "power.draw",
            "power.draw.average",
            "gpu.power.draw.average",
            "power.draw.instant",
            "gpu.power.draw.instant",
        ),
    ),
    "power_instant_watts": ("W", ("power.draw.instant", "gpu.power.draw.instant")),
    "power_limit_watts": (
        "W",
        (
            "enforced.power.limit",
            "gpu.power.current_limit",
            "power.limit",
            "gpu.power.requested_limit",
        ),
    ),
    "power_default_limit_watts": ("W", ("power.default_limit", "gpu.power.default_limit")),
    "gpu_utilization_ratio": ("%", ("utilization.gpu",)),
    "memory_utilization_ratio": ("%", ("utilization.memory",)),
    "encoder_utilization_ratio": ("%", ("utilization.encoder",)),
    "decoder_utilization_ratio": ("%", ("utilization.decoder",)),
    "memory_used_bytes": ("MiB", ("memory.used",)),
    "memory_free_bytes": ("MiB", ("memory.free",)),
    "memory_total_bytes": ("MiB", ("memory.total",)),
    "memory_reserved_bytes": ("MiB", ("memory.reserved",)),
    "sm_clock_hertz": (
        "MHz",
        ("clocks.current.sm", "clocks.sm", "clocks.current.graphics", "clocks.gr"),
    ),
    "sm_clock_max_hertz": ("MHz", ("clocks.max.sm", "clocks.max.graphics", "clocks.max.gr")),
    "memory_clock_hertz": ("MHz", ("clocks.current.memory", "clocks.mem")),
    "fan_ratio": ("%", ("fan.speed",)),
    "pcie_generation": ("", ("pcie.link.gen.current", "pcie.link.gen.gpucurrent")),
    "pcie_width_lanes": ("", ("pcie.link.width.current",)),
    "remapped_rows_correctable_total": ("", ("remapped_rows.correctable", "remapped_rows.sbe")),
    "remapped_rows_uncorrectable_total": (
        "",
        ("remapped_rows.uncorrectable", "remapped_rows.dbe"),
    ),
    "retired_pages_single_bit_total": (
        "",
        ("retired_pages.single_bit_ecc.count", "retired_pages.sbe"),
    ),
    "retired_pages_double_bit_total": (
        "",
        ("retired_pages.double_bit.count", "retired_pages.dbe"),
    ),
}

#: Counter to the last part of its name under clocks_event_reasons_counters.
_THROTTLE_COUNTERS = {
    "throttle_power_cap_seconds_total": "sw_power_cap",
    "throttle_sync_boost_seconds_total": "sync_boost",
    "throttle_sw_thermal_seconds_total": "sw_thermal_slowdown",
    "throttle_hw_thermal_seconds_total": "hw_thermal_slowdown",
    "throttle_power_brake_seconds_total": "hw_power_brake_slowdown",
}

#: Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h), for files without the whole mask.
_REASON_BITS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
}
_REASON_PREFIXES = ("clocks_event_reasons.", "clocks_throttle_reasons.")

_ECC = {
    "ecc_corrected_total": "ecc.errors.corrected.volatile.",
    "ecc_uncorrected_total": "ecc.errors.uncorrected.volatile.",
    "ecc_corrected_aggregate_total": "ecc.errors.corrected.aggregate.",
    "ecc_uncorrected_aggregate_total": "ecc.errors.uncorrected.aggregate.",
}
# device_memory is dram by its old name; sram covers the caches that older drivers list singly.
_ECC_PARTS = (
    ("dram", "device_memory"),
    ("sram",),
    ("register_file",),
    ("l1_cache",),
    ("l2_cache",),
    ("texture_memory",),
    ("cbu",),
)
_ECC_SRAM_PARTS = 2

_WORDS: dict[str, tuple[tuple[str, ...], Mapping[str, float]]] = {
    "row_remap_pending": (("remapped_rows.pending",), {"no": 0.0, "yes": 1.0}),
    "row_remap_failed": (("remapped_rows.failure",), {"no": 0.0, "yes": 1.0}),
    "retired_pages_pending": (("retired_pages.pending",), {"no": 0.0, "yes": 1.0}),
    # nvmlDeviceGpuRecoveryAction_t (nvml.h) in nvidia-smi's words.
    "recovery_action": (
        ("gpu_recovery_action",),
        {
            "none": 0.0,
            "reset": 1.0,
            "gpu reset": 1.0,
            "reboot": 2.0,
            "node reboot": 2.0,
            "drain p2p": 3.0,
            "drain and reset": 4.0,
            "recover imex": 5.0,
            "bus reset": 6.0,
            "gpu bus reset": 6.0,
            "system reboot": 7.0,
        },
    ),
    "performance_state": (("pstate",), {f"p{state}": float(state) for state in range(16)}),
}
# An action that is not in nvml.h yet means act, not ok.
_UNKNOWN_ACTION = 255.0

HEADER_NAMES = frozenset(
    {name for names in _ROLES.values() for name in names}
    | {name for _, names in _NUMBERS.values() for name in names}
    | {name for names, _ in _WORDS.values() for name in names}
)
_HEADER_PREFIXES = (
    *_REASON_PREFIXES,
    *_ECC.values(),
    "accounting.",
    "clocks.",
    "clocks_event_reasons_counters.",
    "display_",
    "driver_model.",
    "ecc.",
    "encoder.",
    "fabric.",
    "gom.",
    "inforom.",
    "module.",
    "pci.",
    "pcie.",
    "platform.",
    "power.",
    "power_smoothing.",
    "remapped_rows.",
    "retired_pages.",
    "utilization.",
    "vgpu_",
)


def _split_name(cell: str) -> tuple[str, str]:
    match = _HEADER_CELL.match(cell.strip())
    return (match[1], match[2]) if match else (cell.strip(), "")


def is_header(cells: Sequence[str]) -> bool:
    """Tell whether a line names columns of nvidia-smi: most of its cells are known names.

    Examples
    --------
    >>> is_header(["index", "temperature.gpu", "power.draw [W]"])
    True
    >>> is_header(["0", "41", "69.85 W"])
    False
    """
    if any(cell[:1].isdigit() for cell in cells):
        return False  # settled by the first cell of nearly every row
    names = [_split_name(cell)[0] for cell in cells]
    known = sum(name in HEADER_NAMES or name.startswith(_HEADER_PREFIXES) for name in names)
    return known >= 1 and 3 * known >= len(names)


def layout_of(header: Sequence[str]) -> Layout:
    """Make the layout of a header line. Columns that are not known are ignored."""
    names: dict[str, int] = {}
    units: dict[int, str] = {}
    for position, cell in enumerate(header):
        name, unit = _split_name(cell)
        names.setdefault(name, position)
        units[position] = unit
    roles = {
        role: names[found]
        for role, choices in _ROLES.items()
        if (found := next((name for name in choices if name in names), None)) is not None
    }
    recipes: dict[str, list[Recipe]] = {}
    for metric, (default, choices) in _numbers().items():
        for name in choices:
            if name in names:
                unit = units[names[name]]
                chosen = unit if unit in UNITS and unit else default
                recipes.setdefault(metric, []).append(number_at(names[name], chosen))
    for metric, (choices, words) in _WORDS.items():
        for name in choices:
            if name in names:
                recipe = one(names[name], partial(_word, metric, words))
                recipes.setdefault(metric, []).append(recipe)
    _add_reasons(names, recipes)
    _add_ecc_sums(names, recipes)
    return Layout(
        header=tuple(header),
        roles=roles,
        recipes={metric: tuple(ways) for metric, ways in recipes.items()},
        uuids=_UUID,
    )


def _numbers() -> dict[str, tuple[str, tuple[str, ...]]]:
    counters = {
        metric: ("us", (f"clocks_event_reasons_counters.{last}",))
        for metric, last in _THROTTLE_COUNTERS.items()
    }
    ecc = {metric: ("", (f"{prefix}total",)) for metric, prefix in _ECC.items()}
    return _NUMBERS | counters | ecc


def _add_reasons(names: Mapping[str, int], recipes: dict[str, list[Recipe]]) -> None:
    ways: list[Recipe] = []
    bits: dict[int, int] = {}
    for prefix in _REASON_PREFIXES:
        if f"{prefix}active" in names:
            ways.append(one(names[f"{prefix}active"], _mask))
        for last, bit in _REASON_BITS.items():
            if f"{prefix}{last}" in names:
                bits[names[f"{prefix}{last}"]] = bit
    if bits:
        ways.append(partial(_combine_bits, bits))
    if ways:
        recipes["clock_event_reasons"] = ways


def _add_ecc_sums(names: Mapping[str, int], recipes: dict[str, list[Recipe]]) -> None:
    for metric, prefix in _ECC.items():
        found = [
            next((names[f"{prefix}{name}"] for name in choices if f"{prefix}{name}" in names), None)
            for choices in _ECC_PARTS
        ]
        positions = [position for position in found if position is not None]
        if found[1] is not None:
            positions = [p for p in found[:_ECC_SRAM_PARTS] if p is not None]
        if positions:
            recipes.setdefault(metric, []).append(partial(_total, tuple(positions)))


def _mask(text: str) -> Cell:
    status = absence(text)
    if status is not None:
        return Cell(None, status)
    try:
        return Cell(float(int(text.strip(), 0)))
    except ValueError as exc:
        raise DamagedCellError(f"{text[:40]!r} is no bit mask") from exc


def _combine_bits(bits: Mapping[int, int], cells: Sequence[str]) -> Cell:
    """Combine the single reasons; those that are absent take no part, all absent is null."""
    combined = 0
    seen = False
    status: str | None = None
    for position, bit in bits.items():
        word = cells[position].strip().lower()
        if word == "active":
            combined |= bit
        elif word != "not active":
            status = absence(word)
            if status is None:
                raise DamagedCellError(f"{word[:40]!r} is neither Active nor Not Active")
            continue
        seen = True
    return Cell(float(combined)) if seen else Cell(None, status)


def _total(positions: Sequence[int], cells: Sequence[str]) -> Cell:
    read = [number_at(position, "")(cells) for position in positions]
    values = [cell.value for cell in read if cell.value is not None]
    return Cell(sum(values)) if values else read[0]


def _word(metric: str, words: Mapping[str, float], text: str) -> Cell:
    word = text.strip().lower()
    value = words.get(word)
    if value is not None:
        return Cell(value)
    status = absence(word)
    if status is not None:
        return Cell(None, status)
    if metric == "recovery_action" and word.replace(" ", "").isalnum():
        return Cell(_UNKNOWN_ACTION)
    raise DamagedCellError(f"{text[:40]!r} is no known word for {metric}")
