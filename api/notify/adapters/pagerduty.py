"""PagerDuty, Events API v2: one incident per alert, resolved under the same key.

Limits: 255 characters in the key, 1,024 in the summary, 512 KB in all.
"""

from __future__ import annotations

from typing import Any

from api.notify.adapters.common import (
    JSON_HEADERS,
    accepted,
    dump,
    json_of,
    message_of,
    refused,
    room,
)
from api.notify.base import Answer, Notice, OutboundRequest
from api.notify.messages import Message, Style, clean, fitting
from api.notify.pacing import Rate
from api.notify.retry import Outcome

__all__ = ["PagerDutyAdapter"]

_LIMIT_BYTES = 400_000


class PagerDutyAdapter:
    """Sends to one service's integration.

    Parameters
    ----------
    url
        Address of the events API.
    routing_key
        Integration key; a secret.
    style
        Language and zone.
    """

    rate = Rate.within(120, burst=20)
    digests = False

    def __init__(self, *, url: str, routing_key: str, style: Style) -> None:
        self._url, self._routing_key, self._style = url, routing_key, style

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build a trigger, or a resolve, which carries only the key."""
        _ = now_seconds
        head = {
            "routing_key": self._routing_key,
            "dedup_key": str(notice.event["alert_id"])[:255],
        }
        if notice.event["state"] == "resolved":
            body = dump(head | {"event_action": "resolve"})
        else:

            def render(message: Message) -> bytes:
                return dump(head | _trigger(message, notice.event))

            message = message_of(notice, self._style)
            body = fitting(message, render, room(_LIMIT_BYTES, notice))
        return OutboundRequest(url=self._url, headers=JSON_HEADERS, body=body)

    def judge(self, answer: Answer, *, now_seconds: float) -> Outcome:
        """Success is 202 and the word success."""
        said = json_of(answer)
        if answer.status == 202 and said.get("status") == "success":
            return accepted(answer)
        return refused(answer, now_seconds, code=said.get("status"), said=said.get("message"))


def _trigger(message: Message, event: Any) -> dict[str, Any]:  # decoded JSON of an AlertEvent
    subject = event["subject"]
    found: dict[str, Any] = {
        "event_action": "trigger",
        "client": "foreshock",
        "payload": {
            "summary": message.title[:1024],
            "source": clean(subject.get("node") or subject.get("job") or "foreshock", 255),
            "severity": event["severity"],  # info, warning and critical are PagerDuty's words too
            "timestamp": event["observed_at"],
            "component": clean(subject.get("gpu_uuid") or subject["scope"], 255),
            "class": f"{event['family']}/{event['kind']}",
            "custom_details": {
                "summary": message.summary,
                **dict(message.facts),
                "evidence": list(message.evidence),
                "likely_cause": message.cause,
                "next_steps": list(message.steps),
                "notes": list(message.notes),
            },
        },
    }
    if message.link:
        found["links"] = [{"href": message.link, "text": message.words["open"]}]
    return found
