"""What the sensors say: power, clocks, heat and counters of every GPU, tick by tick.

On purpose not the model that a detector assumes: besides the two poles of the heat path there is
a third, slow one of the chassis, neighbours warm each other, the resistance falls with the
temperature, a hot chip leaks, and the clock is cut as a driver does it.
"""

from __future__ import annotations

import numpy as np

from foreshock.bench.world import CAPACITY, GPUS, RESERVED, TOTAL, Floats, World

__all__ = ["REASON_HW_SLOWDOWN", "REASON_HW_THERMAL", "REASON_POWER_BRAKE", "run"]

CLOCK_MAX = 1.98e9
CLOCK_IDLE = 3.45e8
_DYNAMIC_WATTS = 640.0
_SPIN_WATTS = 62.0
_EXPONENT = 2.3  # of the clock in the dynamic power
_CAP_SHARE = 0.986  # a full load draws 690 of 700 W
_LEAK_WATTS = 0.7  # per °C above 45
_HOT = 87.0  # maximum operating temperature of an H100, °C
_CHASSIS_SHARE, _CHASSIS_SECONDS = 0.06, 420.0
_NEIGHBOUR = 0.015
REASON_IDLE, REASON_POWER_CAP, REASON_SW_THERMAL = 0x1, 0x4, 0x20
REASON_HW_SLOWDOWN, REASON_HW_THERMAL, REASON_POWER_BRAKE = 0x8, 0x40, 0x80


def run(world: World) -> None:
    """Fill ``world.readings`` from the demand, then apply what faults do to the sensors."""
    idle, dynamic, clock = _clocks(world)
    _publish(world, clock, _heat(world, idle, dynamic))
    for change in world.after:
        change(world)


def _clocks(world: World) -> tuple[Floats, Floats, Floats]:
    """Return idle power, dynamic power at the clock in force, and that clock as a share."""
    rng = world.side.rng(world.seed, world.first_node, 1)
    size = world.nodes * GPUS
    idle = rng.uniform(69.0, 80.0, size).astype(np.float32)
    silicon = rng.uniform(*world.side.silicon, size).astype(np.float32)
    work = np.where(world.spin, 0.0, world.activity) * silicon
    room = _CAP_SHARE * world.limit - idle
    share = np.minimum(1.0, (room / np.maximum(_DYNAMIC_WATTS * work, 1.0)) ** (1 / _EXPONENT))
    clock = (share * world.speed).astype(np.float32)
    dynamic = _DYNAMIC_WATTS * work * clock**_EXPONENT
    dynamic += np.where(world.spin, _SPIN_WATTS * clock, 0.0)
    busy = world.activity > 0.01
    dynamic += np.where(busy, 2.5, 0.3) * rng.standard_normal(work.shape, dtype=np.float32)
    return idle, dynamic, clock


def _heat(world: World, idle: Floats, dynamic: Floats) -> dict[str, Floats]:
    """Advance the heat path and the driver's own thermal control through all ticks."""
    rng = world.side.rng(world.seed, world.first_node, 2)
    side, size, dt = world.side, world.nodes * GPUS, world.dt
    host = np.repeat(rng.uniform(*side.resistance, world.nodes), GPUS)
    base = np.clip(host + rng.uniform(-0.010, 0.010, size), 0.042, 0.084)
    fast_share, tau = rng.uniform(*side.fast_share, size), rng.uniform(*side.slow_seconds, size)
    air = np.repeat(rng.uniform(*side.ambient, world.nodes), GPUS)
    air += rng.uniform(-side.slot_celsius, side.slot_celsius, size)
    # Healthy boards of the public recordings reach 51 to 74 °C at 690 W.
    base = np.minimum(base, (76.0 - air) / (_CAP_SHARE * world.limit[0]))
    phase = np.repeat(rng.uniform(0.0, 2 * np.pi, world.nodes), GPUS)
    swing = 1.5 * np.sin(2 * np.pi * np.arange(world.ticks) * dt / 86_400.0 + phase[:, None]).T
    weights = [1.0 - np.exp(-dt / pole) for pole in (0.5, tau, _CHASSIS_SECONDS)]
    shares = [fast_share, 1.0 - fast_share - _CHASSIS_SHARE, _CHASSIS_SHARE]
    watts = idle + dynamic[0]
    poles = [share * base * watts for share in shares]
    governor, heat = np.ones(size), air + swing[0] + sum(poles)
    out_heat, out_watts, out_governor = (np.empty(dynamic.shape, np.float32) for _ in range(3))
    for tick in range(world.ticks):
        leak = _LEAK_WATTS * np.maximum(heat - 45.0, 0.0)
        watts = idle + leak + dynamic[tick] * governor**_EXPONENT
        watts = np.minimum(watts, world.limit[tick] * 1.01)
        path = base * world.resistance[tick] * (1.0 - 0.0008 * (heat - 60.0))
        rise = path * watts
        poles = [
            pole + weight * (share * rise - pole)
            for pole, weight, share in zip(poles, weights, shares, strict=True)
        ]
        warm = _NEIGHBOUR * (rise.reshape(-1, GPUS).mean(axis=1).repeat(GPUS) - rise)
        heat = air + swing[tick] + world.air[tick] + sum(poles) + warm
        # Control on the scale of a second or of a sample, whichever is longer.
        governor = np.clip(governor - 0.006 * np.clip(heat - _HOT, -4, 4) * min(dt, 4.0), 0.35, 1)
        out_heat[tick], out_watts[tick], out_governor[tick] = heat, watts, governor
    noise = 0.3 * rng.standard_normal(dynamic.shape, dtype=np.float32)
    return {"heat": out_heat + noise, "watts": out_watts, "governor": out_governor}


def _publish(world: World, clock: Floats, state: dict[str, Floats]) -> None:
    """Name the readings and round them as the sensors do."""
    rng = world.side.rng(world.seed, world.first_node, 3)
    dt, watts, governor = world.dt, state["watts"], state["governor"]
    heat = np.rint(state["heat"])
    shape, size = heat.shape, heat.shape[1]
    busy = (world.activity > 0.01) | world.spin
    soft = busy & (governor < 0.995)
    capped = busy & (clock < 0.999 * world.speed) & ~world.spin
    reasons = np.where(busy, 0, REASON_IDLE) + np.where(capped, REASON_POWER_CAP, 0)
    reasons = reasons + np.where(soft, REASON_SW_THERMAL, 0)
    hertz = np.where(busy, CLOCK_MAX * clock * governor, CLOCK_IDLE)
    noise = rng.standard_normal(shape, dtype=np.float32)
    bus = np.clip(world.bus + 0.015 * noise * (world.bus > 0.0), 0.0, 1.0)
    lifetime = rng.uniform(1e8, 3e9, size)
    out = world.readings
    out["temperature_celsius"] = heat
    out["memory_temperature_celsius"] = np.rint(state["heat"] + 3.0 + 6.0 * bus)
    out["temperature_margin_celsius"] = _HOT - heat
    out["power_watts"] = np.round(watts, 2)
    out["power_instant_watts"] = np.round(watts + 4.0 * busy * noise, 2)
    out["power_limit_watts"] = world.limit
    out["energy_joules_total"] = lifetime + np.cumsum(watts.astype(np.float64) * dt, axis=0)
    out["gpu_utilization_ratio"] = np.round(np.clip(world.utilization, 0.0, 1.0), 2)
    out["memory_utilization_ratio"] = np.round(bus, 2)
    out["memory_used_bytes"] = np.minimum(np.floor(world.memory / 2**21) * 2**21, CAPACITY)
    out["sm_clock_hertz"] = np.rint(hertz / 15e6) * 15e6
    out["clock_event_reasons"] = reasons.astype(np.float64)
    out["throttle_power_cap_seconds_total"] = 1e4 + np.cumsum(capped * dt, axis=0)
    out["throttle_sw_thermal_seconds_total"] = np.cumsum(soft * dt, axis=0)
    for name in _ZERO_COUNTERS:
        out[name] = np.zeros(shape)
    out["pcie_width_lanes"] = np.full(shape, 16.0, dtype=np.float32)
    out["pcie_generation"] = np.where(busy, 5.0, 1.0)
    out["nvlink_active_links"] = np.full(shape, 18.0, dtype=np.float32)
    for name, value in _CONSTANTS.items():
        out[name] = np.full(size, value)


_ZERO_COUNTERS = (
    "throttle_hw_thermal_seconds_total",
    "throttle_power_brake_seconds_total",
    "nvlink_errors_total",
    "ecc_corrected_total",
    "ecc_uncorrected_total",
)
_CONSTANTS = {
    "power_default_limit_watts": 700.0,
    "memory_total_bytes": TOTAL,
    "memory_reserved_bytes": RESERVED,
    "sm_clock_max_hertz": CLOCK_MAX,
    "row_remap_pending": 0.0,
    "row_remap_failed": 0.0,
    "recovery_action": 0.0,
}
