"""The api as one service: reads alerts from the bus, stores, serves and delivers them."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from api.alertmanager.inbox import Inbox
from api.app import create_app
from api.beatsettings import PingSettings
from api.clockwork import Clockwork, Periods
from api.database import Database
from api.decision import Decisions, Timing
from api.endpointstore import EndpointStore
from api.feed import Feed
from api.health import Readiness
from api.heartbeats import Heartbeats
from api.ingest import AlertIngest
from api.ledger import Ledger
from api.lifecycle import LifecycleRules
from api.metrics import ApiMetrics
from api.notify.channel import target_of
from api.notify.failing import FailureWatch
from api.notify.outbox import Decider, Outbox
from api.notify.pacing import Breaker
from api.notify.renewing import Renewal
from api.notify.sender import HttpSender
from api.notify.worker import DeliveryWorker
from api.pings import Ping
from api.queries import Queries
from api.roster import Roster
from api.routing import Routing
from api.security.secretbox import SecretBox
from api.server import StoppableServer, listening_socket
from api.settings import ApiSettings
from api.silences import Silences
from bus.protocol import Bus
from schemas.errors import ForeshockError

__all__ = ["ApiService"]

_JOIN_SECONDS = 8.0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_log = structlog.get_logger(__name__)


class ApiService:
    """Runs the api in the calling thread until told to stop.

    Parameters
    ----------
    bus
        Where alerts come from.
    settings
        Where to listen, whom to tell.
    prefix
        Prefix of topic names.
    data_dir
        Data directory; the store lies in ``api/`` below it.

    Raises
    ------
    ConfigError
        If the address is open to a network without an API key, or a secret cannot be read.
    """

    name = "api"

    def __init__(
        self, bus: Bus, settings: ApiSettings, *, prefix: str = "", data_dir: Path
    ) -> None:
        settings.check_bind()
        self.registry = CollectorRegistry()
        self._bus = bus
        self._settings = settings
        self._prefix = prefix
        self._data_dir = data_dir
        self._metrics = ApiMetrics(self.registry)
        self._sender = HttpSender(
            connect_seconds=settings.delivery.connect_seconds,
            total_seconds=settings.delivery.total_seconds,
            allowed=settings.delivery.allowed(),
        )
        for endpoint in settings.endpoints:  # a secret that cannot be read is said at once
            if endpoint.enabled:
                target_of(endpoint, self._sender, settings.delivery)
        self._others: tuple[Callable[[], Mapping[str, object]], ...] = ()
        self._readiness: Readiness | None = None
        self._store: Database | None = None
        self._address: tuple[str, int] | None = None
        self._listening = threading.Event()
        self._failure: BaseException | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port once listening, else None."""
        return self._address

    @property
    def store(self) -> Database | None:
        """The open store while running, else None."""
        return self._store

    def wait_until_listening(self, timeout_seconds: float) -> bool:
        """Wait until requests are answered; False after the time-out."""
        return self._listening.wait(timeout_seconds)

    def health(self) -> Mapping[str, object]:
        """Return ok, a sentence and single checks. Safe from any thread."""
        readiness = self._readiness
        if readiness is None:
            return {"ok": False, "detail": "The api is not running.", "checks": {}}
        return readiness.report()

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set.

        Raises
        ------
        ForeshockError
            If it cannot start, or the bus cannot be read any more.
        """
        url = self._settings.database
        database = Database.open(url.get_secret_value() if url else None, self._data_dir)
        self._store = database
        try:
            self._run(database, stop)
        finally:
            self._store = None
            self._readiness = None
            self._address = None
            self._listening.clear()
            database.close()
        if self._failure is not None:
            raise self._failure

    def _run(self, database: Database, stop: threading.Event) -> None:
        routing, box = Routing(), self._box()
        roster = self._roster(database, box, routing)
        decisions = self._decisions(routing)
        worker = self._worker(database, self._outbox(database, decisions, roster), roster)
        feed = Feed()
        ingest = self._ingest(database, routing, feed, worker)

        def changed() -> None:
            worker.wake()
            feed.announce()

        ledger = Ledger(routing, self._rules())
        inbox = Inbox(database, ledger, _now_ms())
        beats = Heartbeats(database, ledger, _now_ms())
        beats.declare(self._settings.heartbeats, _now_ms())
        clockwork = Clockwork(
            database,
            routing,
            self._periods(),
            changed,
            roster=roster,
            errands=(inbox.look, beats.look),
        )
        self._readiness = Readiness(
            database, {"ingest": ingest, "delivery": worker, "clockwork": clockwork}
        )
        self._metrics.watch_alerts(Queries(database).counts)
        app = create_app(
            self._settings,
            database,
            metrics=self._metrics,
            feed=feed,
            readiness=self._readiness,
            routing=routing,
            decisions=decisions,
            roster=roster,
            inbox=inbox,
            beats=beats,
            ledger=ledger,
            box=box,
            on_change=worker.wake,
        )
        ending = threading.Event()
        listener = listening_socket(self._settings.host, self._settings.port)
        server = StoppableServer(app, stop=lambda: stop.is_set() or ending.is_set(), feed=feed)
        threads = [
            self._thread("ingest", ingest.run, ending),
            self._thread("delivery", worker.run, ending),
            self._thread("clockwork", clockwork.run, ending),
            self._thread("renewal", self._renewal(database, roster).run, ending),
        ]
        threads += [
            self._thread(f"ping-{one.name}", self._ping(one, beats).run, ending)
            for one in self._settings.pings
        ]
        try:
            self._serve(server, listener)
        finally:
            ending.set()
            worker.wake()
            deadline = time.monotonic() + _JOIN_SECONDS
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _outbox(self, database: Database, decisions: Decider, roster: Roster) -> Outbox:
        """Open the queue, with what is known of each receiver."""
        delivery = self._settings.delivery
        return Outbox(
            database,
            owner=secrets.token_hex(8),
            lease_seconds=delivery.lease_seconds,
            terms=roster.terms,
            decisions=decisions,
            breaker=Breaker(
                failures=delivery.breaker_failures,
                first_ms=round(delivery.breaker_seconds * 1000),
                longest_ms=round(delivery.breaker_max_seconds * 1000),
            ),
            digest_after_seconds=delivery.digest_after_seconds,
        )

    def _worker(self, database: Database, outbox: Outbox, roster: Roster) -> DeliveryWorker:
        delivery = self._settings.delivery
        return DeliveryWorker(
            outbox=outbox,
            targets=roster.targets,
            settings=delivery,
            metrics=self._metrics,
            # Not by the routes of alerts: that one of them is deaf concerns every other endpoint.
            watch=FailureWatch(database, roster.everybody, delivery.failing_seconds, roster.meant),
            on_gone=lambda name: roster.switch_off(name, _now_ms()),
        )

    def _roster(self, database: Database, box: SecretBox, routing: Routing) -> Roster:
        """Put together the receivers of the settings and those in the store."""
        roster = Roster(
            database,
            EndpointStore(box),
            fixed=self._settings.endpoints,
            sender=self._sender,
            delivery=self._settings.delivery,
            routing=routing,
        )
        roster.start(time.time_ns() // 1_000_000)
        with database.read() as connection:
            routing.refresh(connection)
        return roster

    def _decisions(self, routing: Routing) -> Decisions:
        """Make the rules that are asked when a delivery is claimed."""
        now_ms = time.time_ns() // 1_000_000
        lifecycle = self._settings.lifecycle
        timing = Timing(
            started_ms=now_ms,
            settle_until_ms=now_ms + round(lifecycle.settle_seconds * 1000),
            tell_late_ends=lifecycle.tell_late_ends.rank,
        )
        return Decisions(timing=timing, silences=Silences(), intervals=routing.interval_ms)

    def _periods(self) -> Periods:
        lifecycle = self._settings.lifecycle
        return Periods(
            stable_ms=lifecycle.stable_seconds * 1000,
            retention_ms=round(lifecycle.retention_days * 86_400_000),
        )

    def _box(self) -> SecretBox:
        """Open the key of secrets at rest: the operator's, or one made at the first start."""
        spelled = self._settings.secret_key
        if spelled is not None:
            return SecretBox.from_text(spelled.get_secret_value(), "api.secret_key")
        given = self._settings.secret_key_file
        if given is not None:
            return SecretBox.from_file(given, create=False)
        folder = self._data_dir / "api"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return SecretBox.from_file(folder / "secret.key", create=True)

    def _renewal(self, database: Database, roster: Roster) -> Renewal:
        def names() -> list[str]:
            return [
                entry.settings.name
                for entry in roster.entries()
                if entry.settings and entry.active and entry.settings.type == "alertmanager"
            ]

        return Renewal(database, names=names, channel=roster.channel, metrics=self._metrics)

    def _ping(self, one: PingSettings, beats: Heartbeats) -> Ping:
        return Ping(
            one,
            sender=self._sender,
            health=self._all_health,
            in_time=beats.in_time,
            metrics=self._metrics,
        )

    def _all_health(self) -> Mapping[str, object]:
        """Say whether this service and those on whose work it lives are well."""
        for health in (self.health, *self._others):
            report = health()
            if not report["ok"]:
                return report
        return {"ok": True}

    def depends_on(self, *others: Callable[[], Mapping[str, object]]) -> None:
        """Send no signs of life unless these are well too: detector and collector, if here."""
        self._others = others

    def _rules(self) -> LifecycleRules:
        lifecycle = self._settings.lifecycle
        return LifecycleRules(
            reopen_ms=lifecycle.reopen_seconds * 1000,
            flap_ms=lifecycle.flap_seconds * 1000,
            stable_ms=lifecycle.stable_seconds * 1000,
        )

    def _ingest(
        self, database: Database, routing: Routing, feed: Feed, worker: DeliveryWorker
    ) -> AlertIngest:
        def stored() -> None:
            worker.wake()
            feed.announce()

        return AlertIngest(
            bus=self._bus,
            prefix=self._prefix,
            group=self._settings.group,
            database=database,
            ledger=Ledger(routing, self._rules()),
            metrics=self._metrics,
            on_stored=stored,
            batch_size=self._settings.batch_size,
        )

    def _thread(
        self, name: str, work: Callable[[threading.Event], None], ending: threading.Event
    ) -> threading.Thread:
        def guarded() -> None:
            try:
                work(ending)
            except ForeshockError as exc:
                self._failure = exc
            except Exception as exc:  # noqa: BLE001 - raised again by run
                _log.exception("api_thread_failed", thread=name)
                self._failure = exc
            finally:
                # Half an api helps nobody: the front door starts it again as a whole.
                ending.set()

        thread = threading.Thread(target=guarded, name=f"foreshock-api-{name}", daemon=True)
        thread.start()
        return thread

    def _serve(self, server: StoppableServer, listener: socket.socket) -> None:
        with listener:
            host, port = listener.getsockname()[:2]
            self._address = (host, port)
            self._listening.set()
            _log.info("api_listening", host=host, port=port)
            server.run(sockets=[listener])
            _log.info("api_stopped")
