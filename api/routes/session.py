"""``/v1/session``: logging a browser in with an API key, and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from api.problems import request_id_of
from api.routes.parts import KNOWN_ONLY, PROBLEMS, DatabaseOf, PrincipalOf, json_answer
from api.security.auditing import record_audit
from api.security.sessions import COOKIE, Sessions
from schemas.alert import rfc3339

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["session"], responses=PROBLEMS, dependencies=[*KNOWN_ONLY])


class LoginBody(BaseModel):
    """The key to log in with."""

    # Errors must not repeat what was sent.
    model_config = ConfigDict(
        extra="forbid",
        hide_input_in_errors=True,
        frozen=True,
        json_schema_extra={"examples": [{"key": "fsk_XXXX"}]},
    )

    key: Annotated[str, Field(min_length=1, max_length=512)] = Field(description="An API key.")


class SessionView(BaseModel):
    """Who is logged in."""

    name: str = Field(description="Name of the key: the actor of what is done.")
    scopes: list[str] = Field(description="What it may.")
    expires_at: str | None = Field(description="RFC 3339; null if no session is used.")


@router.get("/session", response_model=SessionView, summary="Who am I")
def show_session(request: Request, who: PrincipalOf) -> Response:
    """Return who asks, by session or by key, and what they may."""
    if not who.scopes:
        raise HTTPException(401, "Nobody is logged in: send an API key to POST /v1/session.")
    expires_ms = getattr(request.state, "session_expires_ms", None)
    return json_answer(
        {
            "name": who.name,
            "scopes": sorted(who.scopes),
            "expires_at": None if expires_ms is None else rfc3339(expires_ms),
        }
    )


@router.post("/session", response_model=SessionView, status_code=201, summary="Log in")
def log_in(request: Request, body: LoginBody, database: DatabaseOf) -> Response:
    """Open a session for an API key and set its cookie.

    The cookie is kept from scripts (HttpOnly) and from other sites (SameSite=Lax); it goes over
    TLS only if it was set over TLS. Ten wrong keys a minute, and an address has to wait.
    """
    state = request.app.state
    address = request.client.host if request.client else ""
    found = state.key_ring.find(body.key)
    if found is None:
        wait_seconds = state.login_failures.take(address)
        if wait_seconds > 0:
            headers = {"retry-after": str(max(1, round(wait_seconds)))}
            raise HTTPException(429, "Too many wrong keys; wait a little.", headers=headers)
        raise HTTPException(401, "This API key opens nothing: it is wrong, revoked or has ended.")
    sessions: Sessions = state.sessions
    with database.write_beside() as connection:
        new = sessions.open(connection, body.key)
        record_audit(
            connection,
            actor=found.name,
            action="session.open",
            object_type="session",
            object_id=found.key_id or found.name,
            now_ms=state.now_ms(),
            request_id=request_id_of(request),
        )
    answer = json_answer(
        {
            "name": found.name,
            "scopes": sorted(found.scopes),
            "expires_at": rfc3339(new.expires_ms),
        },
        status=201,
    )
    answer.set_cookie(
        COOKIE,
        new.token,
        max_age=max(1, (new.expires_ms - state.now_ms()) // 1000),
        path="/",
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer


@router.delete("/session", status_code=204, response_class=Response, summary="Log out")
def log_out(request: Request, database: DatabaseOf, who: PrincipalOf) -> Response:
    """End the session of the cookie and take the cookie away; nothing happens without one."""
    state = request.app.state
    token = request.cookies.get(COOKIE)
    if token:
        sessions: Sessions = state.sessions
        with database.write_beside() as connection:
            if sessions.end(connection, token):
                record_audit(
                    connection,
                    actor=who.name,
                    action="session.end",
                    object_type="session",
                    object_id=who.key_id or who.name,
                    now_ms=state.now_ms(),
                    request_id=request_id_of(request),
                )
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")
    return answer
