"""Static thresholds, as vendors' and exporters' rules have them.

The defaults: 85 °C for ten minutes, hardware thermal slowdown and power brake bits for five,
software thermal slowdown for thirty, memory above 95 % for two minutes, Xids of the critical
list, uncorrected errors, lost GPUs, links and lanes below their maximum for a minute.
"""

from __future__ import annotations

import numpy as np

from foreshock.bench.rivals.base import Setting, alarms_of_flags, seen
from foreshock.bench.scoring import Alarm
from foreshock.bench.world import CAPACITY, GPUS, ORIGIN_MS, Flags, World

__all__ = ["StaticThresholds"]

_CRITICAL_XIDS = frozenset({48, 62, 64, 74, 79, 95, 119, 120})


class StaticThresholds:
    """One rule per fact, one limit per rule."""

    name = "static thresholds"
    stride = 1
    settings: tuple[Setting, ...] = tuple(
        {"celsius": celsius, "memory": memory, "hold": hold}
        for celsius, memory, hold in (
            (85.0, 0.95, 1.0), (85.0, 0.90, 1.0), (85.0, 0.97, 1.0), (80.0, 0.95, 1.0),
            (75.0, 0.95, 1.0), (75.0, 0.90, 1.0), (85.0, 0.95, 0.2), (85.0, 0.97, 0.2),
            (80.0, 0.95, 0.2), (80.0, 0.97, 0.2), (75.0, 0.95, 0.2), (85.0, 0.99, 0.05),
        )
    )  # fmt: skip

    def prepare(self, world: World) -> dict[str, Flags]:
        """Work out the flags that have no limit to tune."""
        bits = np.nan_to_num(seen(world, "clock_event_reasons")).astype(np.int64)
        errors = np.nan_to_num(seen(world, "ecc_uncorrected_total"))
        rose = np.zeros(errors.shape, dtype=bool)
        rose[1:] = errors[1:] > errors[:-1]
        return {
            "hw_thermal": (bits & 0x40) != 0,
            "power_brake": (bits & 0x80) != 0,
            "sw_thermal": (bits & 0x20) != 0,
            "ecc_uncorrected": rose,
            "pcie_degraded": seen(world, "pcie_width_lanes") < 16.0,
            "nvlink": seen(world, "nvlink_active_links") < 18.0,
            "lost": world.lost | ~world.present,
        }

    def alarms(self, world: World, prepared: dict[str, Flags], setting: Setting) -> list[Alarm]:
        """Apply the rules; ``hold`` scales every duration."""
        scale = setting["hold"]
        hot = seen(world, "temperature_celsius") > setting["celsius"]
        full = seen(world, "memory_used_bytes") > setting["memory"] * CAPACITY
        rules = (
            (hot, 600.0, "thermal_fault", "near_limit"),
            (full, 120.0, "oom_precursor", "at_limit"),
            (prepared["hw_thermal"], 300.0, "throttling", "hw_thermal"),
            (prepared["power_brake"], 300.0, "throttling", "power_brake"),
            (prepared["sw_thermal"], 1800.0, "throttling", "sw_thermal"),
            (prepared["ecc_uncorrected"], 0.0, "hardware_error", "ecc_uncorrected"),
            (prepared["pcie_degraded"], 60.0, "hardware_error", "pcie_degraded"),
            (prepared["nvlink"], 60.0, "hardware_error", "nvlink"),
            (prepared["lost"], 30.0, "gpu_lost", "lost"),
        )
        out = [
            alarm
            for flags, hold, family, kind in rules
            for alarm in alarms_of_flags(world, flags, hold * scale, family, kind)
        ]
        return out + _xids(world)


def _xids(world: World) -> list[Alarm]:
    slots = {
        world.uuid(node, gpu, tick): gpu
        for node in world.events
        for gpu in range(GPUS)
        for tick in (0, world.ticks)
    }
    return [
        Alarm(
            node=world.first_node + node,
            gpu=slots.get(event.gpu or ""),
            family="hardware_error",
            kind="xid",
            at=((2, (event.ts - ORIGIN_MS) / 1000.0),),
        )
        for node, events in world.events.items()
        for _, event in events
        if event.xid in _CRITICAL_XIDS
    ]
