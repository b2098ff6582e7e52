"""``/v1/alerts``: the list, one alert, its timeline."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response

from api.lifecycle import State
from api.models import Alert, AlertPage, EventPage
from api.problems import Problem
from api.queries import OPEN, AlertFilter, CursorError
from api.routes.parts import (
    KNOWN_ONLY,
    PROBLEMS,
    Cursor,
    Limit,
    Moment,
    QueriesOf,
    json_answer,
    next_link,
    unix_ms,
)
from schemas.alert import Severity

__all__ = ["router"]

router = APIRouter(
    prefix="/v1/alerts", tags=["alerts"], responses=PROBLEMS, dependencies=KNOWN_ONLY
)


class StateFilter(StrEnum):
    """States by which lists can be narrowed."""

    OPEN = OPEN
    FIRING = State.FIRING
    ACKNOWLEDGED = State.ACKNOWLEDGED
    STALE = State.STALE
    RESOLVED = State.RESOLVED


_Word = Annotated[str | None, Query(max_length=200)]
_NOT_FOUND = "There is no alert with this id."
_TIMELINE_LIMIT = 1000


@router.get("", response_model=AlertPage, summary="List alerts, newest start first")
def list_alerts(
    request: Request,
    queries: QueriesOf,
    state: Annotated[
        StateFilter | None, Query(description="Only this state; open is every one but resolved.")
    ] = None,
    severity_min: Annotated[Severity | None, Query(description="This severity or above.")] = None,
    family: _Word = None,
    kind: _Word = None,
    node: _Word = None,
    gpu: Annotated[str | None, Query(max_length=200, description="GPU UUID.")] = None,
    job: _Word = None,
    since: Moment = None,
    until: Moment = None,
    q: Annotated[
        str | None, Query(max_length=200, description="Part of summary, node, GPU, job or kind.")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Return alerts that match every filter given.

    ``since`` and ``until`` select alerts that were open at some time between them. Follow
    ``next_cursor`` (or the ``Link`` header) for more; an alert that arrives meanwhile does not
    disturb the pages.
    """
    wanted = AlertFilter(
        state=state.value if state else None,
        severity_min=severity_min,
        family=family,
        kind=kind,
        node=node,
        gpu=gpu,
        job=job,
        since_ms=unix_ms(since),
        until_ms=unix_ms(until),
        text=q,
    )
    try:
        alerts, after = queries.alerts(wanted, limit=limit, cursor=cursor)
    except CursorError as exc:
        raise HTTPException(422, f"The parameter cursor cannot be used: {exc}.") from exc
    return json_answer({"alerts": alerts, "next_cursor": after}, next_link(request, after))


@router.get(
    "/{alert_id}",
    response_model=Alert,
    responses={404: {"model": Problem, "description": _NOT_FOUND}},
    summary="Show one alert with its evidence and series",
)
def show_alert(alert_id: UUID, queries: QueriesOf) -> Response:
    """Return one alert as it stands now."""
    found = queries.alert(str(alert_id))
    if found is None:
        raise HTTPException(404, _NOT_FOUND)
    return json_answer(found)


@router.get(
    "/{alert_id}/timeline",
    response_model=EventPage,
    responses={404: {"model": Problem, "description": _NOT_FOUND}},
    summary="Show every event of one alert, oldest first",
)
def show_timeline(alert_id: UUID, queries: QueriesOf) -> Response:
    """Return the events of one alert: the newest 1000 of them."""
    events = queries.timeline(str(alert_id), _TIMELINE_LIMIT)
    if not events:
        raise HTTPException(404, _NOT_FOUND)
    return json_answer({"events": events, "last_id": max(entry["id"] for entry in events)})
