"""``/v1/alerts``: the list, one alert, its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import Response
from pydantic import StringConstraints

from api.explaining import suppression_of
from api.lifecycle import State
from api.matchers import MatcherError, gpu_condition, parse_matcher
from api.models import Alert, AlertPage, EventPage
from api.problems import Problem
from api.queries import OPEN, AlertFilter, CursorError, Queries
from api.routes.parts import (
    KNOWN_ONLY,
    PROBLEMS,
    Cursor,
    Limit,
    Moment,
    PrincipalOf,
    QueriesOf,
    etag_of,
    is_fresh,
    json_answer,
    needs,
    next_link,
    unix_ms,
)
from api.security.principal import Principal, Scope
from api.security.redaction import redacted
from schemas.alert import FAMILIES, Severity

__all__ = [
    "FilterOf",
    "StateFilter",
    "events_seen_by",
    "refuse_unknown_words",
    "router",
    "seen_by",
]

router = APIRouter(
    prefix="/v1/alerts",
    tags=["alerts"],
    responses=PROBLEMS,
    dependencies=[*KNOWN_ONLY, needs(Scope.ALERTS_READ)],
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


def _filter(
    queries: QueriesOf,
    state: Annotated[
        StateFilter | None, Query(description="Only this state; open is every one but resolved.")
    ] = None,
    severity_min: Annotated[Severity | None, Query(description="This severity or above.")] = None,
    family: _Word = None,
    kind: _Word = None,
    node: _Word = None,
    gpu: Annotated[
        str | None, Query(max_length=200, description="GPU UUID, or the index on its node: 3.")
    ] = None,
    job: _Word = None,
    fingerprint: Annotated[
        UUID | None, Query(description="Identity over episodes; what caused_by of an alert names.")
    ] = None,
    since: Moment = None,
    until: Moment = None,
    q: Annotated[
        str | None, Query(max_length=200, description="Part of summary, node, GPU, job or kind.")
    ] = None,
    match: Annotated[
        list[Annotated[str, StringConstraints(max_length=1200)]] | None,
        Query(
            max_length=20,
            description='Matchers such as node=~"gpu-1.*" (=, !=, =~, !~; RE2); all must hold.',
        ),
    ] = None,
) -> AlertFilter:
    try:
        matchers = tuple(parse_matcher(one) for one in match or ())
        gpu, by_index = gpu_condition(gpu)
    except MatcherError as exc:
        raise HTTPException(422, f"The parameter match cannot be used: {exc}.") from exc
    refuse_unknown_words(queries, family, kind)
    return AlertFilter(
        state=state.value if state else None,
        severity_min=severity_min,
        family=family,
        kind=kind,
        node=node,
        gpu=gpu,
        job=job,
        fingerprint=str(fingerprint) if fingerprint else None,
        since_ms=unix_ms(since),
        until_ms=unix_ms(until),
        text=q,
        matchers=matchers + by_index,
    )


def refuse_unknown_words(queries: Queries, family: str | None, kind: str | None) -> None:
    """Answer a typo with the right words: an empty list would read as all quiet.

    A kind that only a detector of one's own knows is right once the store has seen it.
    """
    if family is not None and family not in FAMILIES:
        raise HTTPException(422, f"There is no family {family!r}. Families: {', '.join(FAMILIES)}.")
    kinds = FAMILIES[family] if family else [one for own in FAMILIES.values() for one in own]
    if kind is not None and kind not in kinds and not queries.knows_kind(family, kind):
        where = f"The family {family} has" if family else "There is"
        raise HTTPException(422, f"{where} no kind {kind!r}. Kinds: {', '.join(kinds)}.")


FilterOf = Annotated[AlertFilter, Depends(_filter)]


@router.get("", response_model=AlertPage, summary="List alerts, newest start first")
def list_alerts(
    request: Request,
    queries: QueriesOf,
    who: PrincipalOf,
    wanted: FilterOf,
    count: Annotated[bool, Query(description="Whether to add how many match.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Return alerts that match every filter given.

    ``since`` and ``until`` select alerts that were open at some time between them. Follow
    ``next_cursor`` (or the ``Link`` header) for more; an alert that arrives meanwhile does not
    disturb the pages. A page under ``match`` may hold fewer alerts than ``limit`` and still have
    a next one.
    """
    tag = f'W/"{queries.change_mark()}-{int(who.may(Scope.SENSITIVE_READ))}"'
    if is_fresh(request, tag):
        return Response(status_code=304, headers={"etag": tag})
    try:
        alerts, after = queries.alerts(wanted, limit=limit, cursor=cursor)
    except CursorError as exc:
        raise HTTPException(422, f"The parameter cursor cannot be used: {exc}.") from exc
    body: dict[str, object] = {"alerts": seen_by(who, alerts), "next_cursor": after}
    if count:
        body["count"] = queries.count(wanted)
    return json_answer(body, next_link(request, after) | {"etag": tag})


def seen_by(who: Principal, alerts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:  # JSON
    """Return alerts as this principal may see them."""
    if who.may(Scope.SENSITIVE_READ):
        return list(alerts)
    return [redacted(one) for one in alerts]


def events_seen_by(
    who: Principal,
    events: Sequence[dict[str, Any]],  # JSON
) -> list[dict[str, Any]]:
    """Return entries of the event log as this principal may see them."""
    if who.may(Scope.SENSITIVE_READ):
        return list(events)
    return [e | {"event": e["event"] and redacted(e["event"])} for e in events]


@router.get(
    "/{alert_id}",
    response_model=Alert,
    responses={404: {"model": Problem, "description": _NOT_FOUND}},
    summary="Show one alert with its evidence and series",
)
def show_alert(request: Request, alert_id: UUID, queries: QueriesOf, who: PrincipalOf) -> Response:
    """Return one alert as it stands now, and what keeps people from being told of it."""
    found = queries.alert(str(alert_id))
    if found is None:
        raise HTTPException(404, _NOT_FOUND)
    with request.app.state.database.read() as connection:
        found |= suppression_of(connection, str(alert_id), request.app.state.now_ms())
    (shown,) = seen_by(who, [found])
    return json_answer(shown, {"etag": etag_of(found["version"])})


@router.get(
    "/{alert_id}/timeline",
    response_model=EventPage,
    responses={404: {"model": Problem, "description": _NOT_FOUND}},
    summary="Show every event of one alert, oldest first",
)
def show_timeline(alert_id: UUID, queries: QueriesOf, who: PrincipalOf) -> Response:
    """Return the events of one alert: the newest 1000 of them."""
    events = queries.timeline(str(alert_id), _TIMELINE_LIMIT)
    if not events:
        raise HTTPException(404, _NOT_FOUND)
    events = events_seen_by(who, events)
    return json_answer({"events": events, "last_id": max(entry["id"] for entry in events)})
