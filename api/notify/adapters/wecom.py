"""WeCom: a robot of a group.

Limits: 20 messages a minute and robot; a text message has 2,048 **bytes**, in which a Chinese
character takes three. Plain text mentions only whom ``mentioned_list`` names.
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
)
from api.notify.base import Answer, Notice, OutboundRequest
from api.notify.messages import Message, Style, fitting, plain_text
from api.notify.pacing import Rate
from api.notify.retry import Outcome, Verdict

__all__ = ["WeComAdapter"]

_LIMIT_BYTES = 2048
_RATE_CODE = 45009
#: The robot's address is wrong, or the body is.
_PERMANENT_CODES = frozenset({93000, 93004, 93008, 40008, 40058})


class WeComAdapter:
    """Writes through one robot.

    Parameters
    ----------
    url
        The robot's webhook with its key; a secret.
    style
        Language and zone.
    """

    rate = Rate.within(20, burst=5)
    digests = True

    def __init__(self, *, url: str, style: Style) -> None:
        self._url, self._style = url, style

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build the message."""
        _ = now_seconds
        message = message_of(notice, self._style)
        text = fitting(message, _text, room(_LIMIT_BYTES, notice), lambda t: len(t.encode()))
        body = {"msgtype": "text", "text": {"content": text, "mentioned_list": []}}
        return OutboundRequest(url=self._url, headers=JSON_HEADERS, body=dump(body))

    def judge(self, answer: Answer, *, now_seconds: float) -> Outcome:
        """Success is errcode 0, nothing else."""
        said = json_of(answer)
        code = said.get("errcode")
        if answer.status == 200 and code == 0 and not isinstance(code, bool):
            return accepted(answer)
        return refused(
            answer,
            now_seconds,
            code=code,
            said=said.get("errmsg"),
            verdict=Verdict.PERMANENT if code in _PERMANENT_CODES else None,
            retry_after=60.0 if code == _RATE_CODE else None,
        )


def _text(message: Message) -> str:
    return no_mentions(plain_text(message))
