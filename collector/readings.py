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
from enum import StrEnum
from operator import attrgetter, itemgetter
from typing import Any

from collector.device import Call, call

__all__ = ["MEMORY_ROWS", "ROWS", "SLOW_GROUPS", "CallRow", "FieldRow", "Group", "Row", "Take"]

# Any: results of the binding are ctypes structures, lists or numbers, by call.
Take = Callable[[Any], float | None]


class Group(StrEnum):
    """Metrics that are asked for together and can be switched off together."""

    CORE = "core"
    LIMITS = "limits"
    ERRORS = "errors"
    LINKS = "links"
    MEDIA = "media"
    SAMPLES = "samples"
    PROFILING = "profiling"
    PROCESSES = "processes"


#: Groups whose values move within minutes at most: asked less often than every tick, and what
#: they said last is repeated in between.
SLOW_GROUPS = frozenset({Group.LIMITS, Group.ERRORS, Group.MEDIA, Group.PROCESSES})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """A metric from a call: ``take(result) * times / per``.

    ``take`` returns None where this result has no such part (the older memory call knows no
    reserved memory): the metric is then unsupported. ``otherwise`` is asked of a device that
    does not offer this row.
    """

    metric: str
    question: Call
    take: Take = float
    times: float = 1.0
    per: float = 1.0
    group: Group = Group.CORE
    otherwise: Row | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow:
    """A metric from the sum of those of its fields that the device offers, divided by ``per``.

    ``otherwise`` is asked of a device that offers none of them.
    """

    metric: str
    fields: tuple[int, ...]
    per: float = 1.0
    group: Group = Group.CORE
    otherwise: Row | None = None


Row = CallRow | FieldRow

_MILLI, _PERCENT, _NANO, _MEGA, _KIBI = 1e3, 1e2, 1e9, 1e6, 1024.0
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: size of the structure and version 2
_PSTATE_UNKNOWN = 32

_TEMPERATURE = call("nvmlDeviceGetTemperatureV", 0).or_else("nvmlDeviceGetTemperature", 0)
_MEMORY = call("nvmlDeviceGetMemoryInfo", _MEMORY_V2).or_else("nvmlDeviceGetMemoryInfo")
_UTILISATION = call("nvmlDeviceGetUtilizationRates")
_REMAPPED = call("nvmlDeviceGetRemappedRows")
_HISTOGRAM = call("nvmlDeviceGetRowRemapperHistogram")
_BAR1 = call("nvmlDeviceGetBAR1MemoryInfo")
_REASONS = call("nvmlDeviceGetCurrentClocksEventReasons").or_else(
    "nvmlDeviceGetCurrentClocksThrottleReasons"
)


def _reserved(memory: Any) -> float | None:
    # The older call counts the driver's share as used and does not list it.
    return getattr(memory, "reserved", None)


def _performance_state(state: int) -> float | None:
    return None if state == _PSTATE_UNKNOWN else float(state)


# Place, location of the call, kind, its error type, and the fields of cards before Ampere, which
# count caches, registers and textures apart (volatile, lifetime).
_ECC_PLACES = (
    ("dram", 2, "corrected", 0, ((11,), (22,))),
    ("dram", 2, "uncorrected", 1, ((12,), (23,))),
    ("sram", 7, "corrected", 0, ((7, 9, 13, 15), (18, 20, 24, 26))),
    ("sram", 7, "uncorrected", 1, ((8, 10, 14, 16, 17), (19, 21, 25, 27, 28))),
)


def _ecc_total(metric: str, field: int, error: int, lifetime: int, group: Group) -> Row:
    # Arguments: error type 0 corrected, 1 uncorrected; counter 0 volatile, 1 aggregate.
    question = call("nvmlDeviceGetTotalEccErrors", error, lifetime)
    older = CallRow(metric=metric, question=question, group=group)
    return FieldRow(metric=metric, fields=(field,), group=group, otherwise=older)


def _ecc_at(
    place: str, location: int, kind: str, error: int, lifetime: int, fields: tuple[int, ...]
) -> Row:
    metric = f"ecc_{kind}_{place}{'_aggregate' if lifetime else ''}_total"
    return CallRow(
        metric=metric,
        question=call("nvmlDeviceGetMemoryErrorCounter", error, lifetime, location),
        group=Group.ERRORS,
        otherwise=FieldRow(metric=metric, fields=fields, group=Group.ERRORS),
    )


MEMORY_ROWS: tuple[CallRow, ...] = (
    CallRow(metric="memory_used_bytes", question=_MEMORY, take=attrgetter("used")),
    CallRow(metric="memory_free_bytes", question=_MEMORY, take=attrgetter("free")),
    CallRow(metric="memory_total_bytes", question=_MEMORY, take=attrgetter("total")),
    CallRow(metric="memory_reserved_bytes", question=_MEMORY, take=_reserved),
)

_CORE_ROWS: tuple[Row, ...] = (
    CallRow(metric="temperature_celsius", question=_TEMPERATURE),
    CallRow(
        metric="temperature_margin_celsius",
        question=call("nvmlDeviceGetMarginTemperature"),
    ),
    FieldRow(metric="memory_temperature_celsius", fields=(82,)),
    CallRow(
        metric="power_watts",
        question=call("nvmlDeviceGetPowerUsage"),
        per=_MILLI,
        otherwise=FieldRow(metric="power_watts", fields=(185,), per=_MILLI),
    ),
    FieldRow(metric="power_instant_watts", fields=(186,), per=_MILLI),
    FieldRow(
        metric="energy_joules_total",
        fields=(83,),
        per=_MILLI,
        otherwise=CallRow(
            metric="energy_joules_total",
            question=call("nvmlDeviceGetTotalEnergyConsumption"),
            per=_MILLI,
        ),
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
    *MEMORY_ROWS,
    CallRow(metric="sm_clock_hertz", question=call("nvmlDeviceGetClockInfo", 1), times=_MEGA),
    CallRow(metric="memory_clock_hertz", question=call("nvmlDeviceGetClockInfo", 2), times=_MEGA),
    CallRow(
        metric="performance_state",
        question=call("nvmlDeviceGetPerformanceState"),
        take=_performance_state,
    ),
    CallRow(metric="clock_event_reasons", question=_REASONS),
    *(
        FieldRow(metric=f"throttle_{reason}_seconds_total", fields=(field,), per=_NANO)
        for reason, field in (
            ("power_cap", 74),
            ("sync_boost", 76),
            ("sw_thermal", 269),
            ("hw_thermal", 270),
            ("power_brake", 271),
        )
    ),
    FieldRow(metric="recovery_action", fields=(230,)),
    _ecc_total("ecc_corrected_total", 3, 0, 0, Group.CORE),
    _ecc_total("ecc_uncorrected_total", 4, 1, 0, Group.CORE),
    *(
        FieldRow(
            metric=metric,
            fields=(field,),
            otherwise=CallRow(metric=metric, question=_REMAPPED, take=itemgetter(place)),
        )
        for place, (metric, field) in enumerate(
            (
                ("remapped_rows_correctable_total", 142),
                ("remapped_rows_uncorrectable_total", 143),
                ("row_remap_pending", 144),
                ("row_remap_failed", 145),
            )
        )
    ),
)

_LIMIT_ROWS: tuple[Row, ...] = (
    CallRow(
        metric="power_limit_watts",
        question=call("nvmlDeviceGetEnforcedPowerLimit"),
        per=_MILLI,
        group=Group.LIMITS,
    ),
    CallRow(
        metric="power_default_limit_watts",
        question=call("nvmlDeviceGetPowerManagementDefaultLimit"),
        per=_MILLI,
        group=Group.LIMITS,
    ),
    CallRow(
        metric="sm_clock_max_hertz",
        question=call("nvmlDeviceGetMaxClockInfo", 1),
        times=_MEGA,
        group=Group.LIMITS,
    ),
    CallRow(
        metric="memory_clock_max_hertz",
        question=call("nvmlDeviceGetMaxClockInfo", 2),
        times=_MEGA,
        group=Group.LIMITS,
    ),
    CallRow(
        metric="bar1_used_bytes",
        question=_BAR1,
        take=attrgetter("bar1Used"),
        group=Group.LIMITS,
    ),
    CallRow(
        metric="bar1_total_bytes",
        question=_BAR1,
        take=attrgetter("bar1Total"),
        group=Group.LIMITS,
    ),
)

_ERROR_ROWS: tuple[Row, ...] = (
    _ecc_total("ecc_corrected_aggregate_total", 5, 0, 1, Group.ERRORS),
    _ecc_total("ecc_uncorrected_aggregate_total", 6, 1, 1, Group.ERRORS),
    *(
        _ecc_at(place, location, kind, error, lifetime, fields[lifetime])
        for place, location, kind, error, fields in _ECC_PLACES
        for lifetime in (0, 1)
    ),
    *(
        FieldRow(metric=f"pcie_{kind}_errors_total", fields=(field,), group=Group.ERRORS)
        for kind, field in (("correctable", 173), ("nonfatal", 179), ("fatal", 180))
    ),
    *(
        CallRow(
            metric=f"row_remap_banks_{left}",
            question=_HISTOGRAM,
            take=attrgetter(left),
            group=Group.ERRORS,
        )
        for left in ("max", "high", "partial", "low", "none")
    ),
    *(
        # Argument: cause 0 several single-bit errors, 1 a double-bit error.
        CallRow(
            metric=f"retired_pages_{bits}_bit_total",
            question=call("nvmlDeviceGetRetiredPages", cause),
            take=len,
            group=Group.ERRORS,
            otherwise=FieldRow(
                metric=f"retired_pages_{bits}_bit_total", fields=(field,), group=Group.ERRORS
            ),
        )
        for bits, cause, field in (("single", 0, 29), ("double", 1, 30))
    ),
    CallRow(
        metric="retired_pages_pending",
        question=call("nvmlDeviceGetRetiredPagesPendingStatus"),
        group=Group.ERRORS,
        otherwise=FieldRow(metric="retired_pages_pending", fields=(31,), group=Group.ERRORS),
    ),
)

_LINK_ROWS: tuple[Row, ...] = (
    CallRow(
        metric="pcie_generation",
        question=call("nvmlDeviceGetCurrPcieLinkGeneration"),
        group=Group.LINKS,
    ),
    CallRow(
        metric="pcie_width_lanes",
        question=call("nvmlDeviceGetCurrPcieLinkWidth"),
        group=Group.LINKS,
    ),
    FieldRow(
        metric="pcie_replay_total",
        fields=(94,),
        group=Group.LINKS,
        otherwise=CallRow(
            metric="pcie_replay_total",
            question=call("nvmlDeviceGetPcieReplayCounter"),
            group=Group.LINKS,
        ),
    ),
    # Totals over all links: CRC of flits and data, replay, recovery. One batch instead of
    # one call per link and counter (72 on a GPU with 18 links).
    FieldRow(metric="nvlink_errors_total", fields=(38, 45, 52, 59), group=Group.LINKS),
    FieldRow(metric="nvlink_crc_errors_total", fields=(38, 45), group=Group.LINKS),
    *(
        FieldRow(metric=metric, fields=(field,), group=Group.LINKS)
        for metric, field in (
            ("nvlink_replay_errors_total", 52),
            ("nvlink_recovery_errors_total", 59),
            ("pcie_transmit_bytes_total", 197),
            ("pcie_receive_bytes_total", 198),
        )
    ),
    # In KiB, over all links.
    FieldRow(metric="nvlink_transmit_bytes_total", fields=(138,), per=1 / _KIBI, group=Group.LINKS),
    FieldRow(metric="nvlink_receive_bytes_total", fields=(139,), per=1 / _KIBI, group=Group.LINKS),
)

_MEDIA_ROWS: tuple[Row, ...] = (
    *(
        CallRow(
            metric=f"{engine.lower()}_utilization_ratio",
            question=call(f"nvmlDeviceGet{engine}Utilization"),
            take=itemgetter(0),
            per=_PERCENT,
            group=Group.MEDIA,
        )
        for engine in ("Encoder", "Decoder")
    ),
    CallRow(
        metric="graphics_clock_hertz",
        question=call("nvmlDeviceGetClockInfo", 0),
        times=_MEGA,
        group=Group.MEDIA,
    ),
    CallRow(
        metric="video_clock_hertz",
        question=call("nvmlDeviceGetClockInfo", 3),
        times=_MEGA,
        group=Group.MEDIA,
    ),
    CallRow(
        metric="fan_ratio",
        question=call("nvmlDeviceGetFanSpeed"),
        per=_PERCENT,
        group=Group.MEDIA,
    ),
    CallRow(metric="fan_rpm", question=call("nvmlDeviceGetFanSpeedRPM"), group=Group.MEDIA),
)

ROWS: tuple[Row, ...] = (
    *_CORE_ROWS,
    *_LIMIT_ROWS,
    *_ERROR_ROWS,
    *_LINK_ROWS,
    *_MEDIA_ROWS,
)
