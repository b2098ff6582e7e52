"""Health, readiness, metrics, version: for probes and Prometheus."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.health import Readiness
from api.models import Health, Version
from api.problems import Problem
from api.routes.parts import json_answer, needs
from api.security.principal import Scope

__all__ = ["product_version", "router"]

router = APIRouter(tags=["operation"])


def product_version() -> str:
    """Return the installed version of foreshock, or 0 where it is not installed."""
    try:
        return version("foreshock")
    except PackageNotFoundError:
        return "0"


@router.get("/healthz", response_model=Health, summary="Does the process answer")
def healthz() -> Response:
    """Answer while the web server runs: for liveness probes."""
    return json_answer({"ok": True, "detail": "The api answers.", "checks": {}})


@router.get(
    "/readyz",
    response_model=Health,
    responses={503: {"model": Health, "description": "Something does not work; see checks."}},
    summary="Does everything work",
)
def readyz(request: Request) -> Response:
    """Check store, schema, reading from the bus and delivery: for readiness probes."""
    readiness: Readiness = request.app.state.readiness
    report = readiness.report()
    return json_answer(report, status=200 if report["ok"] else 503)


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    dependencies=[needs(Scope.METRICS_READ)],
)
def metrics(request: Request) -> Response:
    """Return the metrics in the Prometheus text format."""
    registry = request.app.state.metrics.registry
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@router.get(
    "/version",
    response_model=Version,
    summary="What runs here",
    responses={503: {"model": Problem, "description": "The store cannot answer now."}},
)
def show_version(request: Request) -> Response:
    """Return the version of foreshock and the schema of its store."""
    revision = request.app.state.database.revision()
    return json_answer({"version": product_version(), "schema_revision": revision})
