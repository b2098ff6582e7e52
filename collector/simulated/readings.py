"""From physical state to what a driver would answer: named columns, in the sensors' steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["MEMORY_CAPACITY", "MEMORY_RESERVED", "MEMORY_TOTAL", "Snapshot", "columns"]

Floats = NDArray[np.float64]

_MIB = float(2**20)
MEMORY_TOTAL = 81_559.0 * _MIB  # captured: H100 80GB
MEMORY_RESERVED = 479.0 * _MIB  # captured: H100, driver 590
MEMORY_CAPACITY = MEMORY_TOTAL - MEMORY_RESERVED
_CLOCK_STEP = 15e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The fleet at one grid point: continuous rows can be interpolated, the others hold.

    Parameters
    ----------
    smooth
        Name to values of gauges and counters.
    held
        Name to values of states, bit masks and whole counts.
    """

    smooth: dict[str, Floats]
    held: dict[str, Floats]


def columns(before: Snapshot, after: Snapshot, share: float) -> dict[str, Floats]:
    """Return every metric between two grid points.

    Parameters
    ----------
    before, after
        Neighbouring grid points.
    share
        Where between them, 0 (``before``) to 1 (``after``).

    Returns
    -------
    dict
        Metric name to one value per GPU of the fleet, in the catalogue's units, rounded as the
        real sensor rounds: whole degrees, 1 %, 15 MHz, milliwatts, 2 MiB.
    """
    raw = {
        name: value + share * (after.smooth[name] - value) for name, value in before.smooth.items()
    }
    temperature = np.rint(raw["temperature_celsius"])
    used = np.floor(before.held["memory_used_bytes"])
    size = temperature.size
    out = {
        "temperature_celsius": temperature,
        "memory_temperature_celsius": np.rint(raw["memory_temperature_celsius"]),
        "temperature_margin_celsius": 87.0 - temperature,
        "power_watts": np.round(raw["power_watts"], 3),
        "power_instant_watts": np.round(raw["power_instant_watts"], 3),
        "energy_joules_total": np.round(raw["energy_joules_total"], 3),
        "gpu_utilization_ratio": np.round(raw["gpu_utilization_ratio"], 2),
        "memory_utilization_ratio": np.round(raw["memory_utilization_ratio"], 2),
        "sm_clock_hertz": np.rint(raw["sm_clock_hertz"] / _CLOCK_STEP) * _CLOCK_STEP,
        "memory_used_bytes": used,
        "memory_free_bytes": MEMORY_CAPACITY - used,
    }
    out.update({name: np.round(raw[name], 6) for name in raw if name.endswith("_seconds_total")})
    out.update({name: np.floor(raw[name]) for name in raw if name.endswith("_bytes_total")})
    out.update({name: value for name, value in before.held.items() if name not in out})
    out.update({name: np.full(size, value) for name, value in _CONSTANTS.items()})
    return out


_CONSTANTS = {
    "power_limit_watts": 700.0,
    "power_default_limit_watts": 700.0,
    "memory_total_bytes": MEMORY_TOTAL,
    "memory_reserved_bytes": MEMORY_RESERVED,
    "bar1_used_bytes": 2.0 * _MIB,
    "sm_clock_max_hertz": 1.98e9,
    "memory_clock_hertz": 2.619e9,
    "encoder_utilization_ratio": 0.0,
    "decoder_utilization_ratio": 0.0,
    "performance_state": 0.0,
    "throttle_sync_boost_seconds_total": 0.0,
    "pcie_generation": 5.0,
    "pcie_width_lanes": 16.0,
    "pcie_replay_total": 0.0,
    "nvlink_active_links": 18.0,
    "nvlink_errors_total": 0.0,
    "ecc_uncorrected_total": 0.0,
    "ecc_uncorrected_aggregate_total": 0.0,
    "remapped_rows_correctable_total": 0.0,
    "remapped_rows_uncorrectable_total": 0.0,
    "row_remap_pending": 0.0,
    "row_remap_failed": 0.0,
    "recovery_action": 0.0,
}
