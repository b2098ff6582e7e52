"""The faults: what each does to the work, the heat path or the sensors.

Every injection has a magnitude and, where nature does, a ramp. Heat comes out of the physics,
never painted onto the temperature, unless the sensor itself is what is broken.
"""

from __future__ import annotations

import numpy as np

from foreshock.bench import physics
from foreshock.bench.happenings import FaultSpec, Placed
from foreshock.bench.world import CAPACITY, GIB, GPUS, World
from schemas.sample import EventKind, SampleEvent

__all__ = ["FAULTS", "MEMORY_FAULTS", "leak_into", "mark_bits"]

Rng = np.random.Generator
_SPIN_SECONDS = 12.0  # peers of a lost rank wait so long before the launcher notices


def _column(world: World, placed: Placed) -> int:
    return world.column(placed.node, placed.gpu)


def _thermal(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    grown = 1.0 + placed.magnitude * placed.shape(world)
    world.resistance[placed.ticks, _column(world, placed)] *= grown


def _fan_wall(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    grown = 1.0 + placed.magnitude * placed.shape(world)
    world.resistance[placed.ticks, world.rows(placed.node)] *= grown[:, None]


def _pump(world: World, placed: Placed, rng: Rng) -> None:
    """Lose the flow: the air that counts for this GPU rises by so many degrees a second."""
    del rng
    seconds = np.arange(placed.end - placed.start) * world.dt
    world.air[placed.ticks, _column(world, placed)] += np.minimum(placed.magnitude * seconds, 45.0)


def mark_bits(
    world: World, placed: Placed, rng: Rng, *, columns: slice | int, bits: int, counter: str
) -> None:
    """Cut the clock in a share of the time, with the driver's bits and counter beside.

    The driver's counter sees every burst, the bit only those that last over the sampled instant.
    """
    duty = float(placed.magnitude)
    world.speed[placed.ticks, columns] *= 1.0 - 0.5 * duty
    count = placed.end - placed.start
    hit = rng.random(count) < duty

    def change(done: World) -> None:
        reasons = done.readings["clock_event_reasons"][placed.ticks, columns]
        seen = hit if reasons.ndim == 1 else hit[:, None]
        changed = np.where(seen, reasons.astype(np.int64) | bits, reasons.astype(np.int64))
        done.readings["clock_event_reasons"][placed.ticks, columns] = changed
        grown = np.cumsum(np.full(count, duty * done.dt))
        target = done.readings[counter]
        target[placed.ticks, columns] += grown if reasons.ndim == 1 else grown[:, None]
        target[placed.end :, columns] += grown[-1]

    world.after.append(change)


def _hw_thermal(world: World, placed: Placed, rng: Rng) -> None:
    mark_bits(
        world,
        placed,
        rng,
        columns=_column(world, placed),
        bits=physics.REASON_HW_THERMAL | physics.REASON_HW_SLOWDOWN,
        counter="throttle_hw_thermal_seconds_total",
    )


def _sw_thermal(world: World, placed: Placed, rng: Rng) -> None:
    """Warm the inlet of one GPU until the driver itself cuts the clock."""
    del rng
    column = _column(world, placed)
    world.air[placed.ticks, column] += placed.magnitude * placed.shape(world)


def _power_brake(world: World, placed: Placed, rng: Rng) -> None:
    mark_bits(
        world,
        placed,
        rng,
        columns=world.rows(placed.node),
        bits=physics.REASON_POWER_BRAKE | physics.REASON_HW_SLOWDOWN,
        counter="throttle_power_brake_seconds_total",
    )


def _slow_down_peers(world: World, placed: Placed, lost: float) -> None:
    """Let the others of the job spin for the share of each step that one rank is late."""
    rows = world.rows(placed.node)
    kept = world.activity[placed.ticks, _column(world, placed)].copy()
    world.activity[placed.ticks, rows] *= 1.0 - lost * (1.0 - 0.1)
    world.activity[placed.ticks, _column(world, placed)] = kept


def _straggler(world: World, placed: Placed, rng: Rng) -> None:
    """Run one chip slower without a reason bit; its peers wait for it in every step."""
    del rng
    world.speed[placed.ticks, _column(world, placed)] *= 1.0 - placed.magnitude
    _slow_down_peers(world, placed, placed.magnitude)


def _late_host(world: World, placed: Placed, rng: Rng) -> None:
    """Feed one rank late: its clock is well, its kernels come late, its peers spin."""
    del rng
    column, lost = _column(world, placed), placed.magnitude
    _slow_down_peers(world, placed, lost)
    world.activity[placed.ticks, column] *= 1.0 - lost
    world.utilization[placed.ticks, column] = 1.0 - lost


def _spin(world: World, rows: slice | int, ticks: slice) -> None:
    world.spin[ticks, rows] = True
    world.activity[ticks, rows] = 0.0
    world.utilization[ticks, rows] = 1.0
    world.bus[ticks, rows] = 0.0


def _stop(world: World, rows: slice | int, ticks: slice) -> None:
    world.spin[ticks, rows] = False
    world.activity[ticks, rows] = 0.0
    world.utilization[ticks, rows] = 0.0
    world.bus[ticks, rows] = 0.0


def _hang(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    _spin(world, world.rows(placed.node), placed.ticks)
    _stop(world, _column(world, placed), placed.ticks)


def _collective_hang(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    _spin(world, world.rows(placed.node), placed.ticks)


def _idle(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    _stop(world, world.rows(placed.node), placed.ticks)


def _stall(world: World, placed: Placed, rng: Rng) -> None:
    """Starve all ranks of data for a share of every few seconds."""
    period = rng.uniform(4.0, 14.0)
    since = ((np.arange(placed.end - placed.start) * world.dt) % period) / period
    waits = since < placed.magnitude
    rows, ticks = world.rows(placed.node), np.arange(placed.start, placed.end)[waits]
    world.activity[ticks, rows] = 0.02
    world.utilization[ticks, rows] = 0.0
    world.bus[ticks, rows] = 0.01


def _stuck_clock(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    world.speed[placed.ticks, _column(world, placed)] *= placed.magnitude
    _slow_down_peers(world, placed, 1.0 - placed.magnitude)


def _low_limit(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    world.limit[placed.ticks, _column(world, placed)] *= placed.magnitude


def _counts(world: World, placed: Placed, metric: str, per_second: float, rng: Rng) -> None:
    """Let a counter grow at a Poisson rate while the injection lasts."""
    column = _column(world, placed)
    count = placed.end - placed.start
    grown = np.cumsum(rng.poisson(per_second * world.dt, count))

    def change(done: World) -> None:
        done.readings[metric][placed.ticks, column] += grown
        done.readings[metric][placed.end :, column] += grown[-1]

    world.after.append(change)


def _ecc_storm(world: World, placed: Placed, rng: Rng) -> None:
    _counts(world, placed, "ecc_corrected_total", placed.magnitude, rng)


def _ecc_uncorrected(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    column = _column(world, placed)

    def change(done: World) -> None:
        done.readings["ecc_uncorrected_total"][placed.start :, column] += placed.magnitude

    world.after.append(change)


def _nvlink_errors(world: World, placed: Placed, rng: Rng) -> None:
    _counts(world, placed, "nvlink_errors_total", placed.magnitude, rng)


def _set(metric: str, world: World, placed: Placed) -> None:
    column = _column(world, placed)

    def change(done: World) -> None:
        done.readings[metric][placed.ticks, column] = placed.magnitude

    world.after.append(change)


def _pcie_width(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    _set("pcie_width_lanes", world, placed)


def _nvlink_down(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    _set("nvlink_active_links", world, placed)


def _gone(world: World, placed: Placed) -> None:
    """Let the peers spin a little; then the whole job is over."""
    rows = world.rows(placed.node)
    spun = min(placed.end, placed.start + world.tick(_SPIN_SECONDS))
    _spin(world, rows, slice(placed.start, spun))
    _stop(world, rows, slice(spun, placed.end))
    world.memory[spun : placed.end, rows] = 3.0 * 2**20
    world.jobs.setdefault(placed.node, []).append((spun, ()))


def _event(world: World, placed: Placed, kind: EventKind, xid: int | None, words: str) -> None:
    event = SampleEvent(
        ts=world.ms(placed.start),
        kind=kind,
        gpu=world.uuid(placed.node, placed.gpu, placed.start),
        xid=xid,
        message=words,
    )
    world.events.setdefault(placed.node, []).append((placed.start, event))


def _lost(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    world.lost[placed.ticks, _column(world, placed)] = True
    _event(world, placed, EventKind.GPU_LOST, None, "GPU is lost")
    _gone(world, placed)


def _missing(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    world.present[placed.ticks, _column(world, placed)] = False
    _gone(world, placed)


def _xid(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    _event(world, placed, EventKind.XID, round(placed.magnitude), "from the kernel log")
    _gone(world, placed)


def _stuck_sensor(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    column = _column(world, placed)

    def change(done: World) -> None:
        for name in ("temperature_celsius", "temperature_margin_celsius"):
            done.readings[name][placed.ticks, column] = done.readings[name][placed.start, column]

    world.after.append(change)


def _frozen(world: World, placed: Placed, rng: Rng) -> None:
    """Repeat all readings of one GPU, bit for bit."""
    del rng
    column = _column(world, placed)

    def change(done: World) -> None:
        for values in done.readings.values():
            if values.ndim == 2:
                values[placed.ticks, column] = values[placed.start, column]

    world.after.append(change)


def _hot_memory(world: World, placed: Placed, rng: Rng) -> None:
    del rng
    column = _column(world, placed)
    grown = np.rint(placed.magnitude * placed.shape(world))

    def change(done: World) -> None:
        done.readings["memory_temperature_celsius"][placed.ticks, column] += grown

    world.after.append(change)


def _odd_phases(world: World, placed: Placed, rng: Rng) -> None:
    """Swap the bus activity of the two phases: each value is usual, their company is not."""
    del rng
    rows = world.rows(placed.node)
    bus = world.bus[placed.ticks, rows]
    world.bus[placed.ticks, rows] = np.where(bus > 0.05, 0.94 - bus, bus)


def leak_into(world: World, placed: Placed, *, gib_per_hour: float) -> int:
    """Let one GPU's memory grow until nothing is left; return the tick at which its job dies."""
    column = _column(world, placed)
    hours = np.arange(world.ticks - placed.start) * world.dt / 3600.0
    leaked = np.floor(gib_per_hour * hours * GIB / (20 * 2**20)) * 20 * 2**20
    held = world.memory[placed.start :, column] + leaked
    full = held >= CAPACITY
    died = placed.start + int(full.argmax()) if full.any() else world.ticks
    world.memory[placed.start :, column] = np.minimum(held, CAPACITY)
    if died < world.ticks:
        rows = world.rows(placed.node)
        _stop(world, rows, slice(died, world.ticks))
        world.memory[died:, rows] = 3.0 * 2**20
        world.jobs.setdefault(placed.node, []).append((died, ()))
    return died


# Baselines of heat take half an hour; so does a model of a whole job.
_LONG = (1600.0, 1650.0)
_HEAT = (("thermal_fault", ""),)
_JOB = ("load_imbalance", "inefficiency", "novelty")
_SLOWED = ("load_imbalance", "inefficiency", "novelty", "throttling")

FAULTS: dict[str, FaultSpec] = {
    spec.name: spec
    for spec in (
        FaultSpec(
            name="thermal_resistance", unit="of R_theta", magnitudes=(0.10, 0.15, 0.25),
            inject=_thermal, scope="gpu", accepted=_HEAT, related=_JOB, ramps=(1.0, 60.0),
            target_seconds=120.0, workloads=("train_capped", "train", "phases"), lead_in=_LONG,
        ),
        FaultSpec(
            name="fan_wall", unit="of R_theta, all GPUs", magnitudes=(0.15, 0.30),
            inject=_fan_wall, scope="node", ramps=(5.0, 60.0), lead_in=_LONG,
            accepted=(("thermal_fault", "node_airflow"),), related=("thermal_fault", *_SLOWED),
        ),
        FaultSpec(
            name="pump_runaway", unit="°C/s", magnitudes=(0.3, 1.0), inject=_pump, scope="gpu",
            accepted=_HEAT, related=_SLOWED,
        ),
        FaultSpec(
            name="memory_hot", unit="°C", magnitudes=(30.0,), inject=_hot_memory, scope="gpu",
            accepted=_HEAT, ramps=(30.0, 120.0), workloads=("train_capped",),
        ),
        FaultSpec(
            name="sensor_stuck", unit="", magnitudes=(1.0,), inject=_stuck_sensor, scope="gpu",
            accepted=_HEAT, workloads=("phases", "bursts"),
        ),
        FaultSpec(
            name="hw_thermal", unit="of the time", magnitudes=(0.1, 0.5), inject=_hw_thermal,
            scope="gpu", accepted=(("throttling", "hw_thermal"),), related=_JOB,
            target_seconds=5.0, seconds=300.0,
        ),
        FaultSpec(
            name="sw_thermal", unit="°C at the inlet of one GPU", magnitudes=(35.0,),
            inject=_sw_thermal, scope="gpu", accepted=(("throttling", "sw_thermal"), *_HEAT),
            related=_JOB, ramps=(60.0, 180.0), workloads=("train_capped",),
        ),
        FaultSpec(
            name="power_brake", unit="of the time, all GPUs", magnitudes=(0.1, 1.0),
            inject=_power_brake, scope="node", accepted=(("throttling", "power_brake"),),
            related=("throttling", *_JOB), target_seconds=5.0, seconds=300.0,
        ),
        FaultSpec(
            name="clock_stuck", unit="of the clock left", magnitudes=(0.4,), inject=_stuck_clock,
            scope="gpu", accepted=(("throttling", "clock_stuck_low"),), related=_JOB,
        ),
        FaultSpec(
            name="power_limit", unit="of the limit left", magnitudes=(0.7,), inject=_low_limit,
            scope="gpu", accepted=(("throttling", "power_limit_low"),), related=_JOB,
        ),
        FaultSpec(
            name="straggler", unit="of the speed lost", magnitudes=(0.10, 0.20),
            inject=_straggler, scope="gpu", accepted=(("load_imbalance", "straggler"),),
            related=("inefficiency", "novelty"), target_seconds=60.0, seconds=300.0,
            workloads=("train_capped", "train", "train_uneven"),
        ),
        FaultSpec(
            name="late_host", unit="of the time late", magnitudes=(0.20, 0.35),
            inject=_late_host, scope="gpu", accepted=(("load_imbalance", "straggler"),),
            related=("inefficiency", "novelty"), workloads=("train_capped", "train"),
        ),
        FaultSpec(
            name="hang", unit="", magnitudes=(1.0,), inject=_hang, scope="gpu",
            accepted=(("load_imbalance", "hang"),), related=("inefficiency", "novelty"),
            target_seconds=15.0, seconds=300.0,
        ),
        FaultSpec(
            name="collective_hang", unit="", magnitudes=(1.0,), inject=_collective_hang,
            scope="job", accepted=(("load_imbalance", "collective_hang"),),
            related=("inefficiency", "novelty"), target_seconds=90.0, seconds=400.0,
        ),
        FaultSpec(
            name="data_stall", unit="of the time", magnitudes=(0.35, 0.60), inject=_stall,
            scope="gpu", accepted=(("inefficiency", "data_starvation"),), rank=1,
            related=_JOB,
        ),
        FaultSpec(
            name="idle_allocated", unit="", magnitudes=(1.0,), inject=_idle, scope="gpu",
            accepted=(("inefficiency", "idle_allocated"),), rank=1, seconds=1300.0,
            related=_JOB, lead_in=_LONG,
        ),
        FaultSpec(
            name="ecc_storm", unit="errors/s", magnitudes=(2.0, 50.0, 17_700.0),
            inject=_ecc_storm, scope="gpu", target_seconds=10.0, seconds=300.0,
            accepted=(("hardware_error", "ecc_corrected_storm"),),
        ),
        FaultSpec(
            name="ecc_uncorrected", unit="errors", magnitudes=(1.0,), inject=_ecc_uncorrected,
            scope="gpu", accepted=(("hardware_error", "ecc_uncorrected"),), seconds=120.0,
            target_seconds=2.0,
        ),
        FaultSpec(
            name="pcie_width", unit="lanes left", magnitudes=(8.0, 4.0), inject=_pcie_width,
            scope="gpu", accepted=(("hardware_error", "pcie_degraded"),), seconds=300.0,
        ),
        FaultSpec(
            name="nvlink_down", unit="links left", magnitudes=(17.0,), inject=_nvlink_down,
            scope="gpu", accepted=(("hardware_error", "nvlink"),), seconds=300.0,
        ),
        FaultSpec(
            name="nvlink_errors", unit="errors/s", magnitudes=(5.0,), inject=_nvlink_errors,
            scope="gpu", accepted=(("hardware_error", "nvlink"),), seconds=300.0,
        ),
        FaultSpec(
            name="gpu_lost", unit="", magnitudes=(1.0,), inject=_lost, scope="gpu",
            accepted=(("gpu_lost", ""),), related=(*_JOB, "hardware_error"), seconds=300.0,
            target_seconds=2.0,
        ),
        FaultSpec(
            name="gpu_missing", unit="", magnitudes=(1.0,), inject=_missing, scope="gpu",
            accepted=(("gpu_lost", ""),), related=_JOB, seconds=300.0,
        ),
        FaultSpec(
            name="xid_fatal", unit="Xid", magnitudes=(48.0, 79.0, 119.0), inject=_xid,
            scope="gpu", accepted=(("hardware_error", ""), ("gpu_lost", "")), related=_JOB,
            seconds=300.0, target_seconds=2.0,
        ),
        FaultSpec(
            name="frozen_readings", unit="", magnitudes=(1.0,), inject=_frozen, scope="gpu",
            accepted=(("telemetry", "stale_values"),), related=("load_imbalance",),
        ),
        FaultSpec(
            name="odd_company", unit="(no single metric shows it)", magnitudes=(1.0,),
            inject=_odd_phases, scope="job", accepted=(("novelty", ""),), rank=1,
            seconds=900.0, workloads=("phases",), lead_in=(2000.0, 2060.0),
        ),
    )
}  # fmt: skip


def _no_injection(world: World, placed: Placed, rng: Rng) -> None:
    """Leaks are written by the memory suite, which needs the moment of the job's end."""
    del world, placed, rng


_OOM = (("oom_precursor", ""),)
MEMORY_FAULTS: dict[str, FaultSpec] = {
    spec.name: spec
    for spec in (
        FaultSpec(
            name="oom_leak", unit="GiB/h", magnitudes=(2.0, 6.0, 20.0), inject=_no_injection,
            scope="gpu", accepted=_OOM,
        ),
        FaultSpec(
            name="oom_fast", unit="GiB/h", magnitudes=(60.0, 200.0), inject=_no_injection,
            scope="gpu", accepted=_OOM,
        ),
    )
}  # fmt: skip
ALL_GPUS = tuple(range(GPUS))
