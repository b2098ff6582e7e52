"""Evidence as people read it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from api.readings import evidence_rows, label, reading
from schemas.alert import Evidence
from schemas.metrics import CATALOGUE


@pytest.mark.parametrize(
    ("value", "metric", "unit", "words"),
    [
        (1_410_000_000.0, "sm_clock_hertz", "Hz", "1410 MHz"),
        (12_500_000_000.0, "memory_clock_hertz", "Hz", "12.5 GHz"),
        (76_450_000_000, "memory_used_bytes", "bytes", "71.2 GiB"),
        (6.0 * 2**30, "growth_bytes_per_hour", "bytes/h", "6 GiB/h"),
        (0.0, "bar1_used_bytes", "bytes", "0 B"),
        (0.021345678, "power_brake_share_ratio", "", "2.13 %"),
        (0.87, "gpu_utilization_ratio", "%", "87 %"),
        (1.0, "anything_ratio", "ratio", "100 %"),
        (87.0000001, "temperature_celsius", "°C", "87 °C"),
        (-7.25, "temperature_margin_celsius", "°C", "-7.25 °C"),
        (631.954, "power_watts", "", "632 W"),
        (2.0, "known_gpus", "GPUs", "2 GPUs"),
        (15.0, "nvml_error", "", "15"),
        (5400.0, "exhaustion_seconds", "s", "90 min"),
        (None, "power_watts", "W", "–"),
        (0.0, "ecc_uncorrected_total", "", "0"),
    ],
)
def test_a_reading_has_its_unit_and_no_digits_that_say_nothing(
    value: float | None, metric: str, unit: str, words: str
) -> None:
    assert reading(value, metric, unit) == words


def test_metrics_of_the_catalogue_have_their_label_and_others_words() -> None:
    assert {label(metric.name) for metric in CATALOGUE} == {m.label_en for m in CATALOGUE}
    assert label("power_brake_share_ratio") == "Power brake share"
    assert label("growth_bytes_per_hour") == "Growth"
    assert label("_ratio") == "Ratio"


def row(**changes: Any) -> dict[str, str]:
    item = {"metric": "temperature_celsius", "value": 87.0, "unit": "°C"} | changes
    (found,) = evidence_rows([item])
    return found


def test_what_is_expected_is_said_only_where_something_is() -> None:
    assert row()["expected"] == "–"
    assert row(expected_low=None, expected_high=78.0)["expected"] == "at most 78 °C"
    assert row(expected_low=0.0)["expected"] == "at least 0 °C"
    assert row(expected_low=30.0, expected_high=78.0)["expected"] == "30 °C to 78 °C"


def test_a_row_that_says_the_same_is_shown_once() -> None:
    same = {"metric": "power_watts", "value": 300.0, "unit": "W"}
    assert len(evidence_rows([same, dict(same), same | {"value": 301.0}])) == 2


def test_a_row_without_any_number_is_not_shown() -> None:
    empty = {"metric": "power_watts", "value": None, "unit": "W", "window_seconds": 60.0}
    assert evidence_rows([empty]) == []
    assert len(evidence_rows([empty | {"value": 0.0}, empty | {"baseline": 0.0}])) == 2


def test_the_page_shows_each_metric_once_and_in_words(
    api: Any, make_event: Any, wait_until: Any
) -> None:
    event = make_event(
        evidence=(
            Evidence(
                metric="power_brake_share_ratio",
                value=0.5,
                unit="",
                expected_high=0.02,
                window_seconds=60.0,
            ),
            Evidence(metric="sm_clock_hertz", value=3.45e8, unit="Hz", peers=1.98e9),
        ),
        unmeasured=("memory_temperature_celsius",),
    )
    api.send(event)
    wait_until(api.alerts)
    page = api.client.get(f"/alerts/{event.alert_id}").text
    text = re.sub(r"<[^>]+>", "|", page)
    assert text.count("Power brake share") == 1
    assert "power_brake_share_ratio" not in text
    for words in ("50 %", "at most 2 %", "60 s", "345 MHz", "1980 MHz", "Memory temperature."):
        assert words in text
    assert "– to –" not in text
