"""The metric catalogue: the only place that names a metric.

A name carries its base unit as suffix, in the style of Prometheus. Names and meanings are
never reused; new metrics are appended. Everything else (columns of the engine, labels of the
dashboard, tables of the documentation, range checks at the collector's door) reads this table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["CATALOGUE", "METRICS", "METRIC_INDEX", "Kind", "Metric", "plausible"]


class Kind(StrEnum):
    """How a metric behaves in time."""

    GAUGE = "gauge"
    COUNTER = "counter"
    STATE = "state"
    BITMASK = "bitmask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the catalogue.

    Parameters
    ----------
    name
        Name on the wire, base unit as suffix.
    kind
        Gauge, counter (cumulative, may reset), state (small enumeration) or bitmask.
    low, high
        Plausible range, both included, in the metric's unit. A value outside is published as
        null with the status ``implausible``.
    source
        NVML function or field that supplies it (nvml.h 13).
    label_en, label_zh
        Words for people.
    unit
        Unit for people, for example ``°C``.
    resolution
        Step of the sensor, in the metric's unit; statistics use it as a variance floor.
    """

    name: str
    kind: Kind
    low: float
    high: float
    source: str
    label_en: str
    label_zh: str
    unit: str
    resolution: float = 0.0


_U64 = float(2**63)  # counters are exact in float64 only to 2**53; blanks are 2**64 - 1
_TIB = float(2**40)
# A blank (2**64 - 1 mJ or ns) is small enough for a counter once it is in joules or seconds: what
# a board of 2.5 kW can use, and how long anything can have run, in a hundred years.
_MOST_JOULES, _MOST_SECONDS = 8e12, 3.2e9


def _gauge(
    name: str,
    source: str,
    en: str,
    zh: str,
    unit: str,
    *,
    low: float = 0.0,
    high: float,
    resolution: float = 0.0,
) -> Metric:
    return Metric(
        name=name,
        kind=Kind.GAUGE,
        low=low,
        high=high,
        source=source,
        label_en=en,
        label_zh=zh,
        unit=unit,
        resolution=resolution,
    )


def _ratio(name: str, source: str, en: str, zh: str) -> Metric:
    return _gauge(name, source, en, zh, "%", high=1.0, resolution=0.01)


def _celsius(name: str, source: str, en: str, zh: str, *, low: float = -40.0) -> Metric:
    return _gauge(name, source, en, zh, "°C", low=low, high=150.0, resolution=1.0)


def _bytes(name: str, source: str, en: str, zh: str) -> Metric:
    return _gauge(name, source, en, zh, "bytes", high=_TIB, resolution=2.0 * 2**20)


def _counter(
    name: str, source: str, en: str, zh: str, unit: str = "", *, high: float = _U64
) -> Metric:
    return Metric(
        name=name,
        kind=Kind.COUNTER,
        low=0.0,
        high=high,
        source=source,
        label_en=en,
        label_zh=zh,
        unit=unit,
    )


def _state(
    name: str, source: str, en: str, zh: str, *, high: float, kind: Kind = Kind.STATE
) -> Metric:
    return Metric(
        name=name,
        kind=kind,
        low=0.0,
        high=high,
        source=source,
        label_en=en,
        label_zh=zh,
        unit="",
    )


def _rate(name: str, source: str, en: str, zh: str) -> Metric:
    # The fastest link of today moves 1.8 TB/s.
    return _gauge(name, source, en, zh, "bytes/s", high=1e13, resolution=2.0**20)


def _extremes(
    name: str, unit: str, ring: str, en: str, zh: str, words: str, high: float, resolution: float
) -> tuple[Metric, ...]:
    """Lowest, mean and highest of the driver's own samples since the last reading."""
    source = f"nvmlDeviceGetSamples NVML_{ring}"
    return tuple(
        _gauge(
            f"{name}_{which}_{unit}",
            source,
            f"{en}, {english} between readings",
            f"{zh}（{chinese}）",
            words,
            high=high,
            resolution=resolution,
        )
        for which, english, chinese in (
            ("lowest", "lowest", "最低"),
            ("mean", "mean", "平均"),
            ("highest", "highest", "最高"),
        )
    )


def _clocks() -> tuple[Metric, ...]:
    rows = (
        ("graphics_clock_hertz", "nvmlDeviceGetClockInfo GRAPHICS", "Graphics clock", "图形频率"),
        ("video_clock_hertz", "nvmlDeviceGetClockInfo VIDEO", "Video clock", "视频频率"),
        (
            "memory_clock_max_hertz",
            "nvmlDeviceGetMaxClockInfo MEM",
            "Memory clock, maximum",
            "显存最高频率",
        ),
    )
    return tuple(
        _gauge(name, f"{source} (MHz)", en, zh, "Hz", high=2.0e10, resolution=15e6)
        for name, source, en, zh in rows
    )


def _remap_banks() -> tuple[Metric, ...]:
    """Memory banks by how many spare rows they have left: the margin before a remap fails."""
    return tuple(
        _state(
            f"row_remap_banks_{left}",
            f"nvmlDeviceGetRowRemapperHistogram.{left}",
            f"Memory banks with {words} spare rows",
            f"备用行{chinese}的显存组",
            high=float(2**20),
        )
        for left, words, chinese in (
            ("max", "all", "全满"),
            ("high", "many", "较多"),
            ("partial", "some", "部分"),
            ("low", "few", "较少"),
            ("none", "no", "用尽"),
        )
    )


def _ecc_by_location() -> tuple[Metric, ...]:
    return tuple(
        _counter(
            f"ecc_{kind}_{place}{'_aggregate' if lifetime else ''}_total",
            f"nvmlDeviceGetMemoryErrorCounter {kind}, "
            f"{'aggregate' if lifetime else 'volatile'}, {place.upper()}",
            f"ECC errors, {kind}, {place.upper()}{', lifetime' if lifetime else ''}",
            f"{place.upper()} {chinese}{'（终身）' if lifetime else ''}",
        )
        for lifetime in (False, True)
        for place in ("dram", "sram")
        for kind, chinese in (("corrected", "可纠正错误"), ("uncorrected", "不可纠正错误"))
    )


CATALOGUE: tuple[Metric, ...] = (
    _celsius("temperature_celsius", "nvmlDeviceGetTemperatureV", "GPU temperature", "GPU 温度"),
    _celsius(
        "memory_temperature_celsius",
        "NVML_FI_DEV_MEMORY_TEMP (82)",
        "Memory temperature",
        "显存温度",
    ),
    _celsius(
        "temperature_margin_celsius",
        "nvmlDeviceGetMarginTemperature, else slowdown threshold - temperature",
        "Margin to the thermal limit",
        "距温度上限",
        low=-100.0,
    ),
    # The highest board draws 1.4 kW; 2.5 kW refuses milliwatts under a watt label from ~2.5 W on.
    _gauge(
        "power_watts",
        "nvmlDeviceGetPowerUsage (mW, 1 s average on Ampere and later except GA100)",
        "Power",
        "功率",
        "W",
        high=2500.0,
        resolution=0.5,
    ),
    _gauge(
        "power_instant_watts",
        "NVML_FI_DEV_POWER_INSTANT (186, mW)",
        "Power, instantaneous",
        "瞬时功率",
        "W",
        high=3000.0,
        resolution=0.5,
    ),
    _gauge(
        "power_limit_watts",
        "nvmlDeviceGetEnforcedPowerLimit (mW)",
        "Power limit, enforced",
        "功率上限",
        "W",
        high=2500.0,
    ),
    _gauge(
        "power_default_limit_watts",
        "nvmlDeviceGetPowerManagementDefaultLimit (mW)",
        "Power limit, default",
        "默认功率上限",
        "W",
        high=2500.0,
    ),
    _counter(
        "energy_joules_total",
        "nvmlDeviceGetTotalEnergyConsumption (mJ)",
        "Energy since driver load",
        "累计能耗",
        "J",
        high=_MOST_JOULES,
    ),
    _ratio(
        "gpu_utilization_ratio",
        "nvmlDeviceGetUtilizationRates.gpu",
        "GPU utilisation",
        "GPU 利用率",
    ),
    # Share of time in which the memory bus was active: not occupancy.
    _ratio(
        "memory_utilization_ratio",
        "nvmlDeviceGetUtilizationRates.memory",
        "Memory-bus activity",
        "显存带宽利用率",
    ),
    _ratio(
        "encoder_utilization_ratio",
        "nvmlDeviceGetEncoderUtilization",
        "Encoder utilisation",
        "编码器利用率",
    ),
    _ratio(
        "decoder_utilization_ratio",
        "nvmlDeviceGetDecoderUtilization",
        "Decoder utilisation",
        "解码器利用率",
    ),
    _bytes("memory_used_bytes", "nvmlDeviceGetMemoryInfo v2 used", "Memory used", "已用显存"),
    _bytes("memory_free_bytes", "nvmlDeviceGetMemoryInfo v2 free", "Memory free", "空闲显存"),
    _bytes("memory_total_bytes", "nvmlDeviceGetMemoryInfo v2 total", "Memory total", "显存总量"),
    _bytes(
        "memory_reserved_bytes",
        "nvmlDeviceGetMemoryInfo v2 reserved",
        "Memory reserved by the driver",
        "驱动保留显存",
    ),
    _bytes("bar1_used_bytes", "nvmlDeviceGetBAR1MemoryInfo.bar1Used", "BAR1 used", "BAR1 已用"),
    _gauge(
        "sm_clock_hertz",
        "nvmlDeviceGetClockInfo SM (MHz)",
        "SM clock",
        "SM 频率",
        "Hz",
        high=5.0e9,
        resolution=15e6,
    ),
    _gauge(
        "sm_clock_max_hertz",
        "nvmlDeviceGetMaxClockInfo SM (MHz)",
        "SM clock, maximum",
        "SM 最高频率",
        "Hz",
        high=5.0e9,
    ),
    _gauge(
        "memory_clock_hertz",
        "nvmlDeviceGetClockInfo MEM (MHz)",
        "Memory clock",
        "显存频率",
        "Hz",
        high=2.0e10,
    ),
    _state("performance_state", "nvmlDeviceGetPerformanceState", "P-state", "性能状态", high=15.0),
    _state(
        "clock_event_reasons",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "Clock event reasons",
        "降频原因",
        high=float(2**32),
        kind=Kind.BITMASK,
    ),
    _counter(
        "throttle_power_cap_seconds_total",
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP (74, ns)",
        "Time under the software power cap",
        "功率封顶累计时间",
        "s",
        high=_MOST_SECONDS,
    ),
    _counter(
        "throttle_sw_thermal_seconds_total",
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN (269, ns)",
        "Time under software thermal slowdown",
        "软件温控降频累计时间",
        "s",
        high=_MOST_SECONDS,
    ),
    _counter(
        "throttle_hw_thermal_seconds_total",
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN (270, ns)",
        "Time under hardware thermal slowdown",
        "硬件温控降频累计时间",
        "s",
        high=_MOST_SECONDS,
    ),
    _counter(
        "throttle_power_brake_seconds_total",
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN (271, ns)",
        "Time under hardware power brake",
        "硬件功率刹车累计时间",
        "s",
        high=_MOST_SECONDS,
    ),
    _counter(
        "throttle_sync_boost_seconds_total",
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST (76, ns)",
        "Time held by sync boost",
        "同步提频累计时间",
        "s",
        high=_MOST_SECONDS,
    ),
    _gauge(
        "fan_ratio",
        "nvmlDeviceGetFanSpeed (intended duty)",
        "Fan, intended duty",
        "风扇目标转速",
        "%",
        high=1.5,
        resolution=0.01,
    ),
    _state(
        "pcie_generation",
        "nvmlDeviceGetCurrPcieLinkGeneration",
        "PCIe generation",
        "PCIe 代",
        high=8.0,
    ),
    _state(
        "pcie_width_lanes",
        "nvmlDeviceGetCurrPcieLinkWidth",
        "PCIe width",
        "PCIe 通道数",
        high=32.0,
    ),
    _counter(
        "pcie_replay_total", "nvmlDeviceGetPcieReplayCounter", "PCIe replays", "PCIe 重传次数"
    ),
    _counter(
        "pcie_transmit_bytes_total",
        "NVML_FI_DEV_PCIE_COUNT_TX_BYTES (197)",
        "PCIe sent",
        "PCIe 发送",
        "bytes",
    ),
    _counter(
        "pcie_receive_bytes_total",
        "NVML_FI_DEV_PCIE_COUNT_RX_BYTES (198)",
        "PCIe received",
        "PCIe 接收",
        "bytes",
    ),
    _state(
        "nvlink_active_links",
        "nvmlDeviceGetNvLinkState",
        "NVLink links up",
        "NVLink 活动链路",
        high=64.0,
    ),
    _counter(
        "nvlink_errors_total",
        "nvmlDeviceGetNvLinkErrorCounter, all links",
        "NVLink errors",
        "NVLink 错误",
    ),
    _counter(
        "ecc_corrected_total",
        "nvmlDeviceGetTotalEccErrors corrected, volatile",
        "ECC errors, corrected",
        "ECC 可纠正错误",
    ),
    _counter(
        "ecc_uncorrected_total",
        "nvmlDeviceGetTotalEccErrors uncorrected, volatile",
        "ECC errors, uncorrected",
        "ECC 不可纠正错误",
    ),
    _counter(
        "ecc_corrected_aggregate_total",
        "nvmlDeviceGetTotalEccErrors corrected, aggregate",
        "ECC errors, corrected, lifetime",
        "ECC 可纠正错误（终身）",
    ),
    _counter(
        "ecc_uncorrected_aggregate_total",
        "nvmlDeviceGetTotalEccErrors uncorrected, aggregate",
        "ECC errors, uncorrected, lifetime",
        "ECC 不可纠正错误（终身）",
    ),
    _counter(
        "remapped_rows_correctable_total",
        "nvmlDeviceGetRemappedRows correctable (142)",
        "Rows remapped, correctable",
        "重映射行（可纠正）",
    ),
    _counter(
        "remapped_rows_uncorrectable_total",
        "nvmlDeviceGetRemappedRows uncorrectable (143)",
        "Rows remapped, uncorrectable",
        "重映射行（不可纠正）",
    ),
    _state(
        "row_remap_pending",
        "nvmlDeviceGetRemappedRows pending (144)",
        "Row remap pending",
        "行重映射待生效",
        high=1.0,
    ),
    _state(
        "row_remap_failed",
        "nvmlDeviceGetRemappedRows failed (145)",
        "Row remap failed",
        "行重映射失败",
        high=1.0,
    ),
    _counter(
        "retired_pages_single_bit_total",
        "nvmlDeviceGetRetiredPages single bit",
        "Pages retired, single bit",
        "退役页（单比特）",
    ),
    _counter(
        "retired_pages_double_bit_total",
        "nvmlDeviceGetRetiredPages double bit",
        "Pages retired, double bit",
        "退役页（双比特）",
    ),
    _state(
        "retired_pages_pending",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "Page retirement pending",
        "页退役待生效",
        high=1.0,
    ),
    # Not bounded to the known 0..7: an unknown value means act, not implausible.
    _state(
        "recovery_action",
        "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (230)",
        "Recovery action asked by the driver",
        "驱动要求的恢复动作",
        high=255.0,
    ),
    # -- appended: finer, slower and rarer readings -------------------------------------------
    *_clocks(),
    _bytes("bar1_total_bytes", "nvmlDeviceGetBAR1MemoryInfo.bar1Total", "BAR1 total", "BAR1 总量"),
    *_extremes("power", "watts", "TOTAL_POWER_SAMPLES (0, mW)", "Power", "功率", "W", 3000.0, 0.5),
    *_extremes(
        "gpu_utilization",
        "ratio",
        "GPU_UTILIZATION_SAMPLES (1)",
        "GPU utilisation",
        "GPU 利用率",
        "%",
        1.0,
        0.01,
    ),
    *_extremes(
        "sm_clock",
        "hertz",
        "PROCESSOR_CLK_SAMPLES (5, MHz)",
        "SM clock",
        "SM 频率",
        "Hz",
        5.0e9,
        15e6,
    ),
    _ratio("graphics_activity_ratio", "GPM metric 1", "Graphics engine active", "图形引擎活跃"),
    _ratio("sm_activity_ratio", "GPM metric 2", "SMs active", "SM 活跃"),
    _ratio("sm_occupancy_ratio", "GPM metric 3", "Warps resident", "SM 占用"),
    _ratio("tensor_activity_ratio", "GPM metric 5", "Tensor cores active", "张量核活跃"),
    _ratio("dram_activity_ratio", "GPM metric 10", "Memory bandwidth used", "显存带宽占用"),
    _rate("pcie_transmit_bytes_per_second", "GPM metric 20 (MiB/s)", "PCIe sending", "PCIe 发送率"),
    _rate(
        "pcie_receive_bytes_per_second", "GPM metric 21 (MiB/s)", "PCIe receiving", "PCIe 接收率"
    ),
    _rate(
        "nvlink_transmit_bytes_per_second",
        "GPM metric 61 (MiB/s)",
        "NVLink sending",
        "NVLink 发送率",
    ),
    _rate(
        "nvlink_receive_bytes_per_second",
        "GPM metric 60 (MiB/s)",
        "NVLink receiving",
        "NVLink 接收率",
    ),
    _gauge(
        "fan_rpm", "nvmlDeviceGetFanSpeedRPM", "Fan, measured", "风扇转速", "rpm", high=100_000.0
    ),
    _gauge(
        "process_count",
        "nvmlDeviceGetComputeRunningProcesses, ...Graphics..., ...MPSCompute..., by process id",
        "Processes on the GPU",
        "GPU 进程数",
        "",
        high=float(2**22),
    ),
    # A free watchdog: the driver says how long it took for each field.
    _gauge(
        "driver_latency_seconds",
        "nvmlFieldValue_t.latencyUsec, the longest of the batch",
        "Latency of the driver",
        "驱动延迟",
        "s",
        high=3600.0,
        resolution=1e-5,
    ),
    *_remap_banks(),
    _state(
        "sram_threshold_exceeded",
        "nvmlDeviceGetSramEccErrorStatus.bThresholdExceeded",
        "SRAM error threshold exceeded",
        "SRAM 错误超限",
        high=1.0,
    ),
    _counter(
        "nvlink_crc_errors_total",
        "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL (38) and ..._CRC_DATA_... (45)",
        "NVLink CRC errors",
        "NVLink CRC 错误",
    ),
    _counter(
        "nvlink_replay_errors_total",
        "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL (52)",
        "NVLink replays",
        "NVLink 重传",
    ),
    _counter(
        "nvlink_recovery_errors_total",
        "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL (59)",
        "NVLink recoveries",
        "NVLink 恢复",
    ),
    _counter(
        "nvlink_transmit_bytes_total",
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX (138, KiB)",
        "NVLink sent",
        "NVLink 发送",
        "bytes",
    ),
    _counter(
        "nvlink_receive_bytes_total",
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX (139, KiB)",
        "NVLink received",
        "NVLink 接收",
        "bytes",
    ),
    *_ecc_by_location(),
    _counter(
        "pcie_correctable_errors_total",
        "NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS (173)",
        "PCIe errors, correctable",
        "PCIe 可纠正错误",
    ),
    _counter(
        "pcie_nonfatal_errors_total",
        "NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR (179)",
        "PCIe errors, non-fatal",
        "PCIe 非致命错误",
    ),
    _counter(
        "pcie_fatal_errors_total",
        "NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR (180)",
        "PCIe errors, fatal",
        "PCIe 致命错误",
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in CATALOGUE}
METRIC_INDEX: dict[str, int] = {metric.name: index for index, metric in enumerate(CATALOGUE)}


def plausible(metric: Metric, value: float) -> bool:
    """Tell whether a value lies in the metric's plausible range; NaN does not.

    Examples
    --------
    >>> plausible(METRICS["gpu_utilization_ratio"], 0.37)
    True
    >>> plausible(METRICS["gpu_utilization_ratio"], 42949672.95)
    False
    >>> plausible(METRICS["temperature_celsius"], float("nan"))
    False
    """
    return math.isfinite(value) and metric.low <= value <= metric.high
