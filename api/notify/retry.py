"""When to try again, and when never. Pure: chance and time are passed in.

Waits follow the schedule of the settings, spread by ±20 % so that what failed together does
not come back together. A receiver's ``Retry-After`` wins over the schedule, up to one hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum

__all__ = ["Decision", "Outcome", "Verdict", "classify_status", "decide", "parse_retry_after"]

JITTER = 0.2
RETRY_AFTER_CAP_SECONDS = 3600.0
#: Answers that mean "never": one retry, in case somebody is just repairing the receiver.
_PERMANENT = frozenset({400, 401, 403, 404, 405, 413, 415, 422})
_GONE = 410


class Verdict(StrEnum):
    """What an attempt came to."""

    DELIVERED = "delivered"
    TRANSIENT = "transient"
    PERMANENT = "permanent"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one attempt.

    Parameters
    ----------
    verdict
        Its class.
    status
        HTTP status, or None if no answer came.
    error
        Why it failed, without URL or secret; None if delivered.
    retry_after_seconds
        What the receiver asked for, or None.
    unsure
        Whether the receiver may have it all the same: it was sent, and no answer came.
    """

    verdict: Verdict
    status: int | None = None
    error: str | None = None
    retry_after_seconds: float | None = None
    unsure: bool = False

    @property
    def line_failed(self) -> bool:
        """Whether line or server failed, rather than that the receiver refused this message."""
        gone = self.status is None or self.status >= 500
        return self.verdict is Verdict.TRANSIENT and gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What happens to the delivery: done, dead, or again after ``wait_seconds``."""

    done: bool = False
    dead: bool = False
    wait_seconds: float = 0.0


def classify_status(status: int) -> Verdict:
    """Class of an HTTP status; redirects are never followed and count as permanent.

    Examples
    --------
    >>> [classify_status(code).value for code in (204, 302, 404, 410, 429, 503)]
    ['delivered', 'permanent', 'permanent', 'gone', 'transient', 'transient']
    """
    if 200 <= status < 300:
        return Verdict.DELIVERED
    if status == _GONE:
        return Verdict.GONE
    if 300 <= status < 400 or status in _PERMANENT:
        return Verdict.PERMANENT
    return Verdict.TRANSIENT


def decide(
    outcome: Outcome,
    *,
    attempts: int,
    refusals: int,
    schedule: Sequence[float],
    permanent_retry_seconds: float,
    jitter: float,
) -> Decision:
    """Decide what follows an attempt.

    Parameters
    ----------
    outcome
        What it came to.
    attempts
        Attempts made, this one included.
    refusals
        Permanent answers so far, this one included.
    schedule
        Wait before each attempt in seconds; its length is the number of attempts.
    permanent_retry_seconds
        Wait before the one retry after a permanent answer.
    jitter
        Random number in [-1, 1]; spreads the wait by ±20 %.

    Examples
    --------
    >>> decide(Outcome(verdict=Verdict.TRANSIENT), attempts=1, refusals=0, schedule=(0, 5),
    ...        permanent_retry_seconds=60, jitter=1.0)
    Decision(done=False, dead=False, wait_seconds=6.0)
    """
    if outcome.verdict is Verdict.DELIVERED:
        return Decision(done=True)
    used_up = attempts >= len(schedule)
    refused = outcome.verdict is Verdict.PERMANENT and refusals > 1
    if outcome.verdict is Verdict.GONE or used_up or refused:
        return Decision(dead=True)
    if outcome.retry_after_seconds is not None:
        # Never earlier than asked, so the spread goes one way only.
        asked = min(max(outcome.retry_after_seconds, 0.0), RETRY_AFTER_CAP_SECONDS)
        return Decision(wait_seconds=asked * (1 + JITTER * abs(jitter)))
    wait = schedule[attempts]
    if outcome.verdict is Verdict.PERMANENT:
        wait = permanent_retry_seconds
    return Decision(wait_seconds=wait * (1 + JITTER * jitter))


def parse_retry_after(text: str | None, now_seconds: float) -> float | None:
    """Seconds to wait from a ``Retry-After`` header: a number or an HTTP date.

    Examples
    --------
    >>> parse_retry_after("7", 0.0)
    7.0
    >>> parse_retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 20.0)
    40.0
    >>> parse_retry_after("soon", 0.0) is None
    True
    """
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, moment.timestamp() - now_seconds)
