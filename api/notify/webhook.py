"""The generic webhook: the alert as JSON, signed by Standard Webhooks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from api.notify.base import Answer, Notice, OutboundRequest
from api.notify.pacing import Rate
from api.notify.retry import Outcome, Verdict, classify_status, parse_retry_after
from api.notify.signing import signed_headers

__all__ = ["MAX_BODY_BYTES", "WebhookAdapter", "webhook_body"]

#: Standard Webhooks 1.0.0 advises bodies below 20 kB.
MAX_BODY_BYTES = 20_000


class WebhookAdapter:
    """Builds signed requests for one receiver.

    Parameters
    ----------
    url
        Where to POST.
    keys
        Signing keys; the first is the present one.
    """

    rate: Rate | None = None
    digests = False

    def __init__(self, *, url: str, keys: tuple[bytes, ...]) -> None:
        self._url = url
        self._keys = keys

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build the signed request."""
        body = webhook_body(notice.event)
        replay = {"foreshock-replay": "true"} if notice.replayed else {}
        headers = {
            "content-type": "application/json",
            "user-agent": "foreshock",
            "foreshock-attempt": str(notice.attempt),
            **replay,
            **signed_headers(self._keys, notice.webhook_id, now_seconds, body),
        }
        return OutboundRequest(url=self._url, headers=headers, body=body)

    def judge(self, answer: Answer, *, now_seconds: float) -> Outcome:
        """Any 2xx is a receipt: the specification asks no more of a receiver."""
        verdict = classify_status(answer.status)
        if verdict is Verdict.DELIVERED:
            return Outcome(verdict=verdict, status=answer.status)
        return Outcome(
            verdict=verdict,
            status=answer.status,
            error=f"the receiver answered HTTP {answer.status}",
            retry_after_seconds=parse_retry_after(answer.headers.get("retry-after"), now_seconds),
        )


def webhook_body(event: Mapping[str, Any]) -> bytes:  # decoded JSON of an AlertEvent
    """Return the body: type, timestamp and the event, at most 20 kB.

    What does not fit is left out from the least needed on: series, then evidence beyond the
    first ten, then text; the receiver finds all of it under ``/v1/alerts/{id}``.
    """
    data = dict(event)
    data["series"] = []
    body = _dump(data)
    if len(body) > MAX_BODY_BYTES:
        data["evidence"] = list(data.get("evidence") or ())[:10]
        data["next_steps"] = [_cut(step) for step in list(data.get("next_steps") or ())[:10]]
        data["unmeasured"] = [_cut(name) for name in list(data.get("unmeasured") or ())[:10]]
        data["labels"] = None
        for name in ("summary", "likely_cause"):
            data[name] = _cut(data[name])
        body = _dump(data)
    if len(body) > MAX_BODY_BYTES:
        data["evidence"], data["next_steps"], data["unmeasured"] = [], [], []
        data["subject"] = {k: _cut(v) for k, v in data["subject"].items()}
        data["detector"] = {k: _cut(v) for k, v in data["detector"].items()}
        data = {k: _cut(v) for k, v in data.items()}
        body = _dump(data)
    return body


def _dump(data: Mapping[str, Any]) -> bytes:
    return orjson.dumps(
        {"type": f"alert.{data['state']}", "timestamp": data["observed_at"], "data": data}
    )


def _cut(value: Any, limit: int = 300) -> Any:  # any JSON value; only text is cut
    return value[:limit] if isinstance(value, str) else value
