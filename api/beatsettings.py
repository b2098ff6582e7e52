"""Settings of heartbeats: those that others send here, and those that this service sends."""

from __future__ import annotations

from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from api.endpoints import secret_bytes
from schemas.alert import Severity

__all__ = ["BEAT_NAME", "HeartbeatSettings", "PingSettings"]

#: Names of heartbeats.
BEAT_NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
_WEEK_SECONDS = 604_800


class HeartbeatSettings(BaseModel):
    """A sign of life that somebody sends to ``POST /v1/heartbeats/NAME``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(
        pattern=BEAT_NAME, description="Its name: lower-case letters, digits, . - and _."
    )
    interval_seconds: int = Field(
        default=300, ge=1, le=_WEEK_SECONDS, description="How often it should come, in seconds."
    )
    grace_seconds: int = Field(
        default=60,
        ge=0,
        le=_WEEK_SECONDS,
        description="How much later it may come before an alert says that it is missing.",
    )
    severity: Severity = Field(
        default=Severity.WARNING, description="Severity of that alert: info, warning or critical."
    )


class PingSettings(BaseModel):
    """A sign of life that this service sends while all of it works: a dead man's switch."""

    # Errors must not print what was typed: it is a secret.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    name: str = Field(
        pattern=BEAT_NAME, description="Its name: lower-case letters, digits, . - and _."
    )
    url: SecretStr = Field(
        description="Where to POST: http or https. Treated as a secret.",
    )
    every_seconds: float = Field(
        default=60.0, ge=1, le=86_400, description="How often it is sent, in seconds."
    )
    secret: SecretStr | None = Field(
        default=None,
        description="Signing secret, whsec_ and the base64 of 24 to 64 bytes; without one the "
        "ping is not signed.",
    )
    needs: tuple[str, ...] = Field(
        default=(),
        max_length=100,
        description="Names of heartbeats that must have come in time for it to be sent.",
    )
    allow_private: bool = Field(
        default=False, description="Whether the receiver may have a loopback or private address."
    )
    ca_file: Path | None = Field(
        default=None, description="Authorities to trust instead of the system's, PEM."
    )

    @field_validator("url")
    @classmethod
    def _http(cls, value: SecretStr) -> SecretStr:
        parts = urlsplit(value.get_secret_value())
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("the url of a ping is http://… or https://…")
        return value

    @model_validator(mode="after")
    def _secret_can_sign(self) -> Self:
        if self.secret is not None:
            secret_bytes(self.secret.get_secret_value())
        return self
