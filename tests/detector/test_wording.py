"""Sentences of alerts that end."""

from __future__ import annotations

import pytest

from detector.detectors.throttling import DETECTOR
from detector.wording import closing_event, kind_words
from schemas.alert import FAMILIES, Subject


def test_words_are_given_only_to_kinds_of_the_contract() -> None:
    kinds = {kind for family in FAMILIES.values() for kind in family}
    said = {kind: kind_words(kind) for kind in kinds}
    assert said["hw_thermal"] == "hardware thermal slowdown"
    assert said["lost"] == "loss of the GPU"
    assert not [words for words in said.values() if "_" in words]
    assert len(set(said.values())) == len(kinds)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sw_thermal", "software thermal slowdown"),
        ("power_brake", "power brake"),
        ("some_new_kind", "some new kind"),
    ],
)
def test_an_alert_whose_subject_ceased_is_closed_in_words(kind: str, words: str) -> None:
    event = closing_event(
        DETECTOR,
        kind,
        Subject(scope="gpu", node="n1", gpu_uuid="GPU-1", gpu_index=3),
        started_ms=0,
        ended_ms=600_000,
        seq=2,
        severity=2,
        reason="gpu_replaced",
    )
    assert event.summary == f"n1 GPU 3: {words} is closed after 10 min: gpu replaced."
