"""Which worlds are made: faults and look-alikes at 1 Hz, memory at 10 s, and long healthy days."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from foreshock.bench import physics
from foreshock.bench.decoys import DECOYS
from foreshock.bench.faults import FAULTS, MEMORY_FAULTS, leak_into
from foreshock.bench.happenings import FaultSpec, Placed, Truth
from foreshock.bench.memory import CHURNING, QUIET, hold
from foreshock.bench.ranges import Side
from foreshock.bench.workloads import WORKLOADS, fill
from foreshock.bench.world import CAPACITY, GIB, GPUS, World

__all__ = ["Case", "fault_suite", "memory_suite", "soak"]

Rng = np.random.Generator
_CHUNK = 96  # nodes that are made at once: some 300 MiB of arrays
_SHORT_SECONDS, _LONG_SECONDS = 1200, 3000
_MEMORY_HOURS = 5.5
#: Memory that goes with a kind of work, and how often.
_HELD = {
    "inference": ("churn", "churn", "swaps", "plateau", "full"),
    "mixed": ("churn", "plateau", "full"),
    "bursts": ("sawtooth", "plateau", "swaps"),
    "idle": ("none", "none", "plateau"),
}
_HELD_IN_TRAINING = ("plateau", "plateau", "allocator", "full", "sawtooth")
_SHARES = {
    "train_capped": 0.24,
    "train": 0.18,
    "train_uneven": 0.10,
    "pipeline": 0.06,
    "phases": 0.08,
    "bursts": 0.12,
    "inference": 0.12,
    "mixed": 0.06,
    "idle": 0.04,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A world with readings, and the truth about it."""

    suite: str
    world: World
    truths: tuple[Truth, ...]


def fault_suite(side: Side, seed: int, trials: int, names: Sequence[str] = ()) -> Iterator[Case]:
    """Yield the trials of all fault classes at 1 Hz, and nodes with look-alikes only.

    Parameters
    ----------
    side, seed
        Where the parameters come from.
    trials
        Trials per class and magnitude.
    names
        Classes to leave in; all if empty.
    """
    rng = side.rng(seed, 11)
    chosen = [FAULTS[name] for name in names] if names else list(FAULTS.values())
    first = 0
    for seconds in (_SHORT_SECONDS, _LONG_SECONDS):
        planned: list[tuple[FaultSpec, float] | None] = [
            (spec, magnitude)
            for spec in chosen
            for magnitude in spec.magnitudes
            for _ in range(trials)
            if _needs_seconds(spec) == seconds
        ]
        # Three look-alikes each: half as many nodes hold more of them than there are faults.
        planned += [None] * math.ceil(len(planned) / 2)
        order = rng.permutation(len(planned))
        for begin in range(0, len(planned), _CHUNK):
            part = [planned[i] for i in order[begin : begin + _CHUNK]]
            yield _fault_chunk(side, seed, first, part, seconds)
            first += len(part)


def _needs_seconds(spec: FaultSpec) -> int:
    whole = spec.lead_in[1] + spec.seconds + 30.0
    return _SHORT_SECONDS if whole <= _SHORT_SECONDS else _LONG_SECONDS


def _fault_chunk(
    side: Side,
    seed: int,
    first: int,
    planned: Sequence[tuple[FaultSpec, float] | None],
    seconds: int,
) -> Case:
    world = World(side=side, seed=seed, first_node=first, nodes=len(planned), ticks=seconds, dt=1.0)
    truths: list[Truth] = []
    for node, plan in enumerate(planned):
        rng = side.rng(seed, first + node, 21)
        if plan is None:
            starts = (240.0, 0.45 * seconds, 0.7 * seconds)
            truths += _decoy_node(world, node, rng, starts=starts)
        else:
            truths.append(_fault_node(world, node, rng, *plan))
    physics.run(world)
    return Case(suite="faults", world=world, truths=tuple(truths))


def _furnish(world: World, node: int, rng: Rng, workload: str) -> None:
    fill(world, node, workload, rng)
    held = _HELD.get(workload, _HELD_IN_TRAINING)
    hold(world, node, held[rng.integers(len(held))], rng)


def _fault_node(world: World, node: int, rng: Rng, spec: FaultSpec, magnitude: float) -> Truth:
    _furnish(world, node, rng, spec.workloads[rng.integers(len(spec.workloads))])
    start = world.tick(rng.uniform(*spec.lead_in))
    end = min(start + world.tick(spec.seconds), world.ticks - 30)
    placed = Placed(
        name=spec.name,
        node=node,
        gpu=int(rng.integers(GPUS)),
        start=start,
        end=end,
        magnitude=magnitude,
        ramp=float(rng.uniform(*spec.ramps)),
    )
    spec.inject(world, placed, rng)
    wide = spec.scope != "gpu" or spec.name in ("data_stall", "idle_allocated")
    return Truth(
        name=spec.name,
        magnitude=magnitude,
        node=world.first_node + node,
        gpus=tuple(range(GPUS)) if wide else (placed.gpu,),
        start=start * world.dt,
        end=end * world.dt,
        spec=spec,
    )


def _decoy_node(
    world: World, node: int, rng: Rng, starts: Sequence[float], workload: str | None = None
) -> list[Truth]:
    names = list(DECOYS)
    drawn = [DECOYS[names[rng.integers(len(names))]] for _ in starts]
    _furnish(world, node, rng, workload or drawn[0].workloads[rng.integers(3)])
    truths = []
    for start, decoy in zip(starts, drawn, strict=True):
        first = world.tick(start + rng.uniform(0.0, 60.0))
        last = min(max(first + world.tick(decoy.seconds), first + 2), world.ticks - 2)
        if last <= first:
            continue
        placed = Placed(
            name=decoy.name,
            node=node,
            gpu=int(rng.integers(GPUS)),
            start=first,
            end=last,
            ramp=60.0,
        )
        decoy.inject(world, placed, rng)
        truths.append(
            Truth(
                name=decoy.name,
                magnitude=0.0,
                node=world.first_node + node,
                gpus=(placed.gpu,),
                start=first * world.dt,
                end=last * world.dt,
                allowed=decoy.allowed,
            )
        )
    return truths


def memory_suite(side: Side, seed: int, trials: int) -> Iterator[Case]:
    """Yield leaks that run to their end, on quiet and on churning memory, and healthy nodes.

    One reading every 10 s for 5.5 hours; one GPU of a node leaks, the others do not.
    """
    plans: list[tuple[FaultSpec, float, str] | str] = [
        (spec, rate, kind)
        for spec in MEMORY_FAULTS.values()
        for rate in spec.magnitudes
        for kind in ("quiet", "churning")
        for _ in range(trials)
    ]
    healthy = (*QUIET, *CHURNING, "full", "sawtooth")
    plans += [healthy[number % len(healthy)] for number in range(len(plans) // 2)]
    for first in range(0, len(plans), _CHUNK):
        yield _memory_chunk(side, seed, first, plans[first : first + _CHUNK])


def _memory_chunk(
    side: Side, seed: int, first: int, plans: Sequence[tuple[FaultSpec, float, str] | str]
) -> Case:
    ticks = round(_MEMORY_HOURS * 360)
    number = 100_000 + first  # nodes of no other suite
    world = World(side=side, seed=seed, first_node=number, nodes=len(plans), ticks=ticks, dt=10.0)
    truths: list[Truth] = []
    for node, plan in enumerate(plans):
        rng = side.rng(seed, number + node, 22)
        if isinstance(plan, str):
            fill(world, node, "inference" if plan in CHURNING else "train", rng)
            hold(world, node, plan, rng)
            truths.append(_healthy(world, node, plan))
        else:
            truths.append(_leaking(world, node, rng, *plan))
    physics.run(world)
    return Case(suite="memory", world=world, truths=tuple(truths))


def _healthy(world: World, node: int, kind: str) -> Truth:
    """Let false alarms of a healthy node be counted by the kind of its memory."""
    return Truth(
        name=f"memory {kind}", magnitude=0.0, node=world.first_node + node, gpus=(),
        start=0.0, end=world.ticks * world.dt,
    )  # fmt: skip


def _leaking(world: World, node: int, rng: Rng, spec: FaultSpec, rate: float, group: str) -> Truth:
    quiet = group == "quiet"
    fill(world, node, "train" if quiet else "inference", rng)
    hold(world, node, QUIET[rng.integers(len(QUIET))] if quiet else "churn", rng)
    start, gpu = world.tick(rng.uniform(3600.0, 5400.0)), int(rng.integers(GPUS))
    if quiet:
        # Room for one to two and a half hours, or for what the rate leaves of a working day.
        room = min(rate * rng.uniform(1.0, 2.5), 0.6 * CAPACITY / GIB)
        column = world.rows(node).start + gpu
        world.memory[:, column] += CAPACITY - room * GIB - world.memory[start, column]
    placed = Placed(
        name=spec.name, node=node, gpu=gpu, start=start, end=world.ticks, magnitude=rate
    )
    died = leak_into(world, placed, gib_per_hour=rate)
    return Truth(
        name=spec.name,
        magnitude=rate,
        node=world.first_node + node,
        gpus=(gpu,),
        start=start * world.dt,
        end=died * world.dt,
        terminal=died * world.dt,
        spec=replace(spec, related=("load_imbalance", "inefficiency", "novelty")),
        group=group,
        # What comes in the last minute before the end helps nobody.
        grace=-60.0,
    )


def soak(side: Side, seed: int, gpu_days: float, interval: float = 30.0) -> Iterator[Case]:
    """Yield healthy days with all that happens on them: job changes, gaps, swaps, resets.

    Parameters
    ----------
    side, seed
        Where the parameters come from.
    gpu_days
        At least so many, in whole nodes of one day.
    interval
        Sampling interval, s.
    """
    nodes = math.ceil(gpu_days / GPUS)
    ticks = round(86_400.0 / interval)
    kinds, shares = list(_SHARES), np.array(list(_SHARES.values()))
    for first in range(0, nodes, _CHUNK):
        size, number = min(_CHUNK, nodes - first), 200_000 + first
        world = World(side=side, seed=seed, first_node=number, nodes=size, ticks=ticks, dt=interval)
        truths: list[Truth] = []
        for node in range(size):
            rng = side.rng(seed, number + node, 23)
            starts = np.sort(rng.uniform(1800.0, 84_000.0, 6))
            workload = str(rng.choice(kinds, p=shares / shares.sum()))
            truths += _decoy_node(world, node, rng, starts.tolist(), workload)
        physics.run(world)
        yield Case(suite="soak", world=world, truths=tuple(truths))


assert set(_SHARES) == set(WORKLOADS)  # noqa: S101 - a new kind of work needs its share
