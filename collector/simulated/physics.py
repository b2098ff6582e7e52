"""Power, clocks and heat of every GPU of the fleet, one fixed step at a time.

Constants follow public H100 material: idle 70 to 75 W and 345 MHz, 1,980 MHz at most, 700 W
limit of which a full load draws 690; a hot chip leaks about 0.8 W/°C; the heat path has two
poles, one below a second with about 45 % of the rise and one of 15 to 57 s; 0.044 to 0.086 °C/W
from chip to air, ambient 22 to 33 °C; 87 °C is margin 0, hardware slows down at margin -2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from collector.simulated.faults import Fault, FaultKind
from collector.simulated.load import Demand
from collector.simulated.settings import SimulatedSettings

__all__ = [
    "CLOCK_IDLE",
    "CLOCK_MAX",
    "LIMIT_WATTS",
    "MAX_OPERATING",
    "Physics",
    "Reason",
]

Floats = NDArray[np.float64]

LIMIT_WATTS = 700.0
CLOCK_MAX = 1.98e9
CLOCK_IDLE = 3.45e8
MAX_OPERATING = 87.0
_CAP_TARGET = 690.0  # where the power controller settles under the 700 W limit
_DYNAMIC = 720.0  # watts of a full load at the highest clock, above idle
_EXPONENT = 2.4  # power against clock
_SPIN_WATTS = 62.0  # above idle, of a rank that waits in a collective
_LEAK_WATTS = 0.8  # per °C above 45 °C
_FAST_SHARE = 0.45
_FAST_TAU = 0.6
_RAMP_TAU = 8.0  # a heat path does not fail in an instant
_HW_TRIP, _HW_RELEASE = 88.5, 80.0
_HW_HOLD = 2.0
_HW_CLOCK = 0.5  # hardware slowdown halves the clock


class Reason:
    """Clock event reasons, bits of nvml.h."""

    IDLE = 0x1
    POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    POWER_BRAKE = 0x80


class Physics:
    """State of all chips; every array has one value per GPU of the fleet.

    Parameters
    ----------
    settings
        Fleet settings; the seed draws the slots.
    faults
        The schedule.
    level
        Usual activity per GPU, to find how hot an unthrottled chip would get.
    """

    def __init__(self, settings: SimulatedSettings, faults: Sequence[Fault], level: Floats) -> None:
        self._nodes, self._gpus = settings.nodes, settings.gpus
        size = settings.nodes * settings.gpus
        rng = np.random.default_rng([settings.seed, 1])
        self._draw_slots(rng, size)
        self._faults = [f for f in faults if f.kind in _PHYSICAL]
        self._usual_watts = np.minimum(self.idle_watts + _DYNAMIC * level, _CAP_TARGET)
        self.resistance: Floats = self._resistance.copy()
        rise = self.resistance * (self._usual_watts if settings.jobs else self.idle_watts)
        self.fast: Floats = _FAST_SHARE * rise
        self.slow: Floats = (1.0 - _FAST_SHARE) * rise
        self.temperature: Floats = self.ambient(0.0) + rise
        self.clock: Floats = np.full(size, CLOCK_MAX)
        self.power: Floats = self.idle_watts.copy()
        self.wait: Floats = np.zeros(size)
        self.reasons: NDArray[np.int64] = np.zeros(size, np.int64)
        self._governor: Floats = np.ones(size)
        self._latched: Floats = np.zeros(size)  # seconds of hardware slowdown still to hold

    def _draw_slots(self, rng: np.random.Generator, size: int) -> None:
        per_node = np.repeat(rng.uniform(0.050, 0.058, self._nodes), self._gpus)
        self._resistance: Floats = np.clip(
            per_node + rng.uniform(-0.008, 0.008, size), 0.044, 0.086
        )
        self._offset: Floats = rng.uniform(-1.0, 1.0, size)
        self._tau: Floats = rng.uniform(15.0, 57.0, size)
        self.idle_watts: Floats = rng.uniform(70.0, 75.0, size)
        self._silicon: Floats = rng.uniform(0.985, 1.015, size)  # spread of dynamic power
        self._base_ambient: Floats = np.repeat(rng.uniform(24.0, 28.0, self._nodes), self._gpus)
        self._swing: Floats = np.repeat(rng.uniform(0.0, 2 * np.pi, self._nodes), self._gpus)

    def ambient(self, seconds: float) -> Floats:
        """Air at each slot, °C, with a swing of 2 °C a day."""
        daily = 2.0 * np.sin(2 * np.pi * seconds / 86_400.0 + self._swing)
        air: Floats = self._base_ambient + self._offset + daily
        return air

    def step(self, seconds: float, dt: float, want: Demand, noise: Floats) -> None:
        """Advance by ``dt`` seconds to ``seconds``.

        Parameters
        ----------
        seconds, dt
            New time and step, simulated seconds.
        want
            What the ranks want to do.
        noise
            Standard normal, one per GPU: the ripple of the power.
        """
        air = self.ambient(seconds)
        path, health, brake, tripping = self._apply_faults(seconds, air)
        self.resistance += (path - self.resistance) * (1.0 - np.exp(-dt / _RAMP_TAU))
        self.wait = self._waiting(want, self.clock)
        self._set_clock(want, brake, health)
        self._set_power(want, noise)
        self._heat(air, dt)
        self._govern(dt, tripping)

    def _apply_faults(
        self, seconds: float, air: Floats
    ) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
        path = self._resistance.copy()
        health = np.ones_like(path)
        brake = np.ones_like(path)
        tripping = np.zeros(path.size, bool)
        for fault in self._faults:
            if not fault.active(seconds):
                continue
            first = fault.node * self._gpus
            rows = (
                slice(first, first + self._gpus)
                if fault.gpu is None
                else slice(first + fault.gpu, first + fault.gpu + 1)
            )
            match fault.kind:
                case FaultKind.THERMAL:
                    path[rows] += fault.size / 400.0
                case FaultKind.POWER_BRAKE:
                    brake[rows] = fault.size
                case FaultKind.STRAGGLER:
                    health[rows] = 1.0 - fault.size
                case _:
                    over = MAX_OPERATING + fault.size - air[rows]
                    path[rows] = np.maximum(path[rows], over / self._usual_watts[rows])
                    tripping[rows] = fault.kind is FaultKind.HW_THERMAL
        return path, health, brake, tripping

    def _waiting(self, want: Demand, speed: Floats) -> Floats:
        # The slowest rank sets the pace: the others spend the rest of the step in NCCL.
        shape = (self._nodes, self._gpus)
        paced = np.where(want.synced, speed, np.inf).reshape(shape)
        slowest = np.repeat(paced.min(axis=1), self._gpus)
        lost = np.where(want.synced, 1.0 - slowest / speed, 0.0)
        return np.where(want.waits, 1.0, np.where(np.isfinite(lost), lost, 0.0))

    def _set_clock(self, want: Demand, brake: Floats, health: Floats) -> None:
        work = want.activity * (1.0 - self.wait) * self._silicon
        room = _CAP_TARGET - self.idle_watts - self._leakage() - _SPIN_WATTS * self.wait
        ratio = np.maximum(room, 1.0) / np.maximum(_DYNAMIC * work, 1.0)
        capped = np.minimum(1.0, ratio ** (1.0 / _EXPONENT))
        hardware = np.where(self._latched > 0.0, _HW_CLOCK, 1.0) * brake
        allowed = np.minimum(hardware, self._governor) * health
        busy = (want.activity > 0.0) | want.waits
        share = np.minimum(capped, allowed)
        self.clock = np.where(busy, CLOCK_MAX * share, CLOCK_IDLE)
        held = busy & (self._latched > 0.0)
        bits: tuple[tuple[NDArray[np.bool_], int], ...] = (
            (~busy, Reason.IDLE),
            (busy & (capped < 0.999) & (capped <= allowed), Reason.POWER_CAP),
            (busy & (self._governor < 0.995), Reason.SW_THERMAL),
            (held, Reason.HW_THERMAL | Reason.HW_SLOWDOWN),
            (brake < 1.0, Reason.POWER_BRAKE | Reason.HW_SLOWDOWN),
        )
        self.reasons = np.zeros(busy.size, np.int64)
        for where, bit in bits:
            self.reasons[where] |= bit

    def _set_power(self, want: Demand, noise: Floats) -> None:
        work = want.activity * (1.0 - self.wait) * self._silicon
        share = (self.clock / CLOCK_MAX) ** _EXPONENT
        spin = _SPIN_WATTS * self.wait * np.minimum(share, 1.0)
        ideal = self.idle_watts + self._leakage() + _DYNAMIC * work * share + spin
        ripple = np.where(want.activity > 0.0, 2.5, 0.3)
        self.power = np.clip(ideal + ripple * noise, 60.0, LIMIT_WATTS * 1.02)

    def _leakage(self) -> Floats:
        loss: Floats = _LEAK_WATTS * np.maximum(self.temperature - 45.0, 0.0)
        return loss

    def _heat(self, air: Floats, dt: float) -> None:
        rise = self.resistance * self.power
        self.fast += (_FAST_SHARE * rise - self.fast) * (1.0 - np.exp(-dt / _FAST_TAU))
        self.slow += ((1.0 - _FAST_SHARE) * rise - self.slow) * (1.0 - np.exp(-dt / self._tau))
        # Above 89 °C the board would shut down before long; the model never gets there.
        self.temperature = np.minimum(air + self.fast + self.slow, 89.4)

    def _govern(self, dt: float, tripping: NDArray[np.bool_]) -> None:
        # A chip whose hot spot runs ahead of the software loop is caught by the hardware alone.
        excess = np.clip(self.temperature - MAX_OPERATING, -4.0, 4.0)
        eased = np.clip(self._governor - 0.006 * excess * dt, 0.35, 1.0)
        self._governor = np.where(tripping, 1.0, eased)
        self._latched = np.maximum(self._latched - dt, 0.0)
        hot = tripping & (self.temperature >= _HW_TRIP)
        still = (self._latched > 0.0) & (self.temperature > _HW_RELEASE)
        self._latched = np.where(hot | still, _HW_HOLD, self._latched)


_PHYSICAL = frozenset(
    {
        FaultKind.THERMAL,
        FaultKind.HW_THERMAL,
        FaultKind.SW_THERMAL,
        FaultKind.POWER_BRAKE,
        FaultKind.STRAGGLER,
    }
)
