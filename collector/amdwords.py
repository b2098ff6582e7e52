"""What amdsmi calls things, in which unit, and what its blanks and errors are.

Units follow the documentation of amdsmi (ROCm 6): percent, °C, W (caps in µW), MHz, MB of 2**20.
"""

from __future__ import annotations

from schemas.sample import ValueStatus

__all__ = ["CLOCKS", "DICTS", "TEMPERATURES", "first", "number", "status_of", "text"]

MIB = 2.0**20
#: Status codes of amdsmi_status_t: not supported, not yet implemented; no permission.
_UNSUPPORTED = frozenset({2, 3})
_NO_PERMISSION = 10
_ABSENT = frozenset({"N/A", None})
# 16, 32 and 64 bits all ones: the library's blanks that slip through.
_BLANKS = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})

Wanted = dict[str, tuple[tuple[str, ...], float]]

#: Function to {metric: (keys of its answer, best first; factor to the base unit)}.
DICTS: dict[str, Wanted] = {
    "amdsmi_get_gpu_activity": {
        "gpu_utilization_ratio": (("gfx_activity",), 0.01),
        "memory_utilization_ratio": (("umc_activity",), 0.01),
        "decoder_utilization_ratio": (("mm_activity",), 0.01),
    },
    "amdsmi_get_gpu_vram_usage": {
        "memory_used_bytes": (("vram_used",), MIB),
        "memory_total_bytes": (("vram_total",), MIB),
    },
    "amdsmi_get_power_info": {
        "power_watts": (("socket_power", "current_socket_power", "average_socket_power"), 1.0),
    },
    "amdsmi_get_power_cap_info": {
        "power_limit_watts": (("power_cap",), 1e-6),
        "power_default_limit_watts": (("default_power_cap",), 1e-6),
    },
    "amdsmi_get_gpu_total_ecc_count": {
        "ecc_corrected_total": (("correctable_count",), 1.0),
        "ecc_uncorrected_total": (("uncorrectable_count",), 1.0),
    },
    "amdsmi_get_pcie_info": {
        "pcie_width_lanes": (("pcie_metric.pcie_width",), 1.0),
        "pcie_replay_total": (("pcie_metric.pcie_replay_count",), 1.0),
    },
}
TEMPERATURES = {
    "temperature_celsius": ("HOTSPOT", "CURRENT"),
    "memory_temperature_celsius": ("VRAM", "CURRENT"),
}
CLOCKS: tuple[tuple[dict[str, tuple[str, ...]], str], ...] = (
    ({"sm_clock_hertz": ("clk", "cur_clk"), "sm_clock_max_hertz": ("max_clk",)}, "GFX"),
    ({"memory_clock_hertz": ("clk", "cur_clk")}, "MEM"),
)


def status_of(exc: Exception) -> str:
    """Return the status code of a failed call, as it travels on the wire."""
    code = getattr(exc, "err_code", None)
    if code is None:
        ask = getattr(exc, "get_error_code", None)
        code = ask() if callable(ask) else None
    if code in _UNSUPPORTED:
        return str(ValueStatus.UNSUPPORTED)
    if code == _NO_PERMISSION:
        return str(ValueStatus.NO_PERMISSION)
    # 999: unknown error, as NVML says it. amdsmi's own numbers mean other things there.
    return "error:999"


def first(said: object, keys: tuple[str, ...]) -> object:
    """Return the first of several entries of an answer that is there; a dot leads deeper."""
    for key in keys:
        value = said
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value not in _ABSENT:
            return value
    return None


def number(value: object) -> float | None:
    """Return a number, or None for words and blanks."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value in _BLANKS:
        return None
    return float(value)


def text(said: object, key: str) -> str | None:
    """Return a word of an answer, or None."""
    value = first(said, (key,))
    return value if isinstance(value, str) and value else None
