"""What people do with an alert: acknowledge, assign, comment, judge, close, open again.

Each action is planned by a pure function and carried out in one transaction with its entries in the
timeline and the audit log. The same action twice is done once: the second finds nothing to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from api.lifecycle import EventType, Feedback, State
from api.notices import LogEntry, Receivers, append_event, queue_notices
from api.security.auditing import record_audit
from api.tables import alert
from schemas.alert import rfc3339
from schemas.codec import decode_alert, encode

__all__ = [
    "ActionKind",
    "ActionRefusedError",
    "ActionRequest",
    "Actions",
    "NotFoundError",
    "StaleVersionError",
]

ACK_MS = 24 * 3_600_000
BY_HAND = "resolved_by_hand"


class ActionRefusedError(Exception):
    """The alert is not in a state in which this can be done; the text says why."""


class NotFoundError(Exception):
    """There is no such alert."""


class StaleVersionError(Exception):
    """Somebody else has changed the alert meanwhile."""


class ActionKind(StrEnum):
    """What can be done."""

    ACK = "ack"
    UNACK = "unack"
    RESOLVE = "resolve"
    REOPEN = "reopen"
    ASSIGN = "assign"
    COMMENT = "comment"
    FEEDBACK = "feedback"
    SNOOZE = "snooze"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRequest:
    """What somebody wants.

    Parameters
    ----------
    kind
        Which action.
    comment
        Why, for the timeline.
    until_ms
        End of an acknowledgement or of a snooze, unix milliseconds.
    assignee
        Who has it from now on; None takes it away.
    feedback
        What it was found to be.
    """

    kind: ActionKind
    comment: str | None = None
    until_ms: int | None = None
    assignee: str | None = None
    feedback: Feedback | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What an action changes, and what it says in the timeline."""

    type: EventType
    values: Mapping[str, object] = field(default_factory=dict)
    detail: Mapping[str, object] = field(default_factory=dict)


_Row = Mapping[Any, Any]  # a row mapping is untyped
_NO_ALERT = "There is no alert with this id."


class Actions:
    """Carries out actions in the caller's transaction.

    Parameters
    ----------
    receivers
        Who is told when somebody closes or opens an alert by hand.
    ack_ms
        How long an acknowledgement without an end lasts.
    """

    def __init__(self, receivers: Receivers, ack_ms: int = ACK_MS) -> None:
        self._receivers = receivers
        self._ack_ms = ack_ms

    def check(self, connection: sa.Connection, alert_id: str, request: ActionRequest) -> bool:
        """Tell whether it would change anything, without doing it.

        Raises
        ------
        NotFoundError
            If there is no such alert.
        ActionRefusedError
            If it cannot be done.
        """
        return self._plan(connection, _read(connection, alert_id), request, 0) is not None

    def apply(
        self,
        connection: sa.Connection,
        alert_id: str,
        request: ActionRequest,
        *,
        actor: str,
        now_ms: int,
        if_version: int | None = None,
        request_id: str | None = None,
    ) -> bool:
        """Do it; False if there was nothing to change.

        Parameters
        ----------
        connection
            In a write transaction.
        actor
            Who, from the credential.
        if_version
            Version of the alert that the actor has seen; None takes any.

        Raises
        ------
        NotFoundError
            If there is no such alert.
        StaleVersionError
            If it has another version by now.
        ActionRefusedError
            If it cannot be done.
        """
        row = _read(connection, alert_id)
        if if_version is not None and row["version"] != if_version:
            raise StaleVersionError
        change = self._plan(connection, row, request, now_ms)
        if change is None:
            return False
        state = str(change.values.get("state", row["state"]))
        version = row["version"] + 1
        changed: dict[str, object] = {"changed_ms": now_ms} if state != row["state"] else {}
        if change.type is EventType.ACKNOWLEDGED:
            changed["acked_by"] = actor
        connection.execute(
            sa.update(alert)
            .where(alert.c.alert_id == alert_id)
            .values(**change.values, **changed, version=version)
        )
        self._log(connection, row, request, change, state, actor, now_ms)
        record_audit(
            connection,
            actor=actor,
            action=f"alert.{request.kind.value}",
            object_type="alert",
            object_id=alert_id,
            now_ms=now_ms,
            detail=dict(change.detail) or None,
            request_id=request_id,
        )
        return True

    def _plan(
        self, connection: sa.Connection, row: _Row, request: ActionRequest, now_ms: int
    ) -> _Change | None:
        if request.kind is ActionKind.ACK:
            return _ack(row, request, now_ms, self._ack_ms)
        if request.kind is ActionKind.REOPEN:
            _refuse_second_open(connection, row)
        return _PLANS[request.kind](row, request, now_ms)

    def _log(
        self,
        connection: sa.Connection,
        row: _Row,
        request: ActionRequest,
        change: _Change,
        state: str,
        actor: str,
        now_ms: int,
    ) -> None:
        detail = dict(change.detail)
        if request.comment:
            detail["comment"] = request.comment
        tells = request.kind in {ActionKind.RESOLVE, ActionKind.REOPEN}
        entry = LogEntry(
            alert_id=row["alert_id"],
            seq=row["version"] + 1,
            origin="operator",
            type=change.type.value,
            state=state,
            severity=row["severity"],
            observed_ms=now_ms,
            received_ms=now_ms,
            payload=_told_payload(row, state, now_ms) if tells else "null",
            actor=actor,
            detail=detail or None,
        )
        event_id = append_event(connection, entry)
        if tells and event_id is not None:
            new = decode_alert(entry.payload.encode())
            queue_notices(
                connection, self._receivers, new, change.type, event_id, "operator", now_ms
            )


def _read(connection: sa.Connection, alert_id: str) -> _Row:
    query = sa.select(alert).where(alert.c.alert_id == alert_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFoundError(_NO_ALERT)
    return row


def _told_payload(row: _Row, state: str, now_ms: int) -> str:
    """Return the event that people are told: what the detector said, ended or opened by hand."""
    old = decode_alert(row["payload"].encode())
    if state == State.RESOLVED:
        ended = rfc3339(max(now_ms, row["started_ms"]))
        told = replace(old, state="resolved", ended_at=ended, end_reason=BY_HAND, observed_at=ended)
    else:
        told = replace(old, state="firing", ended_at=None, end_reason=None)
    return encode(told).decode()


def _need_open(row: _Row) -> None:
    if row["state"] == State.RESOLVED:
        raise ActionRefusedError("The alert is resolved; reopen it first.")


def _ack(row: _Row, request: ActionRequest, now_ms: int, ack_ms: int) -> _Change | None:
    _need_open(row)
    until_ms = request.until_ms or now_ms + ack_ms
    if request.until_ms is None and row["acked_ms"] is not None and not request.comment:
        return None  # it has been acknowledged; asking again changes nothing
    stale = row["state"] == State.STALE
    return _Change(
        type=EventType.ACKNOWLEDGED,
        values={
            "state": State.STALE.value if stale else State.ACKNOWLEDGED.value,
            "acked_ms": now_ms,
            "ack_until_ms": until_ms,
            "ack_rank": row["severity_rank"],
        },
        detail={"until": rfc3339(until_ms)},
    )


def _unack(row: _Row, _request: ActionRequest, _now_ms: int) -> _Change | None:
    _need_open(row)
    if row["acked_ms"] is None:
        return None
    stale = row["state"] == State.STALE
    return _Change(
        type=EventType.UNACKNOWLEDGED,
        values={
            "state": State.STALE.value if stale else State.FIRING.value,
            "acked_by": None,
            "acked_ms": None,
            "ack_until_ms": None,
            "ack_rank": None,
        },
    )


def _resolve(row: _Row, _request: ActionRequest, now_ms: int) -> _Change | None:
    if row["state"] == State.RESOLVED:
        return None
    return _Change(
        type=EventType.RESOLVED,
        values={
            "state": State.RESOLVED.value,
            "ended_ms": max(now_ms, row["started_ms"]),
            "end_reason": BY_HAND,
            "closed_rank": row["severity_rank"],
            "stale_ms": None,
            "stale_by": None,
        },
    )


def _reopen(row: _Row, _request: ActionRequest, _now_ms: int) -> _Change | None:
    if row["state"] != State.RESOLVED:
        return None
    return _Change(
        type=EventType.REOPENED,
        values={
            "state": State.FIRING.value,
            "ended_ms": None,
            "end_reason": None,
            "closed_rank": None,
            "acked_by": None,
            "acked_ms": None,
            "ack_until_ms": None,
            "ack_rank": None,
        },
    )


def _assign(row: _Row, request: ActionRequest, _now_ms: int) -> _Change | None:
    if row["assignee"] == request.assignee:
        return None
    return _Change(
        type=EventType.ASSIGNED,
        values={"assignee": request.assignee},
        detail={"assignee": request.assignee},
    )


def _comment(_row: _Row, _request: ActionRequest, _now_ms: int) -> _Change | None:
    return _Change(type=EventType.COMMENTED)


def _feedback(row: _Row, request: ActionRequest, _now_ms: int) -> _Change | None:
    verdict = request.feedback.value if request.feedback else None
    if row["feedback"] == verdict and not request.comment:
        return None
    return _Change(
        type=EventType.FEEDBACK, values={"feedback": verdict}, detail={"feedback": verdict}
    )


def _snooze(row: _Row, request: ActionRequest, now_ms: int) -> _Change | None:
    _need_open(row)
    until_ms = request.until_ms or now_ms
    return _Change(
        type=EventType.SNOOZED,
        values={"snoozed_until_ms": until_ms},
        detail={"until": rfc3339(until_ms)},
    )


def _refuse_second_open(connection: sa.Connection, row: _Row) -> None:
    newer = sa.select(alert.c.alert_id).where(
        alert.c.fingerprint == row["fingerprint"],
        alert.c.alert_id != row["alert_id"],
        alert.c.started_ms >= row["started_ms"],
    )
    if connection.execute(newer.limit(1)).first() is not None:
        raise ActionRefusedError("A newer alert of the same fault is known; work with that one.")


_PLANS: dict[ActionKind, Callable[[_Row, ActionRequest, int], _Change | None]] = {
    ActionKind.UNACK: _unack,
    ActionKind.RESOLVE: _resolve,
    ActionKind.REOPEN: _reopen,
    ActionKind.ASSIGN: _assign,
    ActionKind.COMMENT: _comment,
    ActionKind.FEEDBACK: _feedback,
    ActionKind.SNOOZE: _snooze,
}
