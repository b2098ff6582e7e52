"""More of alerts: evidence series, notifications, groups, export."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field

from api.grouping import Group, group_alerts
from api.inhibition import AlertFacts
from api.models import DeliveryView
from api.problems import Problem
from api.queries import AlertFilter, Queries
from api.routes.alerts import FilterOf
from api.routes.parts import KNOWN_ONLY, PROBLEMS, DatabaseOf, QueriesOf, json_answer, needs
from api.security.principal import Scope
from api.tables import IS_OPEN, alert
from schemas.alert import Evidence, Series, Severity, rfc3339

__all__ = ["router"]

router = APIRouter(
    prefix="/v1",
    tags=["alerts"],
    responses=PROBLEMS,
    dependencies=[*KNOWN_ONLY, needs(Scope.ALERTS_READ)],
)
_NOT_FOUND: dict[int | str, dict[str, Any]] = {  # FastAPI's own type for extra answers
    404: {"model": Problem, "description": "There is nothing with this id."}
}
_MOST_GROUPED = 20_000
_MOST_EXPORTED = 100_000
_CSV = (
    "alert_id",
    "state",
    "severity",
    "family",
    "kind",
    "scope",
    "node",
    "gpu_uuid",
    "gpu_index",
    "job",
    "project",
    "started_at",
    "ended_at",
    "end_reason",
    "acknowledged_by",
    "assignee",
    "feedback",
    "summary",
)
_RANKS = {severity.rank: severity.value for severity in Severity}


class EvidenceView(BaseModel):
    """The numbers behind an alert, and the last minutes of them."""

    alert_id: str = Field(description="The alert.")
    score: float = Field(description="0 to 1; 0.5 is the enter threshold.")
    evidence: list[Evidence] = Field(description="Value, expected range, baseline, peers.")
    series: list[Series] = Field(description="Unix milliseconds and values; null is missing.")


class NotificationList(BaseModel):
    """Notifications of one alert, newest first."""

    notifications: list[DeliveryView] = Field(description="At most 200.")


class GroupView(BaseModel):
    """Open alerts that belong together."""

    id: str = Field(description="Stable while the group lasts.")
    by: str = Field(description="What they share: fleet, rack, job, node or alert.")
    key: str = Field(description="Its name.")
    severity: str = Field(description="The gravest of them.")
    started_at: str = Field(description="The first beginning, RFC 3339.")
    root_id: str = Field(description="The alert to look at first.")
    alert_ids: list[str] = Field(description="All of them, the root first.")
    nodes: list[str] = Field(description="Where.")
    counts: dict[str, int] = Field(description="How many of each family/kind.")


class GroupList(BaseModel):
    """Every group, gravest first."""

    groups: list[GroupView] = Field(description="The groups.")


@router.get(
    "/alerts/{alert_id}/evidence",
    response_model=EvidenceView,
    responses=_NOT_FOUND,
    summary="Show the numbers behind an alert with their last minutes",
)
def show_evidence(alert_id: UUID, queries: QueriesOf) -> Response:
    """Return evidence and series, for charts."""
    found = queries.alert(str(alert_id))
    if found is None:
        raise HTTPException(404, "There is no alert with this id.")
    return json_answer({name: found[name] for name in EvidenceView.model_fields})


@router.get(
    "/alerts/{alert_id}/notifications",
    response_model=NotificationList,
    responses=_NOT_FOUND,
    summary="List who was told of an alert",
)
def show_notifications(alert_id: UUID, queries: QueriesOf) -> Response:
    """Return the deliveries of one alert with their states."""
    if queries.alert(str(alert_id)) is None:
        raise HTTPException(404, "There is no alert with this id.")
    return json_answer({"notifications": queries.deliveries_of(str(alert_id), 200)})


@router.get("/groups", response_model=GroupList, summary="List groups of open alerts")
def list_groups(request: Request, database: DatabaseOf) -> Response:
    """Return open alerts by common cause, rack, job or node."""
    return json_answer({"groups": [_group(one) for one in _groups(request, database)]})


@router.get(
    "/groups/{group_id}", response_model=GroupView, responses=_NOT_FOUND, summary="Show one group"
)
def show_group(request: Request, group_id: str, database: DatabaseOf) -> Response:
    """Return one group."""
    found = next((one for one in _groups(request, database) if one.id == group_id), None)
    if found is None:
        raise HTTPException(404, "There is no group with this id.")
    return json_answer(_group(found))


@router.get(
    "/alerts.csv",
    response_class=Response,
    responses={200: {"content": {"text/csv": {}}, "description": "A table, newest start first."}},
    summary="Export alerts as CSV",
)
def export(request: Request, queries: QueriesOf, wanted: FilterOf) -> Response:
    """Return up to 100,000 alerts that match, one a line."""
    _ = request
    return StreamingResponse(
        _lines(queries, wanted),
        media_type="text/csv; charset=utf-8",
        headers={"content-disposition": 'attachment; filename="alerts.csv"'},
    )


def _lines(queries: Queries, wanted: AlertFilter) -> Iterator[str]:
    yield _line(_CSV)
    cursor: str | None = None
    written = 0
    while written < _MOST_EXPORTED:
        page, cursor = queries.alerts(wanted, limit=500, cursor=cursor)
        for one in page:
            subject = one["subject"]
            acked = one["acknowledged"] or {}
            flat = one | subject | {"acknowledged_by": acked.get("by")}
            yield _line([_cell(flat.get(name)) for name in _CSV])
        written += len(page)
        if cursor is None:
            return


def _line(cells: Any) -> str:  # texts
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()


def _cell(value: object) -> str:
    """Write a value so that a spreadsheet never takes it for a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text


def _groups(request: Request, database: DatabaseOf) -> list[Group]:
    known_nodes = request.app.state.fleet.nodes()
    query = sa.select(alert).where(IS_OPEN).order_by(alert.c.started_ms.desc())
    with database.read() as connection:
        rows = connection.execute(query.limit(_MOST_GROUPED)).mappings()
        return group_alerts((AlertFacts.of(row) for row in rows), known_nodes)


def _group(one: Group) -> dict[str, Any]:  # JSON
    return {
        "id": one.id,
        "by": one.by,
        "key": one.key,
        "severity": _RANKS[one.rank],
        "started_at": rfc3339(one.started_ms),
        "root_id": one.root_id,
        "alert_ids": list(one.alert_ids),
        "nodes": list(one.nodes),
        "counts": dict(one.counts),
    }
