"""DingTalk: a robot of a group, signed where it has a secret.

Limits: 20 messages a minute and robot; who sends more is blocked for ten minutes. Success is
``errcode`` 0 in an answer that is always HTTP 200. A text message mentions only whom ``at`` names.
"""

from __future__ import annotations

import base64
import hmac
from urllib.parse import quote_plus

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

__all__ = ["DingTalkAdapter", "dingtalk_sign"]

_LIMIT_BYTES = 18_000
_BLOCKED_SECONDS = 600.0
#: Too many messages: 130101 and 130102 by the open platform's list, 88 with sub-code 90018.
_RATE_CODES = frozenset({130101, 130102, 90018, 88})
#: Security settings not met (signature, keyword, address), and unknown tokens.
_PERMANENT_CODES = frozenset({310000, 300001, 300005, 40035, 43004, 400013, 400101, 400102})


def dingtalk_sign(secret: str, timestamp_ms: int) -> str:
    """Return the signature: base64 of HMAC-SHA256, keyed with the secret, over time and secret."""
    text = f"{timestamp_ms}\n{secret}"
    return base64.b64encode(hmac.digest(secret.encode(), text.encode(), "sha256")).decode()


class DingTalkAdapter:
    """Writes through one robot.

    Parameters
    ----------
    url
        The robot's webhook with its access token; a secret.
    secret
        Of a robot that signs, else empty.
    keyword
        Of a robot that demands one, else empty.
    style
        Language and zone.
    """

    rate = Rate.within(20, burst=5)
    digests = True

    def __init__(self, *, url: str, style: Style, secret: str = "", keyword: str = "") -> None:
        self._url, self._style, self._secret, self._keyword = url, style, secret, keyword

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build the message; the signature is of this moment."""
        message = message_of(notice, self._style)
        body = fitting(message, self._body, room(_LIMIT_BYTES, notice))
        url = self._url
        if self._secret:
            sign = quote_plus(dingtalk_sign(self._secret, now_seconds * 1000))
            mark = "&" if "?" in url else "?"
            url = f"{url}{mark}timestamp={now_seconds * 1000}&sign={sign}"
        return OutboundRequest(url=url, headers=JSON_HEADERS, body=body)

    def _body(self, message: Message) -> bytes:
        text = no_mentions(plain_text(message))
        if self._keyword and self._keyword not in text:
            text = f"{self._keyword}\n{text}"
        return dump(
            {
                "msgtype": "text",
                "text": {"content": text},
                "at": {"atMobiles": [], "atUserIds": [], "isAtAll": False},
            }
        )

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
            retry_after=_BLOCKED_SECONDS if code in _RATE_CODES else None,
        )
