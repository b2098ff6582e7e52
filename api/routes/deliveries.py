"""``/v1/deliveries`` and ``/v1/dead-letters``: what became of notifications, and sending again."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.responses import Response

from api.models import DeliveryDetail, DeliveryPage
from api.notify.deadletters import replay
from api.problems import Problem, request_id_of
from api.queries import CursorError, Queries
from api.routes.bodies import ReplayBody
from api.routes.endpointbodies import Replayed
from api.routes.parts import (
    KNOWN_ONLY,
    MAX_ID,
    PROBLEMS,
    Cursor,
    DatabaseOf,
    Limit,
    PrincipalOf,
    QueriesOf,
    json_answer,
    needs,
    next_link,
    unix_ms,
)
from api.security.auditing import record_audit
from api.security.principal import Scope
from api.tables import DeliveryState

__all__ = ["State", "deliveries_page", "router"]

_MISSING: dict[int | str, dict[str, Any]] = {  # FastAPI's own type for extra answers
    404: {"model": Problem, "description": "There is no delivery with this id."}
}
_WAITS: dict[int | str, dict[str, Any]] = {  # FastAPI's own type for extra answers
    409: {"model": Problem, "description": "It waits or is under way already."}
}
router = APIRouter(
    prefix="/v1",
    tags=["delivery"],
    responses=PROBLEMS,
    dependencies=[*KNOWN_ONLY, needs(Scope.ALERTS_READ)],
)
_ADMIN = [needs(Scope.WEBHOOKS_ADMIN)]
Id = Annotated[int, Path(ge=1, le=MAX_ID, description="Number of the delivery.")]
Endpoint = Annotated[str | None, Query(max_length=64, description="Only this one.")]


class State(StrEnum):
    """States of a delivery."""

    PENDING = DeliveryState.PENDING
    LEASED = DeliveryState.LEASED
    DONE = DeliveryState.DONE
    DEAD = DeliveryState.DEAD
    CANCELLED = DeliveryState.CANCELLED


@router.get("/deliveries", response_model=DeliveryPage, summary="List notifications, newest first")
def list_deliveries(
    request: Request,
    queries: QueriesOf,
    state: Annotated[State | None, Query(description="Only this state.")] = None,
    endpoint: Endpoint = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Return what was sent, what waits and what failed, with the reason."""
    return deliveries_page(request, queries, state, endpoint, limit, cursor)


@router.get("/dead-letters", response_model=DeliveryPage, summary="List what was given up")
def list_dead_letters(
    request: Request,
    queries: QueriesOf,
    endpoint: Endpoint = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Return the notifications that were given up, newest first, with the reason."""
    return deliveries_page(request, queries, State.DEAD, endpoint, limit, cursor)


@router.post(
    "/dead-letters:replay",
    response_model=Replayed,
    dependencies=_ADMIN,
    summary="Send again what was given up",
)
def replay_dead_letters(
    request: Request, body: ReplayBody, database: DatabaseOf, who: PrincipalOf
) -> Response:
    """Queue again, under the old ids: those named, or all given up since a time."""
    now_ms = request.app.state.now_ms()
    with database.write_beside() as connection:
        queued = replay(
            connection,
            now_ms,
            ids=body.ids,
            endpoint=body.endpoint,
            failed_since_ms=unix_ms(body.since),
            dead_only=True,
        )
        record_audit(
            connection,
            actor=who.name,
            action="delivery.replay",
            object_type="endpoint",
            object_id=body.endpoint or "*",
            now_ms=now_ms,
            detail={"queued": queued},
            request_id=request_id_of(request),
        )
    request.app.state.changed()
    return json_answer({"queued": queued})


@router.get(
    "/deliveries/{delivery_id}",
    response_model=DeliveryDetail,
    responses=_MISSING,
    summary="Show a notification with its attempts",
)
def show_delivery(delivery_id: Id, queries: QueriesOf) -> Response:
    """Return one delivery and the log of its attempts, newest first."""
    found = queries.delivery(delivery_id)
    if found is None:
        raise HTTPException(404, "There is no delivery with this id.")
    return json_answer(found)


@router.post(
    "/deliveries/{delivery_id}/replay",
    response_model=DeliveryDetail,
    responses=_MISSING | _WAITS,
    dependencies=_ADMIN,
    summary="Send a notification again",
)
def replay_delivery(
    request: Request, delivery_id: Id, database: DatabaseOf, queries: QueriesOf, who: PrincipalOf
) -> Response:
    """Queue one again however it ended, under its old id and marked as a replay."""
    if queries.delivery(delivery_id) is None:
        raise HTTPException(404, "There is no delivery with this id.")
    now_ms = request.app.state.now_ms()
    with database.write_beside() as connection:
        if not replay(connection, now_ms, ids=[delivery_id]):
            raise HTTPException(409, "The delivery waits or is under way already.")
        record_audit(
            connection,
            actor=who.name,
            action="delivery.replay",
            object_type="delivery",
            object_id=str(delivery_id),
            now_ms=now_ms,
            request_id=request_id_of(request),
        )
    request.app.state.changed()
    return json_answer(queries.delivery(delivery_id))


def deliveries_page(
    request: Request,
    queries: Queries,
    state: State | None,
    endpoint: str | None,
    limit: int,
    cursor: str | None,
) -> Response:
    """Answer a page of deliveries."""
    try:
        deliveries, after = queries.deliveries(
            state=state.value if state else None,
            endpoint_name=endpoint,
            limit=limit,
            cursor=cursor,
        )
    except CursorError as exc:
        raise HTTPException(422, f"The parameter cursor cannot be used: {exc}.") from exc
    return json_answer({"deliveries": deliveries, "next_cursor": after}, next_link(request, after))
