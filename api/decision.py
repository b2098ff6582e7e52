"""Whether a notification is sent now: sent, cancelled with a reason, or held for a while.

Asked when a delivery is claimed, because only then is it known what holds: silences, an
acknowledgement, a graver alert that explains this one, the time after a start. The rules are pure;
:class:`Decisions` reads what they need through the connection of the claim.

For who sends::

    rulings = decisions.rule(connection, waiting, now_ms)   # in the transaction of the claim
    for delivery in waiting:
        ruling = rulings[delivery.delivery_id]              # action, code, reason, until_ms, ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import sqlalchemy as sa

from api.inhibition import AlertFacts, Inhibition
from api.lifecycle import EventType, State
from api.tables import DeliveryState, alert, delivery

__all__ = ["Action", "Circumstances", "Decisions", "Ruling", "Timing", "Waiting", "decide_notice"]

#: How long a held notification waits before it is asked again.
RECHECK_MS = 15_000
_CRITICAL = 3
#: Kinds that repeat or refine what was told, and so respect ``update_min_interval``.
_UPDATES = frozenset({EventType.ESCALATED, EventType.REMINDER, EventType.REOPENED})
#: Kinds that end something: they never wait.
_ENDS = frozenset({EventType.RESOLVED, EventType.SUPERSEDED})


class Action(StrEnum):
    """What happens to a delivery."""

    SEND = "send"
    CANCEL = "cancel"
    HOLD = "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What happens to one delivery, and why.

    Parameters
    ----------
    action
        Send, cancel or hold.
    code
        Fixed word for programs: due, silenced, acknowledged, inhibited, settling, flapping,
        snoozed, merged, too_soon, resolved_untold, removed.
    reason
        Sentence for people; also shown by ``explain``.
    until_ms
        When to ask again, for a hold.
    delayed
        Whether it is the first word of an alert that has ended: say that delivery was late.
    """

    action: Action
    code: str
    reason: str
    until_ms: int | None = None
    delayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of notices, in milliseconds.

    Parameters
    ----------
    settle_until_ms
        Alerts that were open before ``started_ms`` are held until then.
    started_ms
        When this process began to read.
    update_min_interval_ms
        Least time between two notices of one alert to one endpoint; an end never waits.
    tell_late_ends
        Least severity rank whose end is told though its beginning never was.
    """

    started_ms: int = 0
    settle_until_ms: int = 0
    update_min_interval_ms: int = 0
    tell_late_ends: int = _CRITICAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A delivery that is due; ``attempts`` were made, of which the receiver may know."""

    delivery_id: int
    endpoint: str
    alert_id: str
    kind: str
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What holds for one waiting delivery.

    Parameters
    ----------
    alert
        The alert as it stands.
    told
        Whether this endpoint was told anything of the alert before, or may have been.
    attempted
        Whether this very delivery was tried: it is then carried through, in its order.
    last_told_ms
        When it last was, or None.
    newer
        Whether a newer notice of the same alert waits for the same endpoint.
    silenced_by
        Silence that matches now, or None.
    inhibited_by
        Open alert that explains this one, or None.
    explained_by
        Alert that explained this one while both were open, and has ended as well, or None.
    """

    alert: AlertFacts
    told: bool = False
    attempted: bool = False
    last_told_ms: int | None = None
    newer: bool = False
    silenced_by: str | None = None
    inhibited_by: str | None = None
    explained_by: str | None = None


def decide_notice(kind: str, found: Circumstances, timing: Timing, now_ms: int) -> Ruling:
    """Decide one delivery. Pure.

    Parameters
    ----------
    kind
        The event type that it tells.
    found
        What holds now.
    timing
        Times in force.
    now_ms
        Unix milliseconds.
    """
    for rule in _RULES:
        ruling = rule(kind, found, timing, now_ms)
        if ruling is not None:
            return ruling
    over = found.alert.state == State.RESOLVED
    late = over and not found.told
    return Ruling(
        action=Action.SEND,
        code="due",
        reason="It ended before it could be told." if late else "Nothing speaks against it.",
        delayed=late,
    )


def _cancel(code: str, reason: str) -> Ruling:
    return Ruling(action=Action.CANCEL, code=code, reason=reason)


def _hold(code: str, reason: str, until_ms: int) -> Ruling:
    return Ruling(action=Action.HOLD, code=code, reason=reason, until_ms=until_ms)


def _silenced(_kind: str, found: Circumstances, _timing: Timing, _now: int) -> Ruling | None:
    if found.silenced_by is None:
        return None
    return _cancel("silenced", f"Silence {found.silenced_by} matches the alert.")


def _merged(kind: str, found: Circumstances, _timing: Timing, _now: int) -> Ruling | None:
    """Tell a beginning that nobody has heard of by its end, or by its newest state."""
    if kind in _ENDS or found.told or found.attempted:
        return None
    if found.newer or found.alert.state == State.RESOLVED:
        return _cancel("merged", "A newer notice of the same alert tells it.")
    return None


def _untold(kind: str, found: Circumstances, timing: Timing, _now: int) -> Ruling | None:
    if kind not in _ENDS or found.told:
        return None
    if found.explained_by is not None:  # its beginning was held back on purpose, not late
        return _cancel("inhibited", f"Alert {found.explained_by} explained it.")
    if found.alert.rank >= timing.tell_late_ends:
        return None
    return _cancel("resolved_untold", "It ended before anybody was told that it had begun.")


def _superseded(kind: str, found: Circumstances, _timing: Timing, _now: int) -> Ruling | None:
    if found.attempted:
        return None
    if kind not in _ENDS and found.alert.state == State.RESOLVED:
        return _cancel("merged", "The alert has ended meanwhile; its end is told instead.")
    return None


def _acknowledged(kind: str, found: Circumstances, _timing: Timing, _now: int) -> Ruling | None:
    if kind in _ENDS or found.alert.state != State.ACKNOWLEDGED:
        return None
    return _cancel("acknowledged", f"{found.alert.acked_by or 'Somebody'} has acknowledged it.")


def _snoozed(kind: str, found: Circumstances, _timing: Timing, now_ms: int) -> Ruling | None:
    until = found.alert.snoozed_until_ms
    if kind in _ENDS or until is None or until <= now_ms:
        return None
    return _hold("snoozed", "The alert is snoozed.", until)


def _settling(kind: str, found: Circumstances, timing: Timing, now_ms: int) -> Ruling | None:
    if kind in _ENDS and found.told:
        return None
    if now_ms >= timing.settle_until_ms or found.alert.received_ms >= timing.started_ms:
        return None
    reason = "It was open before the service started; what is still true is told soon."
    return _hold("settling", reason, timing.settle_until_ms)


def _inhibited(kind: str, found: Circumstances, _timing: Timing, now_ms: int) -> Ruling | None:
    if found.inhibited_by is None:
        return None
    reason = f"Alert {found.inhibited_by} explains it."
    if kind in _ENDS and not found.told:
        return _cancel("inhibited", reason)
    if kind in _ENDS:
        return None
    return _hold("inhibited", reason, now_ms + RECHECK_MS)


def _too_soon(kind: str, found: Circumstances, timing: Timing, now_ms: int) -> Ruling | None:
    if kind not in _UPDATES or found.last_told_ms is None or found.alert.rank >= _CRITICAL:
        return None
    until = found.last_told_ms + timing.update_min_interval_ms
    if until <= now_ms:
        return None
    return _hold("too_soon", "The last notice of this alert was just now.", until)


_Rule = Callable[[str, Circumstances, Timing, int], Ruling | None]
#: First to speak wins. What cancels for good stands before what only delays.
_RULES: tuple[_Rule, ...] = (
    _silenced,
    _untold,
    _merged,
    _superseded,
    _acknowledged,
    _inhibited,
    _settling,
    _snoozed,
    _too_soon,
)


class SilenceSource:
    """What :class:`Decisions` asks about silences; this one knows none."""

    def matching(
        self, connection: sa.Connection, facts: Sequence[AlertFacts], now_ms: int
    ) -> Mapping[str, str]:
        """Return alert id to the id of a silence in force that matches it."""
        _ = (connection, facts, now_ms)
        return {}


@dataclass(slots=True, kw_only=True)
class Decisions:
    """Rules on deliveries with what the store says at this moment. Safe to share.

    Parameters
    ----------
    timing
        Times in force.
    silences
        Where silences come from.
    intervals
        Words of an alert and an endpoint to the least milliseconds between two notices.
    """

    timing: Timing = field(default_factory=Timing)
    silences: SilenceSource = field(default_factory=SilenceSource)
    intervals: Callable[[Mapping[str, str], str], int] = lambda _labels, _endpoint: 0

    def rule(
        self, connection: sa.Connection, waiting: Sequence[Waiting], now_ms: int
    ) -> dict[int, Ruling]:
        """Rule on deliveries, by their ids.

        Parameters
        ----------
        connection
            That of the claim, so that what is decided is what is claimed.
        waiting
            Deliveries that are due.
        now_ms
            Unix milliseconds.
        """
        if not waiting:
            return {}
        facts = facts_of(connection, {one.alert_id for one in waiting})
        silenced = self.silences.matching(connection, list(facts.values()), now_ms)
        inhibition = Inhibition.read(connection, list(facts.values()))
        told = _told(connection, facts)
        over = [one for one in facts.values() if one.state == State.RESOLVED]
        ended = Inhibition.read_ended(connection, over)
        newest = _newest(connection, facts)
        rulings = {}
        for one in waiting:
            found = facts.get(one.alert_id)
            if found is None:
                rulings[one.delivery_id] = _cancel("removed", "The alert is no longer stored.")
                continue
            key = (one.alert_id, one.endpoint)
            rulings[one.delivery_id] = decide_notice(
                one.kind,
                Circumstances(
                    alert=found,
                    told=key in told,
                    attempted=one.attempts > 0,
                    last_told_ms=told.get(key),
                    newer=newest.get(key, 0) > one.delivery_id,
                    silenced_by=silenced.get(one.alert_id),
                    inhibited_by=inhibition.root_of(found),
                    explained_by=ended.root_of(found),
                ),
                self._timing_of(found, one.endpoint),
                now_ms,
            )
        return rulings

    def _timing_of(self, found: AlertFacts, endpoint: str) -> Timing:
        interval_ms = self.intervals(found.labels or {}, endpoint)
        longest = max(interval_ms, self.timing.update_min_interval_ms)
        return replace(self.timing, update_min_interval_ms=longest)


def facts_of(connection: sa.Connection, ids: set[str]) -> dict[str, AlertFacts]:
    """Read the alerts of these ids as the rules need them."""
    rows = connection.execute(sa.select(alert).where(alert.c.alert_id.in_(sorted(ids)))).mappings()
    return {row["alert_id"]: AlertFacts.of(row) for row in rows}


def _told(
    connection: sa.Connection, ids: Mapping[str, object]
) -> dict[tuple[str, str], int | None]:
    """Return when each endpoint was last told; None where it may have been, unconfirmed."""
    done = sa.case((delivery.c.state == DeliveryState.DONE, delivery.c.finished_ms))
    query = (
        sa.select(delivery.c.alert_id, delivery.c.endpoint, sa.func.max(done))
        .where(
            delivery.c.alert_id.in_(sorted(ids)),
            sa.or_(delivery.c.attempts > 0, delivery.c.unsure),
        )
        .group_by(delivery.c.alert_id, delivery.c.endpoint)
    )
    return {(row[0], row[1]): row[2] for row in connection.execute(query)}


def _newest(connection: sa.Connection, ids: Mapping[str, object]) -> dict[tuple[str, str], int]:
    """Return the newest waiting delivery of each alert and endpoint."""
    query = (
        sa.select(delivery.c.alert_id, delivery.c.endpoint, sa.func.max(delivery.c.id))
        .where(
            delivery.c.alert_id.in_(sorted(ids)),
            delivery.c.state.in_((DeliveryState.PENDING, DeliveryState.LEASED)),
        )
        .group_by(delivery.c.alert_id, delivery.c.endpoint)
    )
    return {(row[0], row[1]): row[2] for row in connection.execute(query)}
