"""Every kind of receiver: its limits in its own unit, no mention, no markup, its own success."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
import pytest
from pydantic import SecretStr

from api.endpoints import EndpointSettings
from api.notify.base import Adapter, Answer, Notice
from api.notify.channel import adapter_of
from api.notify.messages import Style
from api.notify.retry import Verdict
from schemas.alert import AlertEvent, Evidence, parse_time
from schemas.codec import encode

NOW = 1_758_684_060
HOSTILE = (
    '@here @all <!channel> <@U123> <at user_id="all">x</at> @everyone [c](http://evil.example) '
    "**b** `x` \u202egnp.exe <script>alert(1)</script> {{7*7}} ${jndi}"
)
PLACES: Mapping[str, dict[str, Any]] = {
    "slack": {"url": "https://hooks.slack.example/services/T/B/planted-secret"},
    "teams": {"url": "https://flow.example/planted-secret"},
    "discord": {"url": "https://discord.example/api/webhooks/1/planted-secret"},
    "telegram": {"token": "1:planted-secret", "channel": "-100"},
    "dingtalk": {"url": "https://oapi.example/robot/send?access_token=planted-secret"},
    "feishu": {"url": "https://open.example/open-apis/bot/v2/hook/planted-secret"},
    "wecom": {"url": "https://qyapi.example/cgi-bin/webhook/send?key=planted-secret"},
    "pagerduty": {"token": "planted-secret"},
    "opsgenie": {"token": "planted-secret"},
    "alertmanager": {"url": "http://alertmanager.example:9093/planted-secret"},
    "alertmanager_webhook": {"url": "https://hooks.example/planted-secret"},
}
CHATS = ("slack", "teams", "discord", "telegram", "dingtalk", "feishu", "wecom")
#: Most of a body, in bytes, or None where the text itself is counted below.
BODY_BYTES = {"slack": 13_200, "teams": 21_000, "feishu": 20_000, "dingtalk": 20_000}


def adapter(kind: str, *, language: str = "en", **changes: Any) -> Adapter:
    settings = EndpointSettings(name="noc", type=kind, **(PLACES[kind] | changes))  # type: ignore[arg-type]
    return adapter_of(settings, Style(language=language, timezone="Asia/Shanghai"))


def notice(event: AlertEvent, **changes: Any) -> Notice:
    fields: dict[str, Any] = {
        "webhook_id": "w-1",
        "attempt": 1,
        "event": orjson.loads(encode(event)),
    }
    return Notice(**(fields | changes))


def huge(make_event: Callable[..., AlertEvent], filler: str) -> AlertEvent:
    long = filler * 4000
    return make_event(
        node=long[:200],
        summary=long[:4000],
        likely_cause=long,
        next_steps=(long,) * 20,
        unmeasured=(long,) * 20,
        labels={"rack": long[:500]},
        evidence=tuple(Evidence(metric=f"m{n}", value=1.0, unit=long[:99]) for n in range(30)),
    )


def text_of(kind: str, body: bytes) -> str:
    """What people read, out of the body."""
    found = orjson.loads(body)
    if kind == "wecom":
        return str(found["text"]["content"])
    if kind == "dingtalk":
        return str(found["text"]["content"])
    if kind == "telegram":
        return str(found["text"])
    if kind == "discord":
        return str(found["content"])
    return body.decode()


@pytest.mark.parametrize("filler", ["x", "é", "严", "🔥", "\\", '"', "<"])
@pytest.mark.parametrize("kind", CHATS)
def test_a_message_fits_the_receivers_limit_in_its_own_unit(
    kind: str, filler: str, make_event: Callable[..., AlertEvent]
) -> None:
    for language in ("en", "zh-CN"):
        one = notice(huge(make_event, filler))
        body = adapter(kind, language=language).request(one, now_seconds=NOW).body
        text = text_of(kind, body)
        if kind in BODY_BYTES:
            assert len(body) <= BODY_BYTES[kind]
        elif kind == "wecom":
            assert len(text.encode()) <= 2048
        else:
            limit = {"telegram": 4096, "discord": 2000}[kind]
            assert len(text.encode("utf-16-le")) // 2 <= limit
        assert text.strip()


@pytest.mark.parametrize("kind", CHATS)
def test_names_mention_nobody_and_bring_no_markup(
    kind: str, make_event: Callable[..., AlertEvent]
) -> None:
    event = make_event(node=HOSTILE[:120], summary=HOSTILE, likely_cause=HOSTILE)
    body = adapter(kind).request(notice(event), now_seconds=NOW).body
    found = orjson.loads(body)
    text = text_of(kind, body)
    assert "\u202e" not in text
    if kind == "slack":
        assert "<!" not in found["text"]
        assert "@here" not in found["text"]
        types = {block["text"]["type"] for block in found["blocks"]}
        assert types == {"plain_text"}, "plain text knows neither markup nor mentions"
    elif kind == "teams":
        blocks = found["attachments"][0]["content"]["body"]
        assert {block["type"] for block in blocks} == {"RichTextBlock"}
        assert "msteams" not in found["attachments"][0]["content"]
    else:
        for mention in ("@here", "@all", "@everyone"):
            assert mention not in text
    if kind == "discord":
        assert found["allowed_mentions"] == {"parse": []}
        assert "\\[c\\]\\(" in text
        assert "\\<script" in text
    if kind == "dingtalk":
        assert found["at"]["isAtAll"] is False
    if kind == "feishu":
        tags = {e["tag"] for line in found["content"]["post"]["zh_cn"]["content"] for e in line}
        assert tags == {"text"}
    if kind == "telegram":
        assert "parse_mode" not in found
    if kind == "wecom":
        assert found["msgtype"] == "text"
        assert found["text"]["mentioned_list"] == []


@pytest.mark.parametrize("kind", sorted(PLACES))
def test_the_secret_of_an_endpoint_is_in_no_text(
    kind: str, make_event: Callable[..., AlertEvent]
) -> None:
    request = adapter(kind).request(notice(make_event()), now_seconds=NOW)
    if kind != "pagerduty":  # its routing key stands in the body by the protocol
        assert b"planted-secret" not in request.body
    assert "planted-secret" in request.url + str(request.headers) + request.body.decode()


@pytest.mark.parametrize(
    ("kind", "status", "body"),
    [
        ("slack", 200, b"ok"),
        ("slack", 200, b'{"ok":true}'),
        ("teams", 202, b""),
        ("discord", 204, b""),
        ("discord", 200, b'{"id":"1"}'),
        ("telegram", 200, b'{"ok":true,"result":{}}'),
        ("dingtalk", 200, b'{"errcode":0,"errmsg":"ok"}'),
        ("feishu", 200, b'{"code":0,"msg":"success"}'),
        ("feishu", 200, b'{"StatusCode":0,"StatusMessage":"success"}'),
        ("wecom", 200, b'{"errcode":0,"errmsg":"ok"}'),
        ("pagerduty", 202, b'{"status":"success","dedup_key":"k"}'),
        ("opsgenie", 202, b'{"result":"Request will be processed","requestId":"r"}'),
        ("alertmanager", 200, b""),
        ("alertmanager_webhook", 204, b""),
    ],
)
def test_success_is_what_the_provider_calls_so(kind: str, status: int, body: bytes) -> None:
    answer = Answer(status=status, headers={}, body=body)
    assert adapter(kind).judge(answer, now_seconds=NOW).verdict is Verdict.DELIVERED


@pytest.mark.parametrize(
    ("kind", "body", "verdict"),
    [
        ("slack", b'{"ok":false,"error":"ratelimited"}', Verdict.TRANSIENT),
        ("slack", b'{"ok":false,"error":"invalid_auth"}', Verdict.PERMANENT),
        ("teams", b"1", Verdict.TRANSIENT),
        ("discord", b"{}", Verdict.TRANSIENT),
        ("telegram", b'{"ok":false,"error_code":429}', Verdict.TRANSIENT),
        ("dingtalk", b'{"errcode":310000,"errmsg":"sign not match"}', Verdict.PERMANENT),
        ("dingtalk", b'{"errcode":-1,"errmsg":"busy"}', Verdict.TRANSIENT),
        ("dingtalk", b'{"errcode":false}', Verdict.TRANSIENT),
        ("feishu", b'{"code":19021,"msg":"sign match fail"}', Verdict.PERMANENT),
        ("feishu", b'{"code":11232,"msg":"frequency limited"}', Verdict.TRANSIENT),
        ("wecom", b'{"errcode":45009,"errmsg":"api freq out of limit"}', Verdict.TRANSIENT),
        ("wecom", b'{"errcode":93000,"errmsg":"invalid webhook url"}', Verdict.PERMANENT),
        ("wecom", b"<html>hello</html>", Verdict.TRANSIENT),
        ("feishu", b"", Verdict.TRANSIENT),
        ("pagerduty", b'{"status":"success"}', Verdict.TRANSIENT),
        ("opsgenie", b'{"requestId":"r"}', Verdict.TRANSIENT),
        ("telegram", b"[1,2]", Verdict.TRANSIENT),
    ],
)
def test_a_200_without_the_providers_own_yes_is_no_success(
    kind: str, body: bytes, verdict: Verdict
) -> None:
    outcome = adapter(kind).judge(Answer(status=200, headers={}, body=body), now_seconds=NOW)
    assert outcome.verdict is verdict
    assert outcome.error


@pytest.mark.parametrize(
    ("kind", "body", "least"),
    [
        ("telegram", b'{"ok":false,"error_code":429,"parameters":{"retry_after":35}}', 35),
        ("discord", b'{"message":"You are being rate limited.","retry_after":64.5}', 64.5),
        ("dingtalk", b'{"errcode":130101,"errmsg":"send too fast"}', 600),
        ("wecom", b'{"errcode":45009}', 60),
        ("feishu", b'{"code":11232}', 60),
    ],
)
def test_the_time_to_wait_is_read_from_the_body_too(kind: str, body: bytes, least: float) -> None:
    answer = Answer(status=200 if kind != "discord" else 429, headers={}, body=body)
    assert adapter(kind).judge(answer, now_seconds=NOW).retry_after_seconds == least


def test_dingtalk_signs_time_and_secret_in_the_query(
    make_event: Callable[..., AlertEvent],
) -> None:
    request = adapter("dingtalk", secret="SECplanted").request(
        notice(make_event()), now_seconds=NOW
    )
    query = parse_qs(urlsplit(request.url).query)
    stamp = query["timestamp"][0]
    wanted = hmac.new(b"SECplanted", f"{stamp}\nSECplanted".encode(), hashlib.sha256).digest()
    assert stamp == str(NOW * 1000)
    assert query["sign"] == [base64.b64encode(wanted).decode()]
    assert query["access_token"] == ["planted-secret"]


def test_feishu_signs_nothing_with_time_and_secret_as_key(
    make_event: Callable[..., AlertEvent],
) -> None:
    request = adapter("feishu", secret="planted").request(notice(make_event()), now_seconds=NOW)
    body = orjson.loads(request.body)
    wanted = hmac.new(f"{NOW}\nplanted".encode(), b"", hashlib.sha256).digest()
    assert body["timestamp"] == str(NOW)
    assert body["sign"] == base64.b64encode(wanted).decode()


def test_a_keyword_that_the_robot_demands_is_in_every_message(
    make_event: Callable[..., AlertEvent],
) -> None:
    for kind in ("dingtalk", "feishu"):
        request = adapter(kind, keyword="机房").request(notice(make_event()), now_seconds=NOW)
        assert "机房" in request.body.decode()


def test_pagerduty_resolves_by_the_key_alone(make_event: Callable[..., AlertEvent]) -> None:
    firing = make_event(severity="critical")
    opened = orjson.loads(adapter("pagerduty").request(notice(firing), now_seconds=NOW).body)
    closed = orjson.loads(
        adapter("pagerduty")
        .request(notice(make_event(seq=2, state="resolved")), now_seconds=NOW)
        .body
    )
    assert opened["event_action"] == "trigger"
    assert opened["payload"]["severity"] == "critical"
    assert set(closed) == {"routing_key", "dedup_key", "event_action"}
    assert closed["event_action"] == "resolve"
    assert opened["dedup_key"] == closed["dedup_key"] == firing.alert_id


def test_opsgenie_closes_under_the_alias_that_it_opened(
    make_event: Callable[..., AlertEvent],
) -> None:
    one = make_event()
    opened = adapter("opsgenie").request(notice(one), now_seconds=NOW)
    closed = adapter("opsgenie").request(
        notice(make_event(seq=2, state="resolved")), now_seconds=NOW
    )
    body = orjson.loads(opened.body)
    assert body["alias"] == one.alert_id
    assert len(body["message"]) <= 130
    assert body["priority"] == "P3"
    assert urlsplit(closed.url).path == f"/v2/alerts/{one.alert_id}/close"
    assert opened.headers["authorization"] == "GenieKey planted-secret"


def test_alertmanager_gets_labels_and_an_end_that_lies_ahead(
    make_event: Callable[..., AlertEvent],
) -> None:
    (firing,) = orjson.loads(
        adapter("alertmanager").request(notice(make_event()), now_seconds=NOW).body
    )
    (over,) = orjson.loads(
        adapter("alertmanager")
        .request(notice(make_event(seq=2, state="resolved")), now_seconds=NOW)
        .body
    )
    assert firing["labels"]["alertname"] == "thermal_fault/peer_outlier"
    assert firing["labels"]["node"] == "node-1"
    assert parse_time(firing["endsAt"]) == NOW * 1000 + 600_000
    assert over["endsAt"] == make_event(seq=2, state="resolved").ended_at
    assert firing["labels"] == over["labels"]


def test_the_webhook_of_alertmanager_has_its_fourth_form(
    make_event: Callable[..., AlertEvent],
) -> None:
    request = adapter("alertmanager_webhook").request(notice(make_event()), now_seconds=NOW)
    body = orjson.loads(request.body)
    assert body["version"] == "4"
    assert set(body) >= {
        "groupKey",
        "truncatedAlerts",
        "status",
        "receiver",
        "groupLabels",
        "commonLabels",
        "commonAnnotations",
        "externalURL",
        "alerts",
    }
    assert body["alerts"][0]["status"] == "firing"
    assert body["receiver"] == "noc"
    assert body["notification_reason"] == "first notification"


def test_a_slack_bot_names_its_channel_and_shows_its_token_in_a_header_only(
    make_event: Callable[..., AlertEvent],
) -> None:
    settings = EndpointSettings(
        name="noc", type="slack", token=SecretStr("xoxb-planted"), channel="C1"
    )
    request = adapter_of(settings, Style()).request(notice(make_event()), now_seconds=NOW)
    assert request.url == "https://slack.com/api/chat.postMessage"
    assert request.headers["authorization"] == "Bearer xoxb-planted"
    assert orjson.loads(request.body)["channel"] == "C1"
    assert b"xoxb" not in request.body
