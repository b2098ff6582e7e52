"""What people do with alerts: ``POST /v1/alerts/{id}/…`` and ``/v1/alerts:bulk``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from uuid import UUID

import sqlalchemy as sa
from fastapi import APIRouter, Body, HTTPException, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from api.actions import (
    ActionKind,
    ActionRefusedError,
    ActionRequest,
    Actions,
    NotFoundError,
    StaleVersionError,
)
from api.matchers import MatcherError, gpu_condition, parse_matcher
from api.models import Alert
from api.problems import Problem, request_id_of
from api.queries import AlertFilter, Queries
from api.routes.alerts import refuse_unknown_words, seen_by
from api.routes.bodies import (
    AckBody,
    AssignBody,
    BulkBody,
    BulkFilter,
    CommentBody,
    FeedbackBody,
    NoteBody,
    SnoozeBody,
)
from api.routes.parts import (
    KNOWN_ONLY,
    PROBLEMS,
    IfMatch,
    PrincipalOf,
    QueriesOf,
    etag_of,
    json_answer,
    needs,
    unix_ms,
)
from api.security.principal import Principal, Scope

__all__ = ["router"]

_CHANGING: dict[int | str, dict[str, Any]] = {  # FastAPI's own type for extra answers
    404: {"model": Problem, "description": "There is no alert with this id."},
    409: {"model": Problem, "description": "The alert is not in a state for this."},
    412: {"model": Problem, "description": "The alert was changed meanwhile."},
    413: {"model": Problem, "description": "The body is too long."},
}
router = APIRouter(
    prefix="/v1",
    tags=["actions"],
    responses=PROBLEMS | _CHANGING,
    dependencies=[*KNOWN_ONLY, needs(Scope.ALERTS_WRITE)],
)
_NO_NOTE = NoteBody()
_MOST = 1000


class BulkItem(BaseModel):
    """What became of one alert."""

    alert_id: str = Field(description="The alert.")
    outcome: str = Field(description="changed, unchanged, refused or not_found.")
    detail: str | None = Field(description="Why it was refused.")


class BulkResult(BaseModel):
    """What became of each."""

    dry_run: bool = Field(description="Whether nothing was done.")
    changed: int = Field(description="How many were changed, or would be.")
    results: list[BulkItem] = Field(description="One by one, in the order asked for.")


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn refusals of actions into answers."""
    try:
        yield
    except NotFoundError as exc:
        raise HTTPException(404, str(exc)) from exc
    except ActionRefusedError as exc:
        raise HTTPException(409, str(exc)) from exc
    except StaleVersionError as exc:
        raise HTTPException(
            412, "The alert was changed meanwhile; read it again and decide anew."
        ) from exc


def _act(
    request: Request,
    alert_id: UUID,
    wanted: ActionRequest,
    who: Principal,
    if_version: int | None,
    queries: Queries,
) -> Response:
    state = request.app.state
    actions: Actions = state.actions
    with _refusals(), state.database.write() as connection:
        actions.apply(
            connection,
            str(alert_id),
            wanted,
            actor=who.name,
            now_ms=state.now_ms(),
            if_version=if_version,
            request_id=request_id_of(request),
        )
    state.changed()
    found = queries.alert(str(alert_id))
    if found is None:
        raise HTTPException(404, "There is no alert with this id.")
    (shown,) = seen_by(who, [found])
    return json_answer(shown, {"etag": etag_of(found["version"])})


Note = Annotated[NoteBody, Body()]


@router.post("/alerts/{alert_id}/ack", response_model=Alert, summary="Acknowledge an alert")
def acknowledge(
    request: Request,
    alert_id: UUID,
    who: PrincipalOf,
    queries: QueriesOf,
    if_match: IfMatch,
    body: Annotated[AckBody, Body()] = AckBody(),  # noqa: B008 - frozen
) -> Response:
    """Say that somebody has it: nobody is told of it again until it ends, or grows graver."""
    until_ms = unix_ms(body.until)
    _in_future(request, until_ms)
    wanted = ActionRequest(kind=ActionKind.ACK, comment=body.comment, until_ms=until_ms)
    return _act(request, alert_id, wanted, who, if_match, queries)


@router.post("/alerts/{alert_id}/unack", response_model=Alert, summary="Take it back")
def unacknowledge(
    request: Request,
    alert_id: UUID,
    who: PrincipalOf,
    queries: QueriesOf,
    if_match: IfMatch,
    body: Note = _NO_NOTE,
) -> Response:
    """Take an acknowledgement back."""
    wanted = ActionRequest(kind=ActionKind.UNACK, comment=body.comment)
    return _act(request, alert_id, wanted, who, if_match, queries)


@router.post("/alerts/{alert_id}/resolve", response_model=Alert, summary="Resolve by hand")
def resolve(
    request: Request,
    alert_id: UUID,
    who: PrincipalOf,
    queries: QueriesOf,
    if_match: IfMatch,
    body: Note = _NO_NOTE,
) -> Response:
    """Close an alert that still fires; only a graver severity opens it again."""
    wanted = ActionRequest(kind=ActionKind.RESOLVE, comment=body.comment)
    return _act(request, alert_id, wanted, who, if_match, queries)


@router.post("/alerts/{alert_id}/reopen", response_model=Alert, summary="Open again by hand")
def reopen(
    request: Request,
    alert_id: UUID,
    who: PrincipalOf,
    queries: QueriesOf,
    if_match: IfMatch,
    body: Note = _NO_NOTE,
) -> Response:
    """Open a resolved alert again, unless a newer one of the same fault is known."""
    wanted = ActionRequest(kind=ActionKind.REOPEN, comment=body.comment)
    return _act(request, alert_id, wanted, who, if_match, queries)


@router.post("/alerts/{alert_id}/assign", response_model=Alert, summary="Assign to somebody")
def assign(
    request: Request,
    alert_id: UUID,
    who: PrincipalOf,
    queries: QueriesOf,
    if_match: IfMatch,
    body: AssignBody,
) -> Response:
    """Say who has it."""
    wanted = ActionRequest(kind=ActionKind.ASSIGN, comment=body.comment, assignee=body.assignee)
    return _act(request, alert_id, wanted, who, if_match, queries)


@router.post("/alerts/{alert_id}/comments", response_model=Alert, summary="Add a comment")
def comment(
    request: Request,
    alert_id: UUID,
    who: PrincipalOf,
    queries: QueriesOf,
    if_match: IfMatch,
    body: CommentBody,
) -> Response:
    """Add a comment to the timeline."""
    wanted = ActionRequest(kind=ActionKind.COMMENT, comment=body.comment)
    return _act(request, alert_id, wanted, who, if_match, queries)


@router.post("/alerts/{alert_id}/feedback", response_model=Alert, summary="Say what it was")
def feedback(
    request: Request,
    alert_id: UUID,
    who: PrincipalOf,
    queries: QueriesOf,
    if_match: IfMatch,
    body: FeedbackBody,
) -> Response:
    """Say whether it was right, wrong or expected."""
    wanted = ActionRequest(kind=ActionKind.FEEDBACK, comment=body.comment, feedback=body.feedback)
    return _act(request, alert_id, wanted, who, if_match, queries)


@router.post("/alerts/{alert_id}/snooze", response_model=Alert, summary="Tell nobody for a while")
def snooze(
    request: Request,
    alert_id: UUID,
    who: PrincipalOf,
    queries: QueriesOf,
    if_match: IfMatch,
    body: SnoozeBody,
) -> Response:
    """Hold notices of one alert until a time; its end is told in any case."""
    _in_future(request, unix_ms(body.until))
    wanted = ActionRequest(
        kind=ActionKind.SNOOZE, comment=body.comment, until_ms=unix_ms(body.until)
    )
    return _act(request, alert_id, wanted, who, if_match, queries)


@router.post("/alerts:bulk", response_model=BulkResult, summary="Do one thing to many alerts")
def bulk(request: Request, who: PrincipalOf, queries: QueriesOf, body: BulkBody) -> Response:
    """Do one action to up to 1000 alerts, named or filtered, with a result for each."""
    if (body.ids is None) == (body.filter is None):
        raise HTTPException(422, "Give either ids or filter.")
    if body.action is ActionKind.COMMENT and not body.comment:
        raise HTTPException(422, "This action needs a comment.")
    if body.action is ActionKind.SNOOZE and body.until is None:
        raise HTTPException(422, "This action needs until.")
    _in_future(request, unix_ms(body.until))
    ids = body.ids if body.ids is not None else _matching(queries, body.filter or BulkFilter())
    wanted = ActionRequest(
        kind=body.action,
        comment=body.comment,
        until_ms=unix_ms(body.until),
        assignee=body.assignee,
        feedback=body.feedback,
    )
    state = request.app.state
    with state.database.write() as connection:
        results = [
            _one(request, connection, alert_id, wanted, who, dry_run=body.dry_run)
            for alert_id in dict.fromkeys(ids)
        ]
    state.changed()
    changed = sum(one["outcome"] == "changed" for one in results)
    return json_answer({"dry_run": body.dry_run, "changed": changed, "results": results})


def _in_future(request: Request, until_ms: int | None) -> None:
    if until_ms is not None and until_ms <= request.app.state.now_ms():
        raise HTTPException(422, "until must lie in the future.")


def _one(
    request: Request,
    connection: sa.Connection,
    alert_id: str,
    wanted: ActionRequest,
    who: Principal,
    *,
    dry_run: bool,
) -> dict[str, str | None]:
    state = request.app.state
    actions: Actions = state.actions
    detail = None
    try:
        if dry_run:
            done = actions.check(connection, alert_id, wanted)
        else:
            done = actions.apply(
                connection,
                alert_id,
                wanted,
                actor=who.name,
                now_ms=state.now_ms(),
                request_id=request_id_of(request),
            )
        outcome = "changed" if done else "unchanged"
    except NotFoundError:
        outcome = "not_found"
    except ActionRefusedError as exc:
        outcome, detail = "refused", str(exc)
    return {"alert_id": alert_id, "outcome": outcome, "detail": detail}


def _matching(queries: Queries, wanted: BulkFilter) -> list[str]:
    try:
        matchers = tuple(parse_matcher(one) for one in wanted.match)
    except MatcherError as exc:
        raise HTTPException(422, f"The filter's match cannot be used: {exc}.") from exc
    refuse_unknown_words(queries, wanted.family, wanted.kind)
    gpu, by_index = gpu_condition(wanted.gpu)
    chosen = AlertFilter(
        state=wanted.state,
        severity_min=wanted.severity_min,
        family=wanted.family,
        kind=wanted.kind,
        node=wanted.node,
        gpu=gpu,
        job=wanted.job,
        matchers=matchers + by_index,
    )
    found: list[str] = []
    cursor: str | None = None
    while len(found) <= _MOST:
        page, cursor = queries.alerts(chosen, limit=500, cursor=cursor)
        found += [one["alert_id"] for one in page]
        if cursor is None:
            break
    if len(found) > _MOST:
        raise HTTPException(422, f"The filter takes more than {_MOST} alerts; narrow it.")
    return found
