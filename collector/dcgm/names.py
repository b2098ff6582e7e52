"""What dcgm-exporter and nvidia_gpu_exporter call things, and in which unit.

DCGM's fields and units follow the exporter's own list of counters (etc/default-counters.csv) and
dcgm_fields.h; nvidia_gpu_exporter's names are those of nvidia-smi's columns in base units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from collector.replay.smi_columns import REASON_BITS, THROTTLE_COUNTERS
from schemas.metrics import METRICS

__all__ = ["DCGM_BLANKS", "SUMMED", "UNITS", "XID_FIELD", "reason_bit", "wire_name"]

MIB = 2.0**20
#: Last Xid of a GPU; 0 for none. It stays until the exporter is restarted.
XID_FIELD = "DCGM_FI_DEV_XID_ERRORS"
#: DCGM writes these where it has no value (dcgm_fields.h: blank, not found, not supported, not
#: permissioned; 64 bits, 32 bits and floating point).
DCGM_BLANKS = frozenset(
    float(base + step)
    for base in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 140_737_488_355_328)
    for step in range(4)
)

_GAUGES = {
    "GPU_TEMP": ("temperature_celsius", 1.0),
    "MEMORY_TEMP": ("memory_temperature_celsius", 1.0),
    "GPU_TEMP_LIMIT": ("temperature_margin_celsius", 1.0),
    "POWER_USAGE": ("power_watts", 1.0),
    "POWER_USAGE_INSTANT": ("power_instant_watts", 1.0),
    "ENFORCED_POWER_LIMIT": ("power_limit_watts", 1.0),
    "POWER_MGMT_LIMIT": ("power_limit_watts", 1.0),
    "POWER_MGMT_LIMIT_DEF": ("power_default_limit_watts", 1.0),
    "TOTAL_ENERGY_CONSUMPTION": ("energy_joules_total", 1e-3),
    "GPU_UTIL": ("gpu_utilization_ratio", 0.01),
    "MEM_COPY_UTIL": ("memory_utilization_ratio", 0.01),
    "ENC_UTIL": ("encoder_utilization_ratio", 0.01),
    "DEC_UTIL": ("decoder_utilization_ratio", 0.01),
    "FB_USED": ("memory_used_bytes", MIB),
    "FB_FREE": ("memory_free_bytes", MIB),
    "FB_TOTAL": ("memory_total_bytes", MIB),
    "FB_RESERVED": ("memory_reserved_bytes", MIB),
    "BAR1_USED": ("bar1_used_bytes", MIB),
    "BAR1_TOTAL": ("bar1_total_bytes", MIB),
    "SM_CLOCK": ("sm_clock_hertz", 1e6),
    "MAX_SM_CLOCK": ("sm_clock_max_hertz", 1e6),
    "MEM_CLOCK": ("memory_clock_hertz", 1e6),
    "PSTATE": ("performance_state", 1.0),
    "CLOCKS_EVENT_REASONS": ("clock_event_reasons", 1.0),
    "CLOCK_THROTTLE_REASONS": ("clock_event_reasons", 1.0),
    "FAN_SPEED": ("fan_ratio", 0.01),
    "PCIE_LINK_GEN": ("pcie_generation", 1.0),
    "PCIE_LINK_WIDTH": ("pcie_width_lanes", 1.0),
    "PCIE_REPLAY_COUNTER": ("pcie_replay_total", 1.0),
    "ECC_SBE_VOL_TOTAL": ("ecc_corrected_total", 1.0),
    "ECC_DBE_VOL_TOTAL": ("ecc_uncorrected_total", 1.0),
    "ECC_SBE_AGG_TOTAL": ("ecc_corrected_aggregate_total", 1.0),
    "ECC_DBE_AGG_TOTAL": ("ecc_uncorrected_aggregate_total", 1.0),
    "RETIRED_SBE": ("retired_pages_single_bit_total", 1.0),
    "RETIRED_DBE": ("retired_pages_double_bit_total", 1.0),
    "RETIRED_PENDING": ("retired_pages_pending", 1.0),
    "CORRECTABLE_REMAPPED_ROWS": ("remapped_rows_correctable_total", 1.0),
    "UNCORRECTABLE_REMAPPED_ROWS": ("remapped_rows_uncorrectable_total", 1.0),
    "ROW_REMAP_PENDING": ("row_remap_pending", 1.0),
    "ROW_REMAP_FAILURE": ("row_remap_failed", 1.0),
    "GPU_RECOVERY_ACTION": ("recovery_action", 1.0),
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": ("nvlink_errors_total", 1.0),
    "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": ("nvlink_errors_total", 1.0),
    "NVLINK_REPLAY_ERROR_COUNT_TOTAL": ("nvlink_errors_total", 1.0),
    "NVLINK_RECOVERY_ERROR_COUNT_TOTAL": ("nvlink_errors_total", 1.0),
}
#: Metrics that are the sum of several series of one GPU; of others the first one counts.
SUMMED = frozenset({"nvlink_errors_total"})
_PROFILING = {
    "GR_ENGINE_ACTIVE": ("graphics_activity_ratio", 1.0),
    "SM_ACTIVE": ("sm_activity_ratio", 1.0),
    "SM_OCCUPANCY": ("sm_occupancy_ratio", 1.0),
    "PIPE_TENSOR_ACTIVE": ("tensor_activity_ratio", 1.0),
    "DRAM_ACTIVE": ("dram_activity_ratio", 1.0),
    "PCIE_TX_BYTES": ("pcie_transmit_bytes_per_second", 1.0),
    "PCIE_RX_BYTES": ("pcie_receive_bytes_per_second", 1.0),
    "NVLINK_TX_BYTES": ("nvlink_transmit_bytes_per_second", 1.0),
    "NVLINK_RX_BYTES": ("nvlink_receive_bytes_per_second", 1.0),
}
# nvidia_gpu_exporter writes base units; percentages are ratios, megahertz are hertz.
_SMI = {
    "temperature_gpu": "temperature_celsius",
    "temperature_memory": "memory_temperature_celsius",
    "temperature_gpu_tlimit": "temperature_margin_celsius",
    "power_draw_watts": "power_watts",
    "power_draw_average_watts": "power_watts",
    "power_draw_instant_watts": "power_instant_watts",
    "enforced_power_limit_watts": "power_limit_watts",
    "power_limit_watts": "power_limit_watts",
    "power_default_limit_watts": "power_default_limit_watts",
    "utilization_gpu_ratio": "gpu_utilization_ratio",
    "utilization_memory_ratio": "memory_utilization_ratio",
    "utilization_encoder_ratio": "encoder_utilization_ratio",
    "utilization_decoder_ratio": "decoder_utilization_ratio",
    "memory_used_bytes": "memory_used_bytes",
    "memory_free_bytes": "memory_free_bytes",
    "memory_total_bytes": "memory_total_bytes",
    "memory_reserved_bytes": "memory_reserved_bytes",
    "clocks_current_sm_clock_hz": "sm_clock_hertz",
    "clocks_max_sm_clock_hz": "sm_clock_max_hertz",
    "clocks_current_memory_clock_hz": "memory_clock_hertz",
    "pstate": "performance_state",
    "clocks_event_reasons_active": "clock_event_reasons",
    "clocks_throttle_reasons_active": "clock_event_reasons",
    "fan_speed_ratio": "fan_ratio",
    "pcie_link_gen_current": "pcie_generation",
    "pcie_link_width_current": "pcie_width_lanes",
    "ecc_errors_corrected_volatile_total": "ecc_corrected_total",
    "ecc_errors_uncorrected_volatile_total": "ecc_uncorrected_total",
    "ecc_errors_corrected_aggregate_total": "ecc_corrected_aggregate_total",
    "ecc_errors_uncorrected_aggregate_total": "ecc_uncorrected_aggregate_total",
    "remapped_rows_correctable": "remapped_rows_correctable_total",
    "remapped_rows_uncorrectable": "remapped_rows_uncorrectable_total",
    "remapped_rows_pending": "row_remap_pending",
    "remapped_rows_failure": "row_remap_failed",
    "retired_pages_single_bit_ecc_count": "retired_pages_single_bit_total",
    "retired_pages_double_bit_count": "retired_pages_double_bit_total",
    "retired_pages_pending": "retired_pages_pending",
    "gpu_recovery_action": "recovery_action",
    **{
        f"clocks_event_reasons_counters_{name}_seconds": metric
        for metric, name in THROTTLE_COUNTERS.items()
    },
}
_REASON = re.compile(r"nvidia_smi_clocks_(?:event|throttle)_reasons_(\w+)$")

#: Series to (metric, factor); the earlier of two series of one metric is preferred.
UNITS: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        name: (metric, factor)
        for name, (metric, factor) in {
            **{f"DCGM_FI_DEV_{name}": found for name, found in _GAUGES.items()},
            **{f"DCGM_FI_PROF_{name}": found for name, found in _PROFILING.items()},
            **{f"nvidia_smi_{name}": (metric, 1.0) for name, metric in _SMI.items()},
        }.items()
        if metric in METRICS
    }
)


def reason_bit(name: str) -> int | None:
    """Return the bit of a single clock event reason that is a series of its own, or None."""
    match = _REASON.match(name)
    return None if match is None else REASON_BITS.get(match[1])


def wire_name(name: str) -> tuple[str, float] | None:
    """Return metric and factor of a series, or None where the series is not used.

    dcgm-exporter may be set to write its names in lower case, or with a prefix of a site.

    Examples
    --------
    >>> wire_name("DCGM_FI_DEV_GPU_UTIL"), wire_name("site_dcgm_fi_dev_gpu_util")
    (('gpu_utilization_ratio', 0.01), ('gpu_utilization_ratio', 0.01))
    >>> wire_name("go_goroutines") is None
    True
    """
    found = UNITS.get(name)
    if found is not None:
        return found
    upper = name.upper()
    place = upper.find("DCGM_FI_")
    return UNITS.get(upper[place:]) if place >= 0 else None
