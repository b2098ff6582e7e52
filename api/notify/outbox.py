"""The queue of notifications in the store: claim, finish, release.

A claim leases a delivery for a while. Who dies holding a lease loses it when it ends, and the
delivery is sent again under the same webhook id: at least once, never lost.

Order: of the deliveries of one (endpoint, group) only the oldest that is due goes, one at a time,
so "resolved" never overtakes "firing"; a dead one lets the next go. One that is held (silenced for
now, snoozed, too soon) holds up only its own alert, not its group.

What is claimed was judged in the same transaction: silences, acknowledgements, graver alerts, how
much the receiver takes, and whether it answers at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from api.database import Database
from api.notify.claiming import Claiming
from api.notify.claims import Claim, Decider, Terms
from api.notify.finishing import finish_members, log_attempt, pace_after, values_after
from api.notify.paces import read_pace, save_pace
from api.notify.pacing import Breaker
from api.notify.queue import RETURN_LAPSED
from api.notify.retry import Decision, Outcome
from api.tables import DeliveryState, delivery

__all__ = ["Claim", "Decider", "Outbox", "Terms"]


class Outbox:
    """Claims and finishes deliveries for one process.

    Parameters
    ----------
    database
        The store.
    owner
        Unique name of this process's leases.
    lease_seconds
        How long a lease lasts without renewal.
    terms
        How endpoints are treated, by name; usual terms for the others. May change meanwhile.
    decisions
        Judges what is due; None sends everything.
    breaker
        When an endpoint is left alone.
    digest_after_seconds
        See :class:`~api.settings.DeliverySettings`.
    """

    def __init__(
        self,
        database: Database,
        *,
        owner: str,
        lease_seconds: float,
        terms: Mapping[str, Terms] | None = None,
        decisions: Decider | None = None,
        breaker: Breaker | None = None,
        digest_after_seconds: float = 60.0,
    ) -> None:
        self._database = database
        self._owner = owner
        self._lease_ms = int(lease_seconds * 1000)
        # Not copied: receivers come and go while this runs.
        self._terms = {} if terms is None else terms
        self._breaker = breaker or Breaker()
        self._claiming = Claiming(
            owner=owner,
            lease_ms=self._lease_ms,
            digest_ms=int(digest_after_seconds * 1000),
            decisions=decisions,
        )

    def next_due_ms(self) -> int | None:
        """Return when the earliest waiting delivery is due or its lease ends; None if none is."""
        due = sa.select(sa.func.min(delivery.c.next_at_ms)).where(
            delivery.c.state == DeliveryState.PENDING
        )
        lapsing = sa.select(sa.func.min(delivery.c.lease_until_ms)).where(
            delivery.c.state == DeliveryState.LEASED
        )
        with self._database.read() as connection:
            times = [connection.execute(due).scalar(), connection.execute(lapsing).scalar()]
        return min((t for t in times if t is not None), default=None)

    def claim(self, room: Mapping[str, int], limit: int, now_ms: int) -> list[Claim]:
        """Lease what is due and may be sent.

        Parameters
        ----------
        room
            Attempts that may still be started, per endpoint name; the first is served first.
        limit
            Attempts that may still be started over all endpoints.
        now_ms
            Unix milliseconds.
        """
        claims: list[Claim] = []
        with self._database.write_beside() as connection:
            connection.execute(RETURN_LAPSED, {"now": now_ms})
            for name, free in room.items():
                wanted = min(free, limit - len(claims))
                if wanted > 0:
                    terms = self._terms.get(name, Terms())
                    claims += self._claiming.claim_of(connection, name, terms, wanted, now_ms)
        return claims

    def renew(self, ids: Collection[int], now_ms: int) -> None:
        """Keep the leases of attempts that are still under way, and still this process's."""
        with self._database.write_beside() as connection:
            connection.execute(
                sa.update(delivery)
                .where(delivery.c.id.in_(ids), delivery.c.lease_by == self._owner)
                .values(lease_until_ms=now_ms + self._lease_ms)
            )

    def finish(
        self,
        claim: Claim,
        outcome: Outcome,
        decision: Decision,
        *,
        started_ms: int,
        now_ms: int,
    ) -> str:
        """Store what an attempt came to; nothing changes if the lease was lost meanwhile.

        Returns
        -------
        str
            The state of the delivery now, if the lease was still held; leased if not.
        """
        with self._database.write_beside() as connection:
            before = read_pace(connection, claim.endpoint, lock=True)
            after = pace_after(before, claim, outcome, self._breaker, now_ms)
            # A failure of a receiver that is known to be away says nothing about this message.
            free = outcome.line_failed and (claim.probe or before.is_open)
            if free:
                decision = Decision(wait_seconds=max(0, (after.probe_ms or now_ms) - now_ms) / 1000)
            log_attempt(connection, claim, outcome, started_ms, now_ms)
            values = values_after(claim, outcome, decision, now_ms, counted=not free)
            own = sa.update(delivery).where(
                delivery.c.id == claim.id, delivery.c.lease_by == self._owner
            )
            mine = connection.execute(own.values(**values)).rowcount
            if mine and claim.digest and values["state"] != DeliveryState.PENDING:
                finish_members(connection, claim, values)
            if after != before:
                save_pace(connection, claim.endpoint, after)
        return str(values["state"]) if mine else DeliveryState.LEASED

    def release(self) -> None:
        """Give back every lease of this process: at its end."""
        with self._database.write_beside() as connection:
            connection.execute(
                sa.update(delivery)
                .where(delivery.c.state == DeliveryState.LEASED, delivery.c.lease_by == self._owner)
                .values(state=DeliveryState.PENDING, lease_by=None, lease_until_ms=None)
            )
