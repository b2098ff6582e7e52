"""The simulated fleet: deterministic, physical, and honest about what it is."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from collector.simulated.faults import Fault, FaultKind, default_schedule
from collector.simulated.fleet import SimulatedFleet
from collector.simulated.settings import SimulatedSettings
from collector.source import Reading
from schemas.codec import decode_sample, encode
from schemas.metrics import METRICS, plausible
from schemas.sample import CollectorStatus, NodeSample, ThresholdKind

ORIGIN = 1_790_000_000_000


def run(
    seconds: float,
    *,
    step: float = 1.0,
    faults: tuple[Fault, ...] = (),
    nodes: int = 2,
    seed: int = 1,
    jobs: bool = True,
) -> list[list[Reading]]:
    fleet = SimulatedFleet(SimulatedSettings(nodes=nodes, seed=seed, jobs=jobs), faults=faults)
    times = np.arange(0.0, seconds + 1e-9, step)
    return [fleet.read(ORIGIN + round(t * 1000)) for t in times]


def column(readings: list[list[Reading]], metric: str, node: int = 0) -> np.ndarray:
    rows = [at[node].values[metric] for at in readings]
    return np.array([[np.nan if v is None else v for v in row] for row in rows])


def as_sample(reading: Reading, seq: int) -> NodeSample:
    return NodeSample(
        node=reading.node,
        boot_id="boot",
        seq=seq,
        ts=(reading.ts,),
        gpu=reading.gpus,
        m=reading.values,
        collector=CollectorStatus(source="simulated"),
        status={
            metric: {str(position): code for position, code in codes.items()}
            for metric, codes in reading.status.items()
        },
        events=reading.events,
        jobs=reading.jobs,
        inventory=reading.inventory,
    )


def test_same_seed_and_times_give_the_same_readings() -> None:
    faults = default_schedule(3)
    assert run(300, faults=faults, seed=3) == run(300, faults=faults, seed=3)


def test_another_seed_gives_other_gpus_and_values() -> None:
    first, second = run(1)[0][0], run(1, seed=2)[0][0]
    assert not set(first.gpus) & set(second.gpus)
    assert first.values["power_watts"] != second.values["power_watts"]


@pytest.mark.parametrize("step", [0.5, 7.0, 60.0, 420.0])
def test_readings_do_not_depend_on_how_often_one_reads(step: float) -> None:
    faults = default_schedule()
    fine = run(420, faults=faults)[-1]
    coarse = run(420, step=step, faults=faults)[-1]
    for a, b in zip(fine, coarse, strict=True):
        assert a.values == b.values
        assert a.jobs == b.jobs


def test_readings_between_grid_points_lie_between_them() -> None:
    readings = run(3, step=0.1)
    energy = column(readings, "energy_joules_total")
    assert (np.diff(energy, axis=0) > 0).all()


def test_an_earlier_time_reads_the_last_state_again() -> None:
    fleet = SimulatedFleet(SimulatedSettings())
    fleet.read(ORIGIN)
    later = fleet.read(ORIGIN + 10_000)[0]
    again = fleet.read(ORIGIN + 2_000)[0]
    assert again.values["energy_joules_total"] == later.values["energy_joules_total"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_physics_stays_in_the_range_of_real_boards(seed: int) -> None:
    readings = run(1900, faults=default_schedule(seed), seed=seed)
    for node in range(2):
        for at in readings:
            reading = at[node]
            for metric, values in reading.values.items():
                for value in values:
                    assert value is None or plausible(METRICS[metric], value), (metric, value)
            temperatures = [t for t in reading.values["temperature_celsius"] if t is not None]
            assert all(20.0 <= t <= 90.0 for t in temperatures)
            powers = [p for p in reading.values["power_watts"] if p is not None]
            assert all(60.0 <= p <= 1.1 * 700.0 for p in powers)


def test_healthy_peers_stand_close_in_temperature_at_like_power() -> None:
    # A rule of 15 °C over the peers must have room: recorded healthy slots spread by about 8.
    for seed in range(1, 20):
        readings = run(200, step=50.0, seed=seed)
        for node in range(2):
            temperature = column(readings, "temperature_celsius", node)[1:]
            excess = temperature - np.median(temperature, axis=1, keepdims=True)
            assert excess.max() <= 12.0


def test_power_capped_training_is_near_the_limit_with_the_cap_bit_and_counter() -> None:
    readings = run(200)
    power = column(readings, "power_watts")
    assert 670.0 < np.median(power) < 700.0
    reasons = column(readings, "clock_event_reasons").astype(int)
    assert (reasons & 0x4 != 0).mean() > 0.9
    assert ((reasons & (0x8 | 0x20 | 0x40 | 0x80)) == 0).all()
    counter = column(readings, "throttle_power_cap_seconds_total")
    assert (counter[-1] - counter[0] > 150.0).all()
    # A little slower than the highest clock, not much.
    clock = column(readings, "sm_clock_hertz")
    assert 0.88 < np.median(clock) / 1.98e9 < 0.98


def test_idle_fleet_draws_idle_power_at_idle_clocks() -> None:
    readings = run(60, jobs=False)
    assert all(at[0].jobs == () for at in readings)
    power = column(readings, "power_watts")
    assert power.min() > 68.0
    assert power.max() < 78.0
    assert (column(readings, "sm_clock_hertz") == 345e6).all()
    assert (column(readings, "gpu_utilization_ratio") == 0.0).all()
    assert (column(readings, "clock_event_reasons").astype(int) == 0x1).all()


def test_heat_follows_power_with_a_fast_and_a_slow_pole() -> None:
    # Cool-down after a stop: a third to two thirds within two seconds, the rest takes minutes.
    stop = Fault(kind=FaultKind.JOB_RESTART, node=0, start_seconds=100, duration_seconds=500)
    temperature = column(run(550, faults=(stop,)), "temperature_celsius")
    before, soon, late = temperature[98], temperature[103], temperature[550]
    total = before - late
    assert (total > 15.0).all()
    share = (before - soon) / total
    assert ((share > 0.3) & (share < 0.7)).all()
    minute = (before - temperature[160]) / total
    assert (minute > share).all()


def test_the_peers_of_a_hung_rank_spin_at_full_utilisation_and_low_power() -> None:
    hang = Fault(kind=FaultKind.HANG, node=1, gpu=3, start_seconds=50, duration_seconds=60)
    readings = run(100, faults=(hang,))
    power = column(readings, "power_watts", 1)[70:100]
    busy = column(readings, "gpu_utilization_ratio", 1)[70:100]
    peers = [i for i in range(8) if i != 3]
    assert (busy[:, 3] == 0.0).all()
    assert (power[:, 3] < 80.0).all()
    assert (busy[:, peers] == 1.0).all()
    assert ((power[:, peers] > 115.0) & (power[:, peers] < 155.0)).all()


def test_a_job_warms_up_from_a_few_mebibytes_to_a_plateau_in_steps() -> None:
    restart = Fault(kind=FaultKind.WARM_UP, node=0, start_seconds=10, duration_seconds=5)
    readings = run(300, faults=(restart,))
    used = column(readings, "memory_used_bytes")
    total = column(readings, "memory_total_bytes")[0]
    assert (used[13] <= 4 * 2**20).all()
    assert (np.diff(used[15:], axis=0) >= 0).all()
    share = used[-1] / total
    assert ((share > 0.6) & (share < 0.95)).all()
    settled = used[100:]
    assert ((settled[-1] - settled[0]) < 0.02 * total).all()
    steps = np.count_nonzero(np.diff(used[15:80, 0]))
    assert 4 <= steps <= 20


def test_a_restart_gives_a_new_job_with_one_reference_per_rank() -> None:
    restart = Fault(kind=FaultKind.JOB_RESTART, node=0, start_seconds=10, duration_seconds=5)
    readings = run(30, faults=(restart,))
    first, gap, second = readings[0][0].jobs, readings[12][0].jobs, readings[30][0].jobs
    assert first is not None
    assert second is not None
    assert gap == ()
    assert {ref.job for ref in first}.isdisjoint({ref.job for ref in second})
    assert [ref.rank for ref in second] == list(range(8))


def test_memory_parts_add_up_without_the_reserved_part_in_used() -> None:
    reading = run(1)[0][0]
    for used, free, total, reserved in zip(
        *(reading.values[f"memory_{part}_bytes"] for part in ("used", "free", "total", "reserved")),
        strict=True,
    ):
        assert used + free + reserved == total


def test_the_inventory_names_eight_gpus_with_margins_and_uuids_of_the_seed() -> None:
    inventory = run(1)[0][1].inventory
    assert inventory.expected_gpus == 8
    assert {gpu.model for gpu in inventory.gpus} == {"NVIDIA H100 80GB HBM3"}
    assert {gpu.threshold_kind for gpu in inventory.gpus} == {ThresholdKind.MARGIN}
    assert len({gpu.serial for gpu in inventory.gpus}) == 8
    assert len({gpu.pci for gpu in inventory.gpus}) == 8
    assert tuple(gpu.gpu for gpu in inventory.gpus) == run(1)[0][1].gpus


def test_counters_never_fall_without_a_reset() -> None:
    readings = run(400, faults=default_schedule()[:6])
    for metric in readings[0][0].values:
        if metric.endswith("_total"):
            values = column(readings, metric)
            assert (np.diff(values, axis=0) >= 0).all(), metric


def test_readings_have_the_steps_of_real_sensors() -> None:
    reading = run(60)[-1][0]
    assert all(t == round(t) for t in reading.values["temperature_celsius"])
    assert all(
        100 * u == pytest.approx(round(100 * u)) for u in reading.values["gpu_utilization_ratio"]
    )
    assert all(c % 15e6 == 0 for c in reading.values["sm_clock_hertz"])
    assert all(m % 2**20 == 0 for m in reading.values["memory_used_bytes"])
    margins = zip(
        reading.values["temperature_celsius"],
        reading.values["temperature_margin_celsius"],
        strict=True,
    )
    assert all(t + m == 87.0 for t, m in margins)


def test_every_reading_survives_the_wire() -> None:
    readings = run(1100, faults=default_schedule(), step=5.0)
    for seq, at in enumerate(readings):
        for reading in at:
            sample = as_sample(reading, seq)
            assert decode_sample(encode(sample)) == sample


def test_gpu_metrics_of_sxm_boards_that_do_not_exist_are_absent() -> None:
    values = run(1)[0][0].values
    assert "fan_ratio" not in values
    assert "retired_pages_single_bit_total" not in values
    assert values.keys() <= METRICS.keys()


def test_a_day_at_the_healthy_plateau_keeps_its_memory() -> None:
    fleet = SimulatedFleet(SimulatedSettings(nodes=1))
    used = [
        fleet.read(ORIGIN + hour * 3_600_000)[0].values["memory_used_bytes"] for hour in range(3)
    ]
    for before, after in pairwise(np.array(used)):
        assert (np.abs(after - before) < 0.005 * 81_559 * 2**20).all()
