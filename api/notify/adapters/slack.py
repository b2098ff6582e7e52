"""Slack: an incoming webhook, or a bot that posts to a channel.

Limits: one message a second and channel; 150 characters in a header, 3,000 in a section; messages
near 13,200 characters have been rejected. Everything is ``plain_text``, which knows neither markup
nor mentions; the fallback text is escaped and told not to be parsed.
"""

from __future__ import annotations

from typing import Any

from api.notify.adapters.common import (
    JSON_HEADERS,
    accepted,
    dump,
    json_of,
    message_of,
    no_mentions,
    refused,
    room,
)
from api.notify.base import Answer, Notice, OutboundRequest
from api.notify.messages import Message, Style, fitting, plain_text
from api.notify.pacing import Rate
from api.notify.retry import Outcome, Verdict

__all__ = ["SlackAdapter"]

_SECTION = 3000
_TOTAL_BYTES = 12_000
#: Errors of the Web API that no repetition mends.
_PERMANENT = frozenset(
    {
        "account_inactive",
        "channel_not_found",
        "invalid_auth",
        "is_archived",
        "missing_scope",
        "no_permission",
        "not_authed",
        "not_in_channel",
        "token_expired",
        "token_revoked",
    }
)


class SlackAdapter:
    """Posts to one channel.

    Parameters
    ----------
    url
        The webhook, or ``chat.postMessage`` for a bot.
    token, channel
        Of a bot; empty for a webhook.
    style
        Language and zone.
    """

    rate = Rate(per_minute=55, burst=1)
    digests = True

    def __init__(self, *, url: str, style: Style, token: str = "", channel: str = "") -> None:
        self._url, self._style, self._token, self._channel = url, style, token, channel

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build blocks of plain text."""
        _ = now_seconds
        headers = dict(JSON_HEADERS)
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        message = message_of(notice, self._style)
        body = fitting(message, self._body, room(_TOTAL_BYTES, notice))
        return OutboundRequest(url=self._url, headers=headers, body=body)

    def _body(self, message: Message) -> bytes:
        text = plain_text(message, with_title=False)
        blocks: list[dict[str, Any]] = [_block("header", message.title[:150])]
        blocks += [_block("section", text[n : n + _SECTION]) for n in range(0, len(text), _SECTION)]
        body: dict[str, Any] = {
            "text": no_mentions(_escaped(message.title)),
            "mrkdwn": False,
            "parse": "none",
            "link_names": False,
            "unfurl_links": False,
            "unfurl_media": False,
            "blocks": blocks,
        }
        if self._channel:
            body["channel"] = self._channel
        return dump(body)

    def judge(self, answer: Answer, *, now_seconds: float) -> Outcome:
        """Success is ``ok`` as text from a webhook, ``"ok": true`` from the Web API."""
        said = json_of(answer)
        if answer.status == 200 and (answer.body.strip() == b"ok" or said.get("ok") is True):
            return accepted(answer)
        code = said.get("error")
        verdict = Verdict.PERMANENT if code in _PERMANENT else None
        return refused(answer, now_seconds, code=code, verdict=verdict)


def _block(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, "text": {"type": "plain_text", "text": text, "emoji": False}}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
