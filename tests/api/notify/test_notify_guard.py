"""Where notifications may not go, and what must not leave with them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from pydantic import SecretStr
from standardwebhooks.webhooks import Webhook

from api.endpoints import EndpointSettings
from api.notify.base import Notice, OutboundRequest
from api.notify.channel import channel_of
from api.notify.redaction import Redactor
from api.notify.sender import HttpSender, SendError
from api.notify.trial import send_trial
from api.settings import DeliverySettings
from schemas.alert import AlertEvent
from schemas.codec import encode

OLD = "whsec_" + "b2xkLW9sZC1vbGQtb2xkLW9sZC1vbGQtb2xkLW9sZA=="


def send(url: str, *, allow_private: bool = False, **changes: Any) -> None:
    sender = HttpSender(connect_seconds=2, total_seconds=2, **changes)
    sender.send(OutboundRequest(url=url, headers={}, body=b"{}"), allow_private=allow_private)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8080/",
        "http://127.0.0.1:8080/",
        "http://127.1:8080/",
        "http://2130706433:8080/",
        "http://0x7f000001:8080/",
        "http://0:8080/",
        "http://0.0.0.0:8080/",
        "http://[::1]:8080/",
        "http://[::]:8080/",
        "http://[::ffff:127.0.0.1]:8080/",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::7f00:1]:8080/",
        "http://[2002:7f00:1::]:8080/",
        "http://10.0.0.1/",
        "http://192.168.1.1/",
        "http://172.16.0.1/",
        "http://100.64.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "http://100.100.100.200/",
        "http://[fe80::1]/",
        "http://224.0.0.1/",
        "http://93.184.215.14:22/",
        "http://93.184.215.14:389/",
    ],
)
def test_an_address_that_is_no_public_receiver_is_refused_for_good(url: str) -> None:
    with pytest.raises(SendError) as caught:
        send(url)
    assert caught.value.permanent, str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/", "http://[fd00:ec2::254]/", "http://100.100.100.200/"]
)
def test_metadata_services_stay_refused_with_permission(url: str) -> None:
    with pytest.raises(SendError, match="never"):
        send(url, allow_private=True)


def test_a_name_that_is_resolved_again_elsewhere_changes_nothing(receiver: Any) -> None:
    """Rebinding: the second resolution would lead to loopback. There is no second one."""
    answers = iter([["93.184.215.14", "127.0.0.1"], ["127.0.0.1"]])
    with pytest.raises(SendError) as caught:
        send(receiver.url.replace("127.0.0.1", "rebind.example"), resolver=lambda *_: next(answers))
    assert caught.value.permanent
    assert receiver.received == []


def test_a_redirect_is_not_followed(receiver: Any, open_receiver: Callable[..., Any]) -> None:
    with open_receiver() as other:
        receiver.script.append((302, {"location": other.url}))
        outcome = channel_of(endpoint(receiver), sender(), DeliverySettings()).deliver(trial())
        assert outcome.status == 302
        assert other.received == []


def sender() -> HttpSender:
    return HttpSender(connect_seconds=2, total_seconds=2)


def endpoint(receiver: Any, **changes: Any) -> EndpointSettings:
    fields: dict[str, Any] = {
        "name": "noc",
        "url": SecretStr(receiver.url),
        "secret": SecretStr("whsec_" + "bmV3LW5ldy1uZXctbmV3LW5ldy1uZXctbmV3LW5ldw=="),
        "allow_private": True,
    }
    return EndpointSettings(**(fields | changes))


def trial() -> Notice:
    return Notice(webhook_id="w", attempt=1, event={"state": "firing", "observed_at": "x"})


def test_a_test_message_and_a_real_one_verify_with_the_old_and_the_new_key(
    receiver: Any, make_event: Callable[..., AlertEvent]
) -> None:
    settings = endpoint(receiver, secret_previous=SecretStr(OLD))
    channel = channel_of(settings, sender(), DeliverySettings())
    result = send_trial(channel)
    assert (result.delivered, result.error) == (True, None)
    event = orjson.loads(encode(make_event()))
    channel.deliver(Notice(webhook_id="w-1", attempt=1, event=event))
    assert len(receiver.received) == 2
    for request in receiver.received:
        for secret in (settings.signing_secret(), OLD):
            assert Webhook(secret).verify(request.body.decode(), request.headers)


def test_planted_secrets_are_in_no_log_no_error_and_no_body(
    receiver: Any, make_event: Callable[..., AlertEvent], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    event = make_event(labels={"user": "planted-user", "cmdline": "run --token planted-token"})
    said = Notice(webhook_id="w", attempt=1, event=orjson.loads(encode(event)))
    receiver.script.extend([500, "close", 200])
    channel = channel_of(endpoint(receiver), sender(), DeliverySettings())
    outcomes = [channel.deliver(said) for _ in range(3)]
    kept = caplog.text + str([outcome.error for outcome in outcomes])
    for planted in ("very-secret-path", "bmV3LW5ldy1u", "planted"):
        assert planted not in kept
    bodies = b"".join(request.body for request in receiver.received)
    assert b"planted" not in bodies


def test_what_a_receiver_echoes_of_its_address_is_hidden() -> None:
    redactor = Redactor.of("https://hooks.example/T0/B0/planted-secret?key=planted-key")
    text = redactor.text("invalid planted-key for https://hooks.example/T0/B0/planted-secret")
    assert "planted" not in text
    assert "hooks.example" in text


def test_a_password_that_looks_like_a_broken_address_is_hidden_all_the_same() -> None:
    assert Redactor.of("http://[pass").text("535 http://[pass refused") == "535 ******** refused"
