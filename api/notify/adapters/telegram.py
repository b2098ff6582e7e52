"""Telegram: a bot that writes to a chat.

Limits: 4,096 characters, 20 messages a minute and group. Plain text without markup: there is
nothing to escape and nothing that a cut could break.
"""

from __future__ import annotations

from api.notify.adapters.common import (
    JSON_HEADERS,
    accepted,
    dump,
    json_of,
    message_of,
    no_mentions,
    refused,
    room,
    utf16_units,
)
from api.notify.base import Answer, Notice, OutboundRequest
from api.notify.messages import Message, Style, fitting, plain_text
from api.notify.pacing import Rate
from api.notify.retry import Outcome

__all__ = ["TelegramAdapter"]

_LIMIT = 4096


class TelegramAdapter:
    """Writes to one chat.

    Parameters
    ----------
    url
        Bot API server.
    token
        The bot's token; it becomes part of the address.
    chat
        Id or ``@name`` of the chat.
    style
        Language and zone.
    """

    rate = Rate.within(20, burst=5)
    digests = True

    def __init__(self, *, url: str, token: str, chat: str, style: Style) -> None:
        self._url = f"{url.rstrip('/')}/bot{token}/sendMessage"
        self._chat, self._style = chat, style

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build the message."""
        _ = now_seconds
        message = message_of(notice, self._style)
        text = fitting(message, _text, room(_LIMIT, notice), utf16_units)
        body = {
            "chat_id": self._chat,
            "text": text,
            "link_preview_options": {"is_disabled": True},
        }
        return OutboundRequest(url=self._url, headers=JSON_HEADERS, body=dump(body))

    def judge(self, answer: Answer, *, now_seconds: float) -> Outcome:
        """Success is ``"ok": true``; the time to wait stands in the body."""
        said = json_of(answer)
        if answer.status == 200 and said.get("ok") is True:
            return accepted(answer)
        parameters = said.get("parameters")
        asked = parameters.get("retry_after") if isinstance(parameters, dict) else None
        return refused(
            answer,
            now_seconds,
            code=said.get("error_code"),
            said=said.get("description"),
            retry_after=float(asked) if isinstance(asked, (int, float)) else None,
        )


def _text(message: Message) -> str:
    return no_mentions(plain_text(message))
