"""Tells an Alertmanager again and again what still fires, as it expects of its clients.

It keeps alerts in memory only, and takes for over what nobody has pushed again by its end. Each
minute every open alert that such an endpoint was told is pushed with an end that lies ahead; ends
go through the queue like any notification. One that ends while it is being pushed is pushed once
more as ended, so that the later word is the true one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
import structlog

from api.database import Database
from api.metrics import ApiMetrics
from api.notify.base import Channel, Notice
from api.notify.retry import Verdict
from api.tables import IS_OPEN, DeliveryState, alert, delivery
from schemas.alert import rfc3339
from schemas.errors import ForeshockError

__all__ = ["Renewal"]

_EVERY_SECONDS = 60.0
_BATCH = 200

_log = structlog.get_logger(__name__)
Event = Mapping[str, Any]  # decoded JSON of an AlertEvent


class Renewal:
    """Pushes what still fires to the endpoints that need it.

    Parameters
    ----------
    database
        The store.
    names
        Returns the endpoints that need it.
    channel
        Returns the way to one.
    metrics
        Counters.
    """

    def __init__(
        self,
        database: Database,
        *,
        names: Callable[[], Sequence[str]],
        channel: Callable[[str], Channel],
        metrics: ApiMetrics,
    ) -> None:
        self._database = database
        self._names = names
        self._channel = channel
        self._metrics = metrics
        self._busy: dict[str, threading.Thread] = {}
        self._failed: set[str] = set()

    def run(self, stop: threading.Event) -> None:
        """Push each minute until ``stop`` is set; one that hangs holds up no other."""
        while not stop.wait(_EVERY_SECONDS):
            for name in self._names():
                before = self._busy.get(name)
                if before is None or not before.is_alive():
                    thread = threading.Thread(
                        target=self._guarded, args=(name,), name="foreshock-renew", daemon=True
                    )
                    self._busy[name] = thread
                    thread.start()

    def _guarded(self, name: str) -> None:
        begun = time.monotonic()
        try:
            self.once(name)
        except ForeshockError as exc:
            _log.warning("renewal_failed", endpoint=name, error=str(exc))
        except Exception as exc:  # noqa: BLE001 - the next minute tries again
            _log.exception("renewal_failed", endpoint=name, error=type(exc).__name__)
        spent = time.monotonic() - begun
        if spent > _EVERY_SECONDS:
            _log.warning("renewal_slow", endpoint=name, seconds=round(spent))

    def once(self, name: str) -> int:
        """Push what still fires to one endpoint; return how many alerts it has taken."""
        with self._database.read() as connection:
            rows = connection.execute(_STILL, {"endpoint": name}).all()
        taken = 0
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            if not self._push(name, [orjson.loads(row.payload) for row in batch]):
                return taken
            taken += len(batch)
            ended = self._ended_meanwhile([row.alert_id for row in batch])
            if ended:
                self._push(name, ended)
        return taken

    def _push(self, name: str, events: Sequence[Event]) -> bool:
        notice = Notice(webhook_id="renewal", attempt=1, event=events[0], digest=tuple(events))
        outcome = self._channel(name).deliver(notice)
        done = outcome.verdict is Verdict.DELIVERED
        result = "taken" if done else "failed"
        self._metrics.renewals.labels(endpoint=name, result=result).inc()
        if not done and name not in self._failed:
            _log.warning("renewal_failed", endpoint=name, error=outcome.error)
        (self._failed.discard if done else self._failed.add)(name)
        return done

    def _ended_meanwhile(self, ids: Sequence[str]) -> list[Event]:
        query = sa.select(alert.c.payload, alert.c.ended_ms, alert.c.end_reason).where(
            alert.c.alert_id.in_(ids), sa.not_(IS_OPEN)
        )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [
            orjson.loads(row.payload)
            | {"state": "resolved", "ended_at": rfc3339(row.ended_ms), "end_reason": row.end_reason}
            for row in rows
        ]


_STILL = (
    sa.select(alert.c.alert_id, alert.c.payload)
    .where(
        IS_OPEN,
        sa.exists().where(
            delivery.c.endpoint == sa.bindparam("endpoint"),
            delivery.c.alert_id == alert.c.alert_id,
            delivery.c.state == DeliveryState.DONE,
        ),
    )
    .order_by(alert.c.started_ms, alert.c.alert_id)
)
