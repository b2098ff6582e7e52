"""Stragglers at any sampling: the same jobs, read every second and every minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from telemetry import MIB, telemetry

from detector.detectors.straggler import Straggler
from detector.engine import Engine
from schemas.alert import AlertEvent, parse_time
from schemas.sample import NodeSample

INTERVALS = (1.0, 10.0, 30.0, 60.0)
GPUS, LIMIT, TOP = 8, 700.0, 1.98e9
Array = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


def stragglers(samples: Sequence[NodeSample]) -> list[AlertEvent]:
    engine = Engine([Straggler()], topic="gpu.samples", partition=0)
    return [a for a in engine.process(samples).alerts if a.state == "firing"]


def at_the_cap(watts: Array, rng: np.random.Generator) -> Array:
    """Clocks as the cap leaves them: full below it; at it lower, by as much as the chip needs."""
    chip = 1.0 + rng.normal(0.0, 0.012, GPUS)
    capped = watts >= 0.985 * LIMIT
    return np.where(capped, np.round(0.88 * TOP * chip / 15e6) * 15e6, TOP)


def job_of_minutes(seed: int, interval: float, minutes: float) -> list[NodeSample]:
    """Jobs of under six minutes one after the other, started and ended GPU by GPU."""
    rng = np.random.default_rng(seed)
    ticks = int(minutes * 60 / interval)
    second = np.arange(ticks)[:, None] * interval % 420.0
    gpu = np.arange(GPUS)
    busy = (second > 20.0 + 2.0 * gpu) & (second < 360.0 - 3.0 * gpu)
    # Around the cap: each reading falls on one or the other side of it.
    want = LIMIT * (0.99 + rng.normal(0.0, 0.01, GPUS)) * (1 + rng.normal(0, 0.01, (ticks, GPUS)))
    watts = np.where(busy, np.minimum(want, LIMIT * (1 + rng.normal(0, 0.004, want.shape))), 75.0)
    return readings(watts, busy, at_the_cap(watts, rng), interval, job=None)


def readings(
    watts: Array, busy: Flags, clock: Array, interval: float, *, job: str | None
) -> list[NodeSample]:
    return telemetry(
        {
            "power_watts": np.round(watts, 2),
            "power_limit_watts": LIMIT,
            "gpu_utilization_ratio": np.where(busy, 1.0, 0.0),
            "sm_clock_hertz": np.where(busy, clock, 345e6),
            "memory_used_bytes": np.where(busy, 65_000.0, 600.0) * MIB,
            "memory_total_bytes": 81_559.0 * MIB,
        },
        gpus=GPUS,
        ticks=len(watts),
        interval=interval,
        jobs=[job] * GPUS,
    )


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_short_jobs_that_flicker_at_the_power_cap_have_no_straggler(
    interval: float, seed: int
) -> None:
    minutes = {1.0: 15.0, 10.0: 120.0}.get(interval, 480.0)
    assert [a.summary for a in stragglers(job_of_minutes(seed, interval, minutes))] == []


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("job", [None, "J"])
def test_the_last_stage_at_its_cap_is_no_straggler(interval: float, job: str | None) -> None:
    """It has more work than the others and draws more; its clock is what the cap leaves it."""
    rng = np.random.default_rng(7)
    ticks = int(1800 / interval)
    watts = 535.0 + rng.normal(0.0, 5.0, (ticks, GPUS))
    watts[:, 7] = LIMIT - 1.0 + rng.normal(0.0, 2.0, ticks)
    busy = np.ones((ticks, GPUS), dtype=bool)
    samples = readings(watts, busy, at_the_cap(watts, rng), interval, job=job)
    assert [a.summary for a in stragglers(samples)] == []


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize(
    ("slow_watts", "others_watts", "share"),
    [(520.0, 600.0, 0.88), (250.0, 135.0, 0.4)],
    ids=["a_little_slow_draws_less", "very_slow_draws_more"],
)
def test_a_gpu_whose_clock_falls_is_found_at_any_sampling(
    interval: float, slow_watts: float, others_watts: float, share: float
) -> None:
    """The contrast, at both sides of its peers' power and below the cap."""
    rng = np.random.default_rng(3)
    ticks, begin = int(2400 / interval), int(1200 / interval)
    watts = 640.0 + rng.normal(0.0, 5.0, (ticks, GPUS))
    clock = np.full((ticks, GPUS), 1.8e9)
    watts[begin:] = others_watts + rng.normal(0.0, 3.0, (ticks - begin, GPUS))
    watts[begin:, 4], clock[begin:, 4] = slow_watts, 1.8e9 * share
    samples = readings(watts, np.ones_like(watts, dtype=bool), clock, interval, job="J")
    found = stragglers(samples)
    assert {a.subject.gpu_uuid for a in found} == {"GPU-4"}
    limit = samples[begin].ts[0] + 1000 * int(60 + 4 * interval)
    assert min(parse_time(a.observed_at) for a in found) <= limit


@pytest.mark.parametrize("interval", [30.0, 60.0])
def test_a_single_odd_reading_at_a_slow_sampling_is_no_straggler(interval: float) -> None:
    ticks = 40
    rng = np.random.default_rng(5)
    watts = 600.0 + rng.normal(0.0, 5.0, (ticks, GPUS))
    clock = np.full((ticks, GPUS), 1.8e9)
    watts[20, 2], clock[20, 2] = 300.0, 0.9e9
    samples = readings(watts, np.ones_like(watts, dtype=bool), clock, interval, job="J")
    assert [a.summary for a in stragglers(samples)] == []


@pytest.mark.parametrize("interval", [1.0, 30.0])
def test_what_is_said_of_a_straggler_shows_it(interval: float) -> None:
    """Whatever is learned of a rank: its clock, or its power, stands below that of its peers."""
    rng = np.random.default_rng(9)
    ticks, begin = int(2400 / interval), int(1500 / interval)
    watts = 600.0 + rng.normal(0.0, 5.0, (ticks, GPUS))
    clock = np.full((ticks, GPUS), 1.6e9)
    # Faster than its peers at first, then as fast as they are: that holds nobody back.
    clock[:begin, 1], watts[:begin, 1] = 1.9e9, 660.0
    samples = readings(watts, np.ones_like(watts, dtype=bool), clock, interval, job=None)
    assert [a.summary for a in stragglers(samples)] == []
