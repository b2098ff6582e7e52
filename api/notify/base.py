"""What every kind of receiver must offer, and the data that passes between the parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from api.notify.retry import Outcome

__all__ = ["Adapter", "Answer", "Notice", "OutboundRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One notification to be sent now.

    Parameters
    ----------
    webhook_id
        The same for every attempt, so that a receiver can drop a repetition.
    attempt
        1 for the first try.
    event
        The AlertEvent as decoded JSON.
    """

    webhook_id: str
    attempt: int
    event: Mapping[str, Any]  # decoded JSON of the contract's AlertEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundRequest:
    """A request, ready to be sent.

    Parameters
    ----------
    url
        Where to; a secret but for its host.
    headers, body
        What is sent; never logged.
    method
        HTTP method.
    ca_file
        Authorities to trust instead of the system's, PEM.
    """

    url: str
    headers: Mapping[str, str]
    body: bytes
    method: str = "POST"
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a receiver said. Header names are lower case; the body is cut at the read cap."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Adapter(Protocol):
    """One receiver of one kind. Pure: builds requests and judges answers."""

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build the request. ``now_seconds`` is unix time, for signatures."""
        ...

    def judge(self, answer: Answer, *, now_seconds: float) -> Outcome:
        """Tell whether the receiver has it: only its own answer counts, not the connection."""
        ...
