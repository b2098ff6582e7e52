"""The worlds of the detection benchmark: repeatable, in range, and what they claim to be."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from foreshock.bench.decoys import DECOYS
from foreshock.bench.faults import FAULTS
from foreshock.bench.messages import messages
from foreshock.bench.ranges import HELD_OUT, TUNE
from foreshock.bench.suites import Case, fault_suite, memory_suite, soak
from foreshock.bench.world import CAPACITY, GPUS
from schemas.codec import decode_sample, encode
from schemas.metrics import METRICS

ONE = ("straggler", "gpu_missing")


@pytest.fixture(scope="module")
def case() -> Case:
    return fault_suite(HELD_OUT, 5, 1, ONE)[0]()


def flat(made: Case) -> Iterator[np.ndarray]:
    return (made.world.readings[name] for name in sorted(made.world.readings))


def test_the_same_seed_gives_the_same_world(case: Case) -> None:
    again = fault_suite(HELD_OUT, 5, 1, ONE)[0]()
    assert all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(flat(case), flat(again), strict=True)
    )
    assert case.truths == again.truths


def test_the_sides_share_no_numbers(case: Case) -> None:
    other = fault_suite(TUNE, 5, 1, ONE)[0]()
    heat, there = (one.world.readings["temperature_celsius"] for one in (case, other))
    assert not np.array_equal(heat, there)


def test_there_are_at_least_as_many_lookalikes_as_faults() -> None:
    truths = [truth for make in fault_suite(TUNE, 1, 1, ONE) for truth in make().truths]
    faults = [truth for truth in truths if truth.spec is not None]
    assert len(truths) - len(faults) >= len(faults) > 0


def test_readings_are_plausible_where_no_decoy_spoils_the_unit() -> None:
    world = fault_suite(HELD_OUT, 6, 1, ("straggler",))[0]().world
    for name, values in world.readings.items():
        if name == "power_watts":
            continue  # one decoy reads milliwatts
        metric = METRICS[name]
        finite = values[np.isfinite(values)]
        assert (finite >= metric.low).all(), name
        assert (finite <= metric.high).all(), name


def test_healthy_boards_stay_below_their_limit() -> None:
    made = soak(HELD_OUT, 3, 16.0, interval=60.0)[0]()
    heat = made.world.readings["temperature_celsius"]
    assert np.nanpercentile(heat, 99.9) <= 90.0
    assert np.nanmax(made.world.readings["memory_used_bytes"]) <= CAPACITY


def test_messages_survive_the_wire(case: Case) -> None:
    first = next(messages(case.world))
    for message in first[:3]:
        again = decode_sample(encode(message))
        assert (again.node, again.ts, again.gpu) == (message.node, message.ts, message.gpu)
        assert set(again.m) == set(message.m)


def test_a_missing_gpu_is_not_listed(case: Case) -> None:
    truth = next(truth for truth in case.truths if truth.name == "gpu_missing")
    name = case.world.name(truth.node - case.world.first_node)
    at = case.world.ms(case.world.tick(truth.start + 30.0))
    sizes = {
        len(message.gpu)
        for batch in messages(case.world)
        for message in batch
        if message.node == name
        and message.ts[0] >= at
        and message.ts[-1] < case.world.ms(round(truth.end))
    }
    assert sizes == {GPUS - 1}


def test_a_straggler_is_slower_and_its_peers_wait(case: Case) -> None:
    truth = next(truth for truth in case.truths if truth.name == "straggler")
    rows = case.world.rows(truth.node - case.world.first_node)
    clock = case.world.readings["sm_clock_hertz"][:, rows]
    during = clock[round(truth.start) + 20 : round(truth.end) - 20]
    slow, others = during[:, truth.gpus[0]], np.delete(during, truth.gpus[0], axis=1)
    assert np.median(slow) < 0.93 * np.median(others)


def test_a_leak_ends_its_job_when_nothing_is_left() -> None:
    made = memory_suite(TUNE, 2, 1, interval=60.0)[0]()
    for truth in made.truths:
        if truth.spec is None or truth.terminal >= made.world.ticks * made.world.dt:
            continue
        column = made.world.column(truth.node - made.world.first_node, truth.gpus[0])
        used = made.world.readings["memory_used_bytes"][:, column]
        died = made.world.tick(truth.terminal)
        assert used[died - 3] > 0.85 * CAPACITY
        assert used[died + 1] < 0.01 * CAPACITY


def test_every_fault_says_what_is_owed_for_it() -> None:
    assert len(FAULTS) >= 13
    assert len(DECOYS) >= 12
    for spec in FAULTS.values():
        assert spec.accepted
        assert spec.magnitudes
