"""``/v1/routes``: who is told of what; a trial; and for one alert, why."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, HTTPException, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from api.explaining import explain
from api.problems import Problem, request_id_of
from api.routes.bodies import TestRouteBody
from api.routes.parts import (
    KNOWN_ONLY,
    PROBLEMS,
    DatabaseOf,
    IfMatch,
    PrincipalOf,
    etag_of,
    json_answer,
    needs,
)
from api.routing import Routing, RoutingError, parse_tree, read_tree, tree_json, walk, write_tree
from api.security.auditing import record_audit
from api.security.principal import Scope

__all__ = ["router"]

router = APIRouter(
    prefix="/v1",
    tags=["routing"],
    responses=PROBLEMS,
    dependencies=[*KNOWN_ONLY, needs(Scope.ALERTS_READ)],
)
_TREE = {
    "name": "root",
    "endpoints": ["noc"],
    "routes": [
        {
            "name": "power",
            "match": ['kind="power_brake"', 'rack=~"r1.*"'],
            "endpoints": ["facility"],
            "continue": True,
            "first_notice_delay_seconds": 30,
        }
    ],
}


class RouteTree(BaseModel):
    """The routing tree."""

    version: int = Field(description="Grows with every change; also the ETag; 0 without a tree.")
    endpoints: list[str] = Field(description="Endpoints that exist now.")
    tree: dict[str, Any] | None = Field(  # a node holds nodes
        description="The root; null: every endpoint by its severity_min.", examples=[_TREE]
    )


class RouteStep(BaseModel):
    """One node that was asked."""

    path: str = Field(description="Names from the root on.")
    matched: bool = Field(description="Whether all its matchers hold.")
    failed: str | None = Field(description="The first matcher that does not.")


class RouteTrial(BaseModel):
    """Where an alert would go."""

    steps: list[RouteStep] = Field(description="The nodes that were asked, in order.")
    endpoints: list[dict[str, Any]] = Field(  # name, delay and group
        description="Who would be told, how soon, in which group."
    )


class Explanation(BaseModel):
    """Why each endpoint was told of an alert, or was not."""

    alert_id: str = Field(description="The alert.")
    routes: list[RouteStep] = Field(description="The nodes of the tree that were asked.")
    endpoints: list[dict[str, Any]] = Field(  # texts and deliveries
        description="For each endpoint: told, action, code, reason, until, deliveries."
    )


@router.get("/routes", response_model=RouteTree, summary="Show the routing tree")
def show_routes(request: Request, database: DatabaseOf) -> Response:
    """Return the tree in force."""
    with database.read() as connection:
        version, tree = read_tree(connection)
    return _answer(request, version, tree)


@router.put(
    "/routes",
    response_model=RouteTree,
    responses={412: {"model": Problem, "description": "The tree was changed meanwhile."}},
    dependencies=[needs(Scope.WEBHOOKS_ADMIN)],
    summary="Replace the routing tree",
)
def put_routes(
    request: Request,
    database: DatabaseOf,
    who: PrincipalOf,
    if_match: IfMatch,
    body: Annotated[dict[str, Any], Body(examples=[_TREE])],  # checked by parse_tree
) -> Response:
    """Replace the tree as a whole; deliveries that wait keep their endpoints."""
    state = request.app.state
    routing: Routing = state.routing
    try:
        # One that is switched off may stand in the tree: it is told again when it is on.
        node = parse_tree(body, routing.names() | state.roster.names())
    except RoutingError as exc:
        raise HTTPException(422, f"The tree cannot be used: {exc}.") from exc
    with database.write() as connection:
        version, _ = read_tree(connection)
        if if_match is not None and if_match != version:
            raise HTTPException(412, "The tree was changed meanwhile; read it again.")
        now_ms = state.now_ms()
        write_tree(connection, node, version=version + 1, actor=who.name, now_ms=now_ms)
        record_audit(
            connection,
            actor=who.name,
            action="routes.put",
            object_type="routes",
            object_id="root",
            now_ms=now_ms,
            detail={"version": version + 1},
            request_id=request_id_of(request),
        )
    with database.read() as connection:
        routing.refresh(connection)
    return _answer(request, version + 1, tree_json(node))


@router.post("/routes:test", response_model=RouteTrial, summary="See where an alert would go")
def test_routes(request: Request, body: TestRouteBody) -> Response:
    """Say which nodes are asked and who would be told; nothing is sent."""
    routing: Routing = request.app.state.routing
    labels = dict(body.labels) | {"severity": body.severity.value}
    steps = list(walk(routing.tree, labels)) if routing.tree is not None else []
    return json_answer(
        {
            "steps": [{"path": s.path, "matched": s.matched, "failed": s.failed} for s in steps],
            "endpoints": [
                {
                    "endpoint": one.endpoint,
                    "first_notice_delay_seconds": one.first_delay_ms / 1000,
                    "group_key": one.group_key or None,
                }
                for one in routing.of(labels, body.severity.rank)
            ],
        }
    )


@router.get(
    "/alerts/{alert_id}/notifications/explain",
    response_model=Explanation,
    responses={404: {"model": Problem, "description": "There is no alert with this id."}},
    summary="Why was I (not) notified",
)
def explain_alert(request: Request, alert_id: UUID, database: DatabaseOf) -> Response:
    """Say for each endpoint whether it is told, by which rule, and what was sent."""
    state = request.app.state
    with database.read() as connection:
        said = explain(connection, str(alert_id), state.routing, state.decisions, state.now_ms())
    if said is None:
        raise HTTPException(404, "There is no alert with this id.")
    return json_answer(said)


def _answer(request: Request, version: int, tree: object) -> Response:
    routing: Routing = request.app.state.routing
    body = {"version": version, "endpoints": sorted(routing.names()), "tree": tree}
    return json_answer(body, {"etag": etag_of(version)})
