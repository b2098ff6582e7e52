"""The counters of every GPU: energy, throttle time, PCIe, ECC. They reset with the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from collector.simulated.faults import Fault, FaultKind
from collector.simulated.physics import Reason
from collector.simulated.settings import SimulatedSettings

__all__ = ["Counters"]

Floats = NDArray[np.float64]

_THROTTLE = {
    "throttle_power_cap_seconds_total": Reason.POWER_CAP,
    "throttle_sw_thermal_seconds_total": Reason.SW_THERMAL,
    "throttle_hw_thermal_seconds_total": Reason.HW_THERMAL,
    "throttle_power_brake_seconds_total": Reason.POWER_BRAKE,
}


class Counters:
    """Running totals since driver load.

    Parameters
    ----------
    settings
        Fleet settings; the seed draws the histories.
    faults
        The schedule: corrected ECC errors, few or many.
    """

    def __init__(self, settings: SimulatedSettings, faults: Sequence[Fault]) -> None:
        self._gpus = settings.gpus
        size = settings.nodes * settings.gpus
        rng = np.random.default_rng([settings.seed, 2])
        kinds = (FaultKind.CORRECTED_ECC, FaultKind.ECC_STORM)
        self._faults = [f for f in faults if f.kind in kinds]
        self._totals: dict[str, Floats] = {
            "energy_joules_total": rng.uniform(1e8, 5e8, size),
            "pcie_transmit_bytes_total": np.zeros(size),
            "pcie_receive_bytes_total": np.zeros(size),
            "corrected": np.zeros(size),
            **{name: np.zeros(size) for name in _THROTTLE},
        }
        # A history, as on real boards: hours at the cap are no fault.
        self._totals["throttle_power_cap_seconds_total"] += rng.uniform(3000.0, 9000.0, size)
        self._lifetime: Floats = np.floor(rng.exponential(1.0, size))

    def add(
        self, seconds: float, dt: float, power: Floats, reasons: NDArray[np.int64], sent: Floats
    ) -> None:
        """Count ``dt`` seconds of watts, clock event reasons and PCIe bytes a second."""
        totals = self._totals
        totals["energy_joules_total"] += power * dt
        totals["pcie_transmit_bytes_total"] += sent * dt
        totals["pcie_receive_bytes_total"] += 0.6 * sent * dt
        for name, bit in _THROTTLE.items():
            totals[name] += dt * ((reasons & bit) != 0)
        for fault in self._faults:
            if fault.active(seconds) and fault.gpu is not None:
                storm = fault.kind is FaultKind.ECC_STORM
                rate = fault.size if storm else fault.size / fault.duration_seconds
                totals["corrected"][fault.node * self._gpus + fault.gpu] += rate * dt

    def reset(self, positions: list[int]) -> None:
        """Set the volatile counters of these GPUs to zero, as a device reset does."""
        self._lifetime[positions] += np.floor(self._totals["corrected"][positions] + 1e-9)
        for total in self._totals.values():
            total[positions] = 0.0

    def smooth(self) -> dict[str, Floats]:
        """Copy the totals that grow continuously."""
        return {name: total.copy() for name, total in self._totals.items() if name != "corrected"}

    def whole(self) -> dict[str, Floats]:
        """Copy the totals that count single errors."""
        # A dozen errors spread over a minute sum up to 11.999999: forgive the rounding.
        volatile = np.floor(self._totals["corrected"] + 1e-9)
        return {
            "ecc_corrected_total": volatile,
            "ecc_corrected_aggregate_total": self._lifetime + volatile,
        }
