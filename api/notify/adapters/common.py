"""What adapters share: choosing the message, JSON, judging answers, defusing mentions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from api.notify.base import Answer, Notice
from api.notify.messages import Message, Style, build_digest, build_message, clean
from api.notify.retry import Outcome, Verdict, classify_status, parse_retry_after

__all__ = [
    "JSON_HEADERS",
    "accepted",
    "dump",
    "json_of",
    "message_of",
    "no_mentions",
    "refused",
    "room",
    "utf16_units",
]

JSON_HEADERS = {"content-type": "application/json; charset=utf-8", "user-agent": "foreshock"}
_ZERO_WIDTH = "\u200b"


def message_of(notice: Notice, style: Style) -> Message:
    """Return what a notice says: one alert, or many in one message."""
    if notice.digest:
        return build_digest(notice.digest, style)
    return build_message(
        notice.event,
        style,
        kind=notice.kind,
        delayed=notice.delayed,
        replayed=notice.replayed,
    )


def room(limit: int, notice: Notice) -> int:
    """Return the limit, a quarter of it once the receiver has said that it was too long."""
    return limit // 4 if notice.compact else limit


def dump(body: Any) -> bytes:  # any JSON value
    """Write JSON."""
    return orjson.dumps(body)


def json_of(answer: Answer) -> Mapping[str, Any]:  # decoded JSON
    """Return the answer as an object; empty if it is none."""
    try:
        found = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def utf16_units(text: str) -> int:
    """Count as services do that are written in JavaScript or Java: emoji count twice."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def no_mentions(text: str) -> str:
    """Break up what would call people: ``@here``, ``@all``, ``@name``.

    Examples
    --------
    >>> no_mentions("@all") == "@all", len(no_mentions("@all"))
    (False, 5)
    """
    return text.replace("@", f"@{_ZERO_WIDTH}").replace("＠", f"＠{_ZERO_WIDTH}")


def accepted(answer: Answer) -> Outcome:
    """Return the outcome of a message that the receiver has confirmed."""
    return Outcome(verdict=Verdict.DELIVERED, status=answer.status)


def refused(
    answer: Answer,
    now_seconds: float,
    *,
    code: object = None,
    said: object = None,
    verdict: Verdict | None = None,
    retry_after: float | None = None,
) -> Outcome:
    """Return the outcome of a message that the receiver has not confirmed.

    Parameters
    ----------
    code, said
        The provider's own code and text, from the body.
    verdict
        Class by the provider's code; by default that of the status, transient for 2xx.
    retry_after
        Seconds that the body asks for; the header is read here.
    """
    found = verdict or classify_status(answer.status)
    if found is Verdict.DELIVERED:
        found = Verdict.TRANSIENT  # 2xx without the words that mean success
    header = parse_retry_after(answer.headers.get("retry-after"), now_seconds)
    error = f"the receiver answered HTTP {answer.status}"
    if code is not None:
        error += f", code {clean(code, 40)}"
    if said:
        error += f": {clean(said, 160)}"
    waits = [seconds for seconds in (header, retry_after) if seconds is not None]
    return Outcome(
        verdict=found,
        status=answer.status,
        error=error,
        retry_after_seconds=max(waits, default=None),
    )
