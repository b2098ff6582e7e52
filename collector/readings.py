"""Which NVML call or field feeds which metric: one metric, one row.

NVML speaks in milliwatts, megahertz, percent, nanoseconds and millijoules; every row converts
exactly once to the base unit of the catalogue. ``nvmlDeviceGetPcieThroughput`` is left out on
purpose: it blocks for 20 ms per direction (nvml.h); the byte counters 197 and 198 do not.

Numbers of calls and fields are those of nvml.h 13; they do not change between versions, whereas
the names in the binding do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

from collector.device import Call, call

__all__ = ["MEMORY_ROWS", "ROWS", "CallRow", "FieldRow"]

# Any: results of the binding are ctypes structures, lists or numbers, by call.
_Take = Callable[[Any], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """A metric from a call: ``take(result) * times / per``.

    ``take`` returns None where this result has no such part (the older memory call knows no
    reserved memory): the metric is then unsupported.
    """

    metric: str
    question: Call
    take: _Take = float
    times: float = 1.0
    per: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow:
    """A metric from the sum of those of its fields that the device offers, divided by ``per``."""

    metric: str
    fields: tuple[int, ...]
    per: float = 1.0


_MILLI, _PERCENT, _NANO, _MEGA = 1e3, 1e2, 1e9, 1e6
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: size of the structure and version 2
_PSTATE_UNKNOWN = 32

_TEMPERATURE = call("nvmlDeviceGetTemperatureV", 0).or_else("nvmlDeviceGetTemperature", 0)
_MEMORY = call("nvmlDeviceGetMemoryInfo", _MEMORY_V2).or_else("nvmlDeviceGetMemoryInfo")
_UTILISATION = call("nvmlDeviceGetUtilizationRates")
_REMAPPED = call("nvmlDeviceGetRemappedRows")
_REASONS = call("nvmlDeviceGetCurrentClocksEventReasons").or_else(
    "nvmlDeviceGetCurrentClocksThrottleReasons"
)


def _reserved(memory: Any) -> float | None:
    # The older call counts the driver's share as used and does not list it.
    return getattr(memory, "reserved", None)


def _performance_state(state: int) -> float | None:
    return None if state == _PSTATE_UNKNOWN else float(state)


MEMORY_ROWS: tuple[CallRow, ...] = (
    CallRow(metric="memory_used_bytes", question=_MEMORY, take=attrgetter("used")),
    CallRow(metric="memory_free_bytes", question=_MEMORY, take=attrgetter("free")),
    CallRow(metric="memory_total_bytes", question=_MEMORY, take=attrgetter("total")),
    CallRow(metric="memory_reserved_bytes", question=_MEMORY, take=_reserved),
)

_CALL_ROWS: tuple[CallRow, ...] = (
    CallRow(metric="temperature_celsius", question=_TEMPERATURE),
    CallRow(
        metric="temperature_margin_celsius",
        question=call("nvmlDeviceGetMarginTemperature"),
    ),
    CallRow(metric="power_watts", question=call("nvmlDeviceGetPowerUsage"), per=_MILLI),
    CallRow(
        metric="power_limit_watts", question=call("nvmlDeviceGetEnforcedPowerLimit"), per=_MILLI
    ),
    CallRow(
        metric="power_default_limit_watts",
        question=call("nvmlDeviceGetPowerManagementDefaultLimit"),
        per=_MILLI,
    ),
    CallRow(
        metric="energy_joules_total",
        question=call("nvmlDeviceGetTotalEnergyConsumption"),
        per=_MILLI,
    ),
    CallRow(
        metric="gpu_utilization_ratio",
        question=_UTILISATION,
        take=attrgetter("gpu"),
        per=_PERCENT,
    ),
    CallRow(
        metric="memory_utilization_ratio",
        question=_UTILISATION,
        take=attrgetter("memory"),
        per=_PERCENT,
    ),
    CallRow(
        metric="encoder_utilization_ratio",
        question=call("nvmlDeviceGetEncoderUtilization"),
        take=itemgetter(0),
        per=_PERCENT,
    ),
    CallRow(
        metric="decoder_utilization_ratio",
        question=call("nvmlDeviceGetDecoderUtilization"),
        take=itemgetter(0),
        per=_PERCENT,
    ),
    *MEMORY_ROWS,
    CallRow(
        metric="bar1_used_bytes",
        question=call("nvmlDeviceGetBAR1MemoryInfo"),
        take=attrgetter("bar1Used"),
    ),
    CallRow(metric="sm_clock_hertz", question=call("nvmlDeviceGetClockInfo", 1), times=_MEGA),
    CallRow(
        metric="sm_clock_max_hertz", question=call("nvmlDeviceGetMaxClockInfo", 1), times=_MEGA
    ),
    CallRow(metric="memory_clock_hertz", question=call("nvmlDeviceGetClockInfo", 2), times=_MEGA),
    CallRow(
        metric="performance_state",
        question=call("nvmlDeviceGetPerformanceState"),
        take=_performance_state,
    ),
    CallRow(metric="clock_event_reasons", question=_REASONS),
    CallRow(metric="fan_ratio", question=call("nvmlDeviceGetFanSpeed"), per=_PERCENT),
    CallRow(metric="pcie_generation", question=call("nvmlDeviceGetCurrPcieLinkGeneration")),
    CallRow(metric="pcie_width_lanes", question=call("nvmlDeviceGetCurrPcieLinkWidth")),
    CallRow(metric="pcie_replay_total", question=call("nvmlDeviceGetPcieReplayCounter")),
    # Arguments: error type 0 corrected, 1 uncorrected; counter 0 volatile, 1 aggregate.
    CallRow(metric="ecc_corrected_total", question=call("nvmlDeviceGetTotalEccErrors", 0, 0)),
    CallRow(metric="ecc_uncorrected_total", question=call("nvmlDeviceGetTotalEccErrors", 1, 0)),
    CallRow(
        metric="ecc_corrected_aggregate_total", question=call("nvmlDeviceGetTotalEccErrors", 0, 1)
    ),
    CallRow(
        metric="ecc_uncorrected_aggregate_total",
        question=call("nvmlDeviceGetTotalEccErrors", 1, 1),
    ),
    CallRow(metric="remapped_rows_correctable_total", question=_REMAPPED, take=itemgetter(0)),
    CallRow(metric="remapped_rows_uncorrectable_total", question=_REMAPPED, take=itemgetter(1)),
    CallRow(metric="row_remap_pending", question=_REMAPPED, take=itemgetter(2)),
    CallRow(metric="row_remap_failed", question=_REMAPPED, take=itemgetter(3)),
    # Argument: cause 0 several single-bit errors, 1 a double-bit error.
    CallRow(
        metric="retired_pages_single_bit_total",
        question=call("nvmlDeviceGetRetiredPages", 0),
        take=len,
    ),
    CallRow(
        metric="retired_pages_double_bit_total",
        question=call("nvmlDeviceGetRetiredPages", 1),
        take=len,
    ),
    CallRow(
        metric="retired_pages_pending", question=call("nvmlDeviceGetRetiredPagesPendingStatus")
    ),
)

_FIELD_ROWS: tuple[FieldRow, ...] = (
    FieldRow(metric="memory_temperature_celsius", fields=(82,)),
    FieldRow(metric="power_instant_watts", fields=(186,), per=_MILLI),
    FieldRow(metric="throttle_power_cap_seconds_total", fields=(74,), per=_NANO),
    FieldRow(metric="throttle_sync_boost_seconds_total", fields=(76,), per=_NANO),
    FieldRow(metric="throttle_sw_thermal_seconds_total", fields=(269,), per=_NANO),
    FieldRow(metric="throttle_hw_thermal_seconds_total", fields=(270,), per=_NANO),
    FieldRow(metric="throttle_power_brake_seconds_total", fields=(271,), per=_NANO),
    FieldRow(metric="pcie_transmit_bytes_total", fields=(197,)),
    FieldRow(metric="pcie_receive_bytes_total", fields=(198,)),
    # Totals over all links: CRC of flits and data, replay, recovery. One batch instead of
    # one call per link and counter (72 on a GPU with 18 links).
    FieldRow(metric="nvlink_errors_total", fields=(38, 45, 52, 59)),
    FieldRow(metric="recovery_action", fields=(230,)),
)

ROWS: tuple[CallRow | FieldRow, ...] = (*_CALL_ROWS, *_FIELD_ROWS)
