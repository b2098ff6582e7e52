"""The loop that sends what the outbox holds."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from api.metrics import ApiMetrics
from api.notify.base import Channel, Notice
from api.notify.outbox import Claim, Outbox
from api.notify.retry import Outcome, Verdict, decide
from api.settings import DeliverySettings
from api.tables import DeliveryState
from schemas.errors import DataDirError, StoreError

__all__ = ["DeliveryWorker", "Target", "Watch"]

_IDLE_SECONDS = 1.0
_STOP_SECONDS = 5.0
#: An attempt that outlives its time by so much is given up from outside: name resolution, for
#: one, knows no deadline.
_SLACK_SECONDS = 5.0
_WATCH_SECONDS = 5.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An endpoint as the worker needs it.

    Parameters
    ----------
    channel
        How to send.
    schedule
        Wait before each attempt in seconds; None for that of the settings.
    """

    channel: Channel
    schedule: Sequence[float] | None = None


class Watch(Protocol):
    """Looks at the endpoints now and then."""

    def look(self, now_ms: int) -> None:
        """Tell through the other endpoints which one takes nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnderWay:
    """An attempt that has not ended."""

    claim: Claim
    target: Target
    started_ms: int
    begun: float


class DeliveryWorker:
    """Claims due deliveries and sends each in a thread of its own.

    The threads are daemons: what hangs must not hold up the end of the process. Its delivery is
    sent again after the lease, under the same id.

    Parameters
    ----------
    outbox, targets
        What to send, and to whom. Receivers may come and go in the mapping meanwhile.
    settings
        Schedule, limits, leases.
    metrics
        Counters.
    watch
        Tells which endpoint takes nothing; may be None.
    on_gone
        Called with the name of an endpoint that says that it is gone for good (410).
    slack_seconds
        By how much an attempt may outlive its time.
    now_ms
        Clock, unix milliseconds.
    """

    def __init__(
        self,
        *,
        outbox: Outbox,
        targets: Mapping[str, Target],
        settings: DeliverySettings,
        metrics: ApiMetrics,
        watch: Watch | None = None,
        on_gone: Callable[[str], None] = lambda _: None,
        slack_seconds: float = _SLACK_SECONDS,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._outbox = outbox
        self._targets = targets
        self._settings = settings
        self._metrics = metrics
        self._watch = watch
        self._on_gone = on_gone
        self._slack_seconds = slack_seconds
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._under_way: dict[int, _UnderWay] = {}
        self._renewed_at = time.monotonic()
        self._watched_at = time.monotonic()
        self._wake = threading.Event()
        self._random = random.Random()
        self.problem: str | None = None
        self.beat = time.monotonic()

    def wake(self) -> None:
        """Say that something may be due. Safe from any thread."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Send until ``stop`` is set, then wait a little for what is under way."""
        while not stop.is_set():
            self.beat = time.monotonic()
            self._wake.clear()
            pause = _IDLE_SECONDS
            try:
                pause = self._step()
            except (StoreError, DataDirError) as exc:
                self._report(str(exc))
            except Exception as exc:  # noqa: BLE001 - the loop of a service outlives one failure
                _log.exception("delivery_loop_failed", error=type(exc).__name__)
                self._report(f"The delivery loop failed: {type(exc).__name__}.")
            if not stop.is_set():
                # Round often enough to renew the leases of attempts under way.
                self._wake.wait(min(pause, self._settings.lease_seconds / 3))
        self._end()

    def _step(self) -> float:
        """Start what is due; return after how many seconds to look again."""
        now_ms = self._now_ms()
        self._give_up_overdue()
        self._renew(now_ms)
        self._look(now_ms)
        due_ms = self._outbox.next_due_ms()
        self.problem = None
        if due_ms is None or due_ms > now_ms:
            wait = _IDLE_SECONDS if due_ms is None else (due_ms - now_ms) / 1000
            return min(wait, _IDLE_SECONDS)
        with self._lock:
            busy = Counter(one.claim.endpoint for one in self._under_way.values())
        limit = self._settings.concurrency - busy.total()
        # Who has least under way comes first, so that no endpoint takes the others' places.
        targets = dict(self._targets)
        names = sorted(targets, key=lambda name: (busy[name], self._random.random()))
        room = {name: self._settings.per_endpoint - busy[name] for name in names}
        if limit <= 0 or not any(free > 0 for free in room.values()):
            return _IDLE_SECONDS  # an attempt that ends wakes the loop
        self._start(self._outbox.claim(room, limit, now_ms), targets, now_ms)
        return _IDLE_SECONDS

    def _start(self, claims: Sequence[Claim], targets: Mapping[str, Target], now_ms: int) -> None:
        begun = time.monotonic()
        started = [
            _UnderWay(claim=c, target=targets[c.endpoint], started_ms=now_ms, begun=begun)
            for c in claims
        ]
        with self._lock:
            self._under_way.update({one.claim.id: one for one in started})
        for one in started:
            threading.Thread(
                target=self._deliver,
                args=(one.claim, one.target),
                name="foreshock-deliver",
                daemon=True,
            ).start()

    def _renew(self, now_ms: int) -> None:
        if time.monotonic() - self._renewed_at < self._settings.lease_seconds / 3:
            return
        self._renewed_at = time.monotonic()
        with self._lock:
            ids = list(self._under_way)
        if ids:
            self._outbox.renew(ids, now_ms)

    def _look(self, now_ms: int) -> None:
        if self._watch is None or time.monotonic() - self._watched_at < _WATCH_SECONDS:
            return
        self._watched_at = time.monotonic()
        self._watch.look(now_ms)

    def _give_up_overdue(self) -> None:
        """Free the places of attempts that should have ended long ago; their threads may go on."""
        limit = time.monotonic() - self._settings.total_seconds - self._slack_seconds
        with self._lock:
            overdue = [one for one in self._under_way.values() if one.begun < limit]
            for one in overdue:
                del self._under_way[one.claim.id]
        for one in overdue:
            error = "the attempt did not end in time"
            outcome = Outcome(verdict=Verdict.TRANSIENT, error=error, unsure=True)
            self._finish(one.claim, one.target, outcome, one.started_ms)

    def _deliver(self, claim: Claim, target: Target) -> None:
        """One attempt, from claim to result; runs in its own thread and never raises."""
        try:
            started_ms = self._now_ms()
            outcome = self._attempt(claim, target)
            with self._lock:
                given_up = claim.id not in self._under_way
            if not given_up:
                self._finish(claim, target, outcome, started_ms)
        except (StoreError, DataDirError) as exc:
            # The lease ends by itself and the delivery is sent again: a duplicate, not a loss.
            self._report(str(exc))
        except Exception as exc:  # noqa: BLE001 - one bad delivery must not stop the others
            _log.exception("delivery_failed", endpoint=claim.endpoint, error=type(exc).__name__)
            self._metrics.delivery_errors.inc()
        finally:
            with self._lock:
                self._under_way.pop(claim.id, None)
            self._wake.set()

    def _attempt(self, claim: Claim, target: Target) -> Outcome:
        notice = Notice(
            webhook_id=claim.webhook_id,
            attempt=claim.attempts + 1,
            event=claim.event,
            kind=claim.kind,
            delayed=claim.delayed,
            replayed=claim.replayed,
            digest=claim.digest,
        )
        try:
            return target.channel.deliver(notice)
        except Exception as exc:  # noqa: BLE001 - else the same event would come back for ever
            # Without the text and the traceback: both may hold the request.
            _log.error("notice_not_built", endpoint=claim.endpoint, error=type(exc).__name__)
            error = f"the message could not be built or sent: {type(exc).__name__}"
            return Outcome(verdict=Verdict.PERMANENT, error=error)

    def _finish(self, claim: Claim, target: Target, outcome: Outcome, started_ms: int) -> None:
        schedule = target.schedule or self._settings.schedule_seconds
        decision = decide(
            outcome,
            attempts=claim.attempts + 1,
            refusals=claim.refusals + (outcome.verdict is Verdict.PERMANENT),
            schedule=schedule,
            permanent_retry_seconds=self._settings.permanent_retry_seconds,
            jitter=self._random.uniform(-1.0, 1.0),
        )
        now_ms = self._now_ms()
        state = self._outbox.finish(claim, outcome, decision, started_ms=started_ms, now_ms=now_ms)
        self._metrics.attempts.labels(endpoint=claim.endpoint, result=outcome.verdict.value).inc()
        self._metrics.attempt_seconds.labels(endpoint=claim.endpoint).observe(
            max(0, now_ms - started_ms) / 1000
        )
        if outcome.verdict is Verdict.GONE:
            self._on_gone(claim.endpoint)
        if state == DeliveryState.DEAD:
            self._metrics.dead.labels(endpoint=claim.endpoint).inc()
            _log.error(
                "delivery_dead",
                endpoint=claim.endpoint,
                webhook_id=claim.webhook_id,
                attempts=claim.attempts + 1,
                error=outcome.error,
            )

    def _report(self, problem: str) -> None:
        self._metrics.delivery_errors.inc()
        if problem != self.problem:
            _log.error("delivery_stopped", error=problem)
        self.problem = problem

    def _end(self) -> None:
        """Claim no more; wait a little for what is under way."""
        deadline = time.monotonic() + _STOP_SECONDS
        while self._under_way and time.monotonic() < deadline:
            self._wake.wait(0.1)
            self._wake.clear()
        try:
            if not self._under_way:
                self._outbox.release()
        except (StoreError, DataDirError) as exc:
            _log.warning("leases_not_released", error=str(exc))
