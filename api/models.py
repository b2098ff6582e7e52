"""Shapes of the REST answers, for OpenAPI. Answers themselves are written with orjson.

An alert is the contract's AlertEvent as it stands now, with the store's own times beside it.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from schemas.alert import AlertEvent

__all__ = [
    "Alert",
    "AlertPage",
    "DeliveryPage",
    "DeliveryView",
    "EndpointList",
    "EndpointView",
    "EventPage",
    "EventView",
    "Health",
    "Version",
]


@pydantic_dataclass(frozen=True, slots=True, kw_only=True)
class Alert(AlertEvent):
    """An alert as it stands now.

    Parameters
    ----------
    last_seen_at
        Event time of the newest event, RFC 3339.
    received_at
        When the store first saw it, RFC 3339.
    """

    last_seen_at: str = ""
    received_at: str = ""


class AlertPage(BaseModel):
    """Some alerts, newest start first."""

    alerts: list[Alert] = Field(description="The alerts; without their series.")
    next_cursor: str | None = Field(description="For the next page; null on the last one.")


class EventView(BaseModel):
    """One entry of the event log."""

    id: int = Field(description="Grows with every event; resume a stream after it.")
    alert_id: str = Field(description="The alert.")
    seq: int = Field(description="The detector's count of events of this alert.")
    origin: str = Field(description="detector, or api for a conclusion of the store.")
    state: str = Field(description="firing or resolved.")
    severity: str = Field(description="info, warning or critical.")
    received_at: str = Field(description="When the store got it, RFC 3339.")
    event: AlertEvent = Field(description="The event itself.")


class EventPage(BaseModel):
    """Some events, oldest first."""

    events: list[EventView] = Field(description="The events.")
    last_id: int = Field(description="Pass it as after to go on.")


class EndpointView(BaseModel):
    """A receiver, without its secrets."""

    name: str = Field(description="Its name in the settings.")
    type: str = Field(description="Its kind.")
    url: str = Field(description="Masked: only the host is shown.")
    secret: str = Field(description="Masked.")
    severity_min: str = Field(description="Least severity sent.")
    enabled: bool = Field(description="Whether anything is sent.")
    deliveries: dict[str, int] = Field(description="Number of deliveries by state.")
    read_only: bool = Field(default=True, description="Endpoints come from the settings file.")


class EndpointList(BaseModel):
    """All receivers."""

    endpoints: list[EndpointView] = Field(description="The receivers.")


class DeliveryView(BaseModel):
    """One notification to one receiver."""

    id: int = Field(description="Number of the delivery.")
    endpoint: str = Field(description="Its receiver.")
    alert_id: str = Field(description="The alert.")
    event_id: int = Field(description="The event it tells.")
    webhook_id: str = Field(description="Id sent to the receiver, the same for every attempt.")
    state: str = Field(description="pending, leased, done, dead or cancelled.")
    attempts: int = Field(description="Attempts made.")
    next_attempt_at: str | None = Field(description="When it is tried next, RFC 3339.")
    last_status: int | None = Field(description="HTTP status of the last attempt.")
    last_error: str | None = Field(description="Why the last attempt failed.")
    created_at: str = Field(description="When it was queued, RFC 3339.")
    finished_at: str | None = Field(description="When it was delivered or given up, RFC 3339.")


class DeliveryPage(BaseModel):
    """Some deliveries, newest first."""

    deliveries: list[DeliveryView] = Field(description="The deliveries.")
    next_cursor: str | None = Field(description="For the next page; null on the last one.")


class Health(BaseModel):
    """Whether the service works, with a sentence and numbers."""

    model_config = ConfigDict(extra="allow")

    ok: bool = Field(description="Whether it works.")
    detail: str = Field(description="Sentence for people.")
    checks: dict[str, Any] = Field(  # any JSON value: booleans, numbers and sentences
        default_factory=dict, description="Single results."
    )


class Version(BaseModel):
    """What runs here."""

    version: str = Field(description="Version of foreshock.")
    schema_revision: str | None = Field(description="Schema of the alert store.")
