"""The two that every table needs: one that says nothing, one that says anything."""

from __future__ import annotations

import numpy as np

from foreshock.bench.rivals.base import Setting
from foreshock.bench.scoring import Alarm
from foreshock.bench.world import GPUS, World

__all__ = ["Null", "Random"]


class Null:
    """Says nothing."""

    name = "null"
    stride = 1
    settings: tuple[Setting, ...] = ({},)

    def prepare(self, world: World) -> None:
        """Look at nothing."""
        del world

    def alarms(self, world: World, prepared: None, setting: Setting) -> list[Alarm]:
        """Return no episode."""
        del world, prepared, setting
        return []


class Random:
    """Names GPUs by chance, so many times per GPU-day."""

    name = "random"
    stride = 1
    settings: tuple[Setting, ...] = tuple(
        {"per_gpu_day": rate}
        for rate in (10.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
    )

    def prepare(self, world: World) -> None:
        """Look at nothing."""
        del world

    def alarms(self, world: World, prepared: None, setting: Setting) -> list[Alarm]:
        """Return episodes at random places and times."""
        del prepared
        rng = np.random.default_rng([world.seed, world.first_node, 99])
        count = rng.poisson(setting["per_gpu_day"] * world.gpu_days)
        columns = rng.integers(world.nodes * GPUS, size=count)
        moments = rng.uniform(0.0, world.ticks * world.dt, count)
        return [
            Alarm(node=world.first_node + int(c) // GPUS, gpu=int(c) % GPUS, at=((2, float(t)),))
            for c, t in zip(columns, moments, strict=True)
        ]
