"""The audit log: who did what, when. Only ever appended to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import sqlalchemy as sa

from api.tables import audit
from schemas.alert import rfc3339

__all__ = ["last_audit_id", "read_audit", "record_audit"]


def record_audit(
    connection: sa.Connection,
    *,
    actor: str,
    action: str,
    object_type: str,
    object_id: str,
    now_ms: int,
    detail: Mapping[str, object] | None = None,
    request_id: str | None = None,
) -> None:
    """Append what somebody did, in the transaction in which it is done.

    Parameters
    ----------
    actor
        From the credential.
    action
        Fixed word: alert.ack, silence.create, key.revoke, …
    object_type, object_id
        To what.
    detail
        What else; never a secret.
    request_id
        Also in the answer and the log.
    """
    connection.execute(
        sa.insert(audit).values(
            at_ms=now_ms,
            actor=actor,
            action=action,
            object_type=object_type,
            object_id=object_id,
            detail=None if detail is None else orjson.dumps(detail).decode(),
            request_id=request_id,
        )
    )


def read_audit(
    connection: sa.Connection,
    *,
    before: int | None,
    limit: int,
    object_type: str | None = None,
    object_id: str | None = None,
    actor: str | None = None,
) -> list[dict[str, Any]]:  # JSON
    """Return entries, newest first, with ids below ``before``."""
    query = sa.select(audit).order_by(audit.c.id.desc()).limit(limit)
    for column, value in (
        (audit.c.object_type, object_type),
        (audit.c.object_id, object_id),
        (audit.c.actor, actor),
    ):
        if value is not None:
            query = query.where(column == value)
    if before is not None:
        query = query.where(audit.c.id < before)
    return [
        {
            "id": row["id"],
            "at": rfc3339(row["at_ms"]),
            "actor": row["actor"],
            "action": row["action"],
            "object_type": row["object_type"],
            "object_id": row["object_id"],
            "detail": None if row["detail"] is None else orjson.loads(row["detail"]),
            "request_id": row["request_id"],
        }
        for row in connection.execute(query).mappings()
    ]


def last_audit_id(connection: sa.Connection) -> int:
    """Return the newest id; 0 if nothing was ever done."""
    return connection.execute(sa.select(sa.func.max(audit.c.id))).scalar() or 0
