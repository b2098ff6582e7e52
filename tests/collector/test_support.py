"""The table of who offers what keeps up with the catalogue."""

from __future__ import annotations

import pytest

from collector.gpu import metrics_of
from collector.readings import Group
from collector.support import CARDS, Offer, group_of, how_often, offers_of, privilege_of
from schemas.metrics import METRICS


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_has_a_group_and_an_answer_per_card(metric: str) -> None:
    assert metric in metrics_of(frozenset({group_of(metric)}))
    assert len(offers_of(metric)) == len(CARDS)
    assert how_often(metric) in {"tick", "slow"}


def test_no_metric_belongs_to_two_groups() -> None:
    assert sum(len(metrics_of(frozenset({group}))) for group in Group) == len(METRICS)


def test_what_captures_show() -> None:
    hopper, ada, mig = 4, 3, 6
    assert offers_of("memory_temperature_celsius")[ada] == Offer.NO
    assert offers_of("memory_temperature_celsius")[hopper] == Offer.YES
    assert offers_of("sm_activity_ratio")[mig] == Offer.YES
    assert offers_of("gpu_utilization_ratio")[mig] == Offer.NO
    assert privilege_of("process_count")
    assert not privilege_of("power_watts")
    with pytest.raises(KeyError):
        offers_of("of_a_newer_version")
