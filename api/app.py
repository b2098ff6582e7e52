"""Puts the HTTP surface together. No threads, no sockets: testable in process."""

from __future__ import annotations

from fastapi import FastAPI

from api import pages
from api.database import Database
from api.feed import Feed
from api.guards import Guard
from api.head import HeadAsGet
from api.health import Readiness
from api.metrics import ApiMetrics
from api.problems import install
from api.queries import AlertFilter, Queries
from api.routes import alerts, deliveries, ops, stream
from api.settings import ApiSettings
from schemas.alert import AlertState

__all__ = ["create_app"]


def create_app(
    settings: ApiSettings,
    database: Database,
    *,
    metrics: ApiMetrics,
    feed: Feed,
    readiness: Readiness,
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
    """
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
    app.state.resolved_filter = AlertFilter(state=AlertState.RESOLVED)
    for router in (alerts.router, deliveries.router, stream.router, ops.router, pages.router):
        app.include_router(router)
    install(app)
    app.add_middleware(HeadAsGet, endless=stream.ENDLESS_PATHS)
    app.add_middleware(
        Guard, host_names=settings.host_names(), api_key=settings.api_key, metrics=metrics
    )
    return app
