"""``/v1/endpoints``: the receivers of notifications."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel

from api.endpointediting import (
    Editor,
    EndpointConflictError,
    EndpointInvalidError,
    NoEndpointError,
    StaleEndpointError,
    Who,
)
from api.models import DeliveryPage
from api.notify.deadletters import replay
from api.notify.trial import send_trial
from api.problems import Problem, request_id_of
from api.queries import CursorError, Queries
from api.roster import Entry, Roster
from api.routes.deliveries import State, deliveries_page
from api.routes.endpointbodies import (
    EndpointBody,
    EndpointChange,
    EndpointList,
    EndpointView,
    NewEndpoint,
    NewEndpointView,
    Replayed,
    RotateBody,
    RotatedView,
    TrialView,
)
from api.routes.endpointviews import endpoint_json
from api.routes.parts import (
    KNOWN_ONLY,
    PROBLEMS,
    Cursor,
    DatabaseOf,
    IfMatch,
    Limit,
    Moment,
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
from schemas.errors import ConfigError

__all__ = ["router"]

_MISSING: dict[int | str, dict[str, Any]] = {  # FastAPI's own type for extra answers
    404: {"model": Problem, "description": "There is no endpoint of this name."}
}
_CHANGING: dict[int | str, dict[str, Any]] = {  # FastAPI's own type for extra answers
    409: {"model": Problem, "description": "It stands in the settings file, or is in use."},
    412: {"model": Problem, "description": "The endpoint was changed meanwhile."},
    413: {"model": Problem, "description": "The body is too long."},
}
router = APIRouter(
    prefix="/v1/endpoints",
    tags=["delivery"],
    responses=PROBLEMS,
    dependencies=[*KNOWN_ONLY, needs(Scope.ALERTS_READ)],
)
_ADMIN = [needs(Scope.WEBHOOKS_ADMIN)]
_NOT_FOUND = "There is no endpoint of this name."
Name = Annotated[
    str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="Name of the endpoint.")
]


def _roster(request: Request) -> Roster:
    found: Roster = request.app.state.roster
    return found


def _editor(request: Request) -> Editor:
    found: Editor = request.app.state.endpoint_editor
    return found


def _who(request: Request, who: Principal) -> Who:
    now_ms: int = request.app.state.now_ms()
    return Who(actor=who.name, request_id=request_id_of(request), now_ms=now_ms)


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn refusals into answers; none of them repeats what was sent."""
    try:
        yield
    except NoEndpointError as exc:
        raise HTTPException(404, _NOT_FOUND) from exc
    except EndpointConflictError as exc:
        raise HTTPException(409, str(exc)) from exc
    except StaleEndpointError as exc:
        raise HTTPException(412, "The endpoint was changed meanwhile; read it again.") from exc
    except EndpointInvalidError as exc:
        raise RequestValidationError(
            [
                {"loc": ("body", *field.split("/")), "type": "endpoint_invalid", "msg": text}
                for field, text in exc.faults
            ]
        ) from None


@router.get("", response_model=EndpointList, summary="List the receivers")
def list_endpoints(
    request: Request,
    queries: QueriesOf,
    who: PrincipalOf,
    limit: Limit = 500,
    cursor: Cursor = None,
) -> Response:
    """Return the receivers by name, those of the settings file too, secrets masked."""
    entries = {name: entry for entry in _roster(request).entries() if (name := _name(entry))}
    names = sorted(entries)
    if cursor is not None:
        names = [name for name in names if name > _after(cursor)]
    page = names[:limit]
    after = None
    if len(names) > limit:
        after = base64.urlsafe_b64encode(page[-1].encode()).decode().rstrip("=")
    shown = _shown(queries, [entries[name] for name in page], who)
    return json_answer({"endpoints": shown, "next_cursor": after}, next_link(request, after))


@router.post(
    "",
    response_model=NewEndpointView,
    status_code=201,
    responses=_CHANGING,
    dependencies=_ADMIN,
    summary="Make a receiver",
)
def create_endpoint(
    request: Request, body: NewEndpoint, queries: QueriesOf, who: PrincipalOf
) -> Response:
    """Make a receiver. Its address is judged now, and again at each attempt.

    A webhook without ``secret`` gets one, which is shown in this answer and never again.
    """
    with _refusals():
        made = _editor(request).create(_fields(body), _who(request, who))
    request.app.state.changed()
    return _one(request, queries, body.name, who, status=201, more={"new_secret": made})


@router.get("/{name}", response_model=EndpointView, responses=_MISSING, summary="Show a receiver")
def show_endpoint(request: Request, name: Name, queries: QueriesOf, who: PrincipalOf) -> Response:
    """Return one receiver, secrets masked."""
    return _one(request, queries, name, who)


@router.put(
    "/{name}",
    response_model=NewEndpointView,
    responses=_MISSING | _CHANGING,
    dependencies=_ADMIN,
    summary="Replace a receiver",
)
def replace_endpoint(
    request: Request,
    name: Name,
    body: EndpointBody,
    queries: QueriesOf,
    who: PrincipalOf,
    if_match: IfMatch,
) -> Response:
    """Replace all of it, secrets included: what is left out is gone."""
    with _refusals():
        made = _editor(request).replace(name, _fields(body), _who(request, who), if_match)
    request.app.state.changed()
    return _one(request, queries, name, who, more={"new_secret": made})


@router.patch(
    "/{name}",
    response_model=EndpointView,
    responses=_MISSING | _CHANGING,
    dependencies=_ADMIN,
    summary="Change a receiver",
)
def change_endpoint(
    request: Request,
    name: Name,
    body: EndpointChange,
    queries: QueriesOf,
    who: PrincipalOf,
    if_match: IfMatch,
) -> Response:
    """Change what is given; null takes a value away, what is left out stays."""
    changes = body.model_dump(mode="json", include=body.model_fields_set)
    with _refusals():
        _editor(request).change(name, changes, _who(request, who), if_match)
    request.app.state.changed()
    return _one(request, queries, name, who)


@router.delete(
    "/{name}",
    status_code=204,
    response_class=Response,
    responses=_MISSING | _CHANGING,
    dependencies=_ADMIN,
    summary="Remove a receiver",
)
def delete_endpoint(request: Request, name: Name, who: PrincipalOf, if_match: IfMatch) -> Response:
    """Remove it and cancel what waits for it, unless the routing tree names it."""
    with _refusals():
        _editor(request).delete(name, _who(request, who), if_match)
    request.app.state.changed()
    return Response(status_code=204)


@router.post(
    "/{name}/enable",
    response_model=EndpointView,
    responses=_MISSING | _CHANGING,
    dependencies=_ADMIN,
    summary="Switch a receiver on",
)
def enable_endpoint(
    request: Request, name: Name, queries: QueriesOf, who: PrincipalOf, if_match: IfMatch
) -> Response:
    """Send to it from now on."""
    return _switch(request, name, queries, who, if_match, enabled=True)


@router.post(
    "/{name}/disable",
    response_model=EndpointView,
    responses=_MISSING | _CHANGING,
    dependencies=_ADMIN,
    summary="Switch a receiver off",
)
def disable_endpoint(
    request: Request, name: Name, queries: QueriesOf, who: PrincipalOf, if_match: IfMatch
) -> Response:
    """Send nothing to it; what waits for it is cancelled."""
    return _switch(request, name, queries, who, if_match, enabled=False)


@router.post(
    "/{name}/rotate-secret",
    response_model=RotatedView,
    responses=_MISSING | _CHANGING,
    dependencies=_ADMIN,
    summary="Replace the signing secret",
)
def rotate_secret(
    request: Request,
    name: Name,
    who: PrincipalOf,
    if_match: IfMatch,
    body: Annotated[RotateBody, Body()] = RotateBody(),  # noqa: B008 - frozen
) -> Response:
    """Sign with a new secret; for a while the former one of a webhook signs as well."""
    overlap_ms = round(body.overlap_hours * 3_600_000)
    with _refusals():
        made = _editor(request).rotate(name, body.secret, overlap_ms, _who(request, who), if_match)
    row = _get(request, name).stored
    version = 0 if row is None else row.version
    until = None if row is None else endpoint_json(_get(request, name), {}, {}, who)
    answer = {
        "name": name,
        "version": version,
        "new_secret": made,
        "secret_overlap_until": until and until["secret_overlap_until"],
    }
    return json_answer(answer, {"etag": etag_of(version)})


@router.post(
    "/{name}/test",
    response_model=TrialView,
    responses=_MISSING | {409: _CHANGING[409]},
    dependencies=_ADMIN,
    summary="Send a test message now",
)
def test_endpoint(request: Request, name: Name, database: DatabaseOf, who: PrincipalOf) -> Response:
    """Send a test message by the way of real ones, and say what the receiver answered."""
    _get(request, name)
    try:
        channel = _roster(request).channel(name)
    except ConfigError as exc:
        raise HTTPException(409, str(exc)) from None
    result = send_trial(channel)
    with database.write_beside() as connection:
        record_audit(
            connection,
            actor=who.name,
            action="endpoint.test",
            object_type="endpoint",
            object_id=name,
            now_ms=request.app.state.now_ms(),
            detail={"delivered": result.delivered, "verdict": result.verdict},
            request_id=request_id_of(request),
        )
    answer = {
        "delivered": result.delivered,
        "verdict": result.verdict,
        "status_class": None if result.status is None else f"{result.status // 100}xx",
        "latency_ms": result.latency_ms,
        "error": result.error,
    }
    return json_answer(answer)


@router.get(
    "/{name}/deliveries",
    response_model=DeliveryPage,
    responses=_MISSING,
    summary="List what was sent to a receiver, newest first",
)
def list_endpoint_deliveries(
    request: Request,
    name: Name,
    queries: QueriesOf,
    state: Annotated[State | None, Query(description="Only this state.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Return its deliveries with their states and reasons."""
    _get(request, name)
    return deliveries_page(request, queries, state, name, limit, cursor)


@router.post(
    "/{name}/replay-failed",
    response_model=Replayed,
    responses=_MISSING,
    dependencies=_ADMIN,
    summary="Send again what was given up",
)
def replay_failed(
    request: Request, name: Name, database: DatabaseOf, who: PrincipalOf, since: Moment = None
) -> Response:
    """Queue again what was given up for it, all or since a time, under the old ids."""
    _get(request, name)
    now_ms = request.app.state.now_ms()
    with database.write_beside() as connection:
        queued = replay(connection, now_ms, endpoint=name, failed_since_ms=unix_ms(since))
        record_audit(
            connection,
            actor=who.name,
            action="endpoint.replay",
            object_type="endpoint",
            object_id=name,
            now_ms=now_ms,
            detail={"queued": queued},
            request_id=request_id_of(request),
        )
    request.app.state.changed()
    return json_answer({"queued": queued})


def _switch(
    request: Request,
    name: str,
    queries: Queries,
    who: Principal,
    if_version: int | None,
    *,
    enabled: bool,
) -> Response:
    with _refusals():
        _editor(request).switch(name, _who(request, who), if_version, enabled=enabled)
    request.app.state.changed()
    return _one(request, queries, name, who)


def _fields(body: BaseModel) -> dict[str, Any]:  # JSON
    return body.model_dump(mode="json", exclude_none=True)


def _get(request: Request, name: str) -> Entry:
    found = _roster(request).get(name)
    if found is None:
        raise HTTPException(404, _NOT_FOUND)
    return found


def _name(entry: Entry) -> str:
    if entry.stored is not None:
        return entry.stored.name
    return "" if entry.settings is None else entry.settings.name


def _after(cursor: str) -> str:
    try:
        return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (ValueError, binascii.Error):
        said = CursorError("the cursor is damaged")
        raise HTTPException(422, f"The parameter cursor cannot be used: {said}.") from None


def _shown(queries: Queries, entries: list[Entry], who: Principal) -> list[dict[str, Any]]:  # JSON
    tally, paces = queries.deliveries_by_state(), queries.paces()
    return [endpoint_json(entry, tally, paces, who) for entry in entries]


def _one(
    request: Request,
    queries: Queries,
    name: str,
    who: Principal,
    *,
    status: int = 200,
    more: dict[str, Any] | None = None,  # JSON
) -> Response:
    tally, paces = queries.deliveries_by_state(name), queries.paces()
    shown = endpoint_json(_get(request, name), tally, paces, who)
    headers = {"etag": etag_of(shown["version"])}
    if status == 201:
        headers["location"] = f"/v1/endpoints/{name}"
    return json_answer(shown | (more or {}), headers, status)
