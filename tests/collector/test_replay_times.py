"""Event times of recordings."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from pydantic import ValidationError

from collector.replay.settings import ReplaySettings
from collector.replay.times import TimeReader

EXPECTED = round(datetime(2025, 1, 6, 9, 0, 0, 123000, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    "text",
    [
        "2025/01/06 10:00:00.123",
        "2025-01-06 10:00:00.123",
        "2025-01-06T10:00:00.123",
        "2025-01-06T09:00:00.123Z",
        "2025-01-06T14:30:00.123+05:30",
        "1736154000.123",
        "1736154000123",
        "1736154000123000",
        "1736154000123000000",
    ],
)
def test_usual_forms(text: str) -> None:
    assert TimeReader("Europe/Berlin").read(text) == EXPECTED


def test_the_text_form_of_nvidia_smi() -> None:
    assert TimeReader("UTC").read("Mon Jan  6 09:00:00 2025") == EXPECTED - 123


def test_a_pattern_of_the_map() -> None:
    assert TimeReader("UTC", "%d.%m.%Y %H:%M:%S,%f").read("06.01.2025 09:00:00,123") == EXPECTED


@pytest.mark.parametrize(
    "text", ["", "N/A", "10:00:00", "yesterday", "1999-12-31", "2101-01-01", "41", "1e400"]
)
def test_what_is_no_usable_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        TimeReader("UTC").read(text)


@pytest.mark.parametrize("text", ["yesterday", "06.01.2025 10:00:00"])
def test_what_is_no_time_is_answered_with_every_form(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        TimeReader("UTC").read(text)
    for form in (text, "ISO 8601", "nvidia-smi", "Mon Jan", "unix seconds", "time_format"):
        assert form in str(caught.value)


def test_what_does_not_fit_the_maps_form_is_answered_with_that_form() -> None:
    with pytest.raises(ValueError, match=r"'2025-01-06' has not the form '%d\.%m\.%Y'"):
        TimeReader("UTC", "%d.%m.%Y").read("2025-01-06")


def test_the_hour_that_comes_twice_goes_forward() -> None:
    """Europe/Berlin, 2025-10-26: 02:59:59 summer time is followed by 02:00:00 winter time."""
    reader = TimeReader("Europe/Berlin")
    texts = ["2025/10/26 02:30:00", "2025/10/26 02:59:59", "2025/10/26 02:00:00"]
    texts += ["2025/10/26 02:30:00", "2025/10/26 03:00:00"]
    times = [reader.read(text) for text in texts]
    assert [b - a for a, b in pairwise(times)] == [
        1_799_000,
        1_000,
        1_800_000,
        1_800_000,
    ]


def test_an_unknown_zone_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValidationError, match="is no IANA time zone"):
        ReplaySettings(timezone="Mars/Olympus")
