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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
import sqlalchemy as sa

from api.database import Database
from api.decision import Action, Ruling, Waiting
from api.notify.digest import gather, members_of, webhook_id_of_digest
from api.notify.paces import read_pace, save_pace
from api.notify.pacing import Breaker, Pace, Rate
from api.notify.retry import Decision, Outcome, Verdict
from api.settings import EndpointSettings
from api.tables import DeliveryState, attempt, delivery, endpoint, event

__all__ = ["Claim", "Decider", "Outbox", "Terms"]

_WAITING = (DeliveryState.PENDING, DeliveryState.LEASED)
#: Deliveries judged in one go, and how often a claim looks for others behind those cancelled.
_LOOK, _ROUNDS = 20, 50
_BATCH = 500
_LEAST_HOLD_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A delivery that this process may send now.

    Parameters
    ----------
    id, endpoint, webhook_id
        Which delivery, to whom, under which id.
    attempts, refusals
        Made so far, this one not included.
    event
        The AlertEvent as decoded JSON.
    kind
        What happened, a word of :class:`~api.lifecycle.EventType`.
    delayed, replayed
        Whether its alert has ended untold, and whether somebody asked for it again.
    probe
        Whether it finds out if the receiver is back; a failure then costs no attempt.
    digest
        The events told at once; empty for one alert.
    """

    id: int
    endpoint: str
    webhook_id: str
    attempts: int
    refusals: int
    event: Mapping[str, Any]  # decoded JSON
    kind: str = "fired"
    delayed: bool = False
    replayed: bool = False
    probe: bool = False
    digest: tuple[Mapping[str, Any], ...] = ()  # decoded JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How one endpoint is to be treated.

    Parameters
    ----------
    rate
        How much it takes; None for no limit.
    digests
        Whether one message may tell many alerts.
    deadline_ms
        How old a delivery becomes before it is given up while the receiver is only probed.
    """

    rate: Rate | None = None
    digests: bool = False
    deadline_ms: int = 3 * 86_400_000


class Decider(Protocol):
    """Says what happens to deliveries that are due."""

    def rule(
        self, connection: sa.Connection, waiting: Sequence[Waiting], now_ms: int
    ) -> Mapping[int, Ruling]:
        """Return a ruling for each, by delivery id."""
        ...


@dataclass(slots=True, kw_only=True)
class _Visit:
    """One endpoint while it is being claimed from."""

    name: str
    terms: Terms
    pace: Pace
    now_ms: int
    probe: bool = False
    claims: list[Claim] = field(default_factory=list)


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
        How endpoints are treated, by name; usual terms for the others.
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
        self._terms = dict(terms or {})
        self._decisions = decisions
        self._breaker = breaker or Breaker()
        self._digest_ms = int(digest_after_seconds * 1000)

    def sync_endpoints(self, endpoints: Sequence[EndpointSettings], now_ms: int) -> None:
        """Show the operator's endpoints; cancel what waits for one that is gone or disabled."""
        active = [e.name for e in endpoints if e.enabled]
        with self._database.write() as connection:
            connection.execute(sa.delete(endpoint))
            for settings in endpoints:
                connection.execute(
                    sa.insert(endpoint).values(
                        name=settings.name,
                        type=settings.type,
                        severity_min=settings.severity_min.value,
                        enabled=settings.enabled,
                        host=settings.host,
                        seen_ms=now_ms,
                    )
                )
            connection.execute(
                sa.update(delivery)
                .where(delivery.c.state.in_(_WAITING), delivery.c.endpoint.not_in(active))
                .values(
                    state=DeliveryState.CANCELLED,
                    last_error="the endpoint is disabled or no longer in the settings",
                    finished_ms=now_ms,
                    lease_by=None,
                    lease_until_ms=None,
                )
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
            connection.execute(_RETURN_LAPSED, {"now": now_ms})
            for name, free in room.items():
                wanted = min(free, limit - len(claims))
                if wanted > 0:
                    claims += self._claim_of(connection, name, wanted, now_ms)
        return claims

    def _claim_of(
        self, connection: sa.Connection, name: str, wanted: int, now_ms: int
    ) -> list[Claim]:
        terms = self._terms.get(name, Terms())
        before = read_pace(connection, name, lock=True)
        visit = _Visit(name=name, terms=terms, pace=before, now_ms=now_ms)
        if before.probe_ms is not None:
            self._give_up_old(connection, visit)
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
            visit.pace = visit.pace.probing_until(now_ms + self._lease_ms)
        if visit.pace != before:
            save_pace(connection, name, visit.pace)
        return visit.claims

    def _claim_singly(self, connection: sa.Connection, visit: _Visit, wanted: int) -> None:
        for _ in range(_ROUNDS):
            query = {"name": visit.name, "now": visit.now_ms, "wanted": max(wanted, _LOOK)}
            rows = connection.execute(_DUE, query).all()
            rulings = self._judge(connection, rows, visit)
            sent = [row for row in rows if row.id in rulings][: wanted - len(visit.claims)]
            for row in sent:
                visit.claims.append(self._claimed(connection, row, visit, rulings[row.id]))
            self._lease(connection, [row.id for row in sent], visit.now_ms)
            if len(visit.claims) >= wanted or len(rulings) == len(rows):
                return

    def _claimed(
        self, connection: sa.Connection, row: Any, visit: _Visit, ruling: Ruling | None
    ) -> Claim:  # row: a row of _DUE
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

    def _claim_digest(self, connection: sa.Connection, visit: _Visit, wanted: int) -> bool:
        """Put what waits too long into one message; tell whether that was done."""
        if not visit.terms.digests or visit.probe or visit.terms.rate is None:
            return False
        last = visit.pace.digest_ms
        if last is not None and visit.now_ms - last < self._digest_ms:
            return False
        waiting = gather(
            connection,
            visit.name,
            visit.now_ms,
            more_than=wanted,
            waited_ms=self._digest_ms,
        )
        if not waiting:
            return False
        rulings = self._judge(connection, waiting, visit)
        chosen = [row for row in waiting if row.id in rulings]
        if len(chosen) < 2:
            return False
        head = chosen[0]
        for start in range(0, len(chosen), _BATCH):
            ids = [row.id for row in chosen[start : start + _BATCH]]
            mark = sa.update(delivery).where(delivery.c.id.in_(ids)).values(digest=head.id)
            connection.execute(mark)
        visit.claims.append(
            Claim(
                id=head.id,
                endpoint=visit.name,
                webhook_id=webhook_id_of_digest(head.webhook_id),
                attempts=head.attempts,
                refusals=head.refusals,
                event=orjson.loads(head.payload),
                kind=head.kind,
                digest=tuple(orjson.loads(row.payload) for row in chosen),
            )
        )
        self._lease(connection, [head.id], visit.now_ms)
        visit.pace = visit.pace.after_digest(visit.now_ms)
        return True

    def _judge(
        self, connection: sa.Connection, rows: Sequence[Any], visit: _Visit
    ) -> dict[int, Ruling | None]:  # rows of _DUE
        """Cancel and hold what must be; return the rulings on what may be sent."""
        found: dict[int, Ruling | None] = {row.id: None for row in rows}
        if self._decisions is None:
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
            for number, ruling in self._decisions.rule(connection, waiting, visit.now_ms).items():
                found[number] = ruling
                if ruling.action is not Action.SEND:
                    _put_aside(connection, number, ruling, visit.now_ms)
                    del found[number]
        return found

    def _give_up_old(self, connection: sa.Connection, visit: _Visit) -> None:
        born = sa.func.coalesce(delivery.c.replayed_ms, delivery.c.created_ms)
        connection.execute(
            sa.update(delivery)
            .where(
                delivery.c.endpoint == visit.name,
                delivery.c.state == DeliveryState.PENDING,
                delivery.c.next_at_ms <= visit.now_ms,
                born < visit.now_ms - visit.terms.deadline_ms,
            )
            .values(
                state=DeliveryState.DEAD,
                finished_ms=visit.now_ms,
                note="The receiver did not come back in time.",
            )
        )

    def _lease(self, connection: sa.Connection, ids: Collection[int], now_ms: int) -> None:
        if ids:
            connection.execute(
                sa.update(delivery)
                .where(delivery.c.id.in_(ids))
                .values(
                    state=DeliveryState.LEASED,
                    lease_by=self._owner,
                    lease_until_ms=now_ms + self._lease_ms,
                )
            )

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
            after = _paced(before, claim, outcome, self._breaker, now_ms)
            # A failure of a receiver that is known to be away says nothing about this message.
            free = outcome.line_failed and (claim.probe or before.is_open)
            if free:
                decision = Decision(wait_seconds=max(0, (after.probe_ms or now_ms) - now_ms) / 1000)
            _log_attempt(connection, claim, outcome, started_ms, now_ms)
            values = _values(claim, outcome, decision, now_ms, counted=not free)
            own = sa.update(delivery).where(
                delivery.c.id == claim.id, delivery.c.lease_by == self._owner
            )
            mine = connection.execute(own.values(**values)).rowcount
            if mine and claim.digest and values["state"] != DeliveryState.PENDING:
                connection.execute(_members(claim.id), _shared(values, len(claim.digest)))
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


def _paced(before: Pace, claim: Claim, outcome: Outcome, breaker: Breaker, now_ms: int) -> Pace:
    if outcome.verdict is Verdict.DELIVERED:
        return before.after_success()
    if outcome.line_failed:
        return before.after_failure(breaker, now_ms, probe=claim.probe)
    return before.after_answer(now_ms)


def _log_attempt(
    connection: sa.Connection, claim: Claim, outcome: Outcome, started_ms: int, now_ms: int
) -> None:
    connection.execute(
        sa.insert(attempt).values(
            delivery_id=claim.id,
            number=claim.attempts + 1,
            started_ms=started_ms,
            duration_ms=max(0, now_ms - started_ms),
            status=outcome.status,
            error=outcome.error,
        )
    )


def _values(
    claim: Claim, outcome: Outcome, decision: Decision, now_ms: int, *, counted: bool
) -> dict[str, Any]:  # columns of delivery
    state = DeliveryState.PENDING
    if decision.done or decision.dead:
        state = DeliveryState.DONE if decision.done else DeliveryState.DEAD
    values: dict[str, Any] = {
        "state": state,
        "attempts": claim.attempts + counted,
        "refusals": claim.refusals + (outcome.verdict is Verdict.PERMANENT),
        "next_at_ms": now_ms + round(decision.wait_seconds * 1000),
        "lease_by": None,
        "lease_until_ms": None,
        "last_status": outcome.status,
        "last_error": outcome.error,
        "finished_ms": now_ms if state != DeliveryState.PENDING else None,
    }
    if outcome.unsure:
        values["unsure"] = True
    if claim.delayed and decision.done:
        values["note"] = "It ended before it could be told."
    return values


def _shared(values: Mapping[str, Any], number: int) -> dict[str, Any]:  # columns of delivery
    """Return what the members of a digest take over from the one that was sent."""
    kept = ("state", "last_status", "last_error", "finished_ms")
    return {name: values[name] for name in kept} | {
        "note": f"Told in one message with {number - 1} others."
    }


def _members(head: int) -> sa.Update:
    return (
        sa.update(delivery)
        .where(delivery.c.digest == head, delivery.c.id != head)
        .values(
            {
                name: sa.bindparam(name)
                for name in ("state", "last_status", "last_error", "finished_ms", "note")
            }
        )
    )


def _put_aside(connection: sa.Connection, number: int, ruling: Ruling, now_ms: int) -> None:
    values: dict[str, Any] = {"note": ruling.reason}
    if ruling.action is Action.CANCEL:
        values |= {"state": DeliveryState.CANCELLED, "finished_ms": now_ms}
    else:
        values["next_at_ms"] = max(ruling.until_ms or 0, now_ms + _LEAST_HOLD_MS)
    connection.execute(sa.update(delivery).where(delivery.c.id == number).values(**values))


_earlier = delivery.alias("earlier")
_DUE = (
    sa.select(
        delivery.c.id,
        delivery.c.webhook_id,
        delivery.c.alert_id,
        delivery.c.attempts,
        delivery.c.refusals,
        delivery.c.kind,
        delivery.c.digest,
        delivery.c.replayed_ms,
        event.c.payload,
    )
    .join(event, event.c.id == delivery.c.event_id)
    .where(
        delivery.c.endpoint == sa.bindparam("name"),
        delivery.c.state == DeliveryState.PENDING,
        delivery.c.next_at_ms <= sa.bindparam("now"),
        sa.or_(delivery.c.digest.is_(None), delivery.c.digest == delivery.c.id),
        ~sa.exists().where(
            _earlier.c.endpoint == delivery.c.endpoint,
            _earlier.c.alert_id == delivery.c.alert_id,
            _earlier.c.id < delivery.c.id,
            _earlier.c.state.in_(_WAITING),
        ),
        # Of the same group, what is due, under way or being retried goes first; what is only held
        # does not stand in the way.
        ~sa.exists().where(
            _earlier.c.endpoint == delivery.c.endpoint,
            _earlier.c.group_key == delivery.c.group_key,
            _earlier.c.id < delivery.c.id,
            _earlier.c.state.in_(_WAITING),
            sa.or_(
                _earlier.c.state == DeliveryState.LEASED,
                _earlier.c.attempts > 0,
                _earlier.c.next_at_ms <= sa.bindparam("now"),
            ),
        ),
    )
    # As the index has it: sorting a long queue by id would read all of it for each claim.
    .order_by(delivery.c.next_at_ms, delivery.c.id)
    .limit(sa.bindparam("wanted"))
    # PostgreSQL: what another process is claiming at this moment is its own. SQLite has one writer.
    .with_for_update(of=delivery, skip_locked=True)
)
_RETURN_LAPSED = (
    sa.update(delivery)
    .where(
        delivery.c.state == DeliveryState.LEASED, delivery.c.lease_until_ms < sa.bindparam("now")
    )
    # Whoever held the lease may have sent it.
    .values(state=DeliveryState.PENDING, lease_by=None, lease_until_ms=None, unsure=True)
)
