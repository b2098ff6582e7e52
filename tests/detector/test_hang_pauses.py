"""Waits that are a habit of the job: checkpoints, written by a rank here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from telemetry import T0, telemetry

from detector.detectors.hang import Hang
from detector.engine import Engine
from schemas.alert import AlertEvent, parse_time

GPUS = 8
Pauses = Callable[[np.ndarray], np.ndarray]
EVERY = 240.0


def waits(
    paused: Pauses, *, seconds: float, interval: float = 1.0, writer: int | None = None
) -> list[AlertEvent]:
    """A job of eight GPUs; while it is paused all spin, but for the one that writes."""
    at = np.arange(0.0, seconds, interval)
    away = paused(at)[:, None] & np.ones(GPUS, dtype=bool)
    idle = away & (np.arange(GPUS) == (-1 if writer is None else writer))
    samples = telemetry(
        {
            "power_watts": np.where(idle, 120.0, np.where(away, 140.0, 640.0)),
            "power_limit_watts": 700.0,
            "gpu_utilization_ratio": np.where(idle, 0.0, 1.0),
            "memory_utilization_ratio": np.where(away, 0.01, 0.6),
        },
        gpus=GPUS,
        ticks=len(at),
        interval=interval,
        noise={"power_watts": 3.0},
        jobs=["J"] * GPUS,
    )
    return Engine([Hang()], topic="gpu.samples", partition=0).process(samples).alerts


def checkpoints(lasting: float) -> Pauses:
    return lambda at: (at > EVERY / 2) & (at % EVERY >= EVERY - lasting)


def fired(alerts: list[AlertEvent]) -> list[tuple[str, str, int]]:
    """(kind, severity, which checkpoint) of what is said."""
    return [
        (a.kind, str(a.severity), int((parse_time(a.observed_at) - T0) / 1000.0 // EVERY))
        for a in alerts
        if a.state == "firing"
    ]


@pytest.mark.parametrize("interval", [1.0, 10.0])
def test_checkpoints_of_a_rank_elsewhere_are_said_once(interval: float) -> None:
    alerts = waits(checkpoints(90.0), seconds=4 * EVERY, interval=interval)
    assert fired(alerts) == [("collective_hang", "warning", 0)]


@pytest.mark.parametrize("interval", [1.0, 10.0])
@pytest.mark.parametrize("lasting", [30.0, 90.0])
def test_checkpoints_of_a_rank_here_are_a_warning_once_and_never_critical(
    interval: float, lasting: float
) -> None:
    alerts = waits(checkpoints(lasting), seconds=4 * EVERY, interval=interval, writer=0)
    assert fired(alerts) == [("hang", "warning", 0)]
    assert "checkpoint" in alerts[0].likely_cause


@pytest.mark.parametrize("writer", [None, 0])
def test_checkpoints_of_changing_length_are_learned_too(writer: int | None) -> None:
    def paused(at: np.ndarray) -> np.ndarray:
        lasting = np.array([90.0, 110.0, 75.0, 120.0])[(at // EVERY).astype(int)]
        return np.asarray((at > EVERY / 2) & (at % EVERY >= EVERY - lasting))

    assert {number for _, _, number in fired(waits(paused, seconds=4 * EVERY, writer=writer))} == {
        0
    }


@pytest.mark.parametrize("interval", [30.0, 60.0])
@pytest.mark.parametrize("writer", [None, 0])
def test_at_a_slow_sampling_checkpoints_are_said_once_at_most(
    interval: float, writer: int | None
) -> None:
    found = fired(waits(checkpoints(90.0), seconds=12 * EVERY, interval=interval, writer=writer))
    assert {number for _, _, number in found} <= {0}


@pytest.mark.parametrize(("writer", "kind"), [(None, "collective_hang"), (0, "hang")])
def test_a_hang_after_learned_checkpoints_is_found_and_becomes_critical(
    writer: int | None, kind: str
) -> None:
    """The contrast: longer than the checkpoints of the job, it is a hang."""
    habit = checkpoints(90.0)
    alerts = waits(lambda at: habit(at) | (at > 840.0), seconds=1300.0, writer=writer)
    late = [a for a in alerts if parse_time(a.observed_at) - T0 > 840_000]
    assert [(a.kind, str(a.severity)) for a in late][-1] == (kind, "critical")
    assert parse_time(late[0].observed_at) - T0 <= 840_000 + 200_000


def test_a_hang_that_ended_with_its_job_teaches_nothing() -> None:
    """The job is killed after four minutes, restarted under its name, and hangs again."""
    at = np.arange(0.0, 1000.0)
    hung = ((at > 200.0) & (at <= 450.0)) | (at > 700.0)
    ended = (at > 450.0) & (at <= 500.0)
    samples = telemetry(
        {
            "power_watts": np.where(ended, 75.0, np.where(hung, 140.0, 640.0))[:, None],
            "power_limit_watts": 700.0,
            "gpu_utilization_ratio": np.where(ended, 0.0, 1.0)[:, None],
        },
        gpus=GPUS,
        ticks=len(at),
        noise={"power_watts": 3.0},
        jobs=["J"] * GPUS,
    )
    alerts = Engine([Hang()], topic="gpu.samples", partition=0).process(samples).alerts
    seen = [
        (parse_time(a.observed_at) - T0) / 1000.0
        for a in alerts
        if (a.state, str(a.severity)) == ("firing", "warning")
    ]
    assert [round(second, -1) for second in seen] == [260.0, 760.0]
