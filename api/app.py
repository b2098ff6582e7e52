"""Puts the HTTP surface together. No threads, no sockets: testable in process."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from fastapi import FastAPI

from api import pages
from api.actions import Actions
from api.alertmanager.inbox import Inbox
from api.bodies import Bodies, SeenRequests
from api.crowds import Crowds
from api.database import Database
from api.decision import Decisions
from api.describing import describe_problems
from api.endpointediting import Editor
from api.endpointstore import EndpointStore
from api.feed import Feed
from api.fleetsize import FleetSize
from api.guards import Guard
from api.head import HeadAsGet
from api.health import Readiness
from api.heartbeats import Heartbeats
from api.ledger import Ledger
from api.metrics import ApiMetrics
from api.notify.sender import HttpSender
from api.problems import install
from api.queries import AlertFilter, Queries
from api.rates import Rates
from api.roster import Roster
from api.routes import (
    actions,
    admin,
    alertmanager,
    alerts,
    deliveries,
    details,
    endpoints,
    heartbeats,
    ingest,
    ops,
    outbound,
    session,
    silences,
    stream,
)
from api.routes import routing as routes
from api.routing import Routing
from api.security.keys import KeyRing, KeyStore
from api.security.secretbox import SecretBox
from api.security.sessions import Sessions
from api.settings import ApiSettings
from api.silences import Silences
from schemas.alert import AlertState

__all__ = ["create_app"]

#: Wrong keys at the login, per address: ten at once, ten a minute.
_WRONG_KEYS_PER_SECOND = 1 / 6


def create_app(
    settings: ApiSettings,
    database: Database,
    *,
    metrics: ApiMetrics,
    feed: Feed,
    readiness: Readiness,
    routing: Routing | None = None,
    decisions: Decisions | None = None,
    roster: Roster | None = None,
    inbox: Inbox | None = None,
    beats: Heartbeats | None = None,
    ledger: Ledger | None = None,
    box: SecretBox | None = None,
    on_change: Callable[[], None] = lambda: None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> FastAPI:
    """Make the application.

    Parameters
    ----------
    settings
        Hosts, key, heartbeat, refresh.
    database
        The alert store, migrated.
    metrics
        Where requests are counted and what ``/metrics`` shows.
    feed
        Wakes event streams.
    readiness
        What ``/readyz`` says.
    routing, decisions
        Who is told, and the rules asked when a delivery is claimed.
    roster
        The receivers; by default those of the settings and the store, told by nobody.
    inbox
        Takes in what other tools push.
    beats
        Takes in the heartbeats of others.
    ledger
        Stores alert events that come over REST.
    box
        Seals secrets in the store; without one, what is sealed opens only in this process.
    on_change
        Called after somebody changed something: wakes delivery.
    now_ms
        Clock, unix milliseconds.
    """
    routing = routing or Routing()
    box = box or SecretBox(secrets.token_bytes(32))
    store_keys = KeyStore(database, now_ms)
    api_key = settings.api_key
    ring = KeyRing(store_keys, api_key.get_secret_value() if api_key else None)
    app = FastAPI(
        title="foreshock",
        version=ops.product_version(),
        description="Alerts of a fleet of NVIDIA GPUs.",
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.settings = settings
    app.state.database = database
    app.state.metrics = metrics
    app.state.feed = feed
    app.state.readiness = readiness
    app.state.queries = Queries(database)
    app.state.now_ms = now_ms
    app.state.routing = routing
    app.state.roster = roster or _roster(settings, database, box)
    app.state.decisions = decisions or Decisions(silences=Silences())
    app.state.endpoint_editor = Editor(
        database, app.state.roster, allowed=settings.delivery.allowed()
    )
    app.state.silences = Silences()
    app.state.ledger = ledger or Ledger(routing)
    app.state.heartbeats = beats or Heartbeats(database, app.state.ledger)
    app.state.inbox = inbox or Inbox(database, app.state.ledger)
    app.state.fleet = FleetSize(database, settings.lifecycle.fleet_nodes, now_ms)
    app.state.actions = Actions(routing, round(settings.lifecycle.ack_hours * 3_600_000))
    app.state.keys = store_keys
    app.state.key_ring = ring
    sessions = Sessions(database, ring, round(settings.session_hours * 3_600_000), now_ms)
    app.state.sessions = sessions
    app.state.login_failures = Rates(_WRONG_KEYS_PER_SECOND, burst_seconds=60)

    def changed() -> None:
        feed.announce()
        on_change()

    app.state.changed = changed
    app.state.resolved_filter = AlertFilter(state=AlertState.RESOLVED)
    for router in (
        details.router,  # before alerts: alerts.csv is no id
        alerts.router,
        actions.router,
        silences.router,
        routes.router,
        endpoints.router,
        deliveries.router,
        alertmanager.router,
        heartbeats.router,
        ingest.router,
        stream.router,
        admin.router,
        session.router,
        ops.router,
        pages.router,
    ):
        app.include_router(router)
    app.webhooks.include_router(outbound.router)
    describe_problems(app)
    install(app)
    app.add_middleware(Crowds)
    app.add_middleware(HeadAsGet, endless=stream.ENDLESS_PATHS)
    app.add_middleware(
        Bodies,
        seen=SeenRequests(database, box, now_ms),
        longer=ingest.INGEST_PATHS,
    )
    app.add_middleware(
        Guard,
        host_names=settings.host_names(),
        keys=ring,
        sessions=sessions,
        key_needed=settings.api_key is not None or settings.require_key,
        rates=Rates(settings.requests_per_second),
        metrics=metrics,
    )
    return app


def _roster(settings: ApiSettings, database: Database, box: SecretBox) -> Roster:
    sender = HttpSender(
        connect_seconds=settings.delivery.connect_seconds,
        total_seconds=settings.delivery.total_seconds,
        allowed=settings.delivery.allowed(),
    )
    return Roster(
        database,
        EndpointStore(box),
        fixed=settings.endpoints,
        sender=sender,
        delivery=settings.delivery,
        routing=Routing(),
    )
