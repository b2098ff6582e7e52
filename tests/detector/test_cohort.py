"""The cohort tier: windows close at the slowest source, models survive restarts, no NaN enters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.cohort.adwin import LevelShift
from detector.cohort.drift import Drift
from detector.cohort.features import FEATURES, cohort_features
from detector.cohort.forest import Forest, ModelError, translated
from detector.cohort.tier import CohortTier
from schemas.alert import AlertEvent
from schemas.codec import decode_window
from schemas.window import WINDOW_MS, MetricWindow, WindowBatch, WindowSource

T0 = 1_790_000_000_000 // 3_600_000 * 3_600_000


def window(
    number: int,
    *,
    node: str = "a",
    job: str | None = "job",
    power: float | None = 600.0,
    use: float = 0.95,
    heat: Sequence[float] = (60.0, 62.0),
    watermark: int | None = None,
) -> WindowBatch:
    """Window ``number`` of a node with two GPUs."""
    start = T0 + number * WINDOW_MS

    def summary(values: Sequence[float | None]) -> MetricWindow:
        listed = list(values)
        return MetricWindow(mean=listed, min=listed, max=listed, last=listed)

    return WindowBatch(
        cohort=job or node,
        node=node,
        job=job,
        start=start,
        end=start + WINDOW_MS,
        source=WindowSource(
            topic="gpu.samples",
            partition=0,
            watermark=start + WINDOW_MS if watermark is None else watermark,
        ),
        gpu=(f"{node}-0", f"{node}-1"),
        model=("H100", "H100"),
        samples=(10, 10),
        missing=(0, 0),
        clock_event_reasons=(0, 0),
        m={
            "power_watts": summary([power, power]),
            "power_limit_watts": summary([700.0, 700.0]),
            "gpu_utilization_ratio": summary([use, use]),
            "temperature_celsius": summary(heat),
        },
    )


def usual(count: int, seed: int = 3, first: int = 0) -> list[WindowBatch]:
    """Windows of a steady job with sensor noise."""
    rng = np.random.default_rng(seed)
    return [
        window(
            first + number,
            power=600 + rng.normal(0, 6),
            use=float(np.clip(0.95 + rng.normal(0, 0.01), 0, 1)),
            heat=(60 + rng.normal(0, 0.5), 62 + rng.normal(0, 0.5)),
        )
        for number in range(count)
    ]


def strange(count: int, first: int) -> list[WindowBatch]:
    """Windows in which several quantities moved together, none to a limit."""
    return [
        window(first + number, power=330.0, use=0.55, heat=(60.0, 80.0)) for number in range(count)
    ]


def ids(alerts: Sequence[AlertEvent]) -> list[tuple[str, int, str]]:
    return [(alert.alert_id, alert.seq, alert.state) for alert in alerts]


def closed(tier: CohortTier) -> int:
    """Windows that the job's model has seen."""
    return len(tier.dump()[1]["history/0"])


def test_a_window_closes_at_the_slowest_source() -> None:
    tier = CohortTier()
    for node in ("a", "b"):
        tier.process([window(0, node=node)], caught_up=False)
    tier.process([window(number, node="a") for number in range(1, 30)], caught_up=False)
    assert closed(tier) == 1
    tier.process([window(1, node="b"), window(2, node="b")], caught_up=False)
    assert closed(tier) == 3


def test_a_source_without_news_is_left_out_only_while_nothing_lags() -> None:
    tier = CohortTier()
    for node in ("a", "b"):
        tier.process([window(0, node=node)], caught_up=False)
    tier.process([window(number, node="a") for number in range(1, 30)], caught_up=False)
    tier.process([], caught_up=False)
    assert closed(tier) == 1
    tier.process([], caught_up=True)
    assert closed(tier) == 30


def test_the_end_of_input_closes_nothing_that_is_incomplete() -> None:
    tier = CohortTier()
    tier.process([window(0, node="a"), window(0, node="b"), window(1, node="a")], caught_up=False)
    assert closed(tier) == 1


def test_a_repeated_or_late_window_counts_once() -> None:
    tier = CohortTier()
    steady = usual(20)
    tier.process([*steady, *steady, steady[3]], caught_up=False)
    assert closed(tier) == 20


def test_a_steady_job_is_no_novelty() -> None:
    for seed in range(3):
        assert CohortTier().process(usual(900, seed=seed), caught_up=False) == []


def test_a_job_unlike_its_past_is_a_novelty_of_severity_info() -> None:
    tier = CohortTier()
    alerts = tier.process([*usual(400), *strange(30, 400)], caught_up=False)
    assert [alert.state for alert in alerts] == ["firing"]
    alert = alerts[0]
    assert (alert.family, alert.kind, alert.severity) == ("novelty", "multivariate", "info")
    assert alert.subject.scope == "job"
    assert alert.subject.job == "job"
    assert {evidence.metric for evidence in alert.evidence} >= {"rarity", "power_ratio"}
    resolved = tier.process(usual(30, first=430), caught_up=False)
    assert [(event.alert_id, event.state) for event in resolved] == [(alert.alert_id, "resolved")]


def test_without_a_job_the_node_is_the_cohort() -> None:
    tier = CohortTier()
    anonymous = [replace(one, cohort="a", job=None) for one in [*usual(400), *strange(30, 400)]]
    alerts = tier.process(anonymous, caught_up=False)
    assert [(alert.subject.scope, alert.subject.node) for alert in alerts] == [("node", "a")]


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(1, 779), min_size=1, max_size=3))
def test_stopping_and_resuming_gives_the_same_alerts(stops: list[int]) -> None:
    """Across a fixed boundary too: the stream is longer than two hours of windows."""
    stream = [*usual(700), *strange(40, 700), *usual(40, first=740)]
    want = ids(CohortTier().process(stream, caught_up=False))
    assert want
    tier = CohortTier()
    got: list[AlertEvent] = []
    edges = [0, *sorted(stops), len(stream)]
    for start, end in itertools.pairwise(edges):
        facts, arrays = tier.dump()
        tier = CohortTier()
        saved = orjson.loads(orjson.dumps(facts))
        copies = {name: array.copy() for name, array in arrays.items()}
        assert tier.load(saved, copies, lambda one: decode_window(orjson.dumps(one))) == []
        got += tier.process(stream[start:end], caught_up=False)
    assert ids(got) == want


def test_a_window_without_readings_is_not_learned() -> None:
    tier = CohortTier()
    tier.process([*usual(50), window(50, power=None), *usual(1, first=51)], caught_up=False)
    assert closed(tier) == 51


def test_a_cohort_that_begins_without_readings_learns_once_it_has_some() -> None:
    tier = CohortTier()
    empty = WindowBatch(
        cohort="job",
        node="a",
        job="job",
        start=T0,
        end=T0 + WINDOW_MS,
        source=WindowSource(topic="gpu.samples", partition=0, watermark=T0 + WINDOW_MS),
        gpu=("a-0",),
        model=(None,),
        samples=(10,),
        missing=(0,),
        clock_event_reasons=(0,),
        m={},
    )
    assert tier.process([empty, *usual(20, first=1)], caught_up=False) == []
    assert closed(tier) == 20


def test_a_forest_takes_no_nan() -> None:
    forest = Forest(limits=[(0.0, 1.0)])
    with pytest.raises(ModelError, match="finite"):
        forest.score(np.array([np.nan]))
    with pytest.raises(ModelError, match="finite"):
        forest.learn(np.array([np.inf]))
    assert forest.learned == 0


def test_features_are_bounded_and_missing_stays_missing() -> None:
    row = cohort_features([window(0, power=90_000.0, use=0.5)])
    named = dict(zip(FEATURES, row.tolist(), strict=True))
    assert named["power_ratio"] == 1.2
    assert named["gpu_utilization_ratio"] == 0.5
    assert np.isnan(named["sm_clock_ratio"])


def test_forgotten_cohorts_leave_nothing_behind() -> None:
    tier = CohortTier()
    for number in range(300):
        # A new job every three hours.
        tier.process([window(number * 1080, job=f"job-{number}")], caught_up=False)
    facts, arrays = tier.dump()
    assert len(facts["cohorts"]) <= 3
    assert len(arrays["jobs/state/drift/ended"]) <= 4


YEAR = 365 * 24 * 360  # windows


def test_one_clock_that_runs_years_ahead_makes_no_other_cohort_forgotten() -> None:
    tier = CohortTier()
    for number in range(20):
        for node in ("a", "b"):
            tier.process([window(number, node=node, job=None)], caught_up=False)
        tier.process([window(number + YEAR, node="ahead", job=None)], caught_up=False)
    assert len(tier.dump()[0]["cohorts"]) == 3
    assert closed(tier) == 20


def test_a_node_whose_clock_was_ahead_for_a_while_is_followed_again() -> None:
    tier = CohortTier()
    tier.process(usual(5), caught_up=False)
    tier.process(usual(1, first=YEAR), caught_up=False)
    tier.process(usual(5, first=5), caught_up=False)
    assert closed(tier) == 11


# -- a second signal -------------------------------------------------------------------------------


def test_a_novelty_is_a_warning_while_clocks_are_cut_by_heat_or_a_brake() -> None:
    braked = [replace(one, clock_event_reasons=(0x84, 0x4)) for one in strange(30, 400)]
    alerts = CohortTier().process([*usual(400), *braked], caught_up=False)
    assert [(alert.kind, alert.severity) for alert in alerts] == [("multivariate", "warning")]
    assert "50 % of its GPUs are cut" in alerts[0].summary


def test_a_power_cap_is_no_second_signal() -> None:
    capped = [replace(one, clock_event_reasons=(0x4, 0x5)) for one in strange(30, 400)]
    alerts = CohortTier().process([*usual(400), *capped], caught_up=False)
    assert [alert.severity for alert in alerts if alert.kind == "multivariate"] == ["info"]


# -- drift -----------------------------------------------------------------------------------------


def moved(count: int, first: int, seed: int = 5) -> list[WindowBatch]:
    """Windows of a job that draws a sixth less than before, with sensor noise."""
    rng = np.random.default_rng(seed)
    return [
        window(first + number, power=490 + rng.normal(0, 6), use=0.95, heat=(60.0, 62.0))
        for number in range(count)
    ]


def only_drift() -> CohortTier:
    return CohortTier([Drift()])


def test_a_job_that_moves_to_another_level_has_drifted_and_the_levels_are_named() -> None:
    alerts = only_drift().process([*usual(300), *moved(150, 300)], caught_up=False)
    assert [(alert.kind, alert.state, alert.severity) for alert in alerts] == [
        ("drift", "firing", "info")
    ]
    shown = {item.metric: item for item in alerts[0].evidence}["power_ratio"]
    assert shown.baseline == pytest.approx(600 / 700, abs=0.01)
    assert shown.value == pytest.approx(490 / 700, abs=0.02)
    assert "(was 86 %)" in alerts[0].summary


def test_a_drift_ends_when_the_level_is_back_and_the_way_back_is_none() -> None:
    stream = [*usual(300), *moved(150, 300), *usual(300, first=450)]
    alerts = only_drift().process(stream, caught_up=False)
    assert [(alert.state, alert.end_reason) for alert in alerts] == [
        ("firing", None),
        ("resolved", "condition_ended"),
    ]


def test_after_an_hour_the_new_level_is_the_normal_one() -> None:
    alerts = only_drift().process([*usual(300), *moved(700, 300)], caught_up=False)
    assert [(alert.state, alert.end_reason) for alert in alerts] == [
        ("firing", None),
        ("resolved", "new_normal"),
    ]
    assert "is the normal one now" in alerts[1].summary


def test_a_shift_too_small_to_matter_is_no_drift() -> None:
    slight = [window(300 + n, power=560.0) for n in range(300)]
    assert only_drift().process([*usual(300), *slight], caught_up=False) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_steady_job_does_not_drift(seed: int) -> None:
    assert only_drift().process(usual(900, seed=seed), caught_up=False) == []


def test_stopping_at_any_window_gives_the_same_drift() -> None:
    stream = [*usual(330), *moved(150, 330), *usual(60, first=480)]
    want = ids(only_drift().process(stream, caught_up=False))
    assert want
    for stop in (1, 335, 361, 400, 433):
        first = only_drift()
        got = first.process(stream[:stop], caught_up=False)
        facts, arrays = first.dump()
        second = only_drift()
        saved = orjson.loads(orjson.dumps(facts))
        second.load(saved, dict(arrays), lambda one: decode_window(orjson.dumps(one)))
        got += second.process(stream[stop:], caught_up=False)
        assert ids(got) == want


def test_a_level_model_takes_no_nan() -> None:
    shift = LevelShift(features=2, unit=0.1)
    with pytest.raises(ModelError, match="finite"):
        shift.feed(0, np.array([0.5, np.nan]))


class Panic(BaseException):
    """What a panic in river's compiled core looks like: no Exception."""


class Panicking(LevelShift):
    """Breaks on every window."""

    def feed(self, start_ms: int, row: object) -> None:
        raise translated(Panic("index out of bounds"))


def test_a_model_that_panics_costs_its_own_past_and_nothing_else() -> None:
    tier = CohortTier()
    tier.process(usual(50), caught_up=False)
    (cohort,) = tier._cohorts.values()
    cohort.past._shift = Panicking(features=4, unit=0.1)
    assert tier.process(usual(50, first=50), caught_up=False) == []
    assert closed(tier) == 49


def test_the_interpreters_own_signals_are_not_swallowed() -> None:
    for passing in (KeyboardInterrupt(), SystemExit(1)):
        assert translated(passing) is passing
    assert isinstance(translated(Panic("x")), ModelError)
