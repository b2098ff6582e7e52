"""Alertmanager: alerts pushed into one (API v2), or sent on in the form of its webhooks (v4)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from api.matchers import labels_of
from api.notify.adapters.common import (
    JSON_HEADERS,
    accepted,
    dump,
    message_of,
    refused,
)
from api.notify.base import Answer, Notice, OutboundRequest
from api.notify.messages import Style, clean, plain_text
from api.notify.pacing import Rate
from api.notify.retry import Outcome, Verdict, classify_status
from schemas.alert import rfc3339

__all__ = ["AlertmanagerAdapter", "AlertmanagerWebhookAdapter"]

#: An alert that still fires is declared to end so far ahead, and is pushed again each minute: long
#: enough for a restart of this service, in which nothing has recovered, and not for ever.
_AHEAD_MS = 10 * 60_000
_NO_NAME = re.compile(r"[^a-zA-Z0-9_]", re.ASCII)
_ZERO_TIME = "0001-01-01T00:00:00Z"

Event = Mapping[str, Any]  # decoded JSON of an AlertEvent


class AlertmanagerAdapter:
    """Pushes to one Alertmanager.

    Parameters
    ----------
    url
        Base address, with the prefix if there is one.
    style
        Language, zone, link.
    """

    rate: Rate | None = None
    digests = False

    def __init__(self, *, url: str, style: Style) -> None:
        self._url = f"{url.rstrip('/')}/api/v2/alerts"
        self._style = style

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build a list of one alert, or of all that are told at once."""
        events = notice.digest or (notice.event,)
        told = [self._told(replace(notice, event=e, digest=()), now_seconds) for e in events]
        return OutboundRequest(url=self._url, headers=JSON_HEADERS, body=dump(told))

    def _told(self, notice: Notice, now_seconds: int) -> dict[str, Any]:  # JSON
        event = notice.event
        ends = event.get("ended_at") if event["state"] == "resolved" else None
        told = {
            "labels": _labels(event),
            "annotations": _annotations(notice, self._style),
            "startsAt": event["started_at"],
            "endsAt": ends or rfc3339(now_seconds * 1000 + _AHEAD_MS),
        }
        if self._style.link:
            told["generatorURL"] = f"{self._style.link}/alerts/{event['alert_id']}"
        return told

    def judge(self, answer: Answer, *, now_seconds: float) -> Outcome:
        """Success is 200."""
        if answer.status == 200:
            return accepted(answer)
        return refused(answer, now_seconds)


class AlertmanagerWebhookAdapter:
    """Sends what an Alertmanager's webhook receiver would get, version 4.

    Parameters
    ----------
    url
        Where to POST.
    receiver
        Name of the receiver in the message: the endpoint's.
    style
        Language, zone, link.
    """

    rate: Rate | None = None
    digests = False

    def __init__(self, *, url: str, receiver: str, style: Style) -> None:
        self._url, self._receiver, self._style = url, receiver, style

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build a group of one alert."""
        _ = now_seconds
        event = notice.event
        labels, annotations = _labels(event), _annotations(notice, self._style)
        status = str(event["state"])
        link = self._style.link or ""
        one = {
            "status": status,
            "labels": labels,
            "annotations": annotations,
            "startsAt": event["started_at"],
            "endsAt": event.get("ended_at") or _ZERO_TIME,
            "generatorURL": f"{link}/alerts/{event['alert_id']}" if link else "",
            "fingerprint": hashlib.sha256(str(event["fingerprint"]).encode()).hexdigest()[:16],
        }
        grouped = {"alertname": labels["alertname"]}
        body = {
            "version": "4",
            "groupKey": f'{{}}:{{alertname="{labels["alertname"]}"}}',
            "truncatedAlerts": 0,
            "status": status,
            "receiver": self._receiver,
            "groupLabels": grouped,
            "commonLabels": labels,
            "commonAnnotations": annotations,
            "externalURL": link,
            "alerts": [one],
            "notification_reason": _reason(notice),
        }
        headers = JSON_HEADERS | {"webhook-id": notice.webhook_id}
        return OutboundRequest(url=self._url, headers=headers, body=dump(body))

    def judge(self, answer: Answer, *, now_seconds: float) -> Outcome:
        """Any 2xx, as Alertmanager itself takes it."""
        if classify_status(answer.status) is Verdict.DELIVERED:
            return accepted(answer)
        return refused(answer, now_seconds)


def _reason(notice: Notice) -> str:
    """Say why it is sent, in the words of Alertmanager's own webhooks."""
    if notice.event["state"] == "resolved":
        return "all alerts resolved"
    if notice.kind == "reminder":
        return "repeat interval elapsed"
    # A graver severity is another label set, and so a new alert of the group.
    return "new alerts added" if notice.kind == "escalated" else "first notification"


def _labels(event: Event) -> dict[str, str]:
    """Return the words of an alert under names that Alertmanager takes: one bad name spoils all."""
    found = {name: clean(value, 1000) for name, value in labels_of(event).items() if value}
    named = {_NO_NAME.sub("_", name): value for name, value in found.items()}
    return {f"_{k}" if k[:1].isdigit() else k: v for k, v in named.items() if v}


def _annotations(notice: Notice, style: Style) -> dict[str, str]:
    message = message_of(notice, style)
    found = {
        "title": message.title,
        "summary": message.summary,
        "description": plain_text(message, with_title=False),
        "likely_cause": message.cause,
        "next_steps": "\n".join(message.steps),
    }
    return {name: value for name, value in found.items() if value}
