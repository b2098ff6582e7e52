"""Bodies and answers of ``/v1/endpoints``, with an example of each. Secrets only ever go in."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.endpoints import EndpointType
from api.routes.bodies import Plain
from schemas.alert import Severity

__all__ = [
    "EndpointBody",
    "EndpointChange",
    "EndpointList",
    "EndpointView",
    "MailBody",
    "NewEndpoint",
    "NewEndpointView",
    "Replayed",
    "RotateBody",
    "RotatedView",
    "TrialView",
]

_URL = "Where to send, http or https; a secret, never shown again."
_SIGNING = (
    "Signing secret; never shown again. webhook: whsec_ and the base64 of 24 to 64 bytes, made "
    "here and shown once if left out; dingtalk and feishu: what the robot's page shows."
)
_ACCESS = "Bot token, routing key, API key or mail password; never shown again."
Secret = Annotated[str, Plain, Field(max_length=2048)]
Word = Annotated[str, Plain, Field(max_length=128)]


class _Body(BaseModel):
    # Errors must not repeat what was sent.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, frozen=True)


def _example(**fields: Any) -> ConfigDict:  # any JSON value
    return ConfigDict(json_schema_extra={"examples": [fields]})


class MailBody(_Body):
    """Mail server and recipients, for type email."""

    server: Annotated[str, Plain, Field(min_length=1, max_length=253)]
    port: int = Field(default=465, ge=1, le=65535)
    tls: Literal["implicit", "starttls", "none"] = "implicit"
    sender: Annotated[str, Plain, Field(min_length=3, max_length=254)]
    recipients: list[Annotated[str, Plain, Field(max_length=254)]] = Field(
        min_length=1, max_length=50
    )
    username: Word | None = None


class EndpointBody(_Body):
    """A receiver, but for its name."""

    model_config = _example(
        type="slack", url="https://hooks.slack.com/services/T000/B000/XXXX", severity_min="warning"
    )

    type: EndpointType = Field(default="webhook", description="Kind of receiver.")
    url: Secret | None = Field(default=None, description=_URL)
    secret: Secret | None = Field(default=None, description=_SIGNING)
    token: Secret | None = Field(default=None, description=_ACCESS)
    channel: Word | None = Field(default=None, description="Chat or channel to write to.")
    keyword: Annotated[str, Plain, Field(max_length=32)] | None = Field(
        default=None, description="Word that dingtalk or feishu demands."
    )
    mail: MailBody | None = Field(default=None, description="Server and recipients of e-mail.")
    severity_min: Severity = Field(default=Severity.WARNING, description="Least severity sent.")
    language: Literal["en", "zh-CN"] = Field(default="en", description="Language of messages.")
    timezone: Annotated[str, Plain, Field(max_length=64)] = Field(
        default="UTC", description="IANA zone of the times in messages."
    )
    enabled: bool = Field(default=True, description="Whether anything is sent to it.")
    profile: Literal["pager", "durable"] = Field(
        default="pager", description="How long to try: as the schedule says, or three days."
    )
    rate_per_minute: float | None = Field(
        default=None, gt=0, le=6000, description="Most messages a minute, instead of the kind's."
    )


class NewEndpoint(EndpointBody):
    """A receiver."""

    model_config = _example(
        name="noc", type="webhook", url="https://hooks.example.org/foreshock", severity_min="info"
    )

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Short name: lower-case letters, digits, - and _.",
    )


class EndpointChange(_Body):
    """What is to be changed; null takes a value away, what is left out stays."""

    model_config = _example(severity_min="critical", timezone="Asia/Shanghai")

    url: Secret | None = Field(default=None, description=_URL)
    secret: Secret | None = Field(default=None, description=_SIGNING)
    token: Secret | None = Field(default=None, description=_ACCESS)
    channel: Word | None = None
    keyword: Annotated[str, Plain, Field(max_length=32)] | None = None
    mail: MailBody | None = None
    severity_min: Severity | None = None
    language: Literal["en", "zh-CN"] | None = None
    timezone: Annotated[str, Plain, Field(max_length=64)] | None = None
    enabled: bool | None = None
    profile: Literal["pager", "durable"] | None = None
    rate_per_minute: float | None = Field(default=None, gt=0, le=6000)


class RotateBody(_Body):
    """A new signing secret."""

    model_config = _example(overlap_hours=24)

    secret: Secret | None = Field(
        default=None, description="The new one; made here if left out (webhook)."
    )
    overlap_hours: float = Field(
        default=24.0, ge=0, le=720, description="How long the former one signs as well (webhook)."
    )


class EndpointView(BaseModel):
    """A receiver, without its secrets."""

    name: str = Field(description="Its name.")
    type: str = Field(description="Its kind.")
    url: str = Field(description="Masked: only the host is shown.")
    secret: str | None = Field(description="Masked; null if there is none.")
    token: str | None = Field(description="Masked; null if there is none.")
    channel: str | None = Field(description="Chat or channel.")
    keyword: str | None = Field(description="Word that the robot demands.")
    mail: dict[str, Any] | None = Field(  # as MailBody
        description="Mail server and recipients; addresses only with sensitive:read."
    )
    severity_min: str = Field(description="Least severity sent.")
    language: str = Field(description="Language of messages.")
    timezone: str = Field(description="Zone of the times in messages.")
    profile: str = Field(description="pager or durable.")
    rate_per_minute: float | None = Field(description="Instead of the kind's own rate.")
    enabled: bool = Field(description="Whether anything is sent.")
    problem: str | None = Field(description="Why nothing can be sent, or null.")
    secret_overlap_until: str | None = Field(
        description="Until when the former secret signs as well, RFC 3339."
    )
    failing_since: str | None = Field(description="Since when it takes nothing, RFC 3339.")
    next_probe_at: str | None = Field(description="When it is asked again after failures.")
    deliveries: dict[str, int] = Field(description="Number of deliveries by state.")
    read_only: bool = Field(description="Whether it stands in the settings file.")
    version: int = Field(description="Grows with every change; also the ETag; 0 if read-only.")
    created_by: str | None = Field(description="Who made it.")
    created_at: str | None = Field(description="RFC 3339.")
    updated_by: str | None = Field(description="Who changed it last.")
    updated_at: str | None = Field(description="RFC 3339.")


class EndpointList(BaseModel):
    """Receivers by name."""

    endpoints: list[EndpointView] = Field(description="The receivers.")
    next_cursor: str | None = Field(description="For the next page; null on the last one.")


class NewEndpointView(EndpointView):
    """A new receiver; the only time that a secret made here is shown."""

    new_secret: str | None = Field(description="Signing secret made here; not shown again.")


class RotatedView(BaseModel):
    """A new secret; the only time that one made here is shown."""

    name: str = Field(description="The endpoint.")
    version: int = Field(description="Its version now.")
    new_secret: str | None = Field(description="Signing secret made here; not shown again.")
    secret_overlap_until: str | None = Field(
        description="Until when the former one signs as well, RFC 3339."
    )


class TrialView(BaseModel):
    """What a test message came to."""

    delivered: bool = Field(description="Whether the receiver has confirmed it.")
    verdict: str = Field(description="delivered, transient, permanent or gone.")
    status_class: str | None = Field(description="Class of the answer: 2xx, 4xx; null for none.")
    latency_ms: int = Field(description="How long it took.")
    error: str | None = Field(description="Why not, in words, without address or secret.")


class Replayed(BaseModel):
    """How many notifications are queued again, under their old ids."""

    queued: int = Field(description="Number of deliveries.")
