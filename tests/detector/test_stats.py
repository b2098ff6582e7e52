"""Statistics against plain oracles: numpy's polyfit, Python's median, a loop."""

from __future__ import annotations

import math
import statistics
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.stats.ewma import ewma
from detector.stats.peers import alike_pairs, block_view, peer_median, to_rows
from detector.stats.regression import Regression, regression_fields

NAN = float("nan")
readings = st.floats(-1e6, 1e6, allow_nan=False)
maybe = readings | st.just(NAN)
gaps = st.floats(0.0, 600.0, allow_nan=False)


def one(value: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([value])


@given(st.lists(st.tuples(maybe, gaps), max_size=30), st.floats(1.0, 900.0))
def test_ewma_equals_the_loop_that_skips_missing_values(
    series: list[tuple[float, float]], tau: float
) -> None:
    mean, expected = one(NAN), NAN
    for value, dt in series:
        mean = ewma(mean, one(value), one(dt), tau)
        if math.isnan(expected):
            expected = value
        elif not math.isnan(value):
            expected += (1.0 - math.exp(-dt / tau)) * (value - expected)
    assert mean[0] == pytest.approx(expected, rel=1e-9, abs=1e-6, nan_ok=True)


@given(readings, readings, st.floats(0.1, 300.0), st.floats(1.0, 900.0), st.integers(2, 20))
def test_ewma_does_not_depend_on_the_sampling_rate(
    start: float, level: float, seconds: float, tau: float, pieces: int
) -> None:
    """A constant seen in many small steps moves the mean as far as in one large step."""
    at_once = ewma(one(start), one(level), one(seconds), tau)
    mean = one(start)
    for _ in range(pieces):
        mean = ewma(mean, one(level), one(seconds / pieces), tau)
    assert mean[0] == pytest.approx(at_once[0], rel=1e-9, abs=1e-6)


def test_ewma_stays_between_the_mean_and_the_value() -> None:
    moved = ewma(one(1.0), one(5.0), one(1e9), 1.0)
    assert moved[0] == 5.0
    assert ewma(one(1.0), one(5.0), one(0.0), 1.0)[0] == 1.0
    assert ewma(one(1.0), one(5.0), one(NAN), 1.0)[0] == 1.0


def follow(points: list[tuple[float, float]], tau: float) -> Regression:
    """Feed (seconds since the previous point, value)."""
    line = Regression.fresh(1)
    for number, (dt, value) in enumerate(points):
        line = line.add(one(value), one(dt if number else 0.0), tau)
    return line


points = st.lists(
    st.tuples(st.floats(0.5, 120.0), st.floats(-100.0, 100.0)), min_size=3, max_size=40
)


@given(points, st.floats(30.0, 900.0))
def test_regression_slope_equals_weighted_polyfit(
    series: list[tuple[float, float]], tau: float
) -> None:
    times = np.cumsum([0.0] + [dt for dt, _ in series[1:]])
    values = np.array([value for _, value in series])
    # polyfit weighs residuals before squaring; points that weigh nothing spoil its conditioning
    weights = np.exp(-(times[-1] - times) / tau)
    slope = follow(series, tau).slope()[0]
    mean_t = np.average(times, weights=weights)
    mean_v = np.average(values, weights=weights)
    stt = np.sum(weights * (times - mean_t) ** 2)
    if weights[-2] < 1e-6:  # practically a single point
        return
    sty = np.sum(weights * (times - mean_t) * (values - mean_v))
    assert slope == pytest.approx(sty / stt, rel=1e-6, abs=1e-6)
    if weights.min() > 1e-4:
        fitted = np.polyfit(times - times[-1], values, 1, w=np.sqrt(weights))[0]
        assert slope == pytest.approx(fitted, rel=1e-5, abs=1e-5)


@given(points, st.floats(30.0, 900.0))
def test_regression_weight_and_r_squared_equal_their_definitions(
    series: list[tuple[float, float]], tau: float
) -> None:
    times = np.cumsum([0.0] + [dt for dt, _ in series[1:]])
    values = np.array([value for _, value in series])
    weights = np.exp(-(times[-1] - times) / tau)
    line = follow(series, tau)
    assert line.weight[0] == pytest.approx(weights.sum(), rel=1e-9)
    assert line.mean_value[0] == pytest.approx(
        np.average(values, weights=weights), rel=1e-7, abs=1e-7
    )
    assert 0.0 <= line.r_squared()[0] <= 1.0
    spread = np.average((values - np.average(values, weights=weights)) ** 2, weights=weights)
    if weights[-2] < 1e-3 or spread < 1e-3:
        return
    fitted = np.polynomial.polynomial.polyfit(times - times[-1], values, 1, w=np.sqrt(weights))
    residual = values - np.polynomial.polynomial.polyval(times - times[-1], fitted)
    explained = 1.0 - np.average(residual**2, weights=weights) / spread
    assert line.r_squared()[0] == pytest.approx(explained, abs=1e-4)


@given(st.floats(-1e3, 1e3), st.floats(-1e12, 1e12), st.floats(30.0, 900.0))
def test_regression_of_a_straight_line_keeps_its_slope_for_days(
    slope: float, level: float, tau: float
) -> None:
    """The origin slides along, so a long run loses no digits and nothing grows."""
    line = Regression.fresh(1)
    for second in range(500):
        dt = one(600.0 if second else 0.0)
        line = line.add(one(level + slope * 600.0 * second), dt, tau * 10)
    assert line.slope()[0] == pytest.approx(slope, rel=1e-3, abs=abs(level) * 1e-12 + 1e-9)


def test_regression_of_one_point_or_a_flat_series_says_nothing() -> None:
    assert follow([(0.0, 5.0)], 60.0).slope()[0] == 0.0
    flat = follow([(1.0, 5.0)] * 10, 60.0)
    assert flat.slope()[0] == 0.0
    assert flat.r_squared()[0] == 0.0


def test_regression_add_changes_nothing_in_place_and_where_chooses_rows() -> None:
    old = follow([(1.0, 1.0), (1.0, 2.0)], 60.0)
    before = {name: array.copy() for name, array in old.dump("x").items()}
    new = old.add(one(9.0), one(1.0), 60.0)
    assert {name: array.tolist() for name, array in old.dump("x").items()} == {
        name: array.tolist() for name, array in before.items()
    }
    assert old.where(np.array([True]), new).weight[0] == old.weight[0]
    assert old.where(np.array([False]), new).weight[0] == new.weight[0]
    assert set(old.dump("x")) == set(regression_fields("x"))
    assert Regression.load("x", old.dump("x")).slope()[0] == old.slope()[0]


blocks = st.integers(1, 4).flatmap(
    lambda nodes: st.integers(1, 6).flatmap(
        lambda gpus: st.lists(
            st.lists(maybe, min_size=gpus, max_size=gpus), min_size=nodes, max_size=nodes
        )
    )
)


@given(blocks, st.randoms(use_true_random=False))
def test_peer_median_equals_pythons_median_of_the_others(
    values: list[list[float]], chance: Random
) -> None:
    pick = np.random.default_rng(int(chance.random() * 2**32))
    array = np.array(values)
    nodes, gpus = array.shape
    peers = pick.random((nodes, gpus, gpus)) < 0.7
    median, count = peer_median(array, peers)
    for node in range(nodes):
        for gpu in range(gpus):
            others = [
                array[node, other]
                for other in range(gpus)
                if other != gpu and peers[node, gpu, other] and np.isfinite(array[node, other])
            ]
            assert count[node, gpu] == len(others)
            expected = statistics.median(others) if others else NAN
            assert median[node, gpu] == pytest.approx(expected, nan_ok=True)


@given(blocks)
def test_peer_median_of_a_node_does_not_know_other_nodes(values: list[list[float]]) -> None:
    array = np.array(values)
    everybody = np.ones((*array.shape, array.shape[1]), dtype=bool)
    together = peer_median(array, everybody)[0]
    for node in range(len(array)):
        alone = peer_median(array[node : node + 1], everybody[node : node + 1])[0]
        np.testing.assert_array_equal(together[node], alone[0])


def test_a_missing_value_is_alike_to_nothing_not_even_to_itself() -> None:
    alike = alike_pairs(np.array([[100.0, NAN, 130.0, 200.0]]), 60.0, 0.15)
    assert alike[0].tolist() == [
        [True, False, True, False],
        [False] * 4,
        [True, False, True, False],
        [False, False, False, True],
    ]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_block_view_and_to_rows_undo_each_other(sizes: list[int]) -> None:
    total, width = sum(sizes), max(sizes)
    places = np.full((len(sizes), width), -1)
    start = 0
    for node, size in enumerate(sizes):
        places[node, :size] = np.arange(start, start + size)
        start += size
    column = np.arange(total, dtype=np.float64)
    np.testing.assert_array_equal(to_rows(block_view(column, places, NAN), places, total), column)
    assert np.isnan(to_rows(block_view(column, places, NAN), places, total + 1)[-1])
