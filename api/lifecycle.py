"""What an alert becomes: pure rules, without a clock and without the store.

The detector knows two states, firing and resolved; ``pending`` and ``recovering`` are the holding
times of its episodes, in which it says nothing yet. The store adds what people and time bring:

* ``acknowledged``: somebody has it. Ends when its time is over or the severity rises.
* ``stale``: the telemetry that would show it is lost. Lost telemetry is never a recovery.
* ``resolved``: over, by the detector, by hand, or because a later episode took its place.

Beside the state stand marks: flapping, snoozed, and (seen from outside) silenced or inhibited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = [
    "FLAP_TRANSITIONS",
    "LOST_REASONS",
    "OPEN_STATES",
    "TELLING",
    "Episode",
    "EventType",
    "Feedback",
    "LifecycleRules",
    "Standing",
    "State",
    "is_flapping",
    "is_telemetry_loss",
    "standing_after",
]


class State(StrEnum):
    """Where an alert stands."""

    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"
    STALE = "stale"
    RESOLVED = "resolved"


OPEN_STATES = (State.FIRING, State.ACKNOWLEDGED, State.STALE)


class EventType(StrEnum):
    """What happened to an alert: the words of the timeline and of ``delivery.kind``."""

    FIRED = "fired"
    REOPENED = "reopened"
    UPDATED = "updated"
    ESCALATED = "escalated"
    EASED = "eased"
    RESOLVED = "resolved"
    SUPERSEDED = "superseded"
    LATE = "late"
    STALE = "stale"
    RETURNED = "returned"
    FLAPPING = "flapping"
    STABLE = "stable"
    ACKNOWLEDGED = "acknowledged"
    UNACKNOWLEDGED = "unacknowledged"
    ACK_EXPIRED = "ack_expired"
    REMINDER = "reminder"
    ASSIGNED = "assigned"
    COMMENTED = "commented"
    FEEDBACK = "feedback"
    SNOOZED = "snoozed"


#: What people are told of. The others are for the timeline and the stream.
TELLING = frozenset(
    {
        EventType.FIRED,
        EventType.REOPENED,
        EventType.ESCALATED,
        EventType.RESOLVED,
        EventType.SUPERSEDED,
        EventType.FLAPPING,
        EventType.STABLE,
        EventType.REMINDER,
        EventType.ACK_EXPIRED,
    }
)


class Feedback(StrEnum):
    """What an operator found an alert to be."""

    TRUE_POSITIVE = "true_positive"
    FALSE_POSITIVE = "false_positive"
    EXPECTED = "expected"


#: End reasons that say "no more data", not "no more fault".
LOST_REASONS = frozenset({"no_data", "telemetry_lost", "source_lost", "stale"})
#: Kinds of the family telemetry that mean that a node's GPUs are not seen.
_LOSSES = frozenset({"node_silent", "collector_blind", "driver_unresponsive"})
FLAP_TRANSITIONS = 4


def is_telemetry_loss(family: str, kind: str, scope: str) -> bool:
    """Tell whether an alert means that nothing more is known of its node's GPUs."""
    return family == "telemetry" and kind in _LOSSES and scope == "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleRules:
    """Times of the lifecycle, in milliseconds.

    Parameters
    ----------
    reopen_ms
        An episode that begins within this time after the end of the last one reopens it.
    flap_ms
        Four beginnings and ends within this time are flapping.
    stable_ms
        Flapping ends after this time without another.
    """

    reopen_ms: int = 15 * 60_000
    flap_ms: int = 30 * 60_000
    stable_ms: int = 15 * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An alert as the store holds it, without what the detector says.

    Parameters
    ----------
    state, rank
        A word of :class:`State`; severity 1 to 3.
    seq
        The detector's count of the newest event shown.
    acked_by, acked_ms, ack_until_ms, ack_rank
        Who acknowledged, when, until when, at which severity.
    closed_rank
        Severity at which it was resolved by hand while it fired.
    """

    state: str
    rank: int
    seq: int
    acked_by: str | None = None
    acked_ms: int | None = None
    ack_until_ms: int | None = None
    ack_rank: int | None = None
    assignee: str | None = None
    closed_rank: int | None = None
    flapping_ms: int | None = None
    reopens: int = 0

    def is_acked(self, rank: int, now_ms: int) -> bool:
        """Tell whether the acknowledgement covers this severity now."""
        return (
            self.ack_until_ms is not None
            and self.ack_until_ms > now_ms
            and rank <= (self.ack_rank or 0)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Another episode of the same fingerprint."""

    alert_id: str
    started_ms: int
    ended_ms: int | None
    end_reason: str | None
    version: int
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Where an event took an alert.

    Parameters
    ----------
    state
        The new state.
    type
        What happened.
    reopens
        How often it has come back within the reopen window.
    keeps_ack
        Whether the acknowledgement lasts.
    of
        Whose acknowledgement and assignment hold: its own, or the last episode's.
    closed_rank
        As in :class:`Standing`.
    """

    state: State
    type: EventType
    reopens: int = 0
    keeps_ack: bool = False
    of: Standing | None = None
    closed_rank: int | None = None


def standing_after(
    before: Standing | None,
    last: Episode | None,
    *,
    firing: bool,
    rank: int,
    started_ms: int,
    end_reason: str | None,
    now_ms: int,
    rules: LifecycleRules,
) -> Moved:
    """Return where a newer event of the detector takes an alert.

    Parameters
    ----------
    before
        The alert as it stands, or None if this is its first event.
    last
        The episode of the same fingerprint before this one, or None.
    firing, rank, started_ms, end_reason
        What the event says.
    now_ms
        Unix milliseconds, by the store's clock.
    """
    if before is None:
        return _first(last, firing, rank, started_ms, now_ms, rules)
    if not firing:
        return _ended(before, end_reason)
    covered = before.is_acked(rank, now_ms)
    state = State.ACKNOWLEDGED if covered else State.FIRING
    kept = Moved(
        state=state,
        type=_change(before, rank),
        reopens=before.reopens,
        keeps_ack=covered,
        of=before,
    )
    if before.state != State.RESOLVED:
        return kept
    closed = before.closed_rank
    if closed is not None and rank <= closed:
        return replace(kept, state=State.RESOLVED, type=EventType.UPDATED, closed_rank=closed)
    return replace(kept, type=EventType.REOPENED, reopens=before.reopens + 1)


def _change(before: Standing, rank: int) -> EventType:
    if rank > before.rank:
        return EventType.ESCALATED
    if before.state == State.STALE:
        return EventType.RETURNED
    return EventType.EASED if rank < before.rank else EventType.UPDATED


def _first(
    last: Episode | None,
    firing: bool,
    rank: int,
    started_ms: int,
    now_ms: int,
    rules: LifecycleRules,
) -> Moved:
    if not firing:
        return Moved(state=State.RESOLVED, type=EventType.RESOLVED)
    if last is None or last.ended_ms is None or started_ms - last.ended_ms > rules.reopen_ms:
        return Moved(state=State.FIRING, type=EventType.FIRED)
    covered = last.standing.is_acked(rank, now_ms)
    return Moved(
        state=State.ACKNOWLEDGED if covered else State.FIRING,
        type=EventType.REOPENED,
        reopens=last.standing.reopens + 1,
        keeps_ack=covered,
        of=last.standing,
    )


def _ended(before: Standing, end_reason: str | None) -> Moved:
    lost = end_reason in LOST_REASONS and before.state != State.RESOLVED
    over = before.state == State.RESOLVED
    happened = EventType.UPDATED if over else EventType.RESOLVED
    return Moved(
        state=State.STALE if lost else State.RESOLVED,
        type=EventType.STALE if lost else happened,
        reopens=before.reopens,
        keeps_ack=True,
        of=before,
    )


def is_flapping(transitions_ms: Sequence[int], at_ms: int, rules: LifecycleRules) -> bool:
    """Tell whether beginnings and ends come too fast.

    Parameters
    ----------
    transitions_ms
        Event times at which episodes of the fingerprint began or ended.
    at_ms
        Event time of the newest.

    Examples
    --------
    >>> rules = LifecycleRules()
    >>> [is_flapping(range(0, n * 60_000, 60_000), n * 60_000, rules) for n in (3, 4)]
    [False, True]
    """
    recent = [moment for moment in transitions_ms if at_ms - rules.flap_ms <= moment <= at_ms]
    return len(recent) >= FLAP_TRANSITIONS
