"""Opsgenie and Jira Service Management: alerts by alias, closed under the same alias.

Limits: 130 characters in the message, 512 in the alias, 15,000 in the description.
"""

from __future__ import annotations

from urllib.parse import quote

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
from api.notify.messages import Style, clean, fitting, plain_text
from api.notify.pacing import Rate
from api.notify.retry import Outcome

__all__ = ["OpsgenieAdapter"]

_DESCRIPTION = 15_000
_PRIORITIES = {"critical": "P1", "warning": "P3", "info": "P5"}


class OpsgenieAdapter:
    """Sends to one integration.

    Parameters
    ----------
    url
        Base address; the European one and those of Jira Service Management differ.
    api_key
        Of the integration; a secret.
    style
        Language and zone.
    """

    rate = Rate.within(100, burst=10)
    digests = False

    def __init__(self, *, url: str, api_key: str, style: Style) -> None:
        self._url, self._api_key, self._style = url.rstrip("/"), api_key, style

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build an alert, or its end."""
        _ = now_seconds
        headers = JSON_HEADERS | {"authorization": f"GenieKey {self._api_key}"}
        alias = str(notice.event["alert_id"])[:512]
        if notice.event["state"] == "resolved":
            url = f"{self._url}/v2/alerts/{quote(alias, safe='')}/close?identifierType=alias"
            note = clean(notice.event.get("end_reason") or "resolved", 200)
            body = dump({"source": "foreshock", "note": note})
            return OutboundRequest(url=url, headers=headers, body=body)
        message = message_of(notice, self._style)
        limit = room(_DESCRIPTION, notice)
        described = fitting(message, lambda m: plain_text(m, with_title=False), limit)
        subject = notice.event["subject"]
        body = dump(
            {
                "message": message.title[:130],
                "alias": alias,
                "description": described[:_DESCRIPTION],
                "entity": clean(subject.get("gpu_uuid") or subject.get("node"), 512),
                "source": "foreshock",
                "priority": _PRIORITIES.get(str(notice.event["severity"]), "P3"),
                "tags": [notice.event["family"], notice.event["kind"]],
            }
        )
        return OutboundRequest(url=f"{self._url}/v2/alerts", headers=headers, body=body)

    def judge(self, answer: Answer, *, now_seconds: float) -> Outcome:
        """Success is 202: the request will be processed, and has an id."""
        said = json_of(answer)
        if answer.status == 202 and said.get("requestId"):
            return accepted(answer)
        return refused(answer, now_seconds, said=said.get("message"))
