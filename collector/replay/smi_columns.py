"""Names of nvidia-smi's columns, and what they mean in metrics, units and words.

Names and their second spellings follow ``nvidia-smi --help-query-gpu`` of the drivers 590 to 610,
and older names that are still met in logs.
"""

from __future__ import annotations

from collections.abc import Mapping

from collector.replay.table import Role

__all__ = [
    "ECC",
    "ECC_PARTS",
    "ECC_SRAM_PARTS",
    "HEADER_NAMES",
    "HEADER_PREFIXES",
    "NUMBERS",
    "REASON_BITS",
    "REASON_PREFIXES",
    "ROLES",
    "THROTTLE_COUNTERS",
    "UNKNOWN_ACTION",
    "WORDS",
]

#: Role to the names of its column, best first.
ROLES: dict[Role, tuple[str, ...]] = {
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
NUMBERS: dict[str, tuple[str, tuple[str, ...]]] = {
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
THROTTLE_COUNTERS = {
    "throttle_power_cap_seconds_total": "sw_power_cap",
    "throttle_sync_boost_seconds_total": "sync_boost",
    "throttle_sw_thermal_seconds_total": "sw_thermal_slowdown",
    "throttle_hw_thermal_seconds_total": "hw_thermal_slowdown",
    "throttle_power_brake_seconds_total": "hw_power_brake_slowdown",
}

#: Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h), for files without the whole mask.
REASON_BITS = {
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
REASON_PREFIXES = ("clocks_event_reasons.", "clocks_throttle_reasons.")

ECC = {
    "ecc_corrected_total": "ecc.errors.corrected.volatile.",
    "ecc_uncorrected_total": "ecc.errors.uncorrected.volatile.",
    "ecc_corrected_aggregate_total": "ecc.errors.corrected.aggregate.",
    "ecc_uncorrected_aggregate_total": "ecc.errors.uncorrected.aggregate.",
}
# device_memory is dram by its old name; sram covers the caches that older drivers list singly.
ECC_PARTS = (
    ("dram", "device_memory"),
    ("sram",),
    ("register_file",),
    ("l1_cache",),
    ("l2_cache",),
    ("texture_memory",),
    ("cbu",),
)
ECC_SRAM_PARTS = 2

WORDS: dict[str, tuple[tuple[str, ...], Mapping[str, float]]] = {
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
UNKNOWN_ACTION = 255.0

HEADER_NAMES = frozenset(
    {name for names in ROLES.values() for name in names}
    | {name for _, names in NUMBERS.values() for name in names}
    | {name for names, _ in WORDS.values() for name in names}
)
HEADER_PREFIXES = (
    *REASON_PREFIXES,
    *ECC.values(),
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
