"""What foreshock sends to a generic webhook, for the description of the REST surface."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header
from pydantic import BaseModel, ConfigDict, Field

from schemas.alert import AlertEvent

__all__ = ["router"]

router = APIRouter()


class OutboundAlert(BaseModel):
    """A notification to an endpoint of type webhook."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"type": "alert.firing", "timestamp": "2025-09-24T03:20:04.007Z"}]
        }
    )

    type: Literal["alert.firing", "alert.resolved"] = Field(description="What happened.")
    timestamp: str = Field(description="Event time of the alert event, RFC 3339.")
    data: AlertEvent = Field(description="The alert event, without its series, at most 20 kB.")


@router.post("alert", status_code=204, summary="An alert, to an endpoint of type webhook")
def alert(
    body: OutboundAlert,
    webhook_id: Annotated[str, Header(description="The same for every attempt and replay.")],
    webhook_timestamp: Annotated[str, Header(description="Unix seconds of this attempt.")],
    webhook_signature: Annotated[
        str, Header(description="Standard Webhooks 1.0.0: v1 signatures, two while rotating.")
    ],
    foreshock_attempt: Annotated[str, Header(description="1 for the first attempt.")],
    foreshock_replay: Annotated[
        Literal["true"] | None, Header(description="Only when somebody asked to send it again.")
    ] = None,
) -> None:
    """Answer 2xx within 15 seconds; anything else is tried again, or given up."""
    _ = (body, webhook_id, webhook_timestamp, webhook_signature)
    _ = (foreshock_attempt, foreshock_replay)
