"""Range checks at the door."""

from __future__ import annotations

import math

import pytest

from collector.source import Reading
from collector.truth import refuse_impossible
from schemas.metrics import CATALOGUE, METRICS


def reading(**columns: list[float | None]) -> Reading:
    width = len(next(iter(columns.values())))
    return Reading(
        node="n", ts=1, gpus=tuple(f"GPU-{i}" for i in range(width)), values=dict(columns)
    )


@pytest.mark.parametrize("name", [metric.name for metric in CATALOGUE])
def test_every_metric_keeps_its_bounds_and_refuses_what_lies_beyond(name: str) -> None:
    metric = METRICS[name]
    beyond = [
        metric.low - 1.0,
        math.nextafter(metric.high, math.inf),
        math.nan,
        math.inf,
        -math.inf,
    ]
    given = [metric.low, metric.high, None, *beyond]
    checked, counts = refuse_impossible(reading(**{name: given}))
    assert checked.values[name] == [metric.low, metric.high, *[None] * 6]
    assert counts == {name: 5}
    assert checked.status[name] == dict.fromkeys(range(3, 8), "implausible")


def test_a_clean_reading_is_passed_on_untouched() -> None:
    clean = reading(power_watts=[0.0, None, 759.0], power_limit_watts=[700.0, 700.0, 700.0])
    checked, counts = refuse_impossible(clean)
    assert checked is clean
    assert counts == {}


def test_power_above_twice_the_enforced_limit_is_refused() -> None:
    checked, counts = refuse_impossible(
        reading(
            power_watts=[1400.0, 1400.1, 1500.0, 1500.0, 1500.0],
            power_instant_watts=[1401.0, 100.0, None, 0.0, 0.0],
            power_limit_watts=[700.0, 700.0, None, 0.0, 1e9],
        )
    )
    assert checked.values["power_watts"] == [1400.0, None, 1500.0, 1500.0, 1500.0]
    assert checked.values["power_instant_watts"] == [None, 100.0, None, 0.0, 0.0]
    assert counts == {"power_watts": 1, "power_instant_watts": 1, "power_limit_watts": 1}


def test_the_given_reading_and_other_statuses_are_not_changed() -> None:
    given = Reading(
        node="n",
        ts=1,
        gpus=("A", "B"),
        values={"gpu_utilization_ratio": [None, 26.19]},
        status={"gpu_utilization_ratio": {0: "error:999"}},
    )
    checked, _ = refuse_impossible(given)
    assert given.values == {"gpu_utilization_ratio": [None, 26.19]}
    assert given.status == {"gpu_utilization_ratio": {0: "error:999"}}
    assert checked.status == {"gpu_utilization_ratio": {0: "error:999", 1: "implausible"}}
    assert checked.values == {"gpu_utilization_ratio": [None, None]}


def test_a_metric_that_we_do_not_know_is_not_judged() -> None:
    odd = reading(of_a_newer_version=[1e300])
    assert refuse_impossible(odd) == (odd, {})
