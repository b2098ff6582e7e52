"""Field cases and rules of the family inefficiency: notes, never more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from telemetry import MIB, T0, alerts_of, held, serious, telemetry

from schemas.alert import AlertEvent, rfc3339
from schemas.sample import SampleEvent


@pytest.fixture(scope="module")
def cases(shared: Path) -> dict[str, Any]:
    """Id to case, over all files."""
    found: dict[str, Any] = {}
    for path in sorted((shared / "cases").glob("*.json")):
        found |= {case["id"]: case for case in orjson.loads(path.read_bytes())}
    return found


def notes(alerts: list[AlertEvent]) -> list[tuple[str, str, str | None]]:
    """(kind, severity, GPU) of what this family says, each once."""
    mine = [a for a in alerts if a.family == "inefficiency" and a.state == "firing"]
    return list(dict.fromkeys((a.kind, str(a.severity), a.subject.gpu_uuid) for a in mine))


def at_work(busy: Any, *, ticks: int, interval: float = 1.0, **more: Any) -> list[AlertEvent]:
    """Alerts of one GPU with 60 of 80 GiB taken and this utilisation."""
    metrics = {
        "gpu_utilization_ratio": busy,
        "memory_used_bytes": 60 * 1024 * MIB,
        "memory_total_bytes": 80 * 1024 * MIB,
        **more,
    }
    return alerts_of(telemetry(metrics, gpus=1, ticks=ticks, interval=interval))


# -- idle_allocated --------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [1.0, 10.0, 60.0])
def test_o05_memory_kept_without_work_is_a_note_after_15_min(
    cases: dict[str, Any], interval: float
) -> None:
    given, expected = cases["O05"]["input"], cases["O05"]["expect"]["detector"]
    samples = telemetry(
        {
            "memory_used_bytes": given["memory_used_mib"] * MIB,
            "memory_total_bytes": given["memory_total_mib"] * MIB,
            "gpu_utilization_ratio": given["gpu_utilization_percent"] / 100,
        },
        gpus=1,
        ticks=held(given["minutes"], interval),
        interval=interval,
    )
    alerts = alerts_of(samples)
    assert serious(alerts) == []
    assert notes(alerts) == [("idle_allocated", expected["severity"], "GPU-0")]
    assert rfc3339(T0 + 900_000) <= alerts[0].observed_at <= rfc3339(T0 + 960_000)
    assert "holds 10.7 GiB (98% of its memory)" in alerts[0].summary
    assert "0.25 GPU-hours" in alerts[0].summary


def test_idle_for_hours_stays_a_note() -> None:
    assert notes(at_work(0.0, ticks=held(180, 10), interval=10)) == [
        ("idle_allocated", "info", "GPU-0")
    ]


@pytest.mark.parametrize(
    "metrics",
    [
        pytest.param({"memory_used_bytes": 500 * MIB}, id="nothing held but the driver's own"),
        pytest.param({"gpu_utilization_ratio": 0.6}, id="at work"),
        pytest.param({"gpu_utilization_ratio": None}, id="utilisation unknown"),
        pytest.param({"power_watts": 400, "power_limit_watts": 700}, id="power says it works"),
    ],
)
def test_a_gpu_that_is_free_or_works_is_no_note(metrics: dict[str, Any]) -> None:
    base: dict[str, Any] = {
        "gpu_utilization_ratio": 0.0,
        "memory_used_bytes": 60_000 * MIB,
        "memory_total_bytes": 81_559 * MIB,
    }
    values = base | metrics
    if values["gpu_utilization_ratio"] is None:
        values["gpu_utilization_ratio"] = float("nan")
    assert alerts_of(telemetry(values, gpus=1, ticks=held(60, 10), interval=10)) == []


def test_the_note_ends_when_work_begins() -> None:
    busy = np.where(np.arange(2000) < 1500, 0.0, 0.9)[:, None]
    states = [(a.kind, a.state) for a in at_work(busy, ticks=2000)]
    assert states == [("idle_allocated", "firing"), ("idle_allocated", "resolved")]


def test_a_gpu_that_idles_after_an_xid_names_its_cause() -> None:
    samples = telemetry(
        {
            "gpu_utilization_ratio": 0.0,
            "memory_used_bytes": 60 * 1024 * MIB,
            "memory_total_bytes": 80 * 1024 * MIB,
        },
        gpus=2,
        ticks=held(20, 5),
        interval=5,
    )
    fell = SampleEvent(ts=samples[1].ts[0], kind="xid", gpu="GPU-1", xid=79)
    samples[1] = replace(samples[1], events=(fell,))
    alerts = {(a.kind, a.subject.gpu_uuid): a for a in alerts_of(samples)}
    cause = alerts["xid", "GPU-1"].fingerprint
    assert alerts["idle_allocated", "GPU-1"].caused_by == cause
    assert alerts["idle_allocated", "GPU-0"].caused_by is None


# -- low_utilization -------------------------------------------------------------------------------


def test_an_hour_at_a_tenth_is_a_note_with_the_fraction_lost() -> None:
    alerts = at_work(0.1, ticks=held(90, 10), interval=10)
    assert notes(alerts) == [("low_utilization", "info", "GPU-0")]
    assert "used for 10% of the time" in alerts[0].summary
    assert "90% of every GPU-hour" in alerts[0].summary


def test_an_hour_at_half_is_no_note() -> None:
    assert at_work(0.5, ticks=held(120, 10), interval=10) == []


# -- data_starvation -------------------------------------------------------------------------------


def test_b06_bursts_by_design_are_a_note_at_most(cases: dict[str, Any]) -> None:
    given = cases["B06"]["input"]
    cycle, interval = given["cycle"], given["interval_seconds"]
    ticks = int(given["seconds"] / interval)
    times = np.arange(ticks) * interval
    phase = (times[:, None] + np.linspace(0.0, 0.7, given["gpus"])) % cycle["period_seconds"]
    busy = phase < cycle["busy_seconds"]
    load = cycle["busy_utilization_percent"]["max"] / 100
    samples = telemetry(
        {
            "power_watts": np.where(busy, cycle["busy_power_watts"], cycle["idle_power_watts"]),
            "gpu_utilization_ratio": np.where(busy, load, 0.03),
            "memory_used_bytes": given["totals"]["memory_used_mib"]["constant"] * MIB,
            "memory_total_bytes": 81559 * MIB,
        },
        gpus=given["gpus"],
        ticks=ticks,
        interval=interval,
    )
    alerts = alerts_of(samples)
    assert serious(alerts) == []
    assert {kind for kind, *_ in notes(alerts)} == {"data_starvation"}
    assert len(notes(alerts)) == given["gpus"]


@pytest.mark.parametrize("interval", [0.3, 1.0, 2.0])
def test_a_stalling_loader_is_noted_with_the_share_of_time_lost(interval: float) -> None:
    """4 s of work, 4 s of waiting, from the third minute on."""
    times = np.arange(int(600 / interval)) * interval
    stalls = (times >= 180) & (times % 8 < 4)
    alerts = at_work(np.where(stalls, 0.02, 0.97)[:, None], ticks=len(times), interval=interval)
    assert notes(alerts) == [("data_starvation", "info", "GPU-0")]
    assert rfc3339(T0 + 180_000) <= alerts[0].observed_at <= rfc3339(T0 + 300_000)
    assert "GPU waited" in alerts[0].summary


@pytest.mark.parametrize(
    ("period", "pause"),
    [
        pytest.param(300, 30, id="checkpoints"),
        pytest.param(700, 120, id="evaluation"),
        pytest.param(10, 0, id="none"),
    ],
)
def test_pauses_that_belong_to_training_are_no_note(period: float, pause: float) -> None:
    seconds = np.arange(1800)
    busy = np.where(seconds % period < pause, 0.0, 0.97)[:, None]
    assert at_work(busy, ticks=1800) == []
