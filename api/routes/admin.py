"""``/v1/api-keys`` and ``/v1/audit``: who may, and who did."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from api.problems import Problem, request_id_of
from api.routes.bodies import KeyBody
from api.routes.parts import (
    KNOWN_ONLY,
    MAX_ID,
    PROBLEMS,
    DatabaseOf,
    Limit,
    PrincipalOf,
    json_answer,
    needs,
    unix_ms,
)
from api.security.auditing import read_audit, record_audit
from api.security.keys import KeyStore
from api.security.principal import ROLES, Scope

__all__ = ["router"]

router = APIRouter(
    prefix="/v1",
    tags=["administration"],
    responses=PROBLEMS,
    dependencies=[*KNOWN_ONLY, needs(Scope.ADMIN)],
)
_NOT_FOUND = "There is no key with this id."


class KeyView(BaseModel):
    """An API key, without what opens the door."""

    id: str = Field(description="Its id.")
    name: str = Field(description="For people.")
    prefix: str = Field(description="How it begins, to recognise it.")
    role: str = Field(description="viewer, operator or admin.")
    scopes: list[str] = Field(description="What it may.")
    created_by: str = Field(description="Who made it.")
    created_at: str = Field(description="RFC 3339.")
    expires_at: str | None = Field(description="RFC 3339; null for never.")
    revoked_at: str | None = Field(description="RFC 3339; null while it works.")
    last_used_at: str | None = Field(description="To the minute; null if never.")


class KeyList(BaseModel):
    """Every key."""

    keys: list[KeyView] = Field(description="The keys, oldest first.")


class NewKeyView(BaseModel):
    """A new key: the only time that it is shown."""

    id: str = Field(description="Its id.")
    key: str = Field(description="The key itself; it cannot be shown again.")


class AuditEntry(BaseModel):
    """Something that somebody did."""

    id: int = Field(description="Grows with every entry.")
    at: str = Field(description="RFC 3339.")
    actor: str = Field(description="Who, from the credential.")
    action: str = Field(description="Fixed word: alert.ack, silence.create, key.revoke, …")
    object_type: str = Field(description="To what kind of thing.")
    object_id: str = Field(description="To which.")
    detail: dict[str, object] | None = Field(description="What else.")
    request_id: str | None = Field(description="Of the request.")


class AuditPage(BaseModel):
    """Some entries, newest first."""

    entries: list[AuditEntry] = Field(description="The entries.")
    next_before: int | None = Field(description="Pass it as before for the next page.")


@router.get("/api-keys", response_model=KeyList, summary="List API keys")
def list_keys(request: Request, database: DatabaseOf) -> Response:
    """Return every key without its secret part."""
    store: KeyStore = request.app.state.keys
    with database.read() as connection:
        return json_answer({"keys": store.all(connection)})


@router.post(
    "/api-keys", response_model=NewKeyView, status_code=201, summary="Make an API key, shown once"
)
def create_key(request: Request, body: KeyBody, database: DatabaseOf, who: PrincipalOf) -> Response:
    """Make a key; nobody can give what they lack."""
    state = request.app.state
    store: KeyStore = state.keys
    scopes = frozenset(body.scopes) or ROLES[body.role]
    if not who.may_grant(scopes):
        raise HTTPException(403, "Nobody can give a scope that they lack.")
    expires_ms = unix_ms(body.expires_at)
    if expires_ms is not None and expires_ms <= state.now_ms():
        raise HTTPException(422, "expires_at must lie in the future.")
    with database.write() as connection:
        new = store.create(
            connection,
            name=body.name,
            role=body.role,
            scopes=body.scopes,
            expires_ms=expires_ms,
            actor=who.name,
        )
        record_audit(
            connection,
            actor=who.name,
            action="key.create",
            object_type="api_key",
            object_id=new.id,
            now_ms=state.now_ms(),
            detail={"name": body.name, "role": body.role.value},
            request_id=request_id_of(request),
        )
    return json_answer({"id": new.id, "key": new.key}, status=201)


@router.delete(
    "/api-keys/{key_id}",
    status_code=204,
    response_class=Response,
    responses={404: {"model": Problem, "description": _NOT_FOUND}},
    summary="Revoke an API key",
)
def revoke_key(request: Request, key_id: UUID, database: DatabaseOf, who: PrincipalOf) -> Response:
    """End a key: here at once, in other processes within five seconds."""
    state = request.app.state
    store: KeyStore = state.keys
    with database.write() as connection:
        if not store.revoke(connection, str(key_id)):
            raise HTTPException(404, _NOT_FOUND)
        record_audit(
            connection,
            actor=who.name,
            action="key.revoke",
            object_type="api_key",
            object_id=str(key_id),
            now_ms=state.now_ms(),
            request_id=request_id_of(request),
        )
    state.key_ring.forget()
    return Response(status_code=204)


@router.get("/audit", response_model=AuditPage, summary="Read the audit log, newest first")
def list_audit(
    database: DatabaseOf,
    object_type: Annotated[str | None, Query(max_length=32)] = None,
    object_id: Annotated[str | None, Query(max_length=100)] = None,
    actor: Annotated[str | None, Query(max_length=200)] = None,
    before: Annotated[int | None, Query(ge=1, le=MAX_ID, description="Older than this id.")] = None,
    limit: Limit = 100,
) -> Response:
    """Return who did what."""
    with database.read() as connection:
        entries = read_audit(
            connection,
            before=before,
            limit=limit,
            object_type=object_type,
            object_id=object_id,
            actor=actor,
        )
    after = entries[-1]["id"] if len(entries) == limit else None
    return json_answer({"entries": entries, "next_before": after})
