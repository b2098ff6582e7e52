"""Times of an alert event: in one form, of one century, and always printable again."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.alert import (
    AlertEvent,
    DetectorRef,
    Subject,
    alert_id_of,
    fingerprint_of,
    parse_time,
    rfc3339,
)
from schemas.codec import decode_alert, encode
from schemas.errors import DecodeError

T0 = 1_790_000_000_000


def event(**times: Any) -> bytes:
    subject = Subject(scope="gpu", node="n", gpu_uuid="GPU-a")
    fingerprint = fingerprint_of("gpu_lost", "lost", subject)
    plain = AlertEvent(
        alert_id=alert_id_of(fingerprint, T0),
        fingerprint=fingerprint,
        seq=1,
        state="firing",
        family="gpu_lost",
        kind="lost",
        severity="critical",
        subject=subject,
        started_at=rfc3339(T0),
        observed_at=rfc3339(T0),
        score=1.0,
        summary="n GPU-a is lost.",
        evidence=(),
        likely_cause="The bus.",
        action="reset_gpu",
        next_steps=(),
        detector=DetectorRef(name="lost", version="1"),
    )
    return encode(replace(plain, **times))


@pytest.mark.parametrize("name", ["started_at", "observed_at", "ended_at"])
@pytest.mark.parametrize(
    ("moment", "reason"),
    [
        ("9999-12-31T23:59:59.9999Z", "bad_time"),
        ("9999-12-31T23:59:59-14:00", "bad_time"),
        ("0001-01-01T00:00:00+14:00", "bad_time"),
        ("1999-12-31T23:59:59Z", "bad_time"),
        ("2026-01-01 00:00:00+00:00", "bad_field"),
        ("20260101T000000Z", "bad_field"),
        ("2026-01-01T00:00:00", "bad_field"),
        ("2026-02-30T00:00:00Z", "bad_field"),
        ("yesterday", "bad_field"),
    ],
)
def test_a_time_of_another_form_or_century_is_refused(name: str, moment: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=name) as caught:
        decode_alert(event(**{name: moment}))
    assert caught.value.reason == reason


@pytest.mark.parametrize("moment", ["2026-01-01T00:00:00Z", "2026-01-01T08:00:00.123456+08:00"])
def test_other_precisions_and_zones_are_taken(moment: str) -> None:
    assert decode_alert(event(observed_at=moment)).observed_at == moment


@given(st.datetimes().map(lambda moment: moment.isoformat() + "Z") | st.text(max_size=30))
def test_whatever_is_taken_can_be_printed_again(moment: str) -> None:
    with contextlib.suppress(DecodeError):
        rfc3339(parse_time(decode_alert(event(started_at=moment)).started_at))
