"""Paces of receivers in the store."""

from __future__ import annotations

from dataclasses import fields

import sqlalchemy as sa

from api.database import insert_of
from api.notify.pacing import Pace
from api.tables import pace

__all__ = ["read_pace", "save_pace"]

_FIELDS = tuple(f.name for f in fields(Pace))
_READ = sa.select(*(pace.c[name] for name in _FIELDS)).where(
    pace.c.endpoint == sa.bindparam("name")
)
_LOCKED = _READ.with_for_update()


def read_pace(connection: sa.Connection, endpoint: str, *, lock: bool = False) -> Pace:
    """Return the pace of an endpoint; a fresh one if nothing is known.

    Parameters
    ----------
    lock
        Whether other processes must wait until this transaction has ended.
    """
    row = connection.execute(_LOCKED if lock else _READ, {"name": endpoint}).mappings().first()
    return Pace() if row is None else Pace(**row)


def save_pace(connection: sa.Connection, endpoint: str, new: Pace) -> None:
    """Store the pace of an endpoint."""
    values = {name: getattr(new, name) for name in _FIELDS}
    statement = insert_of(connection)(pace).values(endpoint=endpoint, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["endpoint"], set_=values))
