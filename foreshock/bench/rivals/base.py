"""What the rivals share: readings as they would see them, and flags over time made episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from foreshock.bench.scoring import Alarm
from foreshock.bench.world import CAPACITY, GPUS, Flags, Floats, World

__all__ = ["CORE", "Rival", "Setting", "alarms_of_flags", "core", "onsets", "seen"]

#: Parameters of one evaluation, by name.
Setting = dict[str, float]
#: The gauges that general detectors look at, and what each is divided by.
CORE = {
    "temperature_celsius": 100.0,
    "power_watts": 800.0,
    "gpu_utilization_ratio": 1.0,
    "memory_used_bytes": CAPACITY,
    "sm_clock_hertz": 1.98e9,
}


class Rival(Protocol):
    """One detector under comparison.

    ``prepare`` does what does not depend on the setting, so that tuning is cheap; ``alarms``
    turns it into episodes.
    """

    name: str
    #: Settings that tuning may choose from, the default first; equally many for everybody.
    settings: tuple[Setting, ...]
    #: Every so manieth node is watched; 1 for all.
    stride: int

    def prepare(self, world: World) -> Any:
        """Look at a world once. Any: each rival has its own intermediate result."""
        ...

    def alarms(self, world: World, prepared: Any, setting: Setting) -> list[Alarm]:
        """Return the episodes with one setting."""
        ...


def seen(world: World, metric: str) -> Floats:
    """Return (ticks, GPUs) of one metric as it arrives, NaN where nothing does."""
    values = world.readings[metric]
    full = np.broadcast_to(values, world.activity.shape).astype(np.float64)
    missing = world.lost | ~world.present | ~np.repeat(world.reported, GPUS, axis=1)
    return np.where(missing, np.nan, full)


def core(world: World) -> Iterator[tuple[str, Floats]]:
    """Yield the core metrics, scaled to about 0 to 1."""
    for name, size in CORE.items():
        yield name, seen(world, name) / size


@dataclass(frozen=True, slots=True)
class _Onset:
    tick: int
    column: int


def onsets(flags: Flags, dt: float, hold: float, clear: float = 60.0) -> Iterator[_Onset]:
    """Yield where a flag has held for ``hold`` seconds, again only after ``clear`` without it."""
    size = flags.shape[1]
    held, quiet = np.zeros(size), np.zeros(size)
    firing = np.zeros(size, dtype=bool)
    for tick in np.flatnonzero(flags.any(axis=1) | _after(flags, dt, clear)):
        on = flags[tick]
        held = np.where(on, held + dt, 0.0)
        quiet = np.where(on, 0.0, quiet + dt)
        firing &= quiet < clear
        begins = on & ~firing & (held >= hold)
        for column in np.flatnonzero(begins):
            yield _Onset(int(tick), int(column))
        firing |= begins


def _after(flags: Flags, dt: float, clear: float) -> Flags:
    """Tell which ticks come so soon after a flag that something may still be counting."""
    any_on = np.asarray(flags.any(axis=1), dtype=np.bool_)
    ticks = np.arange(len(flags))
    last = np.maximum.accumulate(np.where(any_on, ticks, -(10**9)))
    return np.asarray(ticks - last <= clear / dt + 1)


def alarms_of_flags(
    world: World, flags: Flags, hold: float, family: str = "", kind: str = ""
) -> list[Alarm]:
    """Make one warning of every episode of a flag."""
    return [
        Alarm(
            node=world.first_node + onset.column // GPUS,
            gpu=onset.column % GPUS,
            family=family,
            kind=kind,
            at=((2, onset.tick * world.dt),),
        )
        for onset in onsets(flags, world.dt, hold)
    ]
