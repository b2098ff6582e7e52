"""Server-rendered pages: open alerts, one alert, the reference of the REST surface.

No script and no request to anywhere else, so they work on a machine without a network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from api.rendering import render
from api.routes.parts import QueriesOf, needs
from api.security.principal import Scope

__all__ = ["router"]

router = APIRouter(include_in_schema=False)
_FOLDER = Path(__file__).parent
_OPEN_LIMIT = 500
_TIMELINE_LIMIT = 200
_METHODS = ("get", "post", "put", "patch", "delete")


@router.get("/", dependencies=[needs(Scope.ALERTS_READ)])
def open_alerts(request: Request, queries: QueriesOf) -> Response:
    """Show the open alerts, gravest first."""
    recent, _ = queries.alerts(request.app.state.resolved_filter, limit=10, cursor=None)
    return _page(
        request,
        "open.html",
        alerts=queries.open_alerts(_OPEN_LIMIT),
        recent=recent,
        limit=_OPEN_LIMIT,
        report=request.app.state.readiness.report(),
        refresh=request.app.state.settings.page_refresh_seconds,
    )


@router.get("/alerts/{alert_id}", dependencies=[needs(Scope.ALERTS_READ)])
def alert_page(request: Request, alert_id: str, queries: QueriesOf) -> Response:
    """Show one alert: evidence, cause, next steps, timeline."""
    found = queries.alert(alert_id) if _is_uuid(alert_id) else None
    if found is None:
        raise HTTPException(404, "There is no alert with this id.")
    timeline = queries.timeline(alert_id, _TIMELINE_LIMIT)
    root = queries.newest_of(found["caused_by"]) if found.get("caused_by") else None
    return _page(request, "alert.html", alert=found, timeline=timeline, root=root)


@router.get("/docs")
def reference(request: Request) -> Response:
    """Show the reference of the REST surface, from OpenAPI."""
    spec = request.app.openapi()
    operations = [
        {"path": path, "method": method.upper(), **operation}
        for path, methods in spec["paths"].items()
        for method, operation in methods.items()
        if method in _METHODS
    ]
    schemas = spec["components"]["schemas"]
    return _page(
        request,
        "docs.html",
        info=spec["info"],
        operations=operations,
        schemas=schemas,
    )


@router.get("/static/foreshock.css")
def stylesheet() -> Response:
    """Serve the only stylesheet."""
    return Response(
        (_FOLDER / "static" / "foreshock.css").read_bytes(),
        media_type="text/css; charset=utf-8",
        headers={"cache-control": "no-cache"},
    )


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


# Any: what a template shows.
def _page(request: Request, name: str, **values: Any) -> Response:
    return HTMLResponse(render(name, version=request.app.version, **values))
