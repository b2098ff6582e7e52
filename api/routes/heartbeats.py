"""``/v1/heartbeats``: signs of life that others send by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from api.beatsettings import BEAT_NAME
from api.heartbeats import Heartbeats, TooManyError, beat_state
from api.problems import Problem, request_id_of
from api.routes.parts import KNOWN_ONLY, PROBLEMS, DatabaseOf, PrincipalOf, json_answer, needs
from api.security.auditing import record_audit
from api.security.principal import Scope
from schemas.alert import Severity, rfc3339

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["heartbeats"], responses=PROBLEMS, dependencies=KNOWN_ONLY)
_Name = Annotated[str, Path(pattern=BEAT_NAME, description="Lower-case letters, digits, . - _.")]
_Seconds = Annotated[int | None, Query(ge=1, le=604_800, description="How often it should come.")]
_Grace = Annotated[int | None, Query(ge=0, le=604_800, description="How much later it may come.")]
_NOT_FOUND = "There is no heartbeat of this name."


class HeartbeatView(BaseModel):
    """A heartbeat and how it stands."""

    name: str = Field(description="Its name.")
    state: str = Field(description="waiting (none has come yet), in_time or missing.")
    interval_seconds: int = Field(description="How often it should come.")
    grace_seconds: int = Field(description="How much later it may come.")
    severity: str = Field(description="Of the alert when it is missing.")
    last_at: str | None = Field(description="When the last one came, RFC 3339.")
    due_at: str = Field(description="When an alert says that it is missing, RFC 3339.")
    in_settings: bool = Field(description="Whether the settings file names it.")


class HeartbeatList(BaseModel):
    """Every heartbeat, by name."""

    heartbeats: list[HeartbeatView] = Field(description="The heartbeats.")


@router.get(
    "/heartbeats",
    response_model=HeartbeatList,
    dependencies=[needs(Scope.ALERTS_READ)],
    summary="List heartbeats",
)
def list_heartbeats(request: Request) -> Response:
    """Return every heartbeat that is expected."""
    beats: Heartbeats = request.app.state.heartbeats
    now_ms = request.app.state.now_ms()
    return json_answer({"heartbeats": [_view(beats, row, now_ms) for row in beats.all()]})


@router.post(
    "/heartbeats/{name}",
    response_model=HeartbeatView,
    responses={409: {"model": Problem, "description": "There are too many."}},
    dependencies=[needs(Scope.INGEST)],
    summary="Give a sign of life",
)
def send_heartbeat(
    request: Request,
    name: _Name,
    interval_seconds: _Seconds = None,
    grace_seconds: _Grace = None,
    severity: Annotated[
        Severity | None, Query(description="Of the alert when it is missing.")
    ] = None,
) -> Response:
    """Note it; an unknown name is expected from now on, by default every five minutes.

    What the settings file says of a name is not changed.
    """
    beats: Heartbeats = request.app.state.heartbeats
    now_ms = request.app.state.now_ms()
    try:
        row = beats.beat(
            name,
            now_ms,
            interval_ms=None if interval_seconds is None else interval_seconds * 1000,
            grace_ms=None if grace_seconds is None else grace_seconds * 1000,
            severity=severity,
        )
    except TooManyError as exc:
        raise HTTPException(409, f"The heartbeat is not taken: {exc}.") from exc
    request.app.state.changed()
    return json_answer(_view(beats, row, now_ms))


@router.delete(
    "/heartbeats/{name}",
    status_code=204,
    response_class=Response,
    responses={
        404: {"model": Problem, "description": _NOT_FOUND},
        409: {"model": Problem, "description": "The settings file names it."},
    },
    dependencies=[needs(Scope.WEBHOOKS_ADMIN)],
    summary="Expect a heartbeat no more",
)
def remove_heartbeat(
    request: Request, name: _Name, database: DatabaseOf, who: PrincipalOf
) -> Response:
    """Forget it; its alert ends with the reason entity_removed."""
    beats: Heartbeats = request.app.state.heartbeats
    now_ms = request.app.state.now_ms()
    done = beats.remove(name, now_ms)
    if done is None:
        raise HTTPException(404, _NOT_FOUND)
    if not done:
        raise HTTPException(409, "The settings file names this heartbeat: remove it there.")
    with database.write_beside() as connection:
        record_audit(
            connection,
            actor=who.name,
            action="heartbeat.remove",
            object_type="heartbeat",
            object_id=name,
            now_ms=now_ms,
            request_id=request_id_of(request),
        )
    request.app.state.changed()
    return Response(status_code=204)


# Any: a row mapping is untyped; JSON.
def _view(beats: Heartbeats, row: Mapping[Any, Any], now_ms: int) -> dict[str, Any]:
    due_ms = beats.due_ms(row)
    return {
        "name": row["name"],
        "state": beat_state(row, due_ms, now_ms),
        "interval_seconds": row["interval_ms"] // 1000,
        "grace_seconds": row["grace_ms"] // 1000,
        "severity": row["severity"],
        "last_at": None if row["last_ms"] is None else rfc3339(row["last_ms"]),
        "due_at": rfc3339(due_ms),
        "in_settings": bool(row["declared"]),
    }
