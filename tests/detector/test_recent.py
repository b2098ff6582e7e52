"""The lines beside an alert: the minutes before it, as they were read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from telemetry import telemetry

from detector.engine import Engine
from detector.pipeline import Pipeline
from detector.recent import CHARTED, Recent
from detector.registry import build
from detector.settings import DetectorSettings
from schemas.alert import AlertEvent, parse_time
from schemas.metrics import METRIC_INDEX
from schemas.sample import NodeSample
from schemas.window import WINDOW_MS

TICKS = 900
HOT_FROM = 600


def hot_gpu(gap: slice = slice(0, 0)) -> list[NodeSample]:
    """GPU 2 runs 25 °C hotter than its three peers from the tenth minute on."""
    rng = np.random.default_rng(5)
    celsius = 50.0 + rng.normal(0.0, 0.3, (TICKS, 4))
    celsius[HOT_FROM:, 2] += 25.0
    celsius[gap, 2] = np.nan
    watts = 400.0 + rng.normal(0.0, 2.0, (TICKS, 4))
    columns = {"temperature_celsius": celsius, "power_watts": watts}
    return telemetry(columns, gpus=4, ticks=TICKS)


def first(samples: list[NodeSample], size: int = 1, minutes: float = 10.0) -> AlertEvent:
    """Return the first event about the hot GPU, fed so many messages at a time."""
    thermal = [detector for detector in build() if detector.family == "thermal_fault"]
    engine = Engine(thermal, topic="t", partition=0, series_minutes=minutes)
    for start in range(0, len(samples), size):
        for alert in engine.process(samples[start : start + size]).alerts:
            if alert.subject.gpu_index == 2:
                return alert
    pytest.fail("the hot GPU was not found")


def test_every_charted_metric_is_one_of_the_catalogue() -> None:
    assert set(CHARTED) <= METRIC_INDEX.keys()


def test_an_alert_shows_what_was_read_in_the_minutes_before_it() -> None:
    samples = hot_gpu()
    alert = first(samples)
    line = next(one for one in alert.series if one.metric == "temperature_celsius")
    at = parse_time(alert.observed_at)
    begin = samples[0].ts[0]
    assert line.ts == sorted(line.ts)
    assert line.ts[-1] == at
    assert at - 600_000 <= line.ts[0] < at - 580_000
    read = np.array([sample.m["temperature_celsius"] for sample in samples])[:, 2]
    moments = np.array([sample.ts[0] for sample in samples])
    for moment, value in zip(line.ts[:-1], line.values[:-1], strict=True):
        start = moment - WINDOW_MS // 2
        inside = (moments >= start) & (moments < start + WINDOW_MS)
        assert value == pytest.approx(read[inside].mean(), abs=0.01)
    assert line.values[-1] == pytest.approx(read[(at - begin) // 1000], abs=1e-3)


def test_lines_do_not_depend_on_how_messages_were_batched() -> None:
    samples = hot_gpu()
    assert first(samples, size=1).series == first(samples, size=450).series


def test_a_reading_that_was_missing_is_a_gap() -> None:
    alert = first(hot_gpu(gap=slice(300, 330)))
    line = next(one for one in alert.series if one.metric == "temperature_celsius")
    assert None in line.values
    assert 0.0 not in line.values


def test_what_is_older_than_the_minutes_asked_for_is_not_shown() -> None:
    alert = first(hot_gpu(), minutes=2.0)
    assert all(at - 120_000 <= min(one.ts) for one in alert.series for at in one.ts[-1:])
    assert first(hot_gpu(), minutes=0.0).series == ()


def test_a_silence_leaves_no_line_across_it() -> None:
    samples = hot_gpu()
    later = [replace(s, ts=tuple(t + 3_600_000 for t in s.ts)) for s in samples[300:]]
    alert = first([*samples[:300], *later])
    assert all(one.ts[-1] - one.ts[0] <= 600_000 for one in alert.series)


def test_a_gpu_that_begins_anew_has_no_past() -> None:
    recent = Recent(10.0)
    recent.table.grow(2)
    rows = np.array([0, 1])
    recent.keep(rows, np.array([0, 0]), {"power_watts": np.array([300.0, 400.0])})
    recent.table.reset(np.array([1]))
    assert recent.table["start"][1].max() == -1
    assert recent.table["power_watts"][0, 0] == 300.0


def test_the_pipeline_keeps_ten_minutes_unless_told_otherwise() -> None:
    others = tuple(d.name for d in build() if d.family != "thermal_fault")
    plain = DetectorSettings(disabled=others)
    for settings, shown in (
        (plain, True),
        (plain.model_copy(update={"series_minutes": 0.0}), False),
    ):
        alerts = Pipeline(settings).feed(hot_gpu())
        assert any(alert.series for alert in alerts) is shown
