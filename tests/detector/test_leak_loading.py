"""Memory that was filled quickly and stays is no leak, whatever the line through it says."""

from __future__ import annotations

import numpy as np
import pytest
from telemetry import alerts_of, serious, telemetry

GIB = 2.0**30


def memory(
    gib: np.ndarray, interval: float, busy: np.ndarray | None = None
) -> list[tuple[str, str, str, str | None]]:
    used = {} if busy is None else {"gpu_utilization_ratio": busy[:, None].tolist()}
    messages = telemetry(
        {
            **used,
            "memory_used_bytes": (gib[:, None] * GIB).tolist(),
            "memory_total_bytes": 80 * GIB,
            "memory_reserved_bytes": 0.5 * GIB,
        },
        gpus=1,
        ticks=len(gib),
        interval=interval,
    )
    return serious(alerts_of(messages))


@pytest.mark.parametrize("interval", [2, 10])
@pytest.mark.parametrize(
    ("start", "end", "seconds"),
    [(4, 74, 540), (45, 76, 120), (45, 76, 170), (60, 78, 170), (50, 78, 150)],
)
def test_a_load_that_ended_is_no_leak(
    start: float, end: float, seconds: float, interval: float
) -> None:
    """A second model or a cache, in a GPU that was half full: 95 % and flat is healthy."""
    time = np.arange(0.0, 1800.0, interval)
    assert memory(np.minimum(start + (end - start) * time / seconds, end), interval) == []


@pytest.mark.parametrize("interval", [5, 30])
@pytest.mark.parametrize("seconds", [660, 900, 1200])
def test_a_load_that_takes_a_quarter_of_an_hour_is_no_leak(seconds: float, interval: float) -> None:
    """Weights for a whole node from a shared filesystem: nothing is computed meanwhile."""
    time = np.arange(0.0, 2 * seconds, interval)
    gib = np.minimum(0.6 + 71.4 * time / seconds, 72.0)
    busy = np.where(time < seconds, 0.03, 0.95)
    assert memory(gib, interval, busy) == []


def test_the_same_growth_of_a_program_that_works_is_a_leak() -> None:
    time = np.arange(0.0, 1150.0, 5.0)
    gib = 0.6 + 71.4 * time / 1200.0
    found = memory(gib, 5.0, np.full(len(time), 0.9))
    assert ("oom_precursor", "leak") in {(family, kind) for family, kind, _, _ in found}


@pytest.mark.parametrize("interval", [2, 10])
def test_a_leak_in_steps_is_found(interval: float) -> None:
    """One GiB every two minutes: between the steps the memory lies below the line."""
    time = np.arange(0.0, 2800.0, interval)
    found = memory(55.0 + np.floor(time / 120.0), interval)
    # Seen every 10 s the steps are straight enough for the fast scale too, near the end.
    kinds = {"leak", "fast_growth"} if interval == 10 else {"leak"}
    assert {(family, kind) for family, kind, _, _ in found} == {("oom_precursor", k) for k in kinds}
