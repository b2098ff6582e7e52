"""What healthy GPUs do: training in step, in phases and in bursts, inference, and nothing.

Each function fills activity, utilisation, bus and jobs of one node for the whole world.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from foreshock.bench.world import GPUS, Floats, World

__all__ = ["IN_STEP", "WORKLOADS", "fill", "start_job"]

Rng = np.random.Generator


def fill(world: World, node: int, workload: str, rng: Rng) -> None:
    """Let a node do one kind of work from beginning to end."""
    WORKLOADS[workload](world, node, rng)


def start_job(
    world: World, node: int, tick: int, name: str, groups: tuple[tuple[int, ...], ...] | None = None
) -> None:
    """Note that from a tick on the node runs jobs, by default one on all GPUs."""
    parts = groups if groups is not None else (tuple(range(GPUS)),)
    jobs = tuple(
        (part, f"{name}-{world.first_node + node}-{tick}-{number}")
        for number, part in enumerate(parts)
    )
    world.jobs.setdefault(node, []).append((tick, jobs))


def _in_step(world: World, node: int, rng: Rng, level: float, spread: float = 0.004) -> None:
    """Train in step: a common ripple, a little noise per rank, checkpoints in between."""
    rows = world.rows(node)
    ripple = 1.0 + 0.012 * world.common[:, [node]] + spread * world.wander[:, rows]
    world.activity[:, rows] = level * ripple
    world.utilization[:, rows] = 1.0
    world.bus[:, rows] = 0.25 + 0.35 * level + 0.02 * world.common[:, [node]]
    _checkpoints(world, node, rng)
    start_job(world, node, 0, "train")


def _checkpoints(world: World, node: int, rng: Rng) -> None:
    every = rng.uniform(*world.side.checkpoint_seconds)
    lasts = rng.uniform(3.0, min(25.0, every / 12.0))
    since = (np.arange(world.ticks) * world.dt + rng.uniform(0.0, every)) % every
    saving = since < lasts
    alone = saving & (since > 0.6 * lasts)
    rows = world.rows(node)
    world.activity[saving, rows] = 0.1
    world.utilization[saving, rows] = np.float32(0.3)
    world.bus[saving, rows] = 0.04
    # The last part is written by rank 0 alone while the others spin.
    others = slice(rows.start + 1, rows.stop)
    world.spin[alone, others] = True
    world.activity[alone, others] = 0.0
    world.utilization[alone, others] = 1.0


def _train_capped(world: World, node: int, rng: Rng) -> None:
    _in_step(world, node, rng, rng.uniform(1.0, 1.08))


def _train(world: World, node: int, rng: Rng) -> None:
    _in_step(world, node, rng, rng.uniform(0.45, 0.85))


def _train_uneven(world: World, node: int, rng: Rng) -> None:
    """Sequences of unlike length: single steps differ by a third, means by a few percent."""
    _in_step(world, node, rng, rng.uniform(0.5, 0.8), spread=0.03)
    bias = rng.uniform(-0.015, 0.015, GPUS).astype(np.float32)
    world.activity[:, world.rows(node)] *= 1.0 + bias


def _pipeline(world: World, node: int, rng: Rng) -> None:
    """Ranks with roles: the first does less, the last one half more."""
    _in_step(world, node, rng, rng.uniform(0.40, 0.55))
    role = np.ones(GPUS, dtype=np.float32)
    role[0], role[-1] = 0.89, rng.uniform(1.3, 1.62)
    world.activity[:, world.rows(node)] *= role


def _phases(world: World, node: int, rng: Rng) -> None:
    """Alternate between compute with a quiet bus, and a busy bus at less power."""
    rows = world.rows(node)
    period, share = rng.uniform(120.0, 240.0), rng.uniform(0.4, 0.6)
    since = (np.arange(world.ticks) * world.dt + rng.uniform(0.0, period)) % period
    compute = (since < share * period)[:, None]
    ripple = 1.0 + 0.012 * world.common[:, [node]] + 0.004 * world.wander[:, rows]
    world.activity[:, rows] = np.where(compute, 0.82, 0.47) * ripple
    world.utilization[:, rows] = 1.0
    world.bus[:, rows] = np.where(compute, 0.22, 0.72) + 0.02 * world.common[:, [node]]
    start_job(world, node, 0, "phases")


def _bursts(world: World, node: int, rng: Rng) -> None:
    """Rollouts with long waits: all GPUs together, mostly idle, seconds at half power."""
    rows = world.rows(node)
    on = _switching(rng, world.ticks, world.dt, rng.uniform(4.0, 12.0), rng.uniform(15.0, 50.0))
    level = rng.uniform(0.35, 0.75)
    share = on[:, None] * np.ones(GPUS, dtype=np.float32)
    world.activity[:, rows] = level * share * (1.0 + 0.05 * world.wander[:, rows])
    world.utilization[:, rows] = 0.97 * share
    world.bus[:, rows] = 0.3 * share
    start_job(world, node, 0, "rollout")


def _switching(rng: Rng, ticks: int, dt: float, on: float, off: float) -> Floats:
    """Return (ticks,) the share of each sample that a random telegraph is on."""
    span = ticks * dt
    count = int(span / (on + off) * 2 + 20)
    lengths = np.empty(2 * count)
    lengths[::2], lengths[1::2] = rng.exponential(off, count), rng.exponential(on, count)
    edges = np.concatenate([[0.0], np.cumsum(lengths)])
    time_on = np.concatenate(
        [[0.0], np.cumsum(np.where(np.arange(2 * count) % 2 == 1, lengths, 0))]
    )
    moments = np.arange(ticks + 1) * dt
    return np.asarray(np.diff(np.interp(moments, edges, time_on)) / dt, dtype=np.float32)


def _inference(world: World, node: int, rng: Rng) -> None:
    """Replicas that serve independent requests, more of them by day."""
    first = world.rows(node).start
    duty = rng.uniform(*world.side.duty)
    hour = 2 * np.pi * (np.arange(world.ticks) * world.dt / 86_400.0)
    day = (1.0 - 0.5 * np.cos(hour)).astype(np.float32)
    for gpu in range(GPUS):
        busy = _switching(rng, world.ticks, world.dt, 5.0 * duty / (1.0 - duty), 5.0)
        share = np.clip(busy * day, 0.0, 1.0)
        world.activity[:, first + gpu] = 0.55 * share
        world.utilization[:, first + gpu] = share
        world.bus[:, first + gpu] = 0.6 * share
    start_job(world, node, 0, "serve", tuple((gpu,) for gpu in range(GPUS)))


def _mixed(world: World, node: int, rng: Rng) -> None:
    """Two tenants: one trains on half of the node, the other serves or idles."""
    _inference(world, node, rng)
    first = world.rows(node).start
    half = slice(first, first + GPUS // 2)
    world.activity[:, half] = rng.uniform(0.5, 1.0) * (1.0 + 0.01 * world.common[:, [node]])
    world.utilization[:, half] = 1.0
    world.bus[:, half] = 0.5
    world.jobs[node].clear()
    start_job(world, node, 0, "tenant", (tuple(range(4)), (4,), (5,), (6,), (7,)))


def _idle(world: World, node: int, rng: Rng) -> None:
    """Nothing at all."""
    del rng
    world.jobs.setdefault(node, [])


WORKLOADS: dict[str, Callable[[World, int, Rng], None]] = {
    "train_capped": _train_capped,
    "train": _train,
    "train_uneven": _train_uneven,
    "pipeline": _pipeline,
    "phases": _phases,
    "bursts": _bursts,
    "inference": _inference,
    "mixed": _mixed,
    "idle": _idle,
}
#: Work in which all GPUs of a node run in step.
IN_STEP = ("train_capped", "train", "train_uneven")
