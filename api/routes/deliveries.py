"""``/v1/endpoints`` and ``/v1/deliveries``: who is told, and what became of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response

from api.models import DeliveryPage, EndpointList
from api.queries import CursorError
from api.routes.parts import (
    KNOWN_ONLY,
    PROBLEMS,
    Cursor,
    Limit,
    QueriesOf,
    json_answer,
    needs,
    next_link,
)
from api.security.principal import Scope
from api.tables import DeliveryState

__all__ = ["router"]

router = APIRouter(
    prefix="/v1",
    tags=["delivery"],
    responses=PROBLEMS,
    dependencies=[*KNOWN_ONLY, needs(Scope.ALERTS_READ)],
)


class _State(StrEnum):
    PENDING = DeliveryState.PENDING
    LEASED = DeliveryState.LEASED
    DONE = DeliveryState.DONE
    DEAD = DeliveryState.DEAD
    CANCELLED = DeliveryState.CANCELLED


@router.get("/endpoints", response_model=EndpointList, summary="List the receivers")
def list_endpoints(queries: QueriesOf) -> Response:
    """Return the endpoints of the settings file, secrets masked, with delivery counts."""
    return json_answer({"endpoints": queries.endpoints()})


@router.get("/deliveries", response_model=DeliveryPage, summary="List notifications, newest first")
def list_deliveries(
    request: Request,
    queries: QueriesOf,
    state: Annotated[_State | None, Query(description="Only this state.")] = None,
    endpoint: Annotated[str | None, Query(max_length=64, description="Only this one.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Return what was sent, what waits and what failed, with the reason."""
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
