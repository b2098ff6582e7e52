"""Every fault shows in its own metrics, on its own GPU and on no other; decoys stay decoys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collector.simulated.faults import (
    SPECS,
    Fault,
    FaultKind,
    default_schedule,
    load_schedule,
    truths_of,
)
from collector.simulated.fleet import SimulatedFleet
from collector.simulated.settings import SimulatedSettings
from collector.source import Reading
from schemas.alert import FAMILIES
from schemas.errors import SourceError
from schemas.sample import EventKind

ORIGIN = 1_790_000_000_000
HIT = 3
OTHERS = [i for i in range(8) if i != HIT]


def run(fault: Fault | None, seconds: int = 400) -> list[list[Reading]]:
    faults = () if fault is None else (fault,)
    fleet = SimulatedFleet(SimulatedSettings(), faults=faults)
    return [fleet.read(ORIGIN + second * 1000) for second in range(seconds + 1)]


def column(readings: list[list[Reading]], metric: str, node: int) -> np.ndarray:
    rows = [at[node].values[metric] for at in readings]
    return np.array([[np.nan if v is None else v for v in row] for row in rows])


def at(kind: FaultKind, node: int = 0, *, seconds: float = 200.0, **more: float) -> Fault:
    return Fault(kind=kind, node=node, gpu=HIT, start_seconds=100, duration_seconds=seconds, **more)


def test_a_thermal_fault_lifts_one_gpu_by_twenty_degrees_over_its_like() -> None:
    readings = run(at(FaultKind.THERMAL, 1))
    temperature = column(readings, "temperature_celsius", 1)[220:298]
    excess = temperature - np.median(temperature, axis=1, keepdims=True)
    assert (np.median(excess, axis=0)[HIT]) >= 20.0
    assert (np.median(excess, axis=0)[OTHERS] <= 8.0).all()
    power = np.median(column(readings, "power_watts", 1)[220:298], axis=0)
    assert power[HIT] < 1.1 * np.median(power[OTHERS])
    margin = column(readings, "temperature_margin_celsius", 1)[220:298]
    assert (margin == 87.0 - temperature).all()


@pytest.mark.parametrize(
    ("kind", "bit", "counter", "node"),
    [
        (FaultKind.HW_THERMAL, 0x40, "throttle_hw_thermal_seconds_total", 0),
        (FaultKind.HW_THERMAL, 0x40, "throttle_hw_thermal_seconds_total", 1),
        (FaultKind.SW_THERMAL, 0x20, "throttle_sw_thermal_seconds_total", 0),
        (FaultKind.SW_THERMAL, 0x20, "throttle_sw_thermal_seconds_total", 1),
        (FaultKind.POWER_BRAKE, 0x80, "throttle_power_brake_seconds_total", 0),
    ],
)
def test_a_throttle_shows_in_bit_counter_clock_and_power_of_its_gpu_only(
    kind: FaultKind, bit: int, counter: str, node: int
) -> None:
    readings = run(at(kind, node))
    reasons = column(readings, "clock_event_reasons", node).astype(int)
    assert (reasons[150:295, HIT] & bit != 0).mean() > 0.1
    assert (reasons[:, OTHERS] & (0x8 | 0x20 | 0x40 | 0x80) == 0).all()
    total = column(readings, counter, node)
    assert total[300, HIT] - total[100, HIT] > 15.0
    assert (total[-1, OTHERS] == 0.0).all()
    assert total[99, HIT] == 0.0
    held = reasons[:, HIT] & bit != 0
    clock = column(readings, "sm_clock_hertz", node)
    power = column(readings, "power_watts", node)
    assert clock[held, HIT].mean() < 0.95 * clock[60:99, HIT].mean()
    assert power[held, HIT].mean() < power[60:99, HIT].mean()


@pytest.mark.parametrize("kind", [FaultKind.HW_THERMAL, FaultKind.SW_THERMAL])
def test_a_thermal_throttle_heats_its_gpu_to_the_limit_and_ends_with_the_fault(
    kind: FaultKind,
) -> None:
    readings = run(at(kind), 500)
    temperature = column(readings, "temperature_celsius", 0)
    assert 86.0 <= temperature[100:300, HIT].max() <= 90.0
    assert (temperature[:, OTHERS] < 80.0).all()
    late = column(readings, "clock_event_reasons", 0).astype(int)[380:]
    assert (late & (0x20 | 0x40) == 0).all()


def test_the_peers_of_a_throttled_rank_wait_and_draw_less() -> None:
    readings = run(at(FaultKind.POWER_BRAKE))
    power = column(readings, "power_watts", 0)
    assert power[200:280, OTHERS].mean() < 0.8 * power[60:99, OTHERS].mean()
    busy = column(readings, "gpu_utilization_ratio", 0)
    assert np.median(busy[200:280]) == 1.0


@pytest.mark.parametrize("rate", [6.0, 20.0, 60.0])
def test_a_leak_grows_by_its_rate_on_one_gpu(rate: float) -> None:
    readings = run(at(FaultKind.LEAK, seconds=280.0, magnitude=rate))
    used = column(readings, "memory_used_bytes", 0)
    grown = (used[370] - used[110]) / 2**30
    assert grown[HIT] == pytest.approx(rate * 260 / 3600, rel=0.1, abs=0.1)
    assert (grown[OTHERS] < 0.1).all()


def test_a_leak_to_the_end_of_memory_kills_the_job_and_a_new_one_starts() -> None:
    readings = run(at(FaultKind.LEAK, seconds=250.0, magnitude=600.0))
    used = column(readings, "memory_used_bytes", 0)
    total = column(readings, "memory_total_bytes", 0)[0, HIT]
    assert used[:, HIT].max() > 0.98 * total
    assert used[:, HIT].max() < total
    jobs = {ref.job for at_time in readings for ref in at_time[0].jobs or ()}
    assert len(jobs) == 2


def test_a_lost_gpu_answers_every_call_with_error_15_and_says_so_once() -> None:
    readings = run(at(FaultKind.GPU_LOST))
    during = readings[150][0]
    assert len(during.gpus) == 8
    assert all(values[HIT] is None for values in during.values.values())
    assert all(codes == {HIT: "error:15"} for codes in during.status.values())
    assert during.status.keys() == during.values.keys()
    assert all(values[i] is not None for values in during.values.values() for i in OTHERS)
    events = [event for at_time in readings for event in at_time[0].events]
    assert [event.kind for event in events] == [EventKind.GPU_LOST, EventKind.GPU_RETURNED]
    assert {event.gpu for event in events} == {readings[0][0].gpus[HIT]}
    assert [event.ts - ORIGIN for event in events] == [100_000, 300_000]
    assert readings[350][0].status == {}


def test_the_job_of_a_lost_gpu_spins_ends_and_restarts_on_the_rest() -> None:
    readings = run(at(FaultKind.GPU_LOST))
    spinning = column(readings, "power_watts", 0)[105:111]
    assert (np.nan_to_num(spinning[:, OTHERS]) < 160.0).all()
    assert readings[120][0].jobs == ()
    refs = readings[250][0].jobs
    assert refs is not None
    assert {gpu for ref in refs for gpu in ref.gpus} == {
        gpu for i, gpu in enumerate(readings[0][0].gpus) if i != HIT
    }


def test_a_missing_gpu_leaves_the_list_while_eight_are_expected() -> None:
    readings = run(at(FaultKind.GPU_MISSING))
    during = readings[150][0]
    gone = readings[0][0].gpus[HIT]
    assert gone not in during.gpus
    assert len(during.gpus) == 7
    assert all(len(values) == 7 for values in during.values.values())
    assert during.inventory.expected_gpus == 8
    assert len(during.inventory.gpus) == 7
    assert during.status == {}
    assert gone in readings[350][0].gpus
    assert len(readings[150][1].gpus) == 8


def test_a_returned_gpu_has_counted_from_zero_again() -> None:
    readings = run(at(FaultKind.GPU_MISSING))
    energy = readings[310][0].values["energy_joules_total"]
    assert energy[HIT] < 10_000.0
    assert min(energy[i] for i in OTHERS) > 1e8


def test_a_straggler_slows_one_gpu_without_any_throttle_bit() -> None:
    readings = run(at(FaultKind.STRAGGLER, 1))
    clock = column(readings, "sm_clock_hertz", 1)[150:290]
    assert np.median(clock[:, HIT]) < 0.85 * np.median(clock[:, OTHERS])
    power = column(readings, "power_watts", 1)[150:290]
    assert np.median(power[:, HIT]) < np.median(power[:, OTHERS])
    reasons = column(readings, "clock_event_reasons", 1).astype(int)
    assert (reasons & (0x8 | 0x20 | 0x40 | 0x80) == 0).all()


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [(FaultKind.CORRECTED_ECC, 12, 12), (FaultKind.ECC_STORM, 3_000_000, 4_000_000)],
)
def test_corrected_errors_count_on_one_gpu_and_nothing_is_uncorrected(
    kind: FaultKind, least: int, most: int
) -> None:
    readings = run(at(kind))
    corrected = column(readings, "ecc_corrected_total", 0)
    assert least <= corrected[-1, HIT] <= most
    assert (corrected[:, OTHERS] == 0).all()
    aggregate = column(readings, "ecc_corrected_aggregate_total", 0)
    assert ((aggregate[-1] - aggregate[0]) == corrected[-1]).all()
    assert (column(readings, "ecc_uncorrected_total", 0) == 0).all()


def test_a_flat_plateau_stays_within_two_percent_at_its_level() -> None:
    flat = Fault(
        kind=FaultKind.FLAT_PLATEAU, node=0, gpu=HIT, start_seconds=0, duration_seconds=1e9
    )
    readings = run(flat)
    used = column(readings, "memory_used_bytes", 0)
    capacity = (81_559 - 479) * 2**20
    assert ((used[:, HIT] / capacity > 0.945) & (used[:, HIT] / capacity < 0.956)).all()
    assert (used[:, OTHERS] / capacity < 0.8).all()


def test_a_power_capped_phase_is_hot_and_healthy() -> None:
    capped = Fault(
        kind=FaultKind.POWER_CAP, node=1, gpu=None, start_seconds=100, duration_seconds=100
    )
    readings = run(capped)
    power = column(readings, "power_watts", 1)
    assert np.median(power[60:99]) < 450.0
    assert np.median(power[120:199]) > 670.0
    reasons = column(readings, "clock_event_reasons", 1).astype(int)
    assert (reasons[120:190] & 0x4 != 0).all()
    assert (reasons & (0x8 | 0x20 | 0x40 | 0x80) == 0).all()


def test_short_dips_come_in_their_rhythm_on_all_ranks_together() -> None:
    dips = Fault(
        kind=FaultKind.SHORT_DIPS, node=1, gpu=None, start_seconds=80, duration_seconds=200
    )
    readings = run(dips)
    busy = column(readings, "gpu_utilization_ratio", 1)[80:280]
    low = np.flatnonzero((busy < 0.9).all(axis=1))
    assert 6 <= np.count_nonzero(np.diff(low) > 5) + 1 <= 11
    assert (np.ptp(busy, axis=1) < 0.1).mean() > 0.95


def test_a_staggered_stop_leaves_half_of_the_node_working() -> None:
    stop = Fault(
        kind=FaultKind.STAGGERED_STOP, node=0, gpu=None, start_seconds=100, duration_seconds=87
    )
    busy = column(run(stop), "gpu_utilization_ratio", 0)
    assert (busy[175] == 0.0).sum() == 4
    assert (busy[175] == 1.0).sum() == 4
    assert (busy[200] == 0.0).all()
    assert (busy[300] == 1.0).all()


def test_a_sensor_spike_is_one_sample_of_one_gpu() -> None:
    spike = at(FaultKind.SENSOR_SPIKE, seconds=1.0)
    with_spike = column(run(spike, 200), "temperature_celsius", 0)
    without = column(run(None, 200), "temperature_celsius", 0)
    different = np.argwhere(with_spike != without)
    assert different.tolist() == [[100, HIT]]


def test_the_default_schedule_leaves_other_gpus_without_any_throttle() -> None:
    faults = default_schedule()
    fleet = SimulatedFleet(SimulatedSettings(), faults=faults)
    readings = [fleet.read(ORIGIN + second * 1000) for second in range(0, 1900, 2)]
    allowed = {
        (f.node, f.gpu)
        for f in faults
        if f.kind in (FaultKind.HW_THERMAL, FaultKind.SW_THERMAL) and f.gpu is not None
    }
    for node in range(2):
        for reading in (r[node] for r in readings):
            for uuid, reasons in zip(
                reading.gpus, reading.values["clock_event_reasons"], strict=True
            ):
                if reasons is not None and int(reasons) & (0x20 | 0x40):
                    assert (node, readings[0][node].gpus.index(uuid)) in allowed


@pytest.mark.parametrize("seed", range(12))
def test_the_default_schedule_is_alerted_within_half_an_hour(seed: int) -> None:
    faults = default_schedule(seed)
    truths = truths_of(faults, seed=seed, gpus=8, origin_ms=0)
    owed = [truth for truth in truths if not truth.decoy]
    assert {truth.fault for truth in owed} == {
        FaultKind.THERMAL,
        FaultKind.HW_THERMAL,
        FaultKind.SW_THERMAL,
        FaultKind.POWER_BRAKE,
        FaultKind.LEAK,
        FaultKind.GPU_LOST,
        FaultKind.GPU_MISSING,
    }
    assert max(truth.deadline for truth in owed) <= 1_800_000
    assert min(truth.start for truth in owed) < 100_000
    assert all(truth.start < truth.deadline for truth in owed)
    assert sum(truth.decoy for truth in truths) >= len(owed)
    # One GPU carries one fault of its own, so that an alert has one explanation.
    places = [(truth.node, truth.gpu_uuids) for truth in owed if len(truth.gpu_uuids) == 1]
    assert len(places) == len(set(places))


def test_every_kind_owes_an_alert_that_the_contract_knows_or_is_a_decoy() -> None:
    assert set(SPECS) == set(FaultKind)
    for spec in SPECS.values():
        assert spec.decoy or spec.kind in FAMILIES[spec.family]


def test_a_schedule_is_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "schedule.toml"
    path.write_text(
        '[[fault]]\nkind = "leak"\nnode = 0\ngpu = 2\nstart_seconds = 5\n'
        "duration_seconds = 60.5\nmagnitude = 20\n"
    )
    assert load_schedule(path) == (
        Fault(
            kind=FaultKind.LEAK,
            node=0,
            gpu=2,
            start_seconds=5,
            duration_seconds=60.5,
            magnitude=20,
        ),
    )
    fleet = SimulatedFleet(SimulatedSettings(schedule=path))
    assert len(fleet.faults) == 1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[[fault]]\nkinds = 'leak'\n", "kinds"),
        ("[[fault]]\nkind = 'leek'\nnode=0\nstart_seconds=0\nduration_seconds=1\n", "leek"),
        ("[[fault]]\nkind = 'leak'\nstart_seconds=0\nduration_seconds=1\n", "node"),
        ("[[fault]]\nkind='leak'\nnode='a'\nstart_seconds=0\nduration_seconds=1\n", "node"),
        ("[[fault]]\nkind='thermal'\nnode=0\nstart_seconds=0\nduration_seconds=1\n", "gpu"),
        ("[[fault]]\nkind='leak'\nnode=0\nstart_seconds=0\nduration_seconds=0\n", "duration"),
        ("fault = 3\n", "fault"),
        ("[[fault]\n", "schedule"),
    ],
)
def test_a_wrong_schedule_is_refused_with_the_word_that_is_wrong(
    tmp_path: Path, text: str, word: str
) -> None:
    path = tmp_path / "schedule.toml"
    path.write_text(text)
    with pytest.raises(SourceError, match=word):
        load_schedule(path)


def test_a_missing_schedule_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere\.toml"):
        load_schedule(tmp_path / "nowhere.toml")


def test_a_fault_outside_the_fleet_is_refused() -> None:
    fault = Fault(kind=FaultKind.LEAK, node=2, gpu=0, start_seconds=0, duration_seconds=1)
    with pytest.raises(SourceError, match="node 2"):
        SimulatedFleet(SimulatedSettings(nodes=2), faults=(fault,))
