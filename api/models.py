"""Shapes of the REST answers, for OpenAPI. Answers themselves are written with orjson.

An alert is the contract's AlertEvent as it stands now, with the store's own times beside it.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from schemas.alert import AlertEvent

__all__ = [
    "Acknowledgement",
    "Alert",
    "AlertPage",
    "AttemptView",
    "DeliveryDetail",
    "DeliveryPage",
    "DeliveryView",
    "EventPage",
    "EventView",
    "Health",
    "Version",
]


@pydantic_dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """Who has an alert, since when and until when (RFC 3339)."""

    by: str
    at: str
    until: str | None


@pydantic_dataclass(frozen=True, slots=True, kw_only=True)
class Alert(AlertEvent):
    """An alert as it stands now.

    Parameters
    ----------
    state
        firing, acknowledged, stale (its telemetry is lost) or resolved.
    last_seen_at
        Event time of the newest event, RFC 3339.
    received_at
        When the store first saw it, RFC 3339.
    version
        Grows with every change; also the ETag.
    acknowledged, assignee, feedback
        What people did with it.
    stale_since, flapping_since, snoozed_until
        Marks beside the state, RFC 3339; null where they do not hold.
    reopens
        How often it came back within the reopen window.
    silenced_by, inhibited_by
        Silence or graver alert that keeps people from being told; of one alert, not in lists.
    """

    last_seen_at: str = ""
    received_at: str = ""
    version: int = 1
    acknowledged: Acknowledgement | None = None
    assignee: str | None = None
    feedback: str | None = None
    stale_since: str | None = None
    flapping_since: str | None = None
    snoozed_until: str | None = None
    reopens: int = 0
    silenced_by: str | None = None
    inhibited_by: str | None = None


class AlertPage(BaseModel):
    """Some alerts, newest start first."""

    alerts: list[Alert] = Field(description="The alerts; without their series.")
    next_cursor: str | None = Field(description="For the next page; null on the last one.")
    count: int | None = Field(default=None, description="With count=true: how many match.")


class EventView(BaseModel):
    """One entry of the event log."""

    id: int = Field(description="Grows with every event; resume a stream after it.")
    alert_id: str = Field(description="The alert.")
    seq: int = Field(description="The origin's count of events of this alert.")
    origin: str = Field(description="detector, api (a conclusion), lifecycle or operator.")
    type: str = Field(description="What happened: fired, escalated, resolved, acknowledged, …")
    actor: str = Field(description="Who did it: detector, api, or the name of a credential.")
    detail: dict[str, Any] | None = Field(  # any JSON value
        description="More about it: a comment, until when, because of what."
    )
    state: str = Field(description="State of the alert afterwards.")
    severity: str = Field(description="info, warning or critical.")
    received_at: str = Field(description="When the store got it, RFC 3339.")
    event: AlertEvent | None = Field(
        description="The detector's event; null where it said nothing."
    )


class EventPage(BaseModel):
    """Some events, oldest first."""

    events: list[EventView] = Field(description="The events.")
    last_id: int = Field(description="Pass it as after to go on.")


class DeliveryView(BaseModel):
    """One notification to one receiver."""

    id: int = Field(description="Number of the delivery.")
    endpoint: str = Field(description="Its receiver.")
    alert_id: str = Field(description="The alert.")
    event_id: int = Field(description="The event it tells.")
    kind: str = Field(description="What it tells: the type of the event.")
    group_key: str = Field(description="Notices of one group are sent in their order.")
    note: str | None = Field(description="Why it waits or was cancelled.")
    webhook_id: str = Field(description="Id sent to the receiver, the same for every attempt.")
    state: str = Field(description="pending, leased, done, dead or cancelled.")
    attempts: int = Field(description="Attempts made.")
    next_attempt_at: str | None = Field(description="When it is tried next, RFC 3339.")
    last_status: int | None = Field(description="HTTP status of the last attempt.")
    last_error: str | None = Field(description="Why the last attempt failed.")
    created_at: str = Field(description="When it was queued, RFC 3339.")
    finished_at: str | None = Field(description="When it was delivered or given up, RFC 3339.")


class AttemptView(BaseModel):
    """One attempt at a notification."""

    number: int = Field(description="1 for the first.")
    started_at: str = Field(description="RFC 3339.")
    duration_ms: int = Field(description="How long it took.")
    status: int | None = Field(description="HTTP status; null without an answer.")
    error: str | None = Field(description="Why it failed, without address or secret.")


class DeliveryDetail(DeliveryView):
    """One notification with its attempts."""

    log: list[AttemptView] = Field(description="Its attempts, newest first, at most 100.")


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
