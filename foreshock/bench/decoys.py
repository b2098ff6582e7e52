"""The look-alikes: what is healthy and looks like a fault. Nothing above info may be said."""

from __future__ import annotations

import numpy as np

from foreshock.bench.happenings import Decoy, Placed
from foreshock.bench.memory import staircase
from foreshock.bench.workloads import start_job
from foreshock.bench.world import CAPACITY, GIB, GPUS, World
from schemas.sample import EventKind, SampleEvent

__all__ = ["DECOYS"]

Rng = np.random.Generator
_RESETTING = (
    "energy_joules_total",
    "ecc_corrected_total",
    "nvlink_errors_total",
    "throttle_power_cap_seconds_total",
    "throttle_sw_thermal_seconds_total",
)


def _column(world: World, placed: Placed) -> int:
    return world.column(placed.node, placed.gpu)


def _quiet(world: World, rows: slice | int, ticks: slice) -> None:
    world.activity[ticks, rows] = 0.0
    world.utilization[ticks, rows] = 0.0
    world.bus[ticks, rows] = 0.0
    world.spin[ticks, rows] = False


def _start_again(world: World, placed: Placed, name: str) -> None:
    """Start new jobs on the same groups of GPUs as before."""
    before = [jobs for _, jobs in world.jobs.get(placed.node, ()) if jobs]
    groups = tuple(part for part, _ in before[-1]) if before else ()
    if groups:
        start_job(world, placed.node, placed.end, name, groups)


def _job_change(world: World, placed: Placed, rng: Rng) -> None:
    """End the job, wait, start another one: loading, stairs of memory, another level."""
    rows, loading = world.rows(placed.node), world.tick(25.0)
    _quiet(world, rows, placed.ticks)
    world.memory[placed.ticks, rows] = 3.0 * 2**20
    world.jobs.setdefault(placed.node, []).append((placed.start, ()))
    _start_again(world, placed, "next")
    up = slice(placed.end, min(placed.end + loading, world.ticks))
    world.activity[up, rows], world.utilization[up, rows] = 0.07, 0.3
    seconds = np.arange(world.ticks - placed.end) * world.dt
    plateau = rng.uniform(*world.side.fill) * CAPACITY
    world.memory[placed.end :, rows] = staircase(seconds, plateau)[:, None]
    world.activity[up.stop :, rows] *= rng.uniform(0.75, 1.0)


def _evaluation(world: World, placed: Placed, rng: Rng) -> None:
    """Evaluate at less power and a little more memory."""
    rows = world.rows(placed.node)
    world.activity[placed.ticks, rows] *= rng.uniform(0.4, 0.6)
    world.memory[placed.ticks, rows] += rng.uniform(0.5, 1.8) * GIB


def _staggered_stop(world: World, placed: Placed, rng: Rng) -> None:
    """End the ranks one by one over a minute or two, as recorded; then start anew."""
    first = world.rows(placed.node).start
    ends = np.sort(rng.uniform(0.0, 0.7, GPUS))
    for gpu, share in enumerate(ends):
        at = placed.start + int(share * (placed.end - placed.start))
        _quiet(world, first + gpu, slice(at, placed.end))
        world.memory[at : placed.end, first + gpu] = 3.0 * 2**20
    world.jobs.setdefault(placed.node, []).append((placed.end - 1, ()))
    _start_again(world, placed, "again")


def _rank0_alone(world: World, placed: Placed, rng: Rng) -> None:
    """Let rank 0 work at full power for four seconds while the others wait."""
    del rng
    rows = world.rows(placed.node)
    ticks = slice(placed.start, min(placed.end, placed.start + world.tick(4.0)))
    others = slice(rows.start + 1, rows.stop)
    world.activity[ticks, rows.start] = 1.0
    world.activity[ticks, others], world.spin[ticks, others] = 0.0, True
    world.utilization[ticks, others] = 1.0


def _dips(world: World, placed: Placed, rng: Rng) -> None:
    """Dip for a second every 22 s, all together."""
    since = (np.arange(placed.end - placed.start) * world.dt) % rng.uniform(20.0, 25.0)
    ticks = np.arange(placed.start, placed.end)[since < 1.0]
    world.activity[ticks, world.rows(placed.node)] *= 0.6
    world.utilization[ticks, world.rows(placed.node)] = 0.55


def _inlet(world: World, placed: Placed, rng: Rng) -> None:
    """Warm the air of the whole node: true of the node, and no GPU's fault."""
    warm = rng.uniform(3.0, 6.0) * placed.shape(world)
    world.air[placed.ticks, world.rows(placed.node)] += warm[:, None]


def _gap(world: World, placed: Placed, rng: Rng) -> None:
    """Say nothing for a while."""
    del rng
    world.reported[placed.ticks, placed.node] = False


def _holes(world: World, placed: Placed, rng: Rng) -> None:
    """Miss readings: a metric of one GPU for minutes, single ones anywhere."""
    column, rows = _column(world, placed), world.rows(placed.node)

    def change(done: World) -> None:
        names = [name for name, values in done.readings.items() if values.ndim == 2]
        for name in rng.choice(names, 4, replace=False):
            done.readings[name][placed.ticks, column] = np.nan
        for name in names:
            block = done.readings[name][placed.ticks, rows]
            done.readings[name][placed.ticks, rows] = np.where(
                rng.random(block.shape) < 0.02, np.nan, block
            )

    world.after.append(change)


def _disorder(world: World, placed: Placed, rng: Rng) -> None:
    """Deliver messages twice and out of order."""
    ticks = range(placed.start, placed.end)
    late = world.late.setdefault(placed.node, set())
    repeated = world.repeated.setdefault(placed.node, set())
    late.update(tick for tick in ticks if rng.random() < 0.1)
    repeated.update(tick for tick in ticks if rng.random() < 0.1)


def _counter_reset(world: World, placed: Placed, rng: Rng) -> None:
    """Reload the driver: counters begin anew."""
    del rng
    column = _column(world, placed)

    def change(done: World) -> None:
        for name in _RESETTING:
            values = done.readings[name]
            values[placed.start :, column] -= values[placed.start, column]

    world.after.append(change)


def _swap(world: World, placed: Placed, rng: Rng) -> None:
    """Put another GPU into the slot, with another heat path."""
    world.swapped[placed.node, placed.gpu] = placed.end
    rows = world.rows(placed.node)
    _quiet(world, rows, placed.ticks)
    world.reported[placed.ticks, placed.node] = False
    world.resistance[placed.end :, _column(world, placed)] *= rng.uniform(0.85, 1.0)
    world.jobs.setdefault(placed.node, []).append((placed.end - 1, ()))
    _start_again(world, placed, "swapped")


def _spike(world: World, placed: Placed, rng: Rng) -> None:
    """Read 23 °C too much for one sample."""
    column, extra = _column(world, placed), rng.uniform(15.0, 30.0)

    def change(done: World) -> None:
        done.readings["temperature_celsius"][placed.start, column] += np.rint(extra)

    world.after.append(change)


def _background_ecc(world: World, placed: Placed, rng: Rng) -> None:
    """Correct a few errors an hour, as chips do for years."""
    column = _column(world, placed)
    grown = np.cumsum(rng.random(world.ticks) < 12.0 * world.dt / 3600.0)

    def change(done: World) -> None:
        done.readings["ecc_corrected_total"][:, column] += grown

    world.after.append(change)


def _application_xid(world: World, placed: Placed, rng: Rng) -> None:
    """Report Xids that a program causes."""
    for code in rng.choice([13, 31, 43, 45, 63, 92], 2, replace=False).tolist():
        event = SampleEvent(
            ts=world.ms(placed.start),
            kind=EventKind.XID,
            gpu=world.uuid(placed.node, placed.gpu, placed.start),
            xid=code,
        )
        world.events.setdefault(placed.node, []).append((placed.start, event))


def _wrong_unit(world: World, placed: Placed, rng: Rng) -> None:
    """Read milliwatts under a watt label for a while."""
    del rng
    column = _column(world, placed)

    def change(done: World) -> None:
        done.readings["power_watts"][placed.ticks, column] *= 1000.0

    world.after.append(change)


def _brief_slowdown(world: World, placed: Placed, rng: Rng) -> None:
    """Set the bare slowdown bit for one sample, as at a change of P-state."""
    del rng
    column = _column(world, placed)

    def change(done: World) -> None:
        reasons = done.readings["clock_event_reasons"]
        reasons[placed.start, column] = float(int(reasons[placed.start, column]) | 0x8)

    world.after.append(change)


DECOYS: dict[str, Decoy] = {
    decoy.name: decoy
    for decoy in (
        Decoy(name="job_change", inject=_job_change, seconds=90.0),
        Decoy(name="evaluation", inject=_evaluation),
        Decoy(name="staggered_stop", inject=_staggered_stop),
        Decoy(name="rank0_alone", inject=_rank0_alone, seconds=10.0),
        Decoy(name="short_dips", inject=_dips, seconds=300.0),
        Decoy(name="warm_inlet", inject=_inlet, allowed=("thermal_fault",), seconds=600.0),
        Decoy(name="gap", inject=_gap, seconds=75.0),
        Decoy(name="holes", inject=_holes, seconds=300.0),
        Decoy(name="disorder", inject=_disorder, seconds=300.0),
        Decoy(name="counter_reset", inject=_counter_reset, seconds=30.0),
        Decoy(name="gpu_swap", inject=_swap, seconds=180.0),
        Decoy(name="temperature_spike", inject=_spike, seconds=10.0),
        Decoy(name="background_ecc", inject=_background_ecc, seconds=600.0),
        Decoy(name="application_xid", inject=_application_xid, seconds=30.0),
        Decoy(name="wrong_unit", inject=_wrong_unit, seconds=120.0),
        Decoy(name="brief_slowdown", inject=_brief_slowdown, seconds=10.0),
    )
}
