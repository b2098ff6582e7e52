"""Writes alert events into the store: alert row, event log and notifications in one go.

The bus delivers at least once and, across partitions and replays, in any order. What is stored
must not depend on that, so these rules are free of order:

* An event is known by (alert, seq); a second one is ignored.
* An alert shows its event of the highest seq.
* An alert is open if that event is firing, nobody resolved it by hand, and no later episode of
  its fingerprint is known: a later episode closes an earlier one with the reason ``superseded``.

Notifications follow changes that people act on, see :data:`api.lifecycle.TELLING`. New evidence
alone is logged and streamed, not sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import orjson
import sqlalchemy as sa

from api.database import insert_of
from api.history import episode_before, later_episode, read_histories, read_history
from api.lifecycle import (
    TELLING,
    Episode,
    EventType,
    LifecycleRules,
    Moved,
    State,
    is_flapping,
    is_telemetry_loss,
    standing_after,
)
from api.notices import (
    BySeverity,
    LogEntry,
    Outgoing,
    Receivers,
    Route,
    append_event,
    queue_notices,
    webhook_id_of,
)
from api.tables import IS_OPEN, alert, series
from schemas.alert import AlertEvent, AlertState, Severity, parse_time, rfc3339
from schemas.codec import decode_alert, encode
from schemas.errors import DecodeError

__all__ = [
    "SUPERSEDED",
    "Entry",
    "Ledger",
    "Route",
    "check_storable",
    "webhook_id_of",
]

SUPERSEDED = "superseded"
_DETECTOR = "detector"
_API = "api"
_LIFECYCLE = "lifecycle"
_MAX_SEQ = 2**53  # what JSON readers in every language can hold
_MAX_TEXT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What became of one event.

    Parameters
    ----------
    event_id
        Last id that the event log gave, or None if the event was known.
    deliveries
        How many notifications were queued.
    """

    event_id: int | None = None
    deliveries: int = 0


def check_storable(alert_event: AlertEvent) -> None:
    """Refuse what the codec lets pass and a store cannot index.

    Raises
    ------
    DecodeError
        With a reason for the dead-letter topic.
    """
    for name, text in (
        ("alert_id", alert_event.alert_id),
        ("fingerprint", alert_event.fingerprint),
    ):
        try:
            uuid.UUID(text)
        except ValueError as exc:
            raise DecodeError("bad_field", f"{name} is no UUID: {text[:64]!r}") from exc
        if len(text) != 36:
            raise DecodeError("bad_field", f"{name} must have 36 characters")
    if not 1 <= alert_event.seq <= _MAX_SEQ:
        raise DecodeError("bad_field", f"seq must be 1 to 2**53, got {alert_event.seq}")
    if not 0 <= alert_event.score <= 1:
        raise DecodeError("bad_field", f"score must be 0 to 1, got {alert_event.score}")
    if len(alert_event.summary) > _MAX_TEXT:
        raise DecodeError("bad_field", f"summary is longer than {_MAX_TEXT} characters")


class Ledger:
    """Records events through a connection that somebody else commits.

    Parameters
    ----------
    routes
        Who is told: plain routes, or anything that decides it.
    rules
        Times of the lifecycle.
    """

    def __init__(
        self, routes: Sequence[Route] | Receivers = (), rules: LifecycleRules | None = None
    ) -> None:
        self._receivers = BySeverity(routes) if isinstance(routes, Sequence) else routes
        self._rules = rules or LifecycleRules()

    def record_all(
        self, connection: sa.Connection, events: Sequence[AlertEvent], now_ms: int
    ) -> list[Entry]:
        """Store a batch of events, as :meth:`record` does one by one."""
        outgoing = Outgoing()
        known = read_histories(connection, events) if len(events) > 1 else {}
        entries = []
        for new in events:
            history = known.get(new.fingerprint)
            entries.append(self.record(connection, new, now_ms, outgoing, history))
            if is_telemetry_loss(new.family, new.kind, new.subject.scope):
                known = {}  # it changes alerts of other fingerprints
        outgoing.write(connection)
        return entries

    def record(
        self,
        connection: sa.Connection,
        new: AlertEvent,
        now_ms: int,
        outgoing: Outgoing | None = None,
        history: Sequence[Episode] | None = None,
    ) -> Entry:
        """Store one event with all that follows from it.

        Parameters
        ----------
        connection
            In a write transaction.
        new
            The event; :func:`check_storable` has passed it.
        now_ms
            Arrival, in unix milliseconds.
        outgoing
            Where notices go until a batch is complete; None writes them now.
        history
            The episodes of its fingerprint, if they were read; None reads them.
        """
        started_ms = parse_time(new.started_at)
        history = read_history(connection, new) if history is None else history
        own = next((e for e in history if e.alert_id == new.alert_id), None)
        others = [e for e in history if e.alert_id != new.alert_id]
        if own is not None and own.standing.seq >= new.seq:
            # It came late or twice; its successor is already shown.
            entry = _log_entry(new, own.standing.state, EventType.LATE, _DETECTOR, now_ms)
            return Entry(event_id=append_event(connection, entry))
        moved = standing_after(
            own.standing if own else None,
            episode_before(others, started_ms),
            firing=new.state == AlertState.FIRING,
            rank=Severity(new.severity).rank,
            started_ms=started_ms,
            end_reason=new.end_reason,
            now_ms=now_ms,
            rules=self._rules,
        )
        entry = _log_entry(new, moved.state, moved.type, _DETECTOR, now_ms)
        event_id = append_event(connection, entry)
        if event_id is None:
            return Entry()
        queued = self._close_earlier(connection, others, started_ms, new.alert_id, now_ms, outgoing)
        later_ms = later_episode(connection, others, new, started_ms)
        if later_ms is not None and moved.state != State.RESOLVED:
            return self._supersede_at_once(connection, own, new, later_ms, event_id, now_ms)
        flapping_ms = self._flapping(own, others, new, moved, started_ms)
        row = _row(new, moved, started_ms, now_ms, entry.payload) | {"flapping_ms": flapping_ms}
        if moved.closed_rank is not None and own is not None:
            row |= {"ended_ms": own.ended_ms, "end_reason": own.end_reason}
        _upsert(connection, row, version=_next_version(own), keep_changed=_unchanged(own, moved))
        _keep_series(connection, new)
        queued += self._tell(connection, own, new, moved, flapping_ms, event_id, now_ms, outgoing)
        if _changes_sight(own, new):
            _mark_stale(connection, new, now_ms)
        return Entry(event_id=event_id, deliveries=queued)

    def _tell(
        self,
        connection: sa.Connection,
        own: Episode | None,
        new: AlertEvent,
        moved: Moved,
        flapping_ms: int | None,
        event_id: int,
        now_ms: int,
        outgoing: Outgoing | None,
    ) -> int:
        """Queue the notices of what happened; while it flaps only that it does."""
        was_flapping = own is not None and own.standing.flapping_ms is not None
        if flapping_ms is None or moved.type == EventType.ESCALATED:
            if moved.type not in TELLING:
                return 0
            return queue_notices(
                connection, self._receivers, new, moved.type, event_id, _DETECTOR, now_ms, outgoing
            )
        begins = flapping_ms == parse_time(new.observed_at) and not was_flapping
        if moved.type not in TELLING or not begins:
            return 0
        entry = replace(
            _log_entry(new, moved.state, EventType.FLAPPING, _LIFECYCLE, now_ms), actor=_API
        )
        told_id = append_event(connection, entry)
        if told_id is None:
            return 0
        return queue_notices(
            connection,
            self._receivers,
            new,
            EventType.FLAPPING,
            told_id,
            _LIFECYCLE,
            now_ms,
            outgoing,
        )

    def _flapping(
        self,
        own: Episode | None,
        others: Sequence[Episode],
        new: AlertEvent,
        moved: Moved,
        started_ms: int,
    ) -> int | None:
        """Return since when the fingerprint has been flapping, in event time, or None."""
        newest = episode_before(others, started_ms)
        for known in (own, newest):
            if known is not None and known.standing.flapping_ms is not None:
                return known.standing.flapping_ms
        at_ms = parse_time(new.observed_at)
        moments = [started_ms] + [e.started_ms for e in others]
        moments += [
            e.ended_ms for e in others if e.ended_ms is not None and e.end_reason != SUPERSEDED
        ]
        if moved.state == State.RESOLVED:
            moments.append(_ended_ms(new) or at_ms)
        return at_ms if is_flapping(moments, at_ms, self._rules) else None

    def _close_earlier(
        self,
        connection: sa.Connection,
        others: Sequence[Episode],
        started_ms: int,
        alert_id: str,
        now_ms: int,
        outgoing: Outgoing | None,
    ) -> int:
        """Close what stands open of the same fingerprint and began before."""
        queued = 0
        for other in others:
            earlier = (other.started_ms, other.alert_id) < (started_ms, alert_id)
            if not earlier or other.standing.state == State.RESOLVED:
                continue
            payload = connection.execute(_PAYLOAD, {"id": other.alert_id}).scalar_one()
            ended = _superseded(decode_alert(payload.encode()), started_ms)
            entry = _log_entry(ended, State.RESOLVED, EventType.SUPERSEDED, _API, now_ms)
            event_id = append_event(connection, entry)
            moved = Moved(
                state=State.RESOLVED,
                type=EventType.SUPERSEDED,
                reopens=other.standing.reopens,
                keeps_ack=True,
                of=other.standing,
            )
            row = _row(ended, moved, other.started_ms, now_ms, entry.payload)
            _upsert(connection, row, version=_next_version(other), keep_changed=False)
            if event_id is not None and other.standing.flapping_ms is None:
                queued += queue_notices(
                    connection,
                    self._receivers,
                    ended,
                    EventType.SUPERSEDED,
                    event_id,
                    _API,
                    now_ms,
                    outgoing,
                )
        return queued

    def _supersede_at_once(
        self,
        connection: sa.Connection,
        own: Episode | None,
        new: AlertEvent,
        later_ms: int,
        event_id: int,
        now_ms: int,
    ) -> Entry:
        """Store an old episode that comes late: its successor is already there."""
        ended = _superseded(new, later_ms)
        entry = _log_entry(ended, State.RESOLVED, EventType.SUPERSEDED, _API, now_ms)
        event_id = append_event(connection, entry) or event_id
        moved = Moved(state=State.RESOLVED, type=EventType.SUPERSEDED)
        row = _row(ended, moved, parse_time(new.started_at), now_ms, entry.payload)
        _upsert(connection, row, version=_next_version(own), keep_changed=False)
        _keep_series(connection, new)
        return Entry(event_id=event_id)


_PAYLOAD = sa.select(alert.c.payload).where(alert.c.alert_id == sa.bindparam("id"))
#: What a later event of the detector leaves as it is.
_KEPT = frozenset({"alert_id", "received_ms", "feedback", "snoozed_until_ms", "remind_ms"})


@cache
def _upsert_statement(insert: Any) -> Any:
    new = insert(alert)
    return new.on_conflict_do_update(
        index_elements=["alert_id"],
        set_={
            column.name: new.excluded[column.name]
            for column in alert.columns
            if column.name not in _KEPT | {"changed_ms"}
        }
        | {
            "changed_ms": sa.case(
                (new.excluded.changed_ms == 0, alert.c.changed_ms),
                else_=new.excluded.changed_ms,
            )
        },
        where=new.excluded.seq >= alert.c.seq,
    )


@cache
def _series_statement(insert: Any) -> Any:
    new = insert(series)
    return new.on_conflict_do_update(
        index_elements=["alert_id"],
        set_={"seq": new.excluded.seq, "payload": new.excluded.payload},
    )


def _upsert(
    connection: sa.Connection, row: dict[str, object], *, version: int, keep_changed: bool
) -> None:
    row |= {"version": version}
    if keep_changed:
        row["changed_ms"] = 0
    connection.execute(_upsert_statement(insert_of(connection)), row)


def _keep_series(connection: sa.Connection, new: AlertEvent) -> None:
    """Keep the newest series beside the alert; an event without any leaves the last ones."""
    if new.series:
        row = {
            "alert_id": new.alert_id,
            "seq": new.seq,
            "payload": orjson.dumps(new.series).decode(),
        }
        connection.execute(_series_statement(insert_of(connection)), row)


def _changes_sight(own: Episode | None, new: AlertEvent) -> bool:
    """Tell whether the event begins or ends a loss of telemetry."""
    if not is_telemetry_loss(new.family, new.kind, new.subject.scope):
        return False
    was_firing = own is not None and own.standing.state != State.RESOLVED
    return was_firing != (new.state == AlertState.FIRING)


def _mark_stale(connection: sa.Connection, loss: AlertEvent, now_ms: int) -> None:
    """Mark the open alerts of a node that is not seen any more, or give them back."""
    lost = loss.state == AlertState.FIRING
    affected = sa.select(alert).where(
        IS_OPEN,
        alert.c.node == loss.subject.node,
        alert.c.family != "telemetry",
        alert.c.state != State.STALE if lost else alert.c.stale_by == loss.fingerprint,
    )
    for row in connection.execute(affected).mappings().all():
        acked = row["ack_until_ms"] is not None and row["ack_until_ms"] > now_ms
        back = State.ACKNOWLEDGED if acked else State.FIRING
        state = State.STALE if lost else back
        version = row["version"] + 1
        connection.execute(
            sa.update(alert)
            .where(alert.c.alert_id == row["alert_id"])
            .values(
                state=state.value,
                version=version,
                changed_ms=now_ms,
                stale_ms=now_ms if lost else None,
                stale_by=loss.fingerprint if lost else None,
            )
        )
        append_event(
            connection,
            LogEntry(
                alert_id=row["alert_id"],
                seq=version,
                origin=_LIFECYCLE,
                type=EventType.STALE if lost else EventType.RETURNED,
                state=state.value,
                severity=row["severity"],
                observed_ms=parse_time(loss.observed_at),
                received_ms=now_ms,
                payload="null",
                actor=_API,
                detail={"because_of": loss.alert_id},
            ),
        )


def _superseded(old: AlertEvent, by_ms: int) -> AlertEvent:
    moment = rfc3339(max(by_ms, parse_time(old.observed_at)))
    return replace(
        old,
        state=AlertState.RESOLVED.value,
        observed_at=moment,
        ended_at=rfc3339(by_ms),
        end_reason=SUPERSEDED,
    )


def _next_version(known: Episode | None) -> int:
    return 1 if known is None else known.version + 1


def _unchanged(own: Episode | None, moved: Moved) -> bool:
    return own is not None and own.standing.state == moved.state


def _log_entry(
    new: AlertEvent, state: str, happened: EventType, origin: str, now_ms: int
) -> LogEntry:
    return LogEntry(
        alert_id=new.alert_id,
        seq=new.seq,
        origin=origin,
        type=happened.value,
        state=state,
        severity=new.severity,
        observed_ms=parse_time(new.observed_at),
        received_ms=now_ms,
        payload=_payload(new),
        actor=_DETECTOR if origin == _DETECTOR else _API,
    )


def _payload(new: AlertEvent) -> str:
    return encode(replace(new, series=()) if new.series else new).decode()


def _ended_ms(shown: AlertEvent) -> int | None:
    if shown.ended_at is not None:
        return parse_time(shown.ended_at)
    return parse_time(shown.observed_at) if shown.state == AlertState.RESOLVED else None


def _row(
    shown: AlertEvent, moved: Moved, started_ms: int, now_ms: int, payload: str
) -> dict[str, object]:
    subject, labels = shown.subject, shown.labels or {}
    own = moved.of
    acked = own if own is not None and moved.keeps_ack else None
    return {
        "alert_id": shown.alert_id,
        "fingerprint": shown.fingerprint,
        "seq": shown.seq,
        "state": moved.state.value,
        "severity": shown.severity,
        "severity_rank": Severity(shown.severity).rank,
        "family": shown.family,
        "kind": shown.kind,
        "scope": subject.scope,
        "node": subject.node,
        "gpu_uuid": subject.gpu_uuid,
        "job": subject.job,
        "rack": subject.rack or labels.get("rack"),
        "cluster": labels.get("cluster"),
        "project": subject.project,
        "caused_by": shown.caused_by,
        "summary": shown.summary,
        "started_ms": started_ms,
        "last_seen_ms": parse_time(shown.observed_at),
        "ended_ms": _ended_ms(shown) if moved.state == State.RESOLVED else None,
        "end_reason": shown.end_reason if moved.state == State.RESOLVED else None,
        "received_ms": now_ms,
        "changed_ms": now_ms,
        "payload": payload,
        "acked_by": acked.acked_by if acked else None,
        "acked_ms": acked.acked_ms if acked else None,
        "ack_until_ms": acked.ack_until_ms if acked else None,
        "ack_rank": acked.ack_rank if acked else None,
        "assignee": own.assignee if own else None,
        "stale_ms": now_ms if moved.state == State.STALE else None,
        "stale_by": None,
        "flapping_ms": None,
        "reopens": moved.reopens,
        "closed_rank": moved.closed_rank,
    }
