"""Imbalance: the field cases by id, the recordings as jobs, faults of the simulated fleet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from telemetry import MIB, T0, held, telemetry, uuids

from collector.batching import Batching, NodeBatcher
from collector.replay.samples import samples_of
from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from collector.simulated.faults import Fault, FaultKind
from collector.simulated.fleet import SimulatedFleet
from collector.simulated.settings import SimulatedSettings
from detector.detectors.hang import Hang
from detector.detectors.straggler import Straggler
from detector.engine import Engine
from schemas.alert import AlertEvent, parse_time
from schemas.sample import JobRef, NodeSample

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ("run_0317_0339", "baseline_0341_0346")
#: What the cases call the faults, in the product's words.
FAULTS = {"straggler": "straggler", "job_hang": "collective_hang"}


@pytest.fixture(scope="module")
def cases(shared: Path) -> dict[str, Any]:
    """Id to case, over the files that hold imbalance."""
    found: dict[str, Any] = {}
    for name in ("silent", "firing"):
        found |= {c["id"]: c for c in orjson.loads((shared / f"cases/{name}.json").read_bytes())}
    return found


def engine() -> Engine:
    """Only this family: what the others say of the same telemetry is tested elsewhere."""
    return Engine([Straggler(), Hang()], topic="gpu.samples", partition=0)


def alerts_of(samples: list[NodeSample]) -> list[AlertEvent]:
    return engine().process(samples).alerts


def imbalance(alerts: Iterable[AlertEvent]) -> list[tuple[str, str, str, str | None]]:
    """(kind, severity, scope, GPU or job) of what this family says, notes included."""
    found = [
        (
            a.kind,
            str(a.severity),
            str(a.subject.scope),
            a.subject.job if a.subject.scope == "job" else a.subject.gpu_uuid,
        )
        for a in alerts
        if a.family == "load_imbalance" and a.state == "firing"
    ]
    return list(dict.fromkeys(found))


def percent(values: Any) -> Any:
    return np.array(values, dtype=np.float64) / 100.0


# -- the cases -------------------------------------------------------------------------------------


def b09(given: dict[str, Any], part: dict[str, Any]) -> list[NodeSample]:
    return telemetry(
        {
            "power_watts": part["power_watts"],
            "power_limit_watts": given["power_limit_watts"],
            "gpu_utilization_ratio": percent(part["gpu_utilization_percent"]),
            "sm_clock_hertz": np.array(part["sm_clock_mhz"]) * 1e6,
            "temperature_celsius": part.get("temperature_celsius", 45),
        },
        gpus=8,
        ticks=held(part["minutes"]),
        noise={"power_watts": 1.0},
        jobs=[given["job"]] * 8,
    )


def test_b09_the_slow_gpu_is_named_though_its_power_is_higher(cases: dict[str, Any]) -> None:
    case = cases["B09"]
    expect = case["expect"]["detector"]
    alerts = alerts_of(b09(case["input"], case["input"]))
    assert imbalance(alerts) == [
        (FAULTS[expect["fault"]], expect["severity"], "gpu", uuids(8)[expect["gpu"]])
    ]
    said = next(a for a in alerts if a.kind == "straggler")
    assert "SM clock 765 MHz against 1980 MHz" in said.summary
    assert re.search(r"power 2(49|50|51) W against 13[3-6] W", said.summary)


def test_b09_second_all_waiting_is_a_hang_of_the_job(cases: dict[str, Any]) -> None:
    case = cases["B09"]
    expect = case["expect"]["detector"]["second"]
    alerts = alerts_of(b09(case["input"], case["input"]["second"]))
    assert imbalance(alerts) == [(FAULTS[expect["fault"]], expect["severity"], "job", "J")]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("recording", RECORDINGS)
def test_b04_b09_contrast_the_recorded_jobs_are_silent(
    shared: Path, recording: str, named: bool
) -> None:
    """GPU 0 alone for seconds, dips, phases, a stop of 87 s GPU by GPU: named or inferred."""
    path = shared / "recordings" / "timeseries" / f"hopper_sxm_x8_{recording}.csv.gz"
    source = ReplaySource(ReplaySettings(files=(path,), map=ROOT / "maps" / "hopper_sxm_x8.toml"))
    samples = [as_job(sample, named=named) for sample in samples_of(source)]
    assert imbalance(alerts_of(samples)) == []


def as_job(sample: NodeSample, *, named: bool) -> NodeSample:
    """The recording has neither job nor memory: give it one of them, on all GPUs."""
    if named:
        jobs = (JobRef(gpus=sample.gpu, job="J"),)
        return replace(sample, jobs=jobs if sample.inventory is not None else None)
    cells = len(sample.ts) * len(sample.gpu)
    memory: dict[str, list[float | None]] = {
        "memory_used_bytes": [68e9] * cells,
        "memory_total_bytes": [80e9] * cells,
    }
    return replace(sample, m={**sample.m, **memory})


@pytest.mark.parametrize("names", ["with_jobs", "without_jobs"])
def test_b03_two_jobs_on_one_node_say_nothing(cases: dict[str, Any], names: str) -> None:
    given = cases["B03"]["input"]
    samples = telemetry(
        {
            "gpu_utilization_ratio": percent(given["gpu_utilization_percent"]),
            "power_watts": given["power_watts"],
            "memory_used_bytes": np.array(given["memory_used_mib"]) * MIB,
            "memory_total_bytes": 81559 * MIB,
        },
        gpus=8,
        ticks=held(12),
        noise={"power_watts": 2.0},
        jobs=given[names] if names == "with_jobs" else None,
    )
    assert imbalance(alerts_of(samples)) == []


@pytest.mark.parametrize("job", [None, "J"])
def test_b06_bursts_say_nothing(cases: dict[str, Any], job: str | None) -> None:
    given = cases["B06"]["input"]
    cycle = given["cycle"]
    times = np.arange(int(given["seconds"] / given["interval_seconds"])) * given["interval_seconds"]
    phase = (times[:, None] + np.linspace(0.0, 0.7, given["gpus"])) % cycle["period_seconds"]
    busy = phase < cycle["busy_seconds"]
    samples = telemetry(
        {
            "power_watts": np.where(busy, cycle["busy_power_watts"], cycle["idle_power_watts"]),
            "gpu_utilization_ratio": np.where(busy, 0.58, 0.03),
            "memory_used_bytes": given["totals"]["memory_used_mib"]["constant"] * MIB,
            "memory_total_bytes": 81559 * MIB,
        },
        gpus=given["gpus"],
        ticks=len(times),
        interval=given["interval_seconds"],
        jobs=[job] * 8,
    )
    assert imbalance(alerts_of(samples)) == []


def test_b10_cards_of_two_kinds_in_one_job_say_nothing(cases: dict[str, Any]) -> None:
    given = cases["B10"]["input"]
    cards = given["gpus"] * 4
    samples = telemetry(
        {
            "power_watts": [card["power_watts"] for card in cards],
            "power_limit_watts": [card["power_limit_watts"] for card in cards],
            "gpu_utilization_ratio": percent([card["gpu_utilization_percent"] for card in cards]),
            "sm_clock_hertz": [2.5e9, 1.5e9] * 4,
        },
        gpus=8,
        ticks=held(given["minutes"], 5),
        interval=5,
        models=[card["model"] for card in cards],
        jobs=["J"] * 8,
        noise={"power_watts": 2.0},
    )
    assert imbalance(alerts_of(samples)) == []


def test_t10_the_spread_between_slots_says_nothing(cases: dict[str, Any]) -> None:
    given = cases["T10"]["input"]["a"]
    samples = telemetry(
        {
            "power_watts": given["power_watts"],
            "gpu_utilization_ratio": 1.0,
            "temperature_celsius": given["temperature_celsius"],
        },
        gpus=8,
        ticks=held(10),
        noise={"power_watts": 4.0},
        jobs=["J"] * 8,
    )
    assert imbalance(alerts_of(samples)) == []


# -- faults and decoys of the simulated fleet ------------------------------------------------------

START = 240.0
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]


def simulated(
    *faults: Fault, seconds: int, seed: int = 1, interval: int = 1, named: bool = True
) -> list[AlertEvent]:
    fleet = SimulatedFleet(SimulatedSettings(seed=seed), faults=faults)
    rules = Batching(
        interval_seconds=float(interval),
        flush_seconds=float(interval),
        keyframe_seconds=60.0,
        source="simulated",
    )
    batchers: dict[str, NodeBatcher] = {}
    messages: list[NodeSample] = []
    for second in range(0, seconds, interval):
        for reading in fleet.read(T0 + 1000 * second):
            batcher = batchers.setdefault(reading.node, NodeBatcher(reading.node, "boot", rules))
            messages += batcher.add(reading)
    return alerts_of(messages if named else [replace(one, jobs=None) for one in messages])


def fault(kind: FaultKind, seconds: float = 300.0, **values: Any) -> Fault:
    return Fault(kind=kind, node=1, start_seconds=START, duration_seconds=seconds, **values)


def first(alerts: Iterable[AlertEvent], kind: str) -> float:
    """Seconds from the start of the fault to the first alert of a kind."""
    seen = [parse_time(a.observed_at) for a in alerts if a.kind == kind and a.state == "firing"]
    return (min(seen) - T0) / 1000.0 - START


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_straggler_of_a_tenth_is_named_within_a_minute(seed: int, named: bool) -> None:
    given = fault(FaultKind.STRAGGLER, gpu=seed, magnitude=0.1)
    alerts = simulated(given, seconds=400, seed=seed, named=named)
    found = imbalance(alerts)
    assert [(kind, severity) for kind, severity, _, _ in found] == [("straggler", "warning")]
    assert {a.subject.gpu_index for a in alerts if a.kind == "straggler"} == {seed}
    assert first(alerts, "straggler") <= 60.0


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_hang_of_one_rank_is_named_within_15_seconds(seed: int, named: bool) -> None:
    alerts = simulated(fault(FaultKind.HANG, gpu=seed), seconds=400, seed=seed, named=named)
    assert {(kind, severity) for kind, severity, _, _ in imbalance(alerts)} == {
        ("hang", "warning"),
        ("hang", "critical"),
    }
    assert {a.subject.gpu_index for a in alerts if a.kind == "hang"} == {seed}
    assert first(alerts, "hang") <= 15.0


@pytest.mark.parametrize("interval", [5, 10, 30])
def test_at_slower_sampling_a_hang_takes_three_readings(interval: int) -> None:
    given = fault(FaultKind.HANG, gpu=2)
    alerts = simulated(given, seconds=600, interval=interval)
    assert {kind for kind, *_ in imbalance(alerts)} == {"hang"}
    assert first(alerts, "hang") <= max(15.0, 3.0 * interval)


@pytest.mark.parametrize(
    "decoy",
    [
        fault(FaultKind.STAGGERED_STOP, 87.0),
        fault(FaultKind.JOB_RESTART, 20.0),
        fault(FaultKind.WARM_UP, 20.0),
        fault(FaultKind.SHORT_DIPS, 600.0),
        fault(FaultKind.POWER_CAP, 200.0),
        fault(FaultKind.POWER_BRAKE, 60.0),
    ],
    ids=lambda given: str(given.kind),
)
@pytest.mark.parametrize("named", [True, False])
def test_what_jobs_do_all_the_time_says_nothing(decoy: Fault, named: bool) -> None:
    assert imbalance(simulated(decoy, seconds=700, seed=4, named=named)) == []


# -- hand-built ------------------------------------------------------------------------------------


def job_of_eight(
    seconds: int, change: Any, *, jobs: Sequence[str | None] | None = None, **more: Any
) -> list[NodeSample]:
    """Train at 600 W; ``change(power, busy, clock)`` puts in what goes wrong."""
    power, busy = np.full((seconds, 8), 600.0), np.full((seconds, 8), 1.0)
    clock = np.full((seconds, 8), 1.7e9)
    change(power, busy, clock)
    return telemetry(
        {
            "power_watts": power,
            "power_limit_watts": 700.0,
            "gpu_utilization_ratio": busy,
            "sm_clock_hertz": clock,
            **more,
        },
        gpus=8,
        ticks=seconds,
        noise={"power_watts": 6.0},
        jobs=jobs or ["J"] * 8,
    )


def all_spin(power: Any, busy: Any, clock: Any) -> None:
    power[200:], clock[200:] = 140.0, 1.98e9


def test_a_hang_of_all_ranks_is_said_of_the_job_within_90_seconds() -> None:
    alerts = alerts_of(job_of_eight(600, all_spin))
    assert imbalance(alerts) == [
        ("collective_hang", "warning", "job", "J"),
        ("collective_hang", "critical", "job", "J"),
    ]
    said = [a for a in alerts if a.kind == "collective_hang"]
    assert parse_time(said[0].observed_at) - T0 <= (200 + 90) * 1000
    assert len({a.alert_id for a in said}) == 1
    assert re.search(r"8 of 8 GPUs on this node spin at 1[34]\d W", said[0].summary)


def test_a_busy_memory_bus_is_no_hang() -> None:
    """A phase of memory-bound work draws little power, too."""
    samples = job_of_eight(600, all_spin, memory_utilization_ratio=0.4)
    assert imbalance(alerts_of(samples)) == []


def test_two_jobs_that_hang_are_two_alerts_and_end_as_what_they_were() -> None:
    def both(power: Any, busy: Any, clock: Any) -> None:
        power[200:400] = 140.0

    alerts = alerts_of(job_of_eight(600, both, jobs=["a"] * 4 + ["b"] * 4))
    said = [(a.subject.job, a.state) for a in alerts if a.kind == "collective_hang"]
    assert sorted(said) == [("a", "firing"), ("a", "resolved"), ("b", "firing"), ("b", "resolved")]


def test_a_member_idle_for_ten_minutes_is_said_and_not_before() -> None:
    def idle(power: Any, busy: Any, clock: Any) -> None:
        power[200:, 5], busy[200:, 5], clock[200:, 5] = 75.0, 0.0, 345e6

    alerts = alerts_of(job_of_eight(1000, idle))
    assert imbalance(alerts) == [("idle_member", "warning", "gpu", "GPU-5")]
    seen = next(parse_time(a.observed_at) for a in alerts if a.kind == "idle_member")
    assert 795_000 <= seen - T0 <= 805_000


def test_a_rank_that_works_less_by_design_is_no_straggler() -> None:
    """First and last stages of a pipeline differ from the others in work, not in clock."""

    def stages(power: Any, busy: Any, clock: Any) -> None:
        power[:, 0], power[:, 7] = 420.0, 690.0

    assert imbalance(alerts_of(job_of_eight(1200, stages))) == []


def test_a_rank_late_for_its_host_shows_in_its_utilisation() -> None:
    def late(power: Any, busy: Any, clock: Any) -> None:
        power[300:], power[300:, 6], busy[300:, 6] = 480.0, 400.0, 0.75

    alerts = alerts_of(job_of_eight(500, late))
    assert imbalance(alerts) == [("straggler", "warning", "gpu", "GPU-6")]
    assert "comes late" in next(a for a in alerts if a.kind == "straggler").likely_cause


def test_replicas_that_serve_independent_requests_are_no_stragglers() -> None:
    def serve(power: Any, busy: Any, clock: Any) -> None:
        rng = np.random.default_rng(3)
        load = np.repeat(rng.uniform(0.2, 1.0, (len(power) // 60, 8)), 60, axis=0)
        power[:] = 150.0 + 500.0 * load
        clock[:] = np.where(load > 0.85, 1.5e9, 1.98e9)
        busy[:] = 0.97

    assert imbalance(alerts_of(job_of_eight(1800, serve))) == []


def test_a_first_checkpoint_of_rank_0_teaches_how_long_the_others_wait() -> None:
    """Idle for 9 s beside spinning peers every two minutes, once for 12 s: a habit."""

    def saving(power: Any, busy: Any, clock: Any) -> None:
        for start in range(120, len(power) - 30, 120):
            stop = start + (12 if start == 600 else 9)
            power[start:stop] = 140.0
            power[start:stop, 0], busy[start:stop, 0] = 90.0, 0.0

    assert imbalance(alerts_of(job_of_eight(1200, saving))) == []
