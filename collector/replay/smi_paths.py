"""What ``nvidia-smi -q`` calls things, in its text and in its XML, over all drivers.

Paths follow the captures of the drivers 418 to 610 and the XML versions 10 to 13. Text is
compared in lower case; a heading that only groups (driver 610) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from collector.replay.smi_columns import REASON_BITS

__all__ = ["SKIPPED_HEADINGS", "TEXT_PATHS", "XML_PATHS"]

#: Headings that newer drivers put between others.
SKIPPED_HEADINGS = frozenset({"gpu ceiling power limit"})

_POWERS_XML = {
    "power_draw": "power.draw",
    "average_power_draw": "power.draw.average",
    "instant_power_draw": "power.draw.instant",
    "current_power_limit": "enforced.power.limit",
    "enforced_power_limit": "enforced.power.limit",
    "requested_power_limit": "power.limit",
    "power_limit": "power.limit",
    "default_power_limit": "power.default_limit",
}
_POWERS_TEXT = {
    "power draw": "power.draw",
    "average power draw": "power.draw.average",
    "instantaneous power draw": "power.draw.instant",
    "current power limit": "enforced.power.limit",
    "enforced power limit": "enforced.power.limit",
    "requested power limit": "power.limit",
    "power limit": "power.limit",
    "default power limit": "power.default_limit",
}
_REASONS_TEXT = {
    "idle": "gpu_idle",
    "applications clocks setting": "applications_clocks_setting",
    "sw power cap": "sw_power_cap",
    "hw slowdown": "hw_slowdown",
    "hw slowdown/hw thermal slowdown": "hw_thermal_slowdown",
    "hw slowdown/hw power brake slowdown": "hw_power_brake_slowdown",
    "hw thermal slowdown": "hw_thermal_slowdown",
    "hw power brake slowdown": "hw_power_brake_slowdown",
    "sync boost": "sync_boost",
    "sw thermal slowdown": "sw_thermal_slowdown",
    "display clock setting": "display_clock_setting",
}
_COUNTERS = {
    "sw_power_cap": ("sw_power_cap", "sw power capping"),
    "sync_boost": ("sync_boost", "sync boost"),
    "sw_therm_slowdown": ("sw_thermal_slowdown", "sw thermal slowdown"),
    "hw_therm_slowdown": ("hw_thermal_slowdown", "hw thermal slowdown"),
    "hw_power_brake": ("hw_power_brake_slowdown", "hw power braking"),
}


def _reasons_xml() -> dict[str, str]:
    found = {}
    for word in ("event", "throttle"):
        for name in REASON_BITS:
            path = f"clocks_{word}_reasons/clocks_{word}_reason_{name}"
            found[path] = f"clocks_event_reasons.{name}"
        found[f"clocks_{word}_reasons/clocks_{word}_reason_display_clocks_setting"] = (
            "clocks_event_reasons.display_clock_setting"
        )
    return found


def _ecc() -> tuple[dict[str, str], dict[str, str]]:
    xml, text = {}, {}
    for life in ("volatile", "aggregate"):
        for bits, kind in (("single", "corrected"), ("double", "uncorrected")):
            column = f"ecc.errors.{kind}.{life}."
            xml[f"ecc_errors/{life}/{bits}_bit/total"] = f"{column}total"
            xml[f"ecc_errors/{life}/{bits}_bit/device_memory"] = f"{column}dram"
            text[f"ecc errors/{life}/{bits} bit/total"] = f"{column}total"
            text[f"ecc errors/{life}/{bits} bit/device memory"] = f"{column}dram"
            words = f"{'un' if kind == 'uncorrected' else ''}correctable"
            for place in ("dram", "sram"):
                xml[f"ecc_errors/{life}/{place}_{words}"] = f"{column}{place}"
                text[f"ecc errors/{life}/{place} {words}"] = f"{column}{place}"
        for part, said in (("parity", "parity"), ("secded", "sec-ded")):
            column = f"ecc.errors.uncorrected.{life}.sram+{part}"
            xml[f"ecc_errors/{life}/sram_uncorrectable_{part}"] = column
            text[f"ecc errors/{life}/sram uncorrectable {said}"] = column
    return xml, text


_ECC_XML, _ECC_TEXT = _ecc()

XML_PATHS: Mapping[str, str] = MappingProxyType(
    {
        "product_name": "name",
        "uuid": "uuid",
        "serial": "serial",
        "vbios_version": "vbios_version",
        "mig_mode/current_mig": "mig.mode.current",
        "pci/pci_bus_id": "pci.bus_id",
        "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "pcie.link.gen.max",
        "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen": "pcie.link.gen.gpumax",
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "pcie.link.gen.current",
        "pci/pci_gpu_link_info/link_widths/max_link_width": "pcie.link.width.max",
        "pci/pci_gpu_link_info/link_widths/current_link_width": "pcie.link.width.current",
        "pci/replay_counter": "pcie.replays",
        "fan_speed": "fan.speed",
        "performance_state": "pstate",
        "fb_memory_usage/total": "memory.total",
        "fb_memory_usage/reserved": "memory.reserved",
        "fb_memory_usage/used": "memory.used",
        "fb_memory_usage/free": "memory.free",
        "bar1_memory_usage/used": "bar1.used",
        "utilization/gpu_util": "utilization.gpu",
        "utilization/memory_util": "utilization.memory",
        "utilization/encoder_util": "utilization.encoder",
        "utilization/decoder_util": "utilization.decoder",
        "retired_pages/multiple_single_bit_retirement/retired_count": "retired_pages.sbe",
        "retired_pages/double_bit_retirement/retired_count": "retired_pages.dbe",
        "retired_pages/pending_retirement": "retired_pages.pending",
        "retired_pages/pending_blacklist": "retired_pages.pending",
        "remapped_rows/remapped_row_corr": "remapped_rows.correctable",
        "remapped_rows/remapped_row_unc": "remapped_rows.uncorrectable",
        "remapped_rows/remapped_row_pending": "remapped_rows.pending",
        "remapped_rows/remapped_row_failure": "remapped_rows.failure",
        "temperature/gpu_temp": "temperature.gpu",
        "temperature/gpu_temp_tlimit": "temperature.gpu.tlimit",
        "temperature/memory_temp": "temperature.memory",
        "temperature/gpu_temp_slow_threshold": "limit.slowdown",
        "temperature/gpu_temp_max_threshold": "limit.shutdown",
        "temperature/gpu_temp_max_gpu_threshold": "limit.operating",
        "temperature/gpu_temp_slow_tlimit_threshold": "margin.slowdown",
        "temperature/gpu_temp_max_tlimit_threshold": "margin.shutdown",
        "temperature/gpu_temp_max_gpu_tlimit_threshold": "margin.operating",
        "clocks/graphics_clock": "clocks.current.graphics",
        "clocks/sm_clock": "clocks.current.sm",
        "clocks/mem_clock": "clocks.current.memory",
        "max_clocks/graphics_clock": "clocks.max.graphics",
        "max_clocks/sm_clock": "clocks.max.sm",
        "gpu_recovery_action": "gpu_recovery_action",
        **{f"gpu_power_readings/{name}": column for name, column in _POWERS_XML.items()},
        **{f"power_readings/{name}": column for name, column in _POWERS_XML.items()},
        **_reasons_xml(),
        **{
            f"clocks_event_reasons_counters/clocks_event_reasons_counters_{xml}": (
                f"clocks_event_reasons_counters.{column}"
            )
            for xml, (column, _) in _COUNTERS.items()
        },
        **_ECC_XML,
    }
)

TEXT_PATHS: Mapping[str, str] = MappingProxyType(
    {
        "product name": "name",
        "gpu uuid": "uuid",
        "serial number": "serial",
        "vbios version": "vbios_version",
        "mig mode/current": "mig.mode.current",
        "pci/bus id": "pci.bus_id",
        "pci/gpu link info/pcie generation/max": "pcie.link.gen.max",
        "pci/gpu link info/pcie generation/device max": "pcie.link.gen.gpumax",
        "pci/gpu link info/pcie generation/current": "pcie.link.gen.current",
        "pci/gpu link info/link width/max": "pcie.link.width.max",
        "pci/gpu link info/link width/current": "pcie.link.width.current",
        "pci/replays since reset": "pcie.replays",
        "fan speed": "fan.speed",
        "performance state": "pstate",
        "fb memory usage/total": "memory.total",
        "fb memory usage/reserved": "memory.reserved",
        "fb memory usage/used": "memory.used",
        "fb memory usage/free": "memory.free",
        "bar1 memory usage/used": "bar1.used",
        "utilization/gpu": "utilization.gpu",
        "utilization/memory": "utilization.memory",
        "utilization/encoder": "utilization.encoder",
        "utilization/decoder": "utilization.decoder",
        "retired pages/single bit ecc": "retired_pages.sbe",
        "retired pages/double bit ecc": "retired_pages.dbe",
        "retired pages/pending page blacklist": "retired_pages.pending",
        "retired pages/pending": "retired_pages.pending",
        "remapped rows/correctable error": "remapped_rows.correctable",
        "remapped rows/uncorrectable error": "remapped_rows.uncorrectable",
        "remapped rows/pending": "remapped_rows.pending",
        "remapped rows/remapping failure occurred": "remapped_rows.failure",
        "temperature/gpu current temp": "temperature.gpu",
        "temperature/gpu t.limit temp": "temperature.gpu.tlimit",
        "temperature/memory current temp": "temperature.memory",
        "temperature/gpu slowdown temp": "limit.slowdown",
        "temperature/gpu shutdown temp": "limit.shutdown",
        "temperature/gpu max operating temp": "limit.operating",
        "temperature/gpu slowdown t.limit temp": "margin.slowdown",
        "temperature/gpu shutdown t.limit temp": "margin.shutdown",
        "temperature/gpu max operating t.limit temp": "margin.operating",
        "clocks/graphics": "clocks.current.graphics",
        "clocks/sm": "clocks.current.sm",
        "clocks/memory": "clocks.current.memory",
        "max clocks/graphics": "clocks.max.graphics",
        "max clocks/sm": "clocks.max.sm",
        "gpu recovery action": "gpu_recovery_action",
        **{f"gpu power readings/{name}": column for name, column in _POWERS_TEXT.items()},
        **{f"power readings/{name}": column for name, column in _POWERS_TEXT.items()},
        **{
            f"clocks {word} reasons/{said}": f"clocks_event_reasons.{name}"
            for word in ("event", "throttle")
            for said, name in _REASONS_TEXT.items()
        },
        **{
            f"clocks event reasons counters/{text}": f"clocks_event_reasons_counters.{column}"
            for column, text in _COUNTERS.values()
        },
        **_ECC_TEXT,
    }
)
