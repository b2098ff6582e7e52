"""The receivers that exist now: those of the settings file and those made over REST.

The parts that deliver hold the roster's own mappings and see every change without a restart.
Another process's change is seen at the next look, a few seconds later.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa
import structlog

from api.database import Database
from api.endpoints import EndpointSettings
from api.endpointstore import EndpointStore, StoredEndpoint
from api.notices import Route
from api.notify.base import Channel
from api.notify.channel import channel_of, target_of, terms_of
from api.notify.claims import Terms
from api.notify.queue import WAITING
from api.notify.sender import Sender
from api.notify.worker import Target
from api.routing import Routing
from api.security.auditing import record_audit
from api.settings import DeliverySettings
from api.tables import DeliveryState, delivery
from schemas.errors import ConfigError

__all__ = ["Entry", "Roster", "cancel_waiting"]

#: Who switches off what says that it is gone.
_DELIVERY = "delivery"
_GONE = "the endpoint is disabled, deleted or no longer in the settings"
_log = structlog.get_logger(__name__)
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One receiver.

    Parameters
    ----------
    settings
        How it is reached; None if its secrets cannot be opened.
    stored
        Its row, or None for one of the settings file.
    problem
        Why nothing can be sent, or None.
    """

    settings: EndpointSettings | None
    stored: StoredEndpoint | None = None
    problem: str | None = None

    @property
    def active(self) -> bool:
        """Whether notifications go to it."""
        return self.settings is not None and self.settings.enabled


class Roster:
    """Every receiver, and what delivery needs of it. Safe to share between threads.

    Parameters
    ----------
    database, store
        Where those made over REST lie.
    fixed
        Those of the settings file: a stored one of the same name gives way.
    sender, delivery
        How notifications are sent.
    routing
        The routing tree, kept up to date.

    Raises
    ------
    ConfigError
        If a secret of the settings file cannot be read.
    """

    def __init__(
        self,
        database: Database,
        store: EndpointStore,
        *,
        fixed: Sequence[EndpointSettings],
        sender: Sender,
        delivery: DeliverySettings,
        routing: Routing,
    ) -> None:
        self.store = store
        self.targets: dict[str, Target] = {}
        self.terms: dict[str, Terms] = {}
        #: Everybody by severity alone: that one of them is deaf concerns every other one.
        self.everybody = Routing()
        self._database = database
        self._sender = sender
        self._delivery = delivery
        self._routing = routing
        self._lock = threading.Lock()
        self._fixed = {e.name: Entry(settings=e) for e in fixed}
        self._fixed_targets = {e.name: target_of(e, sender, delivery) for e in fixed if e.enabled}
        self._entries: dict[str, Entry] = dict(self._fixed)
        self._seen: object = None
        self._sweeps = 0
        self._take_over({})

    def start(self, now_ms: int) -> None:
        """Seal anew what an older key sealed, read the rows, cancel what waits for nobody."""
        with self._database.write_beside() as connection:
            resealed = self.store.reseal(connection)
        if resealed:
            _log.info("secrets_resealed", endpoints=resealed)
        self.refresh(now_ms)

    def refresh(self, now_ms: int) -> bool:
        """Take over what was changed since the last look; tell whether anything was."""
        with self._database.read() as connection:
            rows = self.store.all(connection)
        marks = tuple(
            (row.name, row.version, row.sealed, (row.overlap_until_ms or 0) > now_ms)
            for row in rows
        )
        with self._lock:
            changed = marks != self._seen
            if changed:
                self._seen = marks
                self._take_over({row.name: self._opened(row, now_ms) for row in rows})
                self._sweeps = 2  # a notice may be queued while the change is being taken over
            sweeping = self._sweeps > 0
            self._sweeps = max(0, self._sweeps - 1)
        if sweeping:
            self._sweep(now_ms)
        return changed

    def entries(self) -> list[Entry]:
        """Return every receiver by name."""
        with self._lock:
            return [entry for _, entry in sorted(self._entries.items())]

    def get(self, name: str) -> Entry | None:
        """Return one receiver, or None."""
        with self._lock:
            return self._entries.get(name)

    def names(self) -> frozenset[str]:
        """Return every name, also of those that are switched off."""
        with self._lock:
            return frozenset(self._entries)

    def meant(self) -> frozenset[str]:
        """Return the names that somebody means to be told, though they may have said to be gone."""
        return frozenset(
            name
            for name, entry in self._entries.items()
            if entry.active
            or entry.problem is not None
            or (entry.stored is not None and entry.stored.updated_by == _DELIVERY)
        )

    def switch_off(self, name: str, now_ms: int) -> None:
        """Switch off one made over REST that has said that it is gone for good.

        What stands in the settings file is the operator's: there every notification is given up
        by itself.
        """
        with self._database.write_beside() as connection:
            row = self.store.get(connection, name, lock=True)
            fixed = name in self._fixed
            if row is None or fixed or not row.enabled:
                return
            self.store.set_enabled(connection, row, enabled=False, actor=_DELIVERY, now_ms=now_ms)
            record_audit(
                connection,
                actor=_DELIVERY,
                action="endpoint.disable",
                object_type="endpoint",
                object_id=name,
                now_ms=now_ms,
                detail={"reason": "it answered that it is gone (410)"},
            )
        _log.error("endpoint_gone", endpoint=name)
        self.refresh(now_ms)

    def channel(self, name: str) -> Channel:
        """Return the way to a receiver, the one that real notifications go.

        Raises
        ------
        ConfigError
            If there is none, or its secrets cannot be opened.
        """
        target = self.targets.get(name)
        if target is not None:
            return target.channel
        entry = self.get(name)
        if entry is None or entry.settings is None:
            raise ConfigError((entry and entry.problem) or f"There is no endpoint {name}.")
        return channel_of(entry.settings, self._sender, self._delivery)

    def _opened(self, row: StoredEndpoint, now_ms: int) -> Entry:
        try:
            settings = self.store.settings_of(row, now_ms)
            if settings.enabled:
                target_of(settings, self._sender, self._delivery)
        except ConfigError as exc:
            _log.error("endpoint_unusable", endpoint=row.name, error=str(exc))
            return Entry(settings=None, stored=row, problem=str(exc))
        return Entry(settings=settings, stored=row)

    def _take_over(self, stored: Mapping[str, Entry]) -> None:
        """Replace the receivers; every mapping is complete at every moment."""
        self._entries = {**stored, **self._fixed}
        targets = dict(self._fixed_targets)
        for name, entry in self._entries.items():
            if entry.stored is not None and entry.settings is not None and entry.active:
                targets[name] = target_of(entry.settings, self._sender, self._delivery)
        _replace(self.terms, {n: terms_of(t, self._delivery) for n, t in targets.items()})
        _replace(self.targets, targets)
        routes = [
            Route(endpoint=name, severity_min=entry.settings.severity_min)
            for name, entry in sorted(self._entries.items())
            if entry.settings is not None and entry.active
        ]
        self._routing.replace_routes(routes)
        self.everybody.replace_routes(routes)

    def _sweep(self, now_ms: int) -> None:
        """Cancel what waits for a receiver that is gone or switched off.

        One whose key is lost keeps what waits for it: the key may come back.
        """
        kept = [e.stored.name for e in self.entries() if e.stored and e.problem]
        kept += list(self.targets)
        with self._database.write_beside() as connection:
            cancel_waiting(connection, now_ms, delivery.c.endpoint.not_in(kept))


def cancel_waiting(
    connection: sa.Connection, now_ms: int, condition: sa.ColumnElement[bool]
) -> None:
    """Cancel waiting deliveries whose receiver is gone or switched off."""
    connection.execute(
        sa.update(delivery)
        .where(delivery.c.state.in_(WAITING), condition)
        .values(
            state=DeliveryState.CANCELLED,
            last_error=_GONE,
            finished_ms=now_ms,
            lease_by=None,
            lease_until_ms=None,
        )
    )


def _replace(mapping: dict[str, _V], new: Mapping[str, _V]) -> None:
    mapping.update(new)
    for name in set(mapping) - set(new):
        del mapping[name]
