"""``/v1/silences``: make, change, end, look what one would hide."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID

import sqlalchemy as sa
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from api.matchers import Matcher, MatcherError, check_matchers
from api.problems import Problem, request_id_of
from api.queries import AlertFilter, CursorError, decode_cursor, encode_cursor
from api.recurrence import Recurrence
from api.routes.alerts import seen_by
from api.routes.bodies import MatcherBody, PreviewBody, RecurrenceBody, SilenceBody
from api.routes.parts import (
    KNOWN_ONLY,
    PROBLEMS,
    Cursor,
    DatabaseOf,
    IfMatch,
    Limit,
    PrincipalOf,
    QueriesOf,
    etag_of,
    json_answer,
    needs,
    next_link,
    unix_ms,
)
from api.security.auditing import record_audit
from api.security.principal import Principal, Scope
from api.silences import Silence, SilenceError, Silences, check_silence, new_id, state_of
from schemas.alert import rfc3339

__all__ = ["router", "silence_json"]

router = APIRouter(
    prefix="/v1",
    tags=["silences"],
    responses=PROBLEMS,
    dependencies=[*KNOWN_ONLY, needs(Scope.ALERTS_READ)],
)
_NOT_FOUND = "There is no silence with this id."
_MISSING: dict[int | str, dict[str, Any]] = {  # FastAPI's own type for extra answers
    404: {"model": Problem, "description": _NOT_FOUND},
    412: {"model": Problem, "description": "The silence was changed meanwhile."},
}
_WEEK_MS = 7 * 86_400_000
_MOST_COUNTED = 20_000


class SilenceView(BaseModel):
    """A silence."""

    id: str = Field(description="Its id.")
    version: int = Field(description="Grows with every change; also the ETag.")
    state: str = Field(description="pending, active, waiting (between windows) or expired.")
    matchers: list[MatcherBody] = Field(description="All must hold.")
    starts_at: str = Field(description="RFC 3339.")
    ends_at: str = Field(description="RFC 3339.")
    comment: str = Field(description="Why.")
    recurrence: RecurrenceBody | None = Field(description="Weekly windows, or null.")
    created_by: str = Field(description="Who made it, from the credential.")
    created_at: str = Field(description="RFC 3339.")
    updated_at: str = Field(description="RFC 3339.")


class SilenceList(BaseModel):
    """Silences, the next to end first."""

    silences: list[SilenceView] = Field(description="The silences.")
    next_cursor: str | None = Field(description="For the next page; null on the last one.")


class Preview(BaseModel):
    """What a silence would hide."""

    open: int = Field(description="Open alerts that it would hide now.")
    last_7_days: int = Field(description="Alerts of the last seven days that it would have hidden.")
    more: bool = Field(description="Whether there may be more: counting ends at 20,000 alerts.")
    alerts: list[dict[str, Any]] = Field(  # an alert, see Alert
        description="The open ones, at most 50."
    )


@router.get("/silences", response_model=SilenceList, summary="List silences")
def list_silences(
    request: Request,
    database: DatabaseOf,
    expired: Annotated[bool, Query(description="Also those that have ended.")] = False,
    limit: Limit = 500,
    cursor: Cursor = None,
) -> Response:
    """Return the silences that hold now or will, and those that have ended if asked."""
    now_ms = request.app.state.now_ms()
    silences: Silences = request.app.state.silences
    try:
        with database.read() as connection:
            found, after = silences.page(
                connection,
                ending_after_ms=0 if expired else now_ms,
                limit=limit,
                after=None if cursor is None else decode_cursor(cursor, (int, str)),
            )
    except CursorError as exc:
        raise HTTPException(422, f"The parameter cursor cannot be used: {exc}.") from exc
    shown = [silence_json(one, now_ms) for one in found]
    following = None if after is None else encode_cursor(after)
    return json_answer({"silences": shown, "next_cursor": following}, next_link(request, following))


@router.get(
    "/silences/{silence_id}", response_model=SilenceView, responses=_MISSING, summary="Show one"
)
def show_silence(request: Request, silence_id: UUID, database: DatabaseOf) -> Response:
    """Return one silence."""
    with database.read() as connection:
        found = _get(request, connection, silence_id)
    return _answer(request, found)


@router.post(
    "/silences",
    response_model=SilenceView,
    status_code=201,
    dependencies=[needs(Scope.SILENCES_WRITE)],
    summary="Make a silence",
)
def create_silence(
    request: Request, body: SilenceBody, database: DatabaseOf, who: PrincipalOf
) -> Response:
    """Silence the alerts that match, until an end, with a reason."""
    now_ms = request.app.state.now_ms()
    new = _built(request, body, who.name, now_ms)
    with database.write() as connection:
        request.app.state.silences.put(connection, new)
        _note(connection, request, who, "silence.create", new, now_ms)
    request.app.state.changed()
    return _answer(request, new, status=201)


@router.put(
    "/silences/{silence_id}",
    response_model=SilenceView,
    responses=_MISSING,
    dependencies=[needs(Scope.SILENCES_WRITE)],
    summary="Change a silence",
)
def change_silence(
    request: Request,
    silence_id: UUID,
    body: SilenceBody,
    database: DatabaseOf,
    who: PrincipalOf,
    if_match: IfMatch,
) -> Response:
    """Replace what a silence says; its author stays."""
    now_ms = request.app.state.now_ms()
    with database.write() as connection:
        old = _get(request, connection, silence_id)
        _check_version(old, if_match)
        new = replace(
            _built(request, body, old.created_by, now_ms),
            id=old.id,
            version=old.version + 1,
            created_ms=old.created_ms,
        )
        request.app.state.silences.put(connection, new)
        _note(connection, request, who, "silence.change", new, now_ms)
    request.app.state.changed()
    return _answer(request, new)


@router.delete(
    "/silences/{silence_id}",
    response_model=SilenceView,
    responses=_MISSING,
    dependencies=[needs(Scope.SILENCES_WRITE)],
    summary="End a silence now",
)
def end_silence(
    request: Request, silence_id: UUID, database: DatabaseOf, who: PrincipalOf, if_match: IfMatch
) -> Response:
    """End a silence; it stays in the list of those that have ended."""
    now_ms = request.app.state.now_ms()
    with database.write() as connection:
        old = _get(request, connection, silence_id)
        _check_version(old, if_match)
        new = old
        if old.ends_ms > now_ms:
            starts_ms = min(old.starts_ms, now_ms)
            new = replace(
                old,
                starts_ms=starts_ms,
                ends_ms=now_ms,
                updated_ms=now_ms,
                version=old.version + 1,
            )
            request.app.state.silences.put(connection, new)
            _note(connection, request, who, "silence.end", new, now_ms)
    request.app.state.changed()
    return _answer(request, new)


@router.post("/silences:preview", response_model=Preview, summary="See what one would hide")
def preview(request: Request, body: PreviewBody, queries: QueriesOf, who: PrincipalOf) -> Response:
    """Say which open alerts, and how many of the last seven days, would be hidden."""
    matchers = _matchers(body.matchers)
    now_ms = request.app.state.now_ms()
    hidden, more = queries.first(AlertFilter(state="open", matchers=matchers), _MOST_COUNTED)
    recent, more_then = queries.first(
        AlertFilter(since_ms=now_ms - _WEEK_MS, matchers=matchers), _MOST_COUNTED
    )
    return json_answer(
        {
            "open": len(hidden),
            "last_7_days": len(recent),
            "more": more or more_then,
            "alerts": seen_by(who, hidden[:50]),
        }
    )


def _get(request: Request, connection: sa.Connection, silence_id: UUID) -> Silence:
    found: Silence | None = request.app.state.silences.get(connection, str(silence_id))
    if found is None:
        raise HTTPException(404, _NOT_FOUND)
    return found


def _check_version(found: Silence, if_version: int | None) -> None:
    if if_version is not None and if_version != found.version:
        raise HTTPException(412, "The silence was changed meanwhile; read it again.")


def _matchers(bodies: list[MatcherBody]) -> tuple[Matcher, ...]:
    try:
        found = tuple(Matcher(name=one.name, op=one.op, value=one.value) for one in bodies)
        check_matchers(found)
    except MatcherError as exc:
        raise HTTPException(422, f"The matchers cannot be used: {exc}.") from exc
    return found


def _built(request: Request, body: SilenceBody, author: str, now_ms: int) -> Silence:
    again = None
    if body.recurrence is not None:
        given = body.recurrence
        try:
            again = Recurrence(
                weekdays=tuple(dict.fromkeys(given.weekdays)),
                start=given.start,
                duration_minutes=given.duration_minutes,
                zone=given.zone,
            )
        except ValueError as exc:
            raise HTTPException(422, f"The recurrence cannot be used: {exc}.") from exc
    starts_ms = unix_ms(body.starts_at)
    new = Silence(
        id=new_id(),
        version=1,
        matchers=_matchers(body.matchers),
        comment=body.comment,
        created_by=author,
        created_ms=now_ms,
        updated_ms=now_ms,
        starts_ms=now_ms if starts_ms is None else starts_ms,
        ends_ms=unix_ms(body.ends_at) or 0,
        recurrence=again,
    )
    try:
        check_silence(new, max_days=request.app.state.settings.lifecycle.silence_max_days)
    except SilenceError as exc:
        raise HTTPException(422, f"The silence cannot be made: {exc}.") from exc
    return new


def _note(
    connection: sa.Connection,
    request: Request,
    who: Principal,
    action: str,
    one: Silence,
    now_ms: int,
) -> None:
    record_audit(
        connection,
        actor=who.name,
        action=action,
        object_type="silence",
        object_id=one.id,
        now_ms=now_ms,
        detail={
            "matchers": [str(m) for m in one.matchers],
            "ends_at": rfc3339(one.ends_ms),
            "comment": one.comment,
        },
        request_id=request_id_of(request),
    )


def silence_json(one: Silence, now_ms: int) -> dict[str, Any]:  # JSON
    """Return a silence as the REST surface shows it."""
    again = one.recurrence
    return {
        "id": one.id,
        "version": one.version,
        "state": state_of(one, now_ms),
        "matchers": [{"name": m.name, "op": m.op, "value": m.value} for m in one.matchers],
        "starts_at": rfc3339(one.starts_ms),
        "ends_at": rfc3339(one.ends_ms),
        "comment": one.comment,
        "recurrence": None
        if again is None
        else {
            "weekdays": list(again.weekdays),
            "start": again.start,
            "duration_minutes": again.duration_minutes,
            "zone": again.zone,
        },
        "created_by": one.created_by,
        "created_at": rfc3339(one.created_ms),
        "updated_at": rfc3339(one.updated_ms),
    }


def _answer(request: Request, one: Silence, status: int = 200) -> Response:
    body = silence_json(one, request.app.state.now_ms())
    headers = {"etag": etag_of(one.version)}
    if status == 201:
        headers["location"] = f"/v1/silences/{one.id}"
    return json_answer(body, headers, status)
