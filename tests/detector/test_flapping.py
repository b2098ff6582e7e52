"""A GPU that is lost and back every minute is told a few times, not every time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry import telemetry

from detector.engine import Engine
from detector.registry import build
from schemas.alert import AlertEvent
from schemas.sample import NodeSample

HOUR = 360  # messages, one every 10 s


@cache
def stream() -> tuple[NodeSample, ...]:
    """An hour in which the last of four GPUs is gone every other half minute, then half an hour."""
    whole = telemetry(
        {"power_watts": 300.0, "temperature_celsius": 55.0},
        gpus=4,
        ticks=HOUR + HOUR // 2,
        interval=10.0,
    )
    return tuple(
        _without_the_last(sample) if tick < HOUR and tick % 6 >= 3 else sample
        for tick, sample in enumerate(whole)
    )


def _without_the_last(sample: NodeSample) -> NodeSample:
    return replace(
        sample,
        gpu=sample.gpu[:3],
        m={name: list(column)[:3] for name, column in sample.m.items()},
    )


def engine() -> Engine:
    return Engine([d for d in build() if d.name == "lost"], topic="gpu.samples", partition=0)


@cache
def told() -> tuple[AlertEvent, ...]:
    return tuple(engine().process(stream()).alerts)


def test_an_hour_of_coming_and_going_is_six_events() -> None:
    events = told()
    assert [event.state for event in events] == ["firing", "resolved"] * 3
    assert [event.seq for event in events] == [1, 2] * 3
    assert [event.flapping for event in events] == [False] * 4 + [True] * 2
    assert len({event.alert_id for event in events}) == 3
    assert len({event.fingerprint for event in events}) == 1


def test_the_words_say_that_it_flaps_and_for_how_long_the_alert_waits() -> None:
    opened, resolved = told()[-2:]
    assert "3 times within 30 min" in opened.summary
    assert "15 min" in opened.summary
    assert "came and went" in resolved.summary


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(1, len(stream()) - 1), max_size=4))
def test_cutting_stopping_and_resuming_change_nothing(cuts: list[int]) -> None:
    subject, events = engine(), []
    edges = [0, *sorted(cuts), len(stream())]
    for start, end in itertools.pairwise(edges):
        facts, arrays = subject.dump()
        saved = orjson.loads(orjson.dumps(facts))
        copies = {name: array.copy() for name, array in arrays.items()}
        subject = engine()
        assert subject.load(saved, copies) == []
        events += subject.process(stream()[start:end]).alerts
    assert tuple(events) == told()


@pytest.mark.parametrize("name", ["opened", "opened_before", "flaps"])
def test_a_snapshot_without_the_memory_of_flapping_keeps_its_open_alert(name: str) -> None:
    old = engine()
    old.process(stream()[:6])
    facts, arrays = old.dump()
    dropped = {k: v.copy() for k, v in arrays.items() if not k.endswith(f"/{name}")}
    new = engine()
    assert all(part.endswith(f"/{name}") for part in new.load(facts, dropped))
    events = new.process(stream()[6:20]).alerts
    assert events[0].state == "resolved"
    assert events[0].alert_id == told()[0].alert_id
