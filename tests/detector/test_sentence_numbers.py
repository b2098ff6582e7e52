"""Numbers that stand in one sentence belong to one moment."""

from __future__ import annotations

import re

import numpy as np
import pytest
from telemetry import telemetry

from detector.detectors.near_limit import NearLimit
from detector.engine import Engine

SUMMARY = re.compile(
    r"is (\d+) °C (below|above) its thermal limit of (\d+) °C, at (\d+) °C in the mean of 10 s\."
)
REACHED = re.compile(r"has reached its thermal limit of (\d+) °C, at (\d+) °C in the mean of 10 s")


@pytest.mark.parametrize("interval", [1.0, 5.0, 30.0])
@pytest.mark.parametrize("per_second", [0.07, 0.3, 2.0])
@pytest.mark.parametrize("limit", [87.0, 90.0, 96.0])
def test_margin_and_temperature_make_up_the_limit(
    interval: float, per_second: float, limit: float
) -> None:
    """While it heats up quickly the mean lags behind: by more than any rounding."""
    seconds = np.arange(0.0, 900.0, interval)[:, None]
    heat = np.round(np.minimum(60.0 + np.maximum(seconds - 300.0, 0.0) * per_second, limit + 6.0))
    engine = Engine([NearLimit()], topic="gpu.samples", partition=0)
    alerts = engine.process(
        telemetry(
            {"temperature_celsius": heat, "temperature_margin_celsius": limit - heat},
            gpus=1,
            ticks=len(heat),
            interval=interval,
        )
    ).alerts
    assert alerts
    for alert in alerts:
        below, reached = SUMMARY.search(alert.summary), REACHED.search(alert.summary)
        margin, shown = (e.value for e in alert.evidence[:2])
        assert margin is not None
        assert shown is not None
        assert margin + shown == pytest.approx(limit, abs=0.01)
        if below:
            far, side, said_limit, said = below.groups()
            sign = 1 if side == "below" else -1
            assert int(said) + sign * int(far) == int(said_limit) == limit
        else:
            assert reached is not None, alert.summary
            assert reached.groups() == (str(int(limit)), str(int(limit)))


def test_without_a_temperature_the_margin_stands_alone() -> None:
    engine = Engine([NearLimit()], topic="gpu.samples", partition=0)
    margin = np.where(np.arange(120) < 30, 30.0, 3.0)[:, None]
    found = engine.process(
        telemetry({"temperature_margin_celsius": margin}, gpus=1, ticks=120)
    ).alerts
    assert [a.summary for a in found][:1] == [
        "node GPU 0 is 4 °C below its thermal limit in the mean of 10 s."
    ]
