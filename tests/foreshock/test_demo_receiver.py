"""The demo's receiver accepts what is signed by the shared secret and nothing else."""

from __future__ import annotations

import base64
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from urllib.parse import urlsplit

import orjson
import pytest
from standardwebhooks import Webhook

from api.notify.signing import signed_headers
from foreshock.demo.receiver import WebhookReceiver, verify_signature

KEY = b"k" * 32
BODY = orjson.dumps(
    {
        "type": "alert.firing",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "data": {"severity": "critical", "summary": "GPU 3 is hot."},
    }
)


def test_what_the_api_signs_is_verified() -> None:
    assert verify_signature(KEY, signed_headers([KEY], "msg_1", 1000, BODY), BODY, 1000.0)


def test_what_the_reference_implementation_signs_is_verified() -> None:
    from datetime import UTC, datetime

    hook = Webhook(base64.b64encode(KEY).decode())
    moment = datetime.fromtimestamp(1000, UTC)
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1000",
        "webhook-signature": hook.sign("msg_1", moment, BODY.decode()),
    }
    assert verify_signature(KEY, headers, BODY, 1000.0)


def test_one_good_signature_among_several_is_enough() -> None:
    headers = signed_headers([b"o" * 32, KEY], "msg_1", 1000, BODY)
    assert verify_signature(KEY, headers, BODY, 1000.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"webhook-id": "msg_2"},
        {"webhook-id": ""},
        {"webhook-timestamp": "1001"},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": ""},
        {"webhook-signature": ""},
        {"webhook-signature": "v1"},
        {"webhook-signature": "v1,é"},
        {"webhook-signature": "v1a,AAAA v2,BBBB"},
    ],
)
def test_any_change_of_a_header_breaks_it(changes: dict[str, str]) -> None:
    headers = {**signed_headers([KEY], "msg_1", 1000, BODY), **changes}
    assert not verify_signature(KEY, headers, BODY, 1000.0)


def test_another_body_another_key_and_an_old_stamp_break_it() -> None:
    headers = signed_headers([KEY], "msg_1", 1000, BODY)
    assert not verify_signature(KEY, headers, BODY + b" ", 1000.0)
    assert not verify_signature(b"x" * 32, headers, BODY, 1000.0)
    assert not verify_signature(KEY, headers, BODY, 1301.0)
    assert not verify_signature(KEY, headers, BODY, 699.0)


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as running:
        yield running


def post(url: str, body: bytes, headers: dict[str, str]) -> int:
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code


def test_a_signed_post_is_accepted_and_kept(receiver: WebhookReceiver) -> None:
    key = base64.b64decode(receiver.secret.removeprefix("whsec_"))
    headers = signed_headers([key], "msg_1", int(time.time()), BODY)
    assert post(receiver.url, BODY, headers) == 204
    (delivery,) = receiver.take()
    assert delivery.verified
    assert delivery.webhook_id == "msg_1"
    assert (delivery.type, delivery.severity) == ("alert.firing", "critical")
    assert delivery.summary == "GPU 3 is hot."
    assert receiver.take() == []


def test_an_unsigned_post_is_refused_and_shown_as_such(receiver: WebhookReceiver) -> None:
    assert post(receiver.url, BODY, {}) == 401
    (delivery,) = receiver.take()
    assert not delivery.verified


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"data": 3}', b'{"data": {"summary": 1}}'])
def test_a_body_that_is_no_alert_is_kept_without_words(
    receiver: WebhookReceiver, body: bytes
) -> None:
    assert receiver.accept({}, body).summary == ""


def test_a_body_beyond_the_limit_is_refused_unread(receiver: WebhookReceiver) -> None:
    parts = urlsplit(receiver.url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        connection.putrequest("POST", parts.path)
        connection.putheader("content-length", "70000")
        connection.endheaders()
        assert connection.getresponse().status == 413
    finally:
        connection.close()
    assert receiver.take() == []
