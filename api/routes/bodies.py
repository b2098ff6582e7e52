"""Bodies of requests that change something, with an example of each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from api.actions import ActionKind
from api.lifecycle import Feedback
from api.routes.parts import only_rfc3339
from api.security.principal import Role, Scope
from schemas.alert import Severity

__all__ = [
    "AckBody",
    "AssignBody",
    "BulkBody",
    "BulkFilter",
    "CommentBody",
    "FeedbackBody",
    "KeyBody",
    "MatcherBody",
    "NoteBody",
    "PreviewBody",
    "RecurrenceBody",
    "ReplayBody",
    "SilenceBody",
    "SnoozeBody",
    "TestRouteBody",
]


def _without_nul(text: object) -> object:
    if isinstance(text, str) and "\0" in text:
        raise PydanticCustomError("nul", "Text must not hold the character NUL")
    return text


Plain = BeforeValidator(_without_nul)
Comment = Annotated[str, Plain, Field(max_length=1000, description="Why, for the timeline.")]


Time = Annotated[
    AwareDatetime,
    BeforeValidator(only_rfc3339),
    Field(description="RFC 3339 with a zone: 2026-01-31T12:00:00Z."),
]


class _Body(BaseModel):
    # Errors must not repeat what was sent.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, frozen=True)


def _example(**fields: Any) -> ConfigDict:  # any JSON value
    return ConfigDict(json_schema_extra={"examples": [fields]})


class NoteBody(_Body):
    """A word on what is done."""

    model_config = _example(comment="Fan replaced, watching.")

    comment: Comment | None = None


class AckBody(_Body):
    """Until when somebody has it."""

    model_config = _example(until="2026-01-31T18:00:00Z", comment="On it.")

    until: Time | None = None
    comment: Comment | None = None


class SnoozeBody(_Body):
    """Until when nobody is told."""

    model_config = _example(until="2026-01-31T18:00:00Z", comment="Maintenance until six.")

    until: Time
    comment: Comment | None = None


class AssignBody(_Body):
    """Who has it."""

    model_config = _example(assignee="li.wei", comment="Your rack.")

    assignee: Annotated[str, Plain, Field(min_length=1, max_length=200)] | None = Field(
        description="Name of the person; null takes it away."
    )
    comment: Comment | None = None


class CommentBody(_Body):
    """A comment."""

    model_config = _example(comment="Seen on this node last week as well.")

    comment: Annotated[str, Plain, Field(min_length=1, max_length=1000)] = Field(
        description="The comment."
    )


class FeedbackBody(_Body):
    """What it was found to be."""

    model_config = _example(feedback="false_positive", comment="Burn-in test.")

    feedback: Feedback | None = Field(
        description="true_positive, false_positive or expected; null takes it back."
    )
    comment: Comment | None = None


class BulkFilter(_Body):
    """Which alerts, instead of ids."""

    model_config = _example(state="open", node="node-117")

    state: Literal["open", "firing", "acknowledged", "stale", "resolved"] | None = "open"
    severity_min: Severity | None = None
    family: Annotated[str, Plain, Field(max_length=200)] | None = None
    kind: Annotated[str, Plain, Field(max_length=200)] | None = None
    node: Annotated[str, Plain, Field(max_length=200)] | None = None
    gpu: Annotated[str, Plain, Field(max_length=200)] | None = None
    job: Annotated[str, Plain, Field(max_length=200)] | None = None
    match: list[Annotated[str, Plain, Field(max_length=1200)]] = Field(
        default_factory=list, max_length=20
    )


class BulkBody(_Body):
    """One action on many alerts."""

    model_config = _example(
        action="ack", filter={"state": "firing", "node": "node-117"}, dry_run=True
    )

    action: ActionKind = Field(description="What to do.")
    ids: list[Annotated[str, Field(max_length=36)]] | None = Field(
        default=None, max_length=1000, description="Which alerts, at most 1000."
    )
    filter: BulkFilter | None = Field(default=None, description="Or those that match.")
    dry_run: bool = Field(default=False, description="Only say what would be done.")
    comment: Comment | None = None
    until: Time | None = None
    assignee: Annotated[str, Plain, Field(max_length=200)] | None = None
    feedback: Feedback | None = None


class MatcherBody(_Body):
    """One condition on a word of an alert."""

    model_config = _example(name="node", op="=~", value="gpu-1.*")

    name: Annotated[str, Plain, Field(min_length=1, max_length=128)]
    op: Literal["=", "!=", "=~", "!~"] = "="
    value: Annotated[str, Plain, Field(max_length=500)]


class RecurrenceBody(_Body):
    """A weekly window in a zone."""

    model_config = _example(
        weekdays=["sat"], start="22:00", duration_minutes=480, zone="Europe/Paris"
    )

    weekdays: list[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]] = Field(
        min_length=1, max_length=7, description="Days on which it starts."
    )
    start: str = Field(pattern=r"^[0-2][0-9]:[0-5][0-9]$", description="Wall-clock start, HH:MM.")
    duration_minutes: int = Field(ge=1, le=10_080, description="How long it lasts.")
    zone: str = Field(max_length=64, description="IANA zone, for example Asia/Shanghai.")


class SilenceBody(_Body):
    """A silence."""

    model_config = _example(
        matchers=[{"name": "node", "op": "=~", "value": "gpu-1.*"}],
        starts_at="2026-01-31T12:00:00Z",
        ends_at="2026-01-31T18:00:00Z",
        comment="Firmware update of rack 1.",
    )

    matchers: list[MatcherBody] = Field(
        min_length=1, max_length=20, description="All must hold; one must not take everything."
    )
    starts_at: Time | None = Field(default=None, description="When it begins; now if left out.")
    ends_at: Time = Field(description="When it ends.")
    comment: Annotated[str, Plain, Field(min_length=1, max_length=1000)] = Field(
        description="Why; needed."
    )
    recurrence: RecurrenceBody | None = Field(
        default=None, description="Weekly windows between start and end."
    )


class PreviewBody(_Body):
    """What a silence with these matchers would hide."""

    model_config = _example(matchers=[{"name": "node", "op": "=", "value": "node-117"}])

    matchers: list[MatcherBody] = Field(min_length=1, max_length=20)


class TestRouteBody(_Body):
    """An alert by its words, to see where it goes."""

    model_config = _example(
        labels={"family": "throttling", "kind": "power_brake", "node": "n1"}, severity="warning"
    )

    labels: dict[
        Annotated[str, Plain, Field(max_length=128)], Annotated[str, Plain, Field(max_length=1024)]
    ] = Field(max_length=64, description="The words of the alert.")
    severity: Severity = Severity.WARNING


class ReplayBody(_Body):
    """What is to be sent again: ids, or all that was given up."""

    model_config = _example(endpoint="noc", since="2026-01-31T12:00:00Z")

    ids: list[Annotated[int, Field(ge=1, le=2**53)]] | None = Field(
        default=None, max_length=1000, description="Numbers of deliveries; all if left out."
    )
    endpoint: Annotated[str, Plain, Field(max_length=64)] | None = Field(
        default=None, description="Only of this one."
    )
    since: Time | None = Field(default=None, description="Given up since then; without ids.")


class KeyBody(_Body):
    """A new API key."""

    model_config = _example(name="grafana", role="viewer", expires_at="2027-01-31T00:00:00Z")

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@-]{0,62}$",
        description="For people, and the actor of what is done with it.",
    )
    role: Role = Field(default=Role.VIEWER, description="viewer, operator or admin.")
    scopes: list[Scope] = Field(
        default_factory=list, max_length=20, description="Instead of the role's."
    )
    expires_at: Time | None = Field(default=None, description="When it ends; null for never.")
