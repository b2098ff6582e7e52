"""``/api/v2``: what tools of Alertmanager ask for, over the same store and the same rules."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID

import sqlalchemy as sa
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import Response
from pydantic import StringConstraints

from api.alertmanager.board import NOBODY, Board, View
from api.alertmanager.inbox import Inbox
from api.alertmanager.pushed import PushedAlert
from api.alertmanager.words import config_text, silence_is_wanted, silence_json, status_json
from api.matchers import Matcher, MatcherError, parse_matcher
from api.problems import request_id_of
from api.routes.alertmanagerbodies import (
    AlertGroup,
    GettableAlert,
    GettableSilence,
    PostableAlert,
    PostableAlerts,
    PostableSilence,
    ReceiverName,
    SilenceId,
    Status,
)
from api.routes.ops import product_version
from api.routes.parts import PROBLEMS, DatabaseOf, PrincipalOf, json_answer, needs, unix_ms
from api.routing import RouteNode, Routing
from api.security.auditing import record_audit
from api.security.principal import Principal, Scope
from api.silences import Silence, SilenceError, Silences, check_silence, new_id
from schemas.alert import rfc3339

__all__ = ["router"]

_REFUSED: dict[int | str, dict[str, Any]] = {  # FastAPI's own type for extra answers
    code: {"description": text, "content": {"application/json": {"schema": {"type": "string"}}}}
    for code, text in ((400, "A sentence that says what cannot be used."), (404, "Not there."))
}
_USUAL: dict[int | str, dict[str, Any]] = {
    400: _REFUSED[400],
    **{code: PROBLEMS[code] for code in (401, 403, 421, 429, 503)},
}
router = APIRouter(
    prefix="/api/v2",
    tags=["alertmanager"],
    responses=_USUAL,
)
_READ = needs(Scope.ALERTS_READ)
#: Alertmanager forgets silences five days after their end.
_SILENCES_KEPT_MS = 120 * 3_600_000
#: Times before stand for none: Go writes the year 1 where nothing is set.
_EPOCH_MS, _LAST_MS = 0, 7_258_118_400_000
_STARTED_MS = time.time_ns() // 1_000_000

_Filter = Annotated[
    list[Annotated[str, StringConstraints(max_length=1200)]] | None,
    Query(max_length=20, description='Matchers such as node=~"gpu-1.*"; all must hold.'),
]
_Flag = Annotated[bool, Query(description="Whether alerts of this state are wanted.")]


def _matchers(texts: list[str] | None) -> tuple[Matcher, ...]:
    try:
        return tuple(parse_matcher(one) for one in texts or ())
    except MatcherError as exc:
        raise HTTPException(400, f"The filter cannot be used: {exc}.") from exc


def _view(
    filters: Annotated[_Filter, Query(alias="filter")] = None,
    receiver: Annotated[
        str | None, Query(max_length=500, description="Expression for the receiver's name.")
    ] = None,
    active: _Flag = True,
    silenced: _Flag = True,
    inhibited: _Flag = True,
    unprocessed: _Flag = True,
) -> View:
    _ = unprocessed  # nothing here is
    try:
        named = None if not receiver else Matcher(name="name", op="=~", value=receiver)
    except MatcherError as exc:
        raise HTTPException(400, f"The receiver cannot be used: {exc}.") from exc
    return View(
        matchers=_matchers(filters),
        receiver=named,
        active=active,
        silenced=silenced,
        inhibited=inhibited,
    )


_ViewOf = Annotated[View, Depends(_view)]


@router.get(
    "/status", dependencies=[_READ], response_model=Status, summary="What runs here, and the routes"
)
def show_status(request: Request) -> Response:
    """Return version and routes in Alertmanager's words; no address and no secret."""
    routing: Routing = request.app.state.routing
    names = sorted(routing.names())
    everyone = RouteNode(endpoints=tuple(names))
    config = config_text(routing.tree or everyone, names)
    body = status_json(config=config, started_ms=_STARTED_MS, version=product_version())
    return json_answer(body)


@router.get(
    "/receivers",
    dependencies=[_READ],
    response_model=list[ReceiverName],
    summary="List who is told",
)
def list_receivers(request: Request) -> Response:
    """Return the endpoints, and ``nobody`` for alerts that no route takes."""
    names = sorted(request.app.state.routing.names())
    return json_answer([{"name": name} for name in [*names, NOBODY]])


@router.get(
    "/alerts", dependencies=[_READ], response_model=list[GettableAlert], summary="List open alerts"
)
def list_alerts(
    request: Request, database: DatabaseOf, who: PrincipalOf, view: _ViewOf
) -> Response:
    """Return open alerts that match, gravest first, at most 10,000."""
    now_ms = request.app.state.now_ms()
    with database.read() as connection:
        shown = _board(request, who).alerts(connection, view, now_ms)
    return json_answer([one.json for one in shown])


@router.get(
    "/alerts/groups",
    dependencies=[_READ],
    response_model=list[AlertGroup],
    summary="List open alerts by group",
)
def list_groups(
    request: Request, database: DatabaseOf, who: PrincipalOf, view: _ViewOf
) -> Response:
    """Return open alerts by common cause and receiver."""
    now_ms = request.app.state.now_ms()
    board = _board(request, who)
    with database.read() as connection:
        shown = board.alerts(connection, view, now_ms)
    return json_answer(board.groups(shown, request.app.state.fleet.nodes()))


@router.post(
    "/alerts",
    response_class=Response,
    dependencies=[needs(Scope.INGEST)],
    summary="Push alerts of another tool",
)
def push_alerts(request: Request, body: PostableAlerts) -> Response:
    """Put alerts of Prometheus or another tool into the same list, by the same lifecycle."""
    inbox: Inbox = request.app.state.inbox
    now_ms = request.app.state.now_ms()
    if inbox.take([_pushed(one) for one in body.root], now_ms):
        request.app.state.changed()
    return Response(status_code=200)


@router.get(
    "/silences", dependencies=[_READ], response_model=list[GettableSilence], summary="List silences"
)
def list_silences(
    request: Request,
    database: DatabaseOf,
    filters: Annotated[_Filter, Query(alias="filter")] = None,
) -> Response:
    """Return silences, those that ended within five days too."""
    now_ms = request.app.state.now_ms()
    wanted = _matchers(filters)
    silences: Silences = request.app.state.silences
    with database.read() as connection:
        found = silences.all(connection, ending_after_ms=now_ms - _SILENCES_KEPT_MS)
    return json_answer([silence_json(s, now_ms) for s in found if silence_is_wanted(s, wanted)])


@router.post(
    "/silences",
    response_model=SilenceId,
    responses={404: _REFUSED[404]},
    dependencies=[_READ, needs(Scope.SILENCES_WRITE)],
    summary="Make or replace a silence",
)
def post_silence(
    request: Request, body: PostableSilence, database: DatabaseOf, who: PrincipalOf
) -> Response:
    """Make a silence; with the id of one that has not ended, replace that one."""
    state = request.app.state
    now_ms = state.now_ms()
    silences: Silences = state.silences
    new = _silence(body, who.name, now_ms)
    with database.write() as connection:
        action = "silence.create"
        if body.id:
            old = silences.get(connection, body.id)
            if old is None:
                raise HTTPException(404, "There is no silence with this id.")
            if old.ends_ms > now_ms:
                action = "silence.change"
                running = old.starts_ms <= now_ms
                new = replace(
                    new,
                    id=old.id,
                    starts_ms=old.starts_ms if running else new.starts_ms,
                    version=old.version + 1,
                    created_by=old.created_by,
                    created_ms=old.created_ms,
                    recurrence=old.recurrence,
                )
        try:
            check_silence(new, max_days=state.settings.lifecycle.silence_max_days)
        except SilenceError as exc:
            raise HTTPException(400, f"The silence cannot be made: {exc}.") from exc
        silences.put(connection, new)
        _note(connection, request, who, action, new, now_ms, claimed=body.created_by)
    state.changed()
    return json_answer({"silenceID": new.id})


_OneSilence = Annotated[UUID, "the id of a silence"]


@router.get(
    "/silence/{silence_id}",
    response_model=GettableSilence,
    responses={404: _REFUSED[404]},
    dependencies=[_READ],
    summary="Show one silence",
)
def show_silence(request: Request, silence_id: _OneSilence, database: DatabaseOf) -> Response:
    """Return one silence."""
    with database.read() as connection:
        found = _existing(request, connection, silence_id)
    return json_answer(silence_json(found, request.app.state.now_ms()))


@router.delete(
    "/silence/{silence_id}",
    response_class=Response,
    responses={404: _REFUSED[404]},
    dependencies=[_READ, needs(Scope.SILENCES_WRITE)],
    summary="End a silence now",
)
def delete_silence(
    request: Request, silence_id: _OneSilence, database: DatabaseOf, who: PrincipalOf
) -> Response:
    """End a silence; one that has ended stays so."""
    now_ms = request.app.state.now_ms()
    with database.write() as connection:
        old = _existing(request, connection, silence_id)
        if old.ends_ms > now_ms:
            ended = replace(
                old,
                version=old.version + 1,
                starts_ms=min(old.starts_ms, now_ms),
                ends_ms=now_ms,
                updated_ms=now_ms,
            )
            request.app.state.silences.put(connection, ended)
            _note(connection, request, who, "silence.end", ended, now_ms)
    request.app.state.changed()
    return Response(status_code=200)


def _board(request: Request, who: Principal) -> Board:
    state = request.app.state
    link = state.settings.delivery.public_url
    return Board(
        state.routing,
        state.silences,
        link=None if link is None else link.rstrip("/"),
        sensitive=who.may(Scope.SENSITIVE_READ),
    )


def _existing(request: Request, connection: sa.Connection, silence_id: UUID) -> Silence:
    found: Silence | None = request.app.state.silences.get(connection, str(silence_id))
    if found is None:
        raise HTTPException(404, "There is no silence with this id.")
    return found


def _moment(moment: Any, name: str) -> int | None:  # a date-time or None
    found = unix_ms(moment)
    if found is None or found <= _EPOCH_MS:
        return None
    if found > _LAST_MS:
        raise HTTPException(400, f"{name} must lie before the year 2200.")
    return found


def _pushed(one: PostableAlert) -> PushedAlert:
    labels = {name: value for name, value in one.labels.items() if value}
    if not labels:
        raise HTTPException(400, "An alert needs at least one label that is not empty.")
    starts_ms, ends_ms = _moment(one.starts_at, "startsAt"), _moment(one.ends_at, "endsAt")
    if starts_ms is not None and ends_ms is not None and ends_ms < starts_ms:
        raise HTTPException(400, "endsAt must not lie before startsAt.")
    return PushedAlert(
        labels=labels,
        annotations=dict(one.annotations),
        starts_ms=starts_ms,
        ends_ms=ends_ms,
        generator_url=one.generator_url,
    )


def _silence(body: PostableSilence, author: str, now_ms: int) -> Silence:
    ops = {(False, True): "=", (False, False): "!=", (True, True): "=~", (True, False): "!~"}
    try:
        matchers = tuple(
            Matcher(name=m.name, op=ops[m.is_regex, m.is_equal], value=m.value)
            for m in body.matchers
        )
    except MatcherError as exc:
        raise HTTPException(400, f"The matchers cannot be used: {exc}.") from exc
    return Silence(
        id=new_id(),
        version=1,
        matchers=matchers,
        comment=body.comment,
        created_by=author,
        created_ms=now_ms,
        updated_ms=now_ms,
        starts_ms=max(_moment(body.starts_at, "startsAt") or 0, now_ms),
        ends_ms=_moment(body.ends_at, "endsAt") or 0,
    )


def _note(
    connection: sa.Connection,
    request: Request,
    who: Principal,
    action: str,
    one: Silence,
    now_ms: int,
    *,
    claimed: str = "",
) -> None:
    detail: dict[str, object] = {
        "matchers": [str(m) for m in one.matchers],
        "ends_at": rfc3339(one.ends_ms),
        "comment": one.comment,
    }
    if claimed and claimed != who.name:
        detail["claimed_author"] = claimed
    record_audit(
        connection,
        actor=who.name,
        action=action,
        object_type="silence",
        object_id=one.id,
        now_ms=now_ms,
        detail=detail,
        request_id=request_id_of(request),
    )
