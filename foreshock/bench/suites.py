"""Which worlds are made: faults and look-alikes at 1 Hz, memory, and long healthy days."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from foreshock.bench import physics
from foreshock.bench.decoys import DECOYS
from foreshock.bench.faults import FAULTS, MEMORY_FAULTS, leak_into
from foreshock.bench.happenings import FaultSpec, Placed, Truth
from foreshock.bench.memory import CHURNING, QUIET, hold
from foreshock.bench.ranges import Side
from foreshock.bench.scoring import Alarm, Score, judge
from foreshock.bench.workloads import WORKLOADS, fill
from foreshock.bench.world import CAPACITY, GIB, GPUS, World

__all__ = ["Case", "Make", "fault_suite", "memory_suite", "soak"]

Rng = np.random.Generator
_CHUNK = 96  # nodes that are made at once: some 300 MiB of arrays
_SHORT_SECONDS = 1200  # a trial that needs more is put among the long ones
_PART = 24  # nodes of memory and soak at once: smaller parts for several processes
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

    def judged(self, alarms: Sequence[Alarm], share: float = 1.0) -> Score:
        """Score alarms; ``share`` of the nodes was watched."""
        first = self.world.first_node
        doing = {first + node: words for node, words in self.world.doing.items()}
        return judge(alarms, self.truths, self.world.gpu_days * share, doing)


Make = Callable[[], Case]


def fault_suite(side: Side, seed: int, trials: int, names: Sequence[str] = ()) -> list[Make]:
    """Plan the trials of all fault classes at 1 Hz, and nodes with look-alikes only.

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
    first, made = 0, list[Make]()
    needed = {spec.name: round(spec.lead_in[1] + spec.seconds) + 30 for spec in chosen}
    short = {name for name, seconds in needed.items() if seconds <= _SHORT_SECONDS}
    for some in (short, set(needed) - short):
        if not some:
            continue
        seconds = max(needed[name] for name in some)
        planned: list[tuple[FaultSpec, float] | None] = [
            (spec, magnitude)
            for spec in chosen
            for magnitude in spec.magnitudes
            for _ in range(trials)
            if spec.name in some
        ]
        # Three look-alikes each: half as many nodes hold more of them than there are faults.
        planned += [None] * math.ceil(len(planned) / 2)
        order = rng.permutation(len(planned))
        for begin in range(0, len(planned), _CHUNK):
            part = [planned[i] for i in order[begin : begin + _CHUNK]]
            made.append(partial(_fault_chunk, side, seed, first, part, seconds))
            first += len(part)
    return made


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
    kind = held[rng.integers(len(held))]
    hold(world, node, kind, rng)
    world.doing[node] = f"{workload}, memory {kind}"


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


def memory_suite(
    side: Side,
    seed: int,
    trials: int,
    interval: float = 30.0,
    rates: Sequence[float] = (),
) -> list[Make]:
    """Plan leaks that run to their end, on quiet and on churning memory, and healthy nodes.

    Readings over 5.5 hours; one GPU of a node leaks, the others do not. ``rates`` in GiB/h are
    those to leave in; all if empty.
    """
    plans: list[tuple[FaultSpec, float, str] | str] = [
        (spec, rate, kind)
        for spec in MEMORY_FAULTS.values()
        for rate in spec.magnitudes
        if not rates or rate in rates
        for kind in ("quiet", "churning")
        for _ in range(trials)
    ]
    healthy = (*QUIET, *CHURNING, "full", "sawtooth")
    plans += [healthy[number % len(healthy)] for number in range(len(plans) // 2)]
    return [
        partial(_memory_chunk, side, seed, first, plans[first : first + _PART], interval)
        for first in range(0, len(plans), _PART)
    ]


def _memory_chunk(
    side: Side,
    seed: int,
    first: int,
    plans: Sequence[tuple[FaultSpec, float, str] | str],
    interval: float,
) -> Case:
    ticks = round(_MEMORY_HOURS * 3600.0 / interval)
    number = 100_000 + first  # nodes of no other suite
    world = World(
        side=side, seed=seed, first_node=number, nodes=len(plans), ticks=ticks, dt=interval
    )
    truths: list[Truth] = []
    for node, plan in enumerate(plans):
        rng = side.rng(seed, number + node, 22)
        if isinstance(plan, str):
            fill(world, node, "inference" if plan in CHURNING else "train", rng)
            hold(world, node, plan, rng)
            world.doing[node] = f"healthy, memory {plan}"
        else:
            truths.append(_leaking(world, node, rng, *plan))
    physics.run(world)
    return Case(suite="memory", world=world, truths=tuple(truths))


def _leaking(world: World, node: int, rng: Rng, spec: FaultSpec, rate: float, group: str) -> Truth:
    quiet = group == "quiet"
    fill(world, node, "train" if quiet else "inference", rng)
    kind = QUIET[rng.integers(len(QUIET))] if quiet else "churn"
    hold(world, node, kind, rng)
    world.doing[node] = f"healthy, memory {kind}"
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


def soak(side: Side, seed: int, gpu_days: float, interval: float = 60.0) -> list[Make]:
    """Plan healthy days with all that happens on them: job changes, gaps, swaps, resets.

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
    return [
        partial(_soak_chunk, side, seed, first, min(_PART, nodes - first), interval)
        for first in range(0, nodes, _PART)
    ]


def _soak_chunk(side: Side, seed: int, first: int, nodes: int, interval: float) -> Case:
    number, ticks = 200_000 + first, round(86_400.0 / interval)
    world = World(side=side, seed=seed, first_node=number, nodes=nodes, ticks=ticks, dt=interval)
    kinds, shares = list(_SHARES), np.array(list(_SHARES.values()))
    truths: list[Truth] = []
    for node in range(nodes):
        rng = side.rng(seed, number + node, 23)
        starts = np.sort(rng.uniform(1800.0, 84_000.0, 6))
        workload = str(rng.choice(kinds, p=shares / shares.sum()))
        truths += _decoy_node(world, node, rng, starts.tolist(), workload)
    physics.run(world)
    return Case(suite="soak", world=world, truths=tuple(truths))


assert set(_SHARES) == set(WORKLOADS)  # noqa: S101 - a new kind of work needs its share
