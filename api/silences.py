"""Silences: who is not told of what, for how long, and why.

A silence has matchers, a comment, an author and an end; it may come back weekly until then. It
hides nothing: silenced alerts stay in every list. Notices are compared with silences when they are
claimed, so that one made now also stops what is already queued.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from api.decision import SilenceSource
from api.inhibition import AlertFacts
from api.matchers import Matcher, check_matchers, matches
from api.recurrence import Recurrence
from api.tables import silence

__all__ = ["Silence", "SilenceError", "Silences", "state_of"]

_DAY_MS = 86_400_000
MAX_COMMENT = 1000


class SilenceError(ValueError):
    """A silence cannot be made as asked; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """One silence.

    Parameters
    ----------
    starts_ms, ends_ms
        When it holds, unix milliseconds; with a recurrence: between which windows count.
    recurrence
        Weekly windows, or None for the whole time.
    """

    id: str
    version: int
    matchers: tuple[Matcher, ...]
    comment: str
    created_by: str
    created_ms: int
    updated_ms: int
    starts_ms: int
    ends_ms: int
    recurrence: Recurrence | None = None

    def in_force(self, unix_ms: int) -> bool:
        """Tell whether it silences at this moment."""
        if not self.starts_ms <= unix_ms < self.ends_ms:
            return False
        return self.recurrence is None or self.recurrence.covers(unix_ms)

    def covers(self, labels: Mapping[str, str], unix_ms: int) -> bool:
        """Tell whether it silences an alert with these words at this moment."""
        return self.in_force(unix_ms) and matches(self.matchers, labels)


def state_of(one: Silence, now_ms: int) -> str:
    """Return ``pending``, ``active``, ``waiting`` (between two windows) or ``expired``."""
    if now_ms >= one.ends_ms:
        return "expired"
    if now_ms < one.starts_ms:
        return "pending"
    return "active" if one.in_force(now_ms) else "waiting"


def check_silence(one: Silence, *, max_days: int) -> None:
    """Refuse a silence that hides too much or for too long.

    Raises
    ------
    SilenceError
        With a sentence that repeats no value.
    """
    try:
        check_matchers(one.matchers)
    except ValueError as exc:
        raise SilenceError(str(exc)) from exc
    if not one.comment.strip():
        raise SilenceError("a silence needs a comment that says why")
    if len(one.comment) > MAX_COMMENT:
        raise SilenceError(f"the comment has at most {MAX_COMMENT} characters")
    if one.ends_ms <= one.starts_ms:
        raise SilenceError("a silence ends after it starts")
    if one.ends_ms - one.starts_ms > max_days * _DAY_MS:
        raise SilenceError(f"a silence lasts at most {max_days} days")


class Silences(SilenceSource):
    """The silences in the store. Every method works in the caller's transaction."""

    def get(self, connection: sa.Connection, silence_id: str) -> Silence | None:
        """Return one silence, or None."""
        row = (
            connection.execute(sa.select(silence).where(silence.c.id == silence_id))
            .mappings()
            .one_or_none()
        )
        return None if row is None else _silence(row)

    def all(self, connection: sa.Connection, *, ending_after_ms: int = 0) -> list[Silence]:
        """Return the silences that end after a moment, the next to end first."""
        query = (
            sa.select(silence)
            .where(silence.c.ends_ms > ending_after_ms)
            .order_by(silence.c.ends_ms, silence.c.id)
        )
        return [_silence(row) for row in connection.execute(query).mappings()]

    def page(
        self,
        connection: sa.Connection,
        *,
        ending_after_ms: int,
        limit: int,
        after: tuple[int, str] | None,
    ) -> tuple[list[Silence], tuple[int, str] | None]:
        """Return some of :meth:`all` after a place, and the place after which the rest begins."""
        key = sa.tuple_(silence.c.ends_ms, silence.c.id)
        query = (
            sa.select(silence)
            .where(silence.c.ends_ms > ending_after_ms)
            .order_by(silence.c.ends_ms, silence.c.id)
            .limit(limit + 1)
        )
        if after is not None:
            query = query.where(key > sa.tuple_(sa.literal(after[0]), sa.literal(after[1])))
        found = [_silence(row) for row in connection.execute(query).mappings()]
        page = found[:limit]
        last = (page[-1].ends_ms, page[-1].id) if len(found) > limit else None
        return page, last

    def put(self, connection: sa.Connection, one: Silence) -> None:
        """Store a new silence, or the next version of one."""
        values = _values(one)
        if one.version == 1:
            connection.execute(sa.insert(silence).values(values))
            return
        connection.execute(sa.update(silence).where(silence.c.id == one.id).values(values))

    def forget_ended(self, connection: sa.Connection, before_ms: int) -> int:
        """Remove what ended long ago; return how many."""
        return connection.execute(sa.delete(silence).where(silence.c.ends_ms < before_ms)).rowcount

    def matching(
        self, connection: sa.Connection, facts: Sequence[AlertFacts], now_ms: int
    ) -> Mapping[str, str]:
        """Return alert id to the id of a silence in force that matches it."""
        active = [s for s in self._current(connection, now_ms) if s.in_force(now_ms)]
        return {
            one.alert_id: found.id
            for one in facts
            if (found := first_of(active, one.labels or {})) is not None
        }

    def _current(self, connection: sa.Connection, now_ms: int) -> list[Silence]:
        query = sa.select(silence).where(silence.c.ends_ms > now_ms, silence.c.starts_ms <= now_ms)
        rows = connection.execute(query.order_by(silence.c.id)).mappings()
        return [_silence(row) for row in rows]


def first_of(silences: Iterable[Silence], labels: Mapping[str, str]) -> Silence | None:
    """Return the first silence whose matchers hold, or None."""
    return next((one for one in silences if matches(one.matchers, labels)), None)


def new_id() -> str:
    """Return the id of a new silence."""
    return str(uuid.uuid4())


def _values(one: Silence) -> dict[str, object]:
    recurrence = None
    if one.recurrence is not None:
        recurrence = orjson.dumps(one.recurrence).decode()
    return {
        "id": one.id,
        "version": one.version,
        "matchers": orjson.dumps(one.matchers).decode(),
        "comment": one.comment,
        "created_by": one.created_by,
        "created_ms": one.created_ms,
        "updated_ms": one.updated_ms,
        "starts_ms": one.starts_ms,
        "ends_ms": one.ends_ms,
        "recurrence": recurrence,
    }


def _silence(row: Mapping[Any, Any]) -> Silence:  # Any: a row mapping is untyped
    again = orjson.loads(row["recurrence"]) if row["recurrence"] else None
    if again is not None:
        again = Recurrence(**again | {"weekdays": tuple(again["weekdays"])})
    return Silence(
        id=row["id"],
        version=row["version"],
        matchers=tuple(Matcher(**one) for one in orjson.loads(row["matchers"])),
        comment=row["comment"],
        created_by=row["created_by"],
        created_ms=row["created_ms"],
        updated_ms=row["updated_ms"],
        starts_ms=row["starts_ms"],
        ends_ms=row["ends_ms"],
        recurrence=again,
    )
