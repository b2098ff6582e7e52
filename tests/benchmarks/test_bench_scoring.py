"""The score of the detection benchmark: per event, without point adjustment."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from foreshock.bench.faults import FAULTS
from foreshock.bench.happenings import Truth
from foreshock.bench.results import percentile
from foreshock.bench.scoring import Alarm, judge, poisson_interval, wilson_interval

TRUTH = Truth(
    name="straggler", magnitude=0.1, node=3, gpus=(2,), start=100.0, end=400.0,
    spec=FAULTS["straggler"],
)  # fmt: skip


def alarm(moment: float, *, gpu: int | None = 2, rank: int = 2, kind: str = "straggler") -> Alarm:
    return Alarm(node=3, gpu=gpu, family="load_imbalance", kind=kind, at=((rank, moment),))


def test_the_right_class_on_the_right_gpu_in_time_counts() -> None:
    score = judge([alarm(130.0)], [TRUTH], 1.0)
    assert [(one.credit, one.delay, one.top) for one in score.found] == [(1.0, 30.0, True)]
    assert score.false_alarms == []


def test_what_was_being_said_before_does_not_count_and_is_a_false_alarm() -> None:
    score = judge([alarm(50.0)], [TRUTH], 1.0)
    assert score.found[0].credit == 0.0
    assert len(score.false_alarms) == 1


def test_a_wrong_class_on_the_right_gpu_counts_half() -> None:
    score = judge([alarm(130.0, kind="hang")], [TRUTH], 1.0)
    assert score.found[0].credit == 0.5
    assert math.isinf(score.found[0].delay)


def test_another_gpu_is_a_false_alarm_and_no_detection() -> None:
    score = judge([alarm(130.0, gpu=5)], [TRUTH], 1.0)
    assert (score.found[0].credit, score.found[0].top) == (0.0, False)
    assert [where for _, where in score.false_alarms] == ["straggler"]


def test_an_alarm_after_the_grace_is_too_late() -> None:
    assert judge([alarm(400.0 + TRUTH.grace + 1.0)], [TRUTH], 1.0).found[0].credit == 0.0


def test_a_note_counts_only_where_the_class_is_a_note() -> None:
    assert judge([alarm(130.0, rank=1)], [TRUTH], 1.0).found[0].credit == 0.0
    noted = replace(TRUTH, spec=replace(FAULTS["straggler"], rank=1))
    assert judge([alarm(130.0, rank=1)], [noted], 1.0).found[0].credit == 1.0


def test_a_note_is_never_a_false_alarm() -> None:
    assert judge([alarm(50.0, gpu=7, rank=1)], [], 1.0).false_alarms == []


def test_a_gpu_blamed_for_its_node_counts_half() -> None:
    truth = Truth(
        name="power_brake", magnitude=1.0, node=3, gpus=tuple(range(8)), start=100.0, end=400.0,
        spec=FAULTS["power_brake"],
    )  # fmt: skip
    said = Alarm(node=3, gpu=2, family="throttling", kind="power_brake", at=((2, 110.0),))
    assert judge([said], [truth], 1.0).found[0].credit == 0.5
    whole = replace(said, gpu=None)
    assert judge([said, whole], [truth], 1.0).found[0].credit == 1.0


def test_a_detector_without_classes_is_given_the_class() -> None:
    said = Alarm(node=3, gpu=2, at=((2, 130.0),))
    assert judge([said], [TRUTH], 1.0).found[0].credit == 1.0


def test_what_a_decoy_makes_true_of_the_node_may_be_said_of_the_node_only() -> None:
    warm = Truth(
        name="warm_inlet", magnitude=0.0, node=3, gpus=(0,), start=0.0, end=600.0,
        allowed=("thermal_fault",),
    )  # fmt: skip
    node = Alarm(node=3, gpu=None, family="thermal_fault", kind="node_airflow", at=((2, 60.0),))
    assert judge([node], [warm], 1.0).false_alarms == []
    assert len(judge([replace(node, gpu=1)], [warm], 1.0).false_alarms) == 1


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [(0, 10, 0.0, 0.278), (10, 10, 0.722, 1.0), (5, 10, 0.237, 0.763)],
)
def test_the_wilson_interval_is_that_of_the_tables(
    hits: int, of: int, low: float, high: float
) -> None:
    assert wilson_interval(hits, of) == pytest.approx((low, high), abs=5e-4)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(0, 0.0, 3.0), (1, 0.025, 5.57), (10, 4.80, 18.39), (100, 81.4, 121.6)],
)
def test_the_poisson_interval_is_near_the_exact_one(count: int, low: float, high: float) -> None:
    found = poisson_interval(count, 1.0)
    assert found[1] == pytest.approx(high, rel=0.02)
    assert found[0] == pytest.approx(low, rel=0.05, abs=0.01)


def test_nothing_watched_bounds_nothing() -> None:
    assert poisson_interval(0, 0.0) == (0.0, math.inf)
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_a_percentile_of_nothing_is_missing() -> None:
    assert math.isnan(percentile([], 0.5))
    assert percentile([1.0, 5.0], 0.95) == 5.0
