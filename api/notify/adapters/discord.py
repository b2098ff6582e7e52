"""Discord: a channel's webhook.

Limits: 2,000 characters; about 30 messages a minute and channel, five in two seconds. No mention
is allowed to take effect, and Markdown in names is escaped.
"""

from __future__ import annotations

import re
from dataclasses import replace

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

__all__ = ["DiscordAdapter"]

_LIMIT = 2000
_MARKUP = re.compile(r"([\\*_~`|>\[\]()#<-])")
_SUPPRESS_EMBEDS = 4


class DiscordAdapter:
    """Posts to one webhook.

    Parameters
    ----------
    url
        The webhook; a secret.
    style
        Language and zone.
    """

    rate = Rate.within(30, burst=3)
    digests = True

    def __init__(self, *, url: str, style: Style) -> None:
        # With wait Discord answers after it has stored the message, and with the message.
        self._url = f"{url}{'&' if '?' in url else '?'}wait=true"
        self._style = style

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build the message."""
        _ = now_seconds
        message = message_of(notice, self._style)
        content = fitting(message, _content, room(_LIMIT, notice), utf16_units)
        body = {
            "content": content,
            "allowed_mentions": {"parse": []},
            "flags": _SUPPRESS_EMBEDS,
        }
        return OutboundRequest(url=self._url, headers=JSON_HEADERS, body=dump(body))

    def judge(self, answer: Answer, *, now_seconds: float) -> Outcome:
        """Success is 204, or 200 with the id of the stored message."""
        said = json_of(answer)
        if answer.status == 204 or (answer.status == 200 and said.get("id")):
            return accepted(answer)
        asked = said.get("retry_after")
        return refused(
            answer,
            now_seconds,
            code=said.get("code"),
            retry_after=float(asked) if isinstance(asked, (int, float)) else None,
        )


def _content(message: Message) -> str:
    title, _, rest = plain_text(replace(message, link=None)).partition("\n")
    text = f"**{_escaped(title)}**\n{_escaped(rest)}".rstrip()
    # In angle brackets, so that the link brings no preview and no markup is read in it.
    return f"{text}\n<{message.link}>" if message.link else text


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", no_mentions(text))
