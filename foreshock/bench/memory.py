"""How healthy work holds its memory: what a forecast must tell from a leak.

Each function returns (ticks, GPUs) bytes. The sizes of the churn follow production serving pods
(143 pods of 22.8 h): daily range 30 GiB in the median, steps of 4.8 GiB at the 90th and 12 GiB at
the 99th percentile, 36 GiB at most.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from foreshock.bench.world import CAPACITY, GIB, GPUS, Floats, World

__all__ = ["CHURNING", "MEMORIES", "QUIET", "hold", "staircase"]

Rng = np.random.Generator
_BLOCK = 20.0 * 2**20


def hold(world: World, node: int, kind: str, rng: Rng) -> None:
    """Fill the memory of a node for the whole world."""
    rows = world.rows(node)
    world.memory[:, rows] = np.clip(MEMORIES[kind](world, rng), 3.0 * 2**20, CAPACITY)


def _plateau(world: World, rng: Rng) -> Floats:
    level = rng.uniform(*world.side.fill) + rng.uniform(-0.01, 0.01, GPUS)
    return np.tile(level * CAPACITY, (world.ticks, 1))


def _full(world: World, rng: Rng) -> Floats:
    """Preallocate: flat at 90 to 97 %."""
    return np.tile(rng.uniform(0.90, 0.97) * CAPACITY, (world.ticks, GPUS))


def _allocator(world: World, rng: Rng) -> Floats:
    """Hold a plateau that grows by rare blocks and is swept now and then."""
    held = _plateau(world, rng)
    grows = rng.random((world.ticks, GPUS)) < world.dt / rng.uniform(400.0, 900.0)
    swept = rng.random(world.ticks) < world.dt / 5400.0
    blocks = np.cumsum(grows, axis=0)
    base = np.maximum.accumulate(np.where(swept[:, None], blocks, 0), axis=0)
    return np.asarray(held + np.minimum(blocks - base, 15) * _BLOCK)


def _churn(world: World, rng: Rng) -> Floats:
    """Serve: caches grow and are dropped in steps of unlike size, back and forth."""
    low, high = rng.uniform(0.25, 0.5), rng.uniform(0.7, 0.92)
    steps = rng.random((world.ticks, GPUS)) < world.dt / rng.uniform(60.0, 240.0)
    sizes = np.minimum(rng.lognormal(np.log(1.2 * GIB), 1.05, steps.shape), 36.0 * GIB)
    out = np.empty(steps.shape)
    level = rng.uniform(low, high, GPUS) * CAPACITY
    for tick in range(world.ticks):
        place = (level / CAPACITY - low) / (high - low)
        up = rng.random(GPUS) > np.clip(place, 0.05, 0.95)
        moved = level + np.where(up, 1.0, -1.0) * sizes[tick]
        level = np.where(steps[tick], np.clip(moved, low * CAPACITY, high * CAPACITY), level)
        out[tick] = level
    return out


def _sawtooth(world: World, rng: Rng) -> Floats:
    """Grow with the work and give all of it back, again and again."""
    period, height = rng.uniform(240.0, 1500.0), rng.uniform(1.5, 7.0) * GIB
    base = rng.uniform(0.35, 0.7) * CAPACITY
    phase = rng.uniform(0.0, period)
    since = (np.arange(world.ticks) * world.dt + phase) % period
    return np.asarray(base + height * (since / period)[:, None] * np.ones(GPUS))


def _swaps(world: World, rng: Rng) -> Floats:
    """Swap models: another plateau every ten minutes to an hour."""
    changes = rng.random(world.ticks) < world.dt / rng.uniform(600.0, 3600.0)
    levels = rng.uniform(0.2, 0.88, int(changes.sum()) + 1)
    return np.asarray((levels[np.cumsum(changes)] * CAPACITY)[:, None] * np.ones(GPUS))


def _none(world: World, rng: Rng) -> Floats:
    del rng
    return np.full((world.ticks, GPUS), 3.0 * 2**20)


def staircase(seconds: Floats, plateau: float) -> Floats:
    """Return what a job holds so many seconds after its start: stairs up to its plateau."""
    at = np.array([0.0, 2.0, 6.0, 10.0, 14.0, 18.0, 22.0, 60.0, 150.0])
    share = np.array([0.0, 0.006, 0.05, 0.35, 0.62, 0.86, 0.93, 0.985, 1.0])
    stair = share[np.clip(np.searchsorted(at, seconds, side="right") - 1, 0, len(at) - 1)]
    return np.asarray(np.maximum(stair * plateau, 3.0 * 2**20))


MEMORIES: dict[str, Callable[[World, Rng], Floats]] = {
    "plateau": _plateau,
    "full": _full,
    "allocator": _allocator,
    "churn": _churn,
    "sawtooth": _sawtooth,
    "swaps": _swaps,
    "none": _none,
}
QUIET = ("plateau", "allocator")
CHURNING = ("churn", "swaps")
