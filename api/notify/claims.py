"""What the queue hands out, and what it must know of a receiver and of the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import sqlalchemy as sa

from api.decision import Ruling, Waiting
from api.notify.pacing import Rate

__all__ = ["Claim", "Decider", "Terms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A delivery that this process may send now.

    Parameters
    ----------
    id, endpoint, webhook_id
        Which delivery, to whom, under which id.
    attempts, refusals
        Made so far, this one not included.
    event
        The AlertEvent as decoded JSON.
    kind
        What happened, a word of :class:`~api.lifecycle.EventType`.
    delayed, replayed
        Whether its alert has ended untold, and whether somebody asked for it again.
    probe
        Whether it finds out if the receiver is back; a failure then costs no attempt.
    digest
        The events told at once; empty for one alert.
    """

    id: int
    endpoint: str
    webhook_id: str
    attempts: int
    refusals: int
    event: Mapping[str, Any]  # decoded JSON
    kind: str = "fired"
    delayed: bool = False
    replayed: bool = False
    probe: bool = False
    digest: tuple[Mapping[str, Any], ...] = ()  # decoded JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How one endpoint is to be treated.

    Parameters
    ----------
    rate
        How much it takes; None for no limit.
    digests
        Whether one message may tell many alerts.
    deadline_ms
        How old a delivery becomes before it is given up while the receiver is only probed.
    """

    rate: Rate | None = None
    digests: bool = False
    deadline_ms: int = 3 * 86_400_000


class Decider(Protocol):
    """Says what happens to deliveries that are due."""

    def rule(
        self, connection: sa.Connection, waiting: Sequence[Waiting], now_ms: int
    ) -> Mapping[int, Ruling]:
        """Return a ruling for each, by delivery id."""
        ...
