"""``POST /v1/ingest/alerts``: alert events of the contract, from who has no bus."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Body, HTTPException, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from api.ledger import Ledger, check_storable
from api.problems import Problem
from api.routes.parts import KNOWN_ONLY, PROBLEMS, DatabaseOf, json_answer, needs
from api.security.principal import Scope
from schemas.alert import AlertEvent
from schemas.codec import decode_alert
from schemas.errors import DecodeError

__all__ = ["INGEST_PATHS", "router"]

#: Where bodies may be longer than elsewhere.
INGEST_PATHS = frozenset({"/v1/ingest/alerts"})
_MOST = 1000
router = APIRouter(
    prefix="/v1/ingest",
    tags=["ingest"],
    responses=PROBLEMS | {413: {"model": Problem, "description": "The body is too long."}},
    dependencies=[*KNOWN_ONLY, needs(Scope.INGEST)],
)


class IngestBody(BaseModel):
    """Alert events, as schemas/alert-event.schema.json describes them."""

    model_config = ConfigDict(
        extra="forbid",
        hide_input_in_errors=True,
        frozen=True,
        json_schema_extra={"examples": [{"events": []}]},
    )

    events: list[dict[str, Any]] = Field(  # checked by the codec
        max_length=_MOST, description="At most 1000, each as the bus carries it."
    )


class IngestResult(BaseModel):
    """What became of the events."""

    stored: int = Field(description="How many were new.")
    known: int = Field(description="How many were known already: sending twice changes nothing.")


@router.post("/alerts", response_model=IngestResult, summary="Send alert events")
def ingest_alerts(
    request: Request, database: DatabaseOf, body: Annotated[IngestBody, Body()]
) -> Response:
    """Store events as if they had come over the bus: all of them, or none if one is wrong.

    An event is known by its alert and ``seq``, so a batch may be sent again after a lost answer.
    """
    events = [_decoded(number, one) for number, one in enumerate(body.events)]
    ledger: Ledger = request.app.state.ledger
    with database.write() as connection:
        entries = ledger.record_all(connection, events, request.app.state.now_ms())
    stored = sum(entry.event_id is not None for entry in entries)
    if stored:
        request.app.state.changed()
    return json_answer({"stored": stored, "known": len(events) - stored})


def _decoded(number: int, one: dict[str, Any]) -> AlertEvent:  # decoded JSON
    try:
        event = decode_alert(orjson.dumps(one))
        check_storable(event)
    except (DecodeError, TypeError, ValueError) as exc:
        reason = exc.reason if isinstance(exc, DecodeError) else "bad_value"
        # The detail may quote a value: the word alone is said.
        raise HTTPException(422, f"Event {number} cannot be used: {reason}.") from None
    return event
