"""When a slowdown ends: at its end, not minutes later, and not between two bursts."""

from __future__ import annotations

import numpy as np
import pytest
from telemetry import alerts_of, telemetry

from schemas.alert import parse_time

COUNTER = "throttle_power_brake_seconds_total"


def braked(seconds: np.ndarray, *, counters: bool) -> dict[str, np.ndarray]:
    """Reason bits, or the cumulative counter, of one GPU braked in these seconds."""
    bits = np.where(seconds, 0x80, 0.0)[:, None]
    if not counters:
        return {"clock_event_reasons": bits}
    return {"clock_event_reasons": bits, COUNTER: np.cumsum(seconds.astype(float))[:, None]}


@pytest.mark.parametrize("counters", [True, False], ids=["counters", "bits"])
def test_a_brake_of_45_seconds_has_ended_after_45_seconds(counters: bool) -> None:
    seconds = np.zeros(600, dtype=bool)
    seconds[100:145] = True
    samples = telemetry(braked(seconds, counters=counters), gpus=1, ticks=600)
    first, last = alerts_of(samples)
    assert (first.state, last.state) == ("firing", "resolved")
    assert last.ended_at is not None
    lasted = (parse_time(last.ended_at) - parse_time(last.started_at)) / 1000
    assert lasted == pytest.approx(45, abs=3)
    assert "after 4" in last.summary


def test_bursts_of_one_cause_are_one_alert() -> None:
    seconds = np.arange(900) % 60 < 3
    alerts = alerts_of(telemetry(braked(seconds, counters=True), gpus=1, ticks=900))
    assert [alert.state for alert in alerts] == ["firing"]
