"""Settings of receivers: of which kind each is, where it is, and in which words it is told."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from schemas.alert import Severity
from schemas.errors import ConfigError

__all__ = ["DEFAULT_URLS", "EndpointSettings", "EndpointType", "MailSettings", "secret_bytes"]

_SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix that Standard Webhooks gives every secret

EndpointType = Literal[
    "webhook",
    "slack",
    "teams",
    "discord",
    "telegram",
    "dingtalk",
    "feishu",
    "wecom",
    "pagerduty",
    "opsgenie",
    "alertmanager",
    "alertmanager_webhook",
    "email",
    "apprise",
]

#: Where services are that have one address for everybody.
DEFAULT_URLS: Mapping[str, str] = MappingProxyType(
    {
        "slack": "https://slack.com/api/chat.postMessage",
        "telegram": "https://api.telegram.org",
        "pagerduty": "https://events.pagerduty.com/v2/enqueue",
        "opsgenie": "https://api.opsgenie.com",
    }
)
#: Settings without which a kind cannot work, besides url.
_NEEDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "telegram": ("token", "channel"),
        "pagerduty": ("token",),
        "opsgenie": ("token",),
        "email": ("mail",),
    }
)


class MailSettings(BaseModel):
    """An e-mail endpoint's server and recipients."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    server: str = Field(min_length=1, description="Host name of the mail server.")
    port: int = Field(default=465, ge=1, le=65535, description="Port of the mail server.")
    tls: Literal["implicit", "starttls", "none"] = Field(
        default="implicit",
        description="TLS from the first byte (465), by STARTTLS (587), or none at all. With "
        "starttls a server that does not offer it is refused.",
    )
    sender: str = Field(min_length=3, description="Address in From.")
    recipients: tuple[str, ...] = Field(min_length=1, max_length=50, description="Addresses in To.")
    username: str | None = Field(
        default=None, description="Login name; the password is the endpoint's token."
    )

    @field_validator("sender", "recipients")
    @classmethod
    def _addresses(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for address in (value,) if isinstance(value, str) else value:
            bad = any(ord(c) <= 32 or c in "<>,;\x7f" for c in address)
            if bad or address.count("@") != 1 or address.startswith("@") or address.endswith("@"):
                raise ValueError("an address has the form name@example.org")
        return value

    @model_validator(mode="after")
    def _no_password_in_the_clear(self) -> Self:
        if self.tls == "none" and self.username is not None:
            raise ValueError("a password is not sent without TLS: set tls, or leave username out")
        return self


class EndpointSettings(BaseModel):
    """One receiver of notifications."""

    # Errors must not print what was typed: it is a secret.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Short name of the endpoint: lower-case letters, digits, - and _.",
    )
    type: EndpointType = Field(
        default="webhook",
        description="Kind of receiver; webhook is signed Standard Webhooks. See docs/alerts.md.",
    )
    url: SecretStr | None = Field(
        default=None,
        validate_default=True,
        description="Where to send: http or https; for apprise as it writes addresses. Treated as "
        "a secret. Not needed for email, nor for services that have one address for everybody.",
    )
    secret: SecretStr | None = Field(
        default=None,
        description="Signing secret. webhook: whsec_ and the base64 of 24 to 64 random bytes; "
        "dingtalk and feishu: what the robot's page shows, if it signs.",
    )
    secret_file: Path | None = Field(
        default=None, description="File that holds the signing secret, instead of secret."
    )
    secret_previous: SecretStr | None = Field(
        default=None,
        description="webhook: the former secret while it is being replaced; both sign.",
    )
    token: SecretStr | None = Field(
        default=None,
        description="Bot token (telegram, slack), routing key (pagerduty), API key (opsgenie) or "
        "password (email).",
    )
    token_file: Path | None = Field(
        default=None, description="File that holds the token, instead of token."
    )
    channel: str | None = Field(
        default=None,
        max_length=128,
        description="Chat (telegram) or channel (slack with a bot token) to write to.",
    )
    keyword: str | None = Field(
        default=None,
        max_length=32,
        description="Word that dingtalk or feishu demands in every message of a robot.",
    )
    mail: MailSettings | None = Field(
        default=None, description="Mail server and recipients, for email."
    )
    severity_min: Severity = Field(
        default=Severity.WARNING, description="Least severity sent: info, warning or critical."
    )
    language: Literal["en", "zh-CN"] = Field(default="en", description="Language of the messages.")
    timezone: str = Field(
        default="UTC", description="IANA zone of the times in messages, such as Asia/Shanghai."
    )
    enabled: bool = Field(default=True, description="Whether anything is sent to it.")
    allow_private: bool = Field(
        default=False,
        description="Whether the receiver may have a loopback or private address. "
        "Addresses of cloud metadata services are refused always.",
    )
    ca_file: Path | None = Field(
        default=None, description="Authorities to trust instead of the system's, PEM."
    )
    profile: Literal["pager", "durable"] = Field(
        default="pager",
        description="How long to try: pager gives up with the schedule, durable after three days.",
    )
    rate_per_minute: float | None = Field(
        default=None,
        gt=0,
        le=6000,
        description="Most messages a minute, instead of what is known of this kind of receiver.",
    )

    @field_validator("url")
    @classmethod
    def _web_address(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        kind = info.data.get("type", "email")
        if value is None and kind != "email" and kind not in DEFAULT_URLS:
            raise ValueError(f"an endpoint of type {kind} needs url")
        if value is None:
            return None
        text = value.get_secret_value()
        parts = urlsplit(text)
        if kind == "apprise":
            return _one_service(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("an endpoint's url must be http:// or https:// with a host")
        if parts.username is not None or parts.password is not None:
            raise ValueError("an endpoint's url must not carry a user name or password")
        if not text.isascii() or any(ord(c) <= 32 for c in text):
            raise ValueError("an endpoint's url must be plain ASCII without spaces")
        return value

    @field_validator("secret", "secret_previous")
    @classmethod
    def _signing_secret(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is not None and info.data.get("type") == "webhook":
            secret_bytes(value.get_secret_value())
        return value

    @field_validator("timezone")
    @classmethod
    def _zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError("timezone is no IANA zone, such as Europe/Paris") from None
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name in ("secret", "token"):
            if getattr(self, name) is not None and getattr(self, f"{name}_file") is not None:
                raise ValueError(f"an endpoint takes {name} or {name}_file, not both")
        for name in self._needed():
            given = getattr(self, name) is not None
            if not given and getattr(self, f"{name}_file", None) is None:
                raise ValueError(f"an endpoint of type {self.type} needs {name}")
        return self

    @model_validator(mode="after")
    def _signs(self) -> Self:
        if self.type == "webhook" and self.secret is None and self.secret_file is None:
            raise ValueError("an endpoint of type webhook needs either secret or secret_file")
        return self

    def _needed(self) -> tuple[str, ...]:
        if self.type == "slack" and self.url is None:
            return ("token", "channel")
        return _NEEDED.get(self.type, ())

    @property
    def address(self) -> str:
        """URL of the receiver, or of its service; empty for e-mail. A secret."""
        if self.url is not None:
            return self.url.get_secret_value()
        return DEFAULT_URLS.get(self.type, "")

    @property
    def host(self) -> str:
        """Host name of the receiver: the only part of the URL that may be shown."""
        if self.mail is not None:
            return self.mail.server
        if self.type == "apprise":  # what stands where the host does may be a token
            return urlsplit(self.address).scheme
        return urlsplit(self.address).hostname or ""

    def signing_secret(self) -> str:
        """Return the signing secret, from the settings or from its file; empty if there is none.

        Raises
        ------
        ConfigError
            If the file cannot be read or holds no secret.
        """
        text = self._given("secret", self.secret, self.secret_file)
        if self.type == "webhook":
            try:
                secret_bytes(text)
            except ValueError:
                raise ConfigError(
                    f"secret_file of endpoint {self.name!r} cannot be used: {self.secret_file}: "
                    "no whsec_ secret in it"
                ) from None
        return text

    def access_token(self) -> str:
        """Return the token, from the settings or from its file; empty if there is none.

        Raises
        ------
        ConfigError
            If the file cannot be read.
        """
        return self._given("token", self.token, self.token_file)

    def _given(self, name: str, value: SecretStr | None, path: Path | None) -> str:
        if value is not None:
            return value.get_secret_value()
        if path is None:
            return ""
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else "it is no text"
            raise ConfigError(
                f"{name}_file of endpoint {self.name!r} cannot be used: {path}: {reason}"
            ) from None


def _one_service(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if "://" not in text or any(ord(c) <= 32 or c == "," for c in text):
        raise ValueError("an address of apprise is one, such as ntfy://topic, without spaces")
    return value


def secret_bytes(secret: str) -> bytes:
    """Return the key of a ``whsec_`` secret.

    Raises
    ------
    ValueError
        If it is not ``whsec_`` and the base64 of 24 to 64 bytes (Standard Webhooks 1.0.0,
        section "Symmetric"). The text never shows the secret.
    """
    message = "a webhook secret is whsec_ followed by the base64 of 24 to 64 bytes"
    if not secret.startswith(_SECRET_PREFIX):
        raise ValueError(message)
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError(message) from None
    if not 24 <= len(key) <= 64:
        raise ValueError(message)
    return key
