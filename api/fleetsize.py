"""How many nodes the fleet has: what the operator says, else what alerts have named."""

from __future__ import annotations

import threading
from collections.abc import Callable

import sqlalchemy as sa

from api.database import Database
from api.grouping import MANY_NODES
from api.tables import alert

__all__ = ["FleetSize"]

#: Counting reads an index of all alerts; a fleet grows slowly.
_KEPT_MS = 5 * 60_000


class FleetSize:
    """Knows how many nodes there are. Safe to share between threads.

    Parameters
    ----------
    database
        The store.
    nodes
        What the settings say, or None.
    now_ms
        Clock, unix milliseconds.
    """

    def __init__(self, database: Database, nodes: int | None, now_ms: Callable[[], int]) -> None:
        self._database = database
        self._given = nodes
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._counted: tuple[int, int] | None = None

    def nodes(self) -> int:
        """Return the number of nodes.

        Those that alerts have named are some of them: they make the fleet larger than ten tens of
        nodes, never smaller, so that three faults of a large fleet are not taken for all of it.
        """
        if self._given is not None:
            return self._given
        now_ms = self._now_ms()
        with self._lock:
            if self._counted is None or now_ms - self._counted[0] >= _KEPT_MS:
                query = sa.select(sa.func.count(sa.distinct(alert.c.node)))
                with self._database.read() as connection:
                    self._counted = (now_ms, connection.execute(query).scalar_one())
            return max(10 * MANY_NODES, self._counted[1])
