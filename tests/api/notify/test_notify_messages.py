"""What a notification says: what, where, since when, why, what to do, in two languages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.notify.messages import Style, build_digest, build_message, clean, plain_text
from api.notify.words import KINDS
from schemas.alert import FAMILIES, AlertEvent, Evidence
from schemas.codec import encode

Make = Callable[..., AlertEvent]


def decoded(event: AlertEvent) -> Any:
    return orjson.loads(encode(event))


def test_a_message_says_what_where_since_when_why_and_what_to_do(make_event: Make) -> None:
    style = Style(timezone="Europe/Paris", link="https://alerts.example")
    event = decoded(make_event(severity="critical"))
    lines = plain_text(build_message(event, style)).split("\n")
    assert lines[0] == "[CRITICAL] node-1 GPU 1: hotter than its peers"
    assert "13 °C hotter" in lines[1]
    text = "\n".join(lines)
    for part in (
        "Since: 2025-09-24 05:20:03 CEST (for 1 s)",
        "87 °C (expected at most 78 °C, peers 74 °C, over 2 min)",
        "Likely cause: The cooler of this GPU.",
        "1) Look at the fan.",
        f"Open: https://alerts.example/alerts/{event['alert_id']}",
        "thermal_fault/peer_outlier",
    ):
        assert part in text


def test_the_chinese_message_says_the_same(make_event: Make) -> None:
    style = Style(language="zh-CN", timezone="Asia/Shanghai")
    text = plain_text(build_message(decoded(make_event(severity="critical")), style))
    for part in (
        "【严重】node-1 1 号 GPU 温度高于同类 GPU",
        "开始: 2025-09-24 11:20:03 CST",
        "证据",
        "预期 至多 78 °C",
        "可能原因",
        "处理",
        "检查散热",
    ):
        assert part in text


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_the_title_of_the_end_is_that_of_the_beginning_but_for_its_first_word(
    make_event: Make, language: str
) -> None:
    style = Style(language=language)
    first = build_message(decoded(make_event()), style).title
    last = build_message(decoded(make_event(seq=90, state="resolved")), style).title
    marks = "】" if language == "zh-CN" else "] "
    assert first.partition(marks)[2] == last.partition(marks)[2]
    assert first != last


def test_an_end_tells_how_long_it_lasted_and_why_it_ended(make_event: Make) -> None:
    event = decoded(make_event(seq=240, state="resolved"))
    text = plain_text(build_message(event, Style(), kind="resolved", delayed=True))
    assert "(lasted 4 min)" in text
    assert "What ended it: recovered" in text
    assert "before this message could be delivered" in text
    assert "Next:" not in text


def test_what_is_not_known_is_said(make_event: Make) -> None:
    event = decoded(
        make_event(
            evidence=(
                Evidence(metric="fan_speed_ratio", value=None, unit="ratio", expected_high=0.9),
            ),
            unmeasured=("memory_temperature_celsius",),
        )
    )
    text = plain_text(build_message(event, Style()))
    assert "not measured" in text
    assert "Not measured: memory_temperature_celsius" in text


def test_evidence_without_any_number_is_left_out(make_event: Make) -> None:
    empty = Evidence(metric="fan_speed_ratio", value=None, unit="ratio", window_seconds=60.0)
    full = Evidence(metric="power_watts", value=0.0, unit="W")
    message = build_message(decoded(make_event(evidence=(*(empty,) * 9, full))), Style())
    assert [line.partition(":")[2] for line in message.evidence] == [" 0 W"]


def test_every_kind_has_a_name_in_both_languages() -> None:
    kinds = {kind for family in FAMILIES.values() for kind in family}
    assert kinds <= set(KINDS)
    for english, chinese in KINDS.values():
        assert english.isascii()
        assert not chinese.isascii()


def test_a_digest_counts_by_kind_and_place_and_names_the_gravest(make_event: Make) -> None:
    events = [decoded(make_event(gpu=f"GPU-{n}", node="rack-12")) for n in range(40)]
    events.append(decoded(make_event(gpu="GPU-x", node="node-9", severity="critical")))
    events.append(decoded(make_event(gpu="GPU-y", seq=2, state="resolved")))
    message = build_digest(events, Style())
    assert message.title == "[CRITICAL] 42 alerts in one message: 41 firing, 1 resolved"
    assert message.evidence[0] == "40 × hotter than its peers, rack-12"
    assert message.notes[0] == "[CRITICAL] node-9 GPU 1: hotter than its peers"


@given(st.text(max_size=300))
def test_clean_text_is_one_line_without_control_or_direction(text: str) -> None:
    found = clean(text)
    assert "\n" not in found
    assert found.isprintable() or found == ""


def test_a_title_is_at_most_120_characters(make_event: Make) -> None:
    event = decoded(make_event(node="n" * 500))
    assert len(build_message(event, Style()).title) <= 120
