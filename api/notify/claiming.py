"""Claiming from one endpoint: what its pace allows and the rules let go, singly or as a digest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sa

from api.decision import Action, Ruling, Waiting
from api.notify.claims import Claim, Decider, Terms
from api.notify.digest import gather, members_of, webhook_id_of_digest
from api.notify.paces import read_pace, save_pace
from api.notify.pacing import Pace
from api.notify.queue import DUE, give_up_old, lease, put_aside
from api.tables import delivery

__all__ = ["Claiming"]

#: Deliveries judged in one go, and how often a claim looks for others behind those cancelled.
_LOOK, _ROUNDS = 20, 50
_BATCH = 500


@dataclass(slots=True, kw_only=True)
class _Visit:
    """One endpoint while it is being claimed from."""

    name: str
    terms: Terms
    pace: Pace
    now_ms: int
    probe: bool = False
    claims: list[Claim] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claiming:
    """How a process claims; every method works in the caller's transaction.

    Parameters
    ----------
    owner
        Unique name of the process's leases.
    lease_ms
        How long a lease lasts without renewal.
    digest_ms
        How long something must have waited for a digest, and the least time between two.
    decisions
        Judges what is due; None sends everything.
    """

    owner: str
    lease_ms: int
    digest_ms: int
    decisions: Decider | None

    def claim_of(
        self, connection: sa.Connection, name: str, terms: Terms, wanted: int, now_ms: int
    ) -> list[Claim]:
        """Lease what one endpoint is told now.

        Parameters
        ----------
        name, terms
            The endpoint, and how it is treated.
        wanted
            Attempts that may still be started.
        now_ms
            Unix milliseconds.
        """
        before = read_pace(connection, name, lock=True)
        visit = _Visit(name=name, terms=terms, pace=before, now_ms=now_ms)
        if before.probe_ms is not None:
            give_up_old(connection, name, before_ms=now_ms - terms.deadline_ms, now_ms=now_ms)
            if now_ms < before.probe_ms:
                return []
            visit.probe, wanted = True, 1
        wanted = int(min(wanted, before.available(terms.rate, now_ms)))
        if wanted < 1:
            return []
        if before.failures and not visit.probe:
            wanted = min(wanted, 1)  # one that just failed does not get every place again
        if not self._claim_digest(connection, visit, wanted):
            self._claim_singly(connection, visit, wanted)
        visit.pace = visit.pace.taking(len(visit.claims), terms.rate, now_ms)
        if visit.probe and visit.claims:
            visit.pace = visit.pace.probing_until(now_ms + self.lease_ms)
        if visit.pace != before:
            save_pace(connection, name, visit.pace)
        return visit.claims

    def _claim_singly(self, connection: sa.Connection, visit: _Visit, wanted: int) -> None:
        for _ in range(_ROUNDS):
            query = {"name": visit.name, "now": visit.now_ms, "wanted": max(wanted, _LOOK)}
            rows = connection.execute(DUE, query).all()
            rulings = self._judge(connection, rows, visit)
            sent = [row for row in rows if row.id in rulings][: wanted - len(visit.claims)]
            for row in sent:
                visit.claims.append(_claimed(connection, row, visit, rulings[row.id]))
            self._lease(connection, [row.id for row in sent], visit)
            if len(visit.claims) >= wanted or len(rulings) == len(rows):
                return

    def _claim_digest(self, connection: sa.Connection, visit: _Visit, wanted: int) -> bool:
        """Put what waits too long into one message; tell whether that was done."""
        if not visit.terms.digests or visit.probe or visit.terms.rate is None:
            return False
        last = visit.pace.digest_ms
        if last is not None and visit.now_ms - last < self.digest_ms:
            return False
        waiting = gather(
            connection,
            visit.name,
            visit.now_ms,
            more_than=wanted,
            waited_ms=self.digest_ms,
        )
        if not waiting:
            return False
        rulings = self._judge(connection, waiting, visit)
        chosen = [row for row in waiting if row.id in rulings]
        if len(chosen) < 2:
            return False
        visit.claims.append(_bundled(connection, chosen, visit.name))
        self._lease(connection, [chosen[0].id], visit)
        visit.pace = visit.pace.after_digest(visit.now_ms)
        return True

    def _judge(
        self, connection: sa.Connection, rows: Sequence[Any], visit: _Visit
    ) -> dict[int, Ruling | None]:  # rows of DUE
        """Cancel and hold what must be; return the rulings on what may be sent."""
        found: dict[int, Ruling | None] = {row.id: None for row in rows}
        if self.decisions is None:
            return found
        fresh = [row for row in rows if row.digest is None]
        for start in range(0, len(fresh), _BATCH):
            waiting = [
                Waiting(
                    delivery_id=row.id,
                    endpoint=visit.name,
                    alert_id=row.alert_id,
                    kind=row.kind,
                    attempts=row.attempts,
                )
                for row in fresh[start : start + _BATCH]
            ]
            for number, ruling in self.decisions.rule(connection, waiting, visit.now_ms).items():
                found[number] = ruling
                if ruling.action is not Action.SEND:
                    put_aside(connection, number, ruling, visit.now_ms)
                    del found[number]
        return found

    def _lease(self, connection: sa.Connection, ids: Collection[int], visit: _Visit) -> None:
        lease(connection, ids, owner=self.owner, until_ms=visit.now_ms + self.lease_ms)


def _claimed(
    connection: sa.Connection, row: Any, visit: _Visit, ruling: Ruling | None
) -> Claim:  # row: a row of DUE
    members = members_of(connection, row.id) if row.digest == row.id else ()
    return Claim(
        id=row.id,
        endpoint=visit.name,
        webhook_id=webhook_id_of_digest(row.webhook_id) if members else row.webhook_id,
        attempts=row.attempts,
        refusals=row.refusals,
        event=orjson.loads(row.payload),
        kind=row.kind,
        delayed=ruling is not None and ruling.delayed,
        replayed=row.replayed_ms is not None,
        probe=visit.probe,
        digest=members,
    )


def _bundled(connection: sa.Connection, rows: Sequence[Any], name: str) -> Claim:  # rows of DUE
    """Mark deliveries as members of one message, which the first of them carries."""
    head = rows[0]
    for start in range(0, len(rows), _BATCH):
        ids = [row.id for row in rows[start : start + _BATCH]]
        connection.execute(sa.update(delivery).where(delivery.c.id.in_(ids)).values(digest=head.id))
    return Claim(
        id=head.id,
        endpoint=name,
        webhook_id=webhook_id_of_digest(head.webhook_id),
        attempts=head.attempts,
        refusals=head.refusals,
        event=orjson.loads(head.payload),
        kind=head.kind,
        digest=tuple(orjson.loads(row.payload) for row in rows),
    )
