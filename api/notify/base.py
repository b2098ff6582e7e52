"""What every kind of receiver must offer, and the data that passes between the parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from api.notify.pacing import Rate
from api.notify.retry import Outcome

__all__ = ["Adapter", "Answer", "Channel", "Notice", "OutboundRequest"]

Event = Mapping[str, Any]  # decoded JSON of the contract's AlertEvent


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
    kind
        What happened, a word of :class:`~api.lifecycle.EventType`, or ``test``.
    delayed
        Whether it is the first word of an alert that has ended meanwhile.
    replayed
        Whether somebody asked for it to be sent again.
    digest
        The events told at once in a storm; empty for a single alert.
    compact
        Whether the receiver has said that it was too long.
    """

    webhook_id: str
    attempt: int
    event: Event
    kind: str = "fired"
    delayed: bool = False
    replayed: bool = False
    digest: tuple[Event, ...] = ()
    compact: bool = False


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
    """One receiver of one kind that speaks HTTP. Pure: builds requests and judges answers."""

    @property
    def rate(self) -> Rate | None:
        """How much its kind of receiver takes; None if nothing is known."""
        ...

    @property
    def digests(self) -> bool:
        """Whether people read it: in a storm one message tells all. Machines get every one."""
        ...

    def request(self, notice: Notice, *, now_seconds: int) -> OutboundRequest:
        """Build the request. ``now_seconds`` is unix time, for signatures."""
        ...

    def judge(self, answer: Answer, *, now_seconds: float) -> Outcome:
        """Tell whether the receiver has it: only its own answer counts, not the connection."""
        ...


class Channel(Protocol):
    """A way to one receiver."""

    @property
    def rate(self) -> Rate | None:
        """How much it takes; None for no limit."""
        ...

    @property
    def digests(self) -> bool:
        """Whether one message may tell many alerts."""
        ...

    def deliver(self, notice: Notice) -> Outcome:
        """Make one attempt. Does not raise for what a receiver does."""
        ...
