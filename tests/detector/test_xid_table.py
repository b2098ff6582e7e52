"""The Xid table, and the law by which error counts are surprising."""

from __future__ import annotations

import math

import numpy as np
import pytest

from detector.stats.poisson import surprise
from detector.xid import SOURCES, XIDS, XidClass, graded
from schemas.alert import Action, Severity


def test_every_row_names_its_code_and_a_known_source() -> None:
    for code, row in XIDS.items():
        assert row.code == code
        assert row.source in SOURCES


def test_public_alert_rules_and_the_table_agree_on_what_pages() -> None:
    assert {graded(code).severity for code in (48, 62, 64, 74, 79, 95, 119, 120)} == {
        Severity.CRITICAL
    }
    assert {graded(code).severity for code in (13, 31, 43, 45, 63, 68, 92, 109)} == {Severity.INFO}
    assert graded(94).severity == Severity.WARNING


@pytest.mark.parametrize("group", [XidClass.APPLICATION, XidClass.SYMPATHETIC, XidClass.NOTE])
def test_what_a_program_causes_is_never_more_than_a_note(group: XidClass) -> None:
    assert {row.severity for row in XIDS.values() if row.group is group} == {Severity.INFO}


def test_an_unknown_code_is_a_note_to_watch() -> None:
    row = graded(4242)
    assert (row.severity, row.action, row.group) == (Severity.INFO, Action.WATCH, XidClass.UNKNOWN)


@pytest.mark.parametrize(
    ("message", "severity"),
    [
        ("SAW_MVB Nonfatal XC0 i0 Link 0", Severity.INFO),
        ("RLW_REMAP Fatal XC0 i0 Link 00", Severity.CRITICAL),
        ("", Severity.WARNING),
    ],
)
def test_nvlink_lines_are_graded_by_their_own_word(message: str, severity: Severity) -> None:
    assert graded(145, message).severity == severity


@pytest.mark.parametrize("mean", [0.05, 1.0, 40.0])
def test_surprise_never_exceeds_the_exact_tail(mean: float) -> None:
    """Chernoff's bound is on the safe side: it calls nothing rarer than it is."""
    for count in range(1, 60):
        below = sum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(count))
        exact = -math.log10(max(1.0 - below, 1e-15))
        bound = float(surprise(np.array([float(count)]), np.array([mean]))[0])
        assert bound >= 0.0
        if exact < 12.0:
            assert bound <= exact + 1e-6
        assert bound > 0.0 or count <= mean


def test_surprise_of_what_is_missing_is_missing() -> None:
    out = surprise(np.array([np.nan, 3.0]), np.array([1.0, np.nan]))
    assert np.isnan(out).all()
