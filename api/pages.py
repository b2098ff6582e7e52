"""Server-rendered pages: open alerts, one alert, the reference of the REST surface.

No script and no request to anywhere else, so they work on a machine without a network.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import jinja2
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from api.routes.parts import QueriesOf
from schemas.alert import parse_time
from schemas.metrics import METRICS

__all__ = ["router", "templates"]

router = APIRouter(include_in_schema=False)
_FOLDER = Path(__file__).parent
_OPEN_LIMIT = 500
_TIMELINE_LIMIT = 200
_METHODS = ("get", "post", "put", "patch", "delete")


def templates() -> jinja2.Environment:
    """Return the page templates, with escaping on and unknown names an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        ago=_ago, clock=_clock, number=_number, words=_words, label=_label, target=_target
    )
    return environment


@router.get("/")
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


@router.get("/alerts/{alert_id}")
def alert_page(request: Request, alert_id: UUID, queries: QueriesOf) -> Response:
    """Show one alert: evidence, cause, next steps, timeline."""
    found = queries.alert(str(alert_id))
    if found is None:
        raise HTTPException(404, "There is no alert with this id.")
    timeline = queries.timeline(str(alert_id), _TIMELINE_LIMIT)
    return _page(request, "alert.html", alert=found, timeline=timeline, refresh=None)


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
        refresh=None,
    )


@router.get("/static/foreshock.css")
def stylesheet() -> Response:
    """Serve the only stylesheet."""
    return Response(
        (_FOLDER / "static" / "foreshock.css").read_bytes(),
        media_type="text/css; charset=utf-8",
        headers={"cache-control": "no-cache"},
    )


# Any: what a template shows.
def _page(request: Request, name: str, **values: Any) -> Response:
    environment: jinja2.Environment = request.app.state.templates
    html = environment.get_template(name).render(
        version=request.app.version, now_ms=time.time_ns() // 1_000_000, **values
    )
    return HTMLResponse(html)


def _ago(moment: str | None, now_ms: int) -> str:
    """How long ago, in the largest fitting unit.

    Examples
    --------
    >>> _ago("1970-01-01T00:00:00.000Z", 3 * 3_600_000 + 5 * 60_000)
    '3 h 5 min ago'
    """
    if moment is None:
        return ""
    seconds = (now_ms - parse_time(moment)) // 1000
    if seconds < 0:
        return "just now"
    if seconds < 60:
        return f"{seconds} s ago"
    if seconds < 3600:
        return f"{seconds // 60} min ago"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min ago"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h ago"


def _clock(moment: str | None) -> str:
    """Date and time to the second, UTC.

    Examples
    --------
    >>> _clock("2025-09-24T03:20:03.007Z")
    '2025-09-24 03:20:03 UTC'
    """
    return "" if moment is None else f"{moment[:10]} {moment[11:19]} UTC"


def _number(value: float | None) -> str:
    """Write a reading with four significant digits; a missing one is a dash, never 0.

    Examples
    --------
    >>> [_number(value) for value in (None, 0, 1234567.0, 0.123456)]
    ['–', '0', '1,235,000', '0.1235']
    """
    if value is None:
        return "–"
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"


def _words(text: str) -> str:
    """Write a fixed word of the contract as words: ``peer_outlier`` is "peer outlier"."""
    return text.replace("_", " ")


def _label(metric: str) -> str:
    """Label of a metric of the catalogue, else its name."""
    known = METRICS.get(metric)
    return known.label_en if known is not None else metric


def _target(subject: Mapping[str, Any]) -> str:  # decoded JSON of a Subject
    """Say in short what the alert is about.

    Examples
    --------
    >>> _target({"scope": "gpu", "node": "n1", "gpu_index": 0, "gpu_uuid": "GPU-1"})
    'n1 · GPU 0'
    """
    parts = [subject.get("node")]
    index = subject.get("gpu_index")
    if index is not None:
        parts.append(f"GPU {index}")
    elif subject.get("gpu_uuid"):
        parts.append(subject["gpu_uuid"])
    if subject.get("scope") == "job" or not any(parts):
        parts.append(f"job {subject['job']}" if subject.get("job") else None)
    if subject.get("scope") == "rack":
        parts.append(subject.get("rack"))
    return " · ".join(part for part in parts if part) or str(subject.get("scope"))
