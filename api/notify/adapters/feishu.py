"""Feishu and Lark: a robot of a group, signed where it has a secret.

Limits: 100 messages a minute, 5 a second, bodies of 20 KB. A ``post`` message: its text elements
know neither markup nor ``<at>`` tags.
"""

from __future__ import annotations

import base64
import hmac
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

__all__ = ["FeishuAdapter", "feishu_sign"]

_LIMIT_BYTES = 18_000
#: Frequency limits, of robots and of the open platform.
_RATE_CODES = frozenset({11232, 9499, 99991400})
#: Signature, address or keyword not as the robot demands; wrong body; robot gone.
_PERMANENT_CODES = frozenset({19001, 19002, 19021, 19022, 19024})


def feishu_sign(secret: str, timestamp: int) -> str:
    """Return the signature: base64 of HMAC-SHA256 of nothing, keyed with time and secret."""
    key = f"{timestamp}\n{secret}"
    return base64.b64encode(hmac.digest(key.encode(), b"", "sha256")).decode()


class FeishuAdapter:
    """Writes through one robot.

    Parameters
    ----------
    url
        The robot's webhook; a secret. ``open.feishu.cn`` or ``open.larksuite.com``.
    secret
        Of a robot that signs, else empty.
    keyword
        Of a robot that demands one, else empty.
    style
        Language and zone.
    """

    rate = Rate.within(100, burst=5)
    digests = True

    def __init__(self, *, url: str, style: Style, secret: str = "", keyword: str = "") -> None:
        self._url, self._style, self._secret, self._keyword = url, style, secret, keyword

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build the message; the signature is of this moment."""
        message = message_of(notice, self._style)

        def body(shorter: Message) -> bytes:
            return dump(self._signature(now_seconds) | self._content(shorter))

        data = fitting(message, body, room(_LIMIT_BYTES, notice))
        return OutboundRequest(url=self._url, headers=JSON_HEADERS, body=data)

    def _signature(self, now_seconds: int) -> dict[str, Any]:
        if not self._secret:
            return {}
        return {"timestamp": str(now_seconds), "sign": feishu_sign(self._secret, now_seconds)}

    def _content(self, message: Message) -> dict[str, Any]:
        text = no_mentions(plain_text(message, with_title=False))
        lines: list[list[dict[str, str]]] = [
            [{"tag": "text", "text": line}] for line in text.split("\n") if line
        ]
        if self._keyword and self._keyword not in text:
            lines.append([{"tag": "text", "text": self._keyword}])
        title = no_mentions(message.title)
        post = {"zh_cn": {"title": title, "content": lines}}
        return {"msg_type": "post", "content": {"post": post}}

    def judge(self, answer: Answer, *, now_seconds: float) -> Outcome:
        """Success is code 0, or StatusCode 0 of the older answers."""
        said = json_of(answer)
        code = said.get("code", said.get("StatusCode"))
        if answer.status == 200 and code == 0 and not isinstance(code, bool):
            return accepted(answer)
        return refused(
            answer,
            now_seconds,
            code=code,
            said=said.get("msg") or said.get("StatusMessage"),
            verdict=Verdict.PERMANENT if code in _PERMANENT_CODES else _rate(code),
            retry_after=60.0 if code in _RATE_CODES else None,
        )


def _rate(code: object) -> Verdict | None:
    return Verdict.TRANSIENT if code in _RATE_CODES else None
