"""Microsoft Teams, through a workflow that takes adaptive cards.

Limits: 28 KB by the documentation, refusals have been seen from 21 KB; 4 requests a second.
Text stands in text runs, which know no Markdown, so nothing in it becomes a link or a mention.
"""

from __future__ import annotations

from typing import Any

from api.notify.adapters.common import (
    JSON_HEADERS,
    accepted,
    dump,
    message_of,
    refused,
    room,
)
from api.notify.base import Answer, Notice, OutboundRequest
from api.notify.messages import Message, Style, fitting
from api.notify.pacing import Rate
from api.notify.retry import Outcome

__all__ = ["TeamsAdapter"]

_LIMIT_BYTES = 20_000
_COLOURS = {"critical": "attention", "warning": "warning", "resolved": "good"}


class TeamsAdapter:
    """Posts cards to one workflow.

    Parameters
    ----------
    url
        Address that the workflow shows; a secret.
    style
        Language and zone.
    """

    rate = Rate.within(120, burst=4)
    digests = True

    def __init__(self, *, url: str, style: Style) -> None:
        self._url, self._style = url, style

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build the card."""
        _ = now_seconds
        message = message_of(notice, self._style)
        body = fitting(message, _card, room(_LIMIT_BYTES, notice))
        return OutboundRequest(url=self._url, headers=JSON_HEADERS, body=body)

    def judge(self, answer: Answer, *, now_seconds: float) -> Outcome:
        """Success is 202, by which a workflow confirms; a 200 is somebody else."""
        if answer.status == 202:
            return accepted(answer)
        return refused(answer, now_seconds)


def _card(message: Message) -> bytes:
    colour = _COLOURS.get(message.severity, "default")
    blocks = [_text(message.title, weight="bolder", size="medium", color=colour)]
    blocks += [_text(message.summary)] if message.summary else []
    blocks += [_text(f"{name}: {value}", isSubtle=True) for name, value in message.facts]
    if message.evidence and message.words["evidence"]:
        blocks.append(_text(message.words["evidence"], weight="bolder"))
    blocks += [_text(f"• {line}") for line in message.evidence]
    if message.cause:
        blocks.append(_text(f"{message.words['cause']}: {message.cause}"))
    if message.steps:
        blocks.append(_text(message.words["next"], weight="bolder"))
    blocks += [_text(f"{number}) {step}") for number, step in enumerate(message.steps, 1)]
    blocks += [_text(note, isSubtle=True) for note in message.notes]
    blocks += [_text(message.footer, isSubtle=True, size="small")] if message.footer else []
    content: dict[str, Any] = {"type": "AdaptiveCard", "version": "1.4", "body": blocks}
    if message.link:
        title = message.words["open"]
        content["actions"] = [{"type": "Action.OpenUrl", "title": title, "url": message.link}]
    kind = "application/vnd.microsoft.card.adaptive"
    return dump({"type": "message", "attachments": [{"contentType": kind, "content": content}]})


def _text(text: str, **look: object) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **look}]}
