"""Settings of the api. Read by the front door; nothing here touches files or the environment."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from api.beatsettings import HeartbeatSettings, PingSettings
from api.endpoints import EndpointSettings, secret_bytes
from api.notify.egress import Allowed
from schemas.alert import Severity
from schemas.errors import ConfigError

__all__ = [
    "ApiSettings",
    "DeliverySettings",
    "EndpointSettings",
    "LifecycleSettings",
    "is_loopback_host",
    "secret_bytes",
]


class DeliverySettings(BaseModel):
    """How notifications are sent. The defaults follow Standard Webhooks' advice."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    allow_hosts: tuple[str, ...] = Field(
        default=(),
        max_length=200,
        description="Names of receivers that may have a loopback or private address, for every "
        "endpoint, those made over REST too.",
    )
    allow_cidrs: tuple[str, ...] = Field(
        default=(),
        max_length=200,
        description="Networks in which receivers may lie, such as 10.20.0.0/16, as with "
        "allow_hosts.",
    )

    schedule_seconds: tuple[float, ...] = Field(
        default=(0, 5, 30, 120, 300, 900, 1800, 3600, 7200, 14400),
        min_length=1,
        max_length=50,
        description="Waits before each attempt, in seconds; after the last one a delivery is dead.",
    )
    permanent_retry_seconds: float = Field(
        default=60.0,
        ge=0,
        description="Wait before the one retry after an answer that says: never, in seconds.",
    )
    connect_seconds: float = Field(default=5.0, gt=0, description="Time to connect, in seconds.")
    total_seconds: float = Field(
        default=15.0, gt=0, description="Time for a whole attempt, in seconds."
    )
    lease_seconds: float = Field(
        default=60.0,
        gt=0,
        description="After this long the deliveries of a dead process are taken over, in seconds.",
    )
    per_endpoint: int = Field(
        default=4, ge=1, le=32, description="Attempts under way at once per endpoint."
    )
    concurrency: int = Field(default=32, ge=1, le=64, description="Attempts under way at once.")
    digest_after_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Where more waits than the receiver takes, for so long, one message tells all "
        "of it; and no more than one in this time. In seconds.",
    )
    breaker_failures: int = Field(
        default=5,
        ge=1,
        description="Failures of line or server in a row after which an endpoint is only probed.",
    )
    breaker_seconds: float = Field(
        default=30.0, gt=0, description="Wait before the first probe, doubling, in seconds."
    )
    breaker_max_seconds: float = Field(
        default=600.0, gt=0, description="Longest wait between two probes, in seconds."
    )
    failing_seconds: float = Field(
        default=300.0,
        gt=0,
        description="An endpoint that takes nothing for so long is told through the others, in "
        "seconds.",
    )
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$",
        description="Address of this api as people reach it, for links in messages.",
    )

    @field_validator("allow_cidrs")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            Allowed.of((), value)
        except ValueError:
            raise ValueError("allow_cidrs holds networks such as 10.20.0.0/16") from None
        return value

    def allowed(self) -> Allowed:
        """Return the private addresses that every endpoint may have."""
        return Allowed.of(self.allow_hosts, self.allow_cidrs)


class LifecycleSettings(BaseModel):
    """How alerts live on in the store, and when people are told."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    reopen_seconds: int = Field(
        default=900,
        ge=0,
        le=86_400,
        description="An episode that begins within this time after the last one reopens it.",
    )
    flap_seconds: int = Field(
        default=1800,
        ge=60,
        le=86_400,
        description="Four beginnings and ends of one fault within this time are flapping.",
    )
    stable_seconds: int = Field(
        default=900,
        ge=1,
        le=86_400,
        description="Flapping ends after this long without a beginning or an end, in seconds.",
    )
    ack_hours: float = Field(
        default=24.0, gt=0, le=720, description="How long an acknowledgement lasts, in hours."
    )
    settle_seconds: float = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="After a start, alerts that were open before are not told for so long.",
    )
    tell_late_ends: Severity = Field(
        default=Severity.CRITICAL,
        description="Least severity whose end is told though its beginning never could be.",
    )
    retention_days: float = Field(
        default=90.0, gt=0, le=3650, description="How long resolved alerts are kept, in days."
    )
    silence_max_days: int = Field(default=30, ge=1, le=366, description="Longest silence, in days.")
    fleet_nodes: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="How many nodes the fleet has: the same fault on a tenth of them at once is "
        "one of the fleet. By default ten nodes, or a tenth of those that alerts have named.",
    )


class ApiSettings(BaseModel):
    """Where the api listens, what it stores and whom it tells."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8600, ge=0, le=65535, description="Port to listen on; 0 picks one.")
    allowed_hosts: tuple[str, ...] = Field(
        default=("localhost", "127.0.0.1", "::1"),
        description="Host names by which the api may be called, without port; * allows any.",
    )
    api_key: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="Key that requests must carry; needed to listen beyond loopback.",
    )
    require_key: bool = Field(
        default=False,
        description="Whether requests need a key even where api_key is not set: one that lies, "
        "hashed, in the store.",
    )
    insecure_no_auth: bool = Field(
        default=False,
        description="Allows listening beyond loopback without any key: everybody who reaches the "
        "port can read and change everything.",
    )
    secret_key: SecretStr | None = Field(
        default=None,
        description="Base64 of 32 random bytes that seals secrets in the store, instead of a "
        "file. Several, with spaces between: the first seals, all of them open.",
    )
    secret_key_file: Path | None = Field(
        default=None,
        description="File with the base64 of 32 random bytes that seals secrets in the store; by "
        "default api/secret.key in the data directory, made at the first start. Several lines: "
        "the first seals, all of them open.",
    )
    session_hours: float = Field(
        default=12.0,
        gt=0,
        le=720,
        description="How long a browser stays logged in, in hours.",
    )
    requests_per_second: float = Field(
        default=100.0,
        gt=0,
        description="Requests that one key, or one address without a key, may send on average.",
    )
    database: SecretStr | None = Field(
        default=None,
        description="Store: sqlite:///path or postgresql://user:password@host/database; by default "
        "api/alerts.sqlite in the data directory.",
    )
    group: str = Field(
        default="foreshock-api", min_length=1, description="Consumer group on the bus."
    )
    batch_size: int = Field(
        default=500, ge=1, le=10_000, description="Most alert events in one transaction."
    )
    heartbeat_seconds: float = Field(
        default=15.0, gt=0, description="Silence on an event stream before a comment, in seconds."
    )
    page_refresh_seconds: int = Field(
        default=10, ge=1, le=3600, description="How often the pages reload, in seconds."
    )
    endpoints: tuple[EndpointSettings, ...] = Field(
        default=(), max_length=100, description="Receivers of notifications."
    )
    heartbeats: tuple[HeartbeatSettings, ...] = Field(
        default=(),
        max_length=1000,
        description="Signs of life that must come from others, even if they never have.",
    )
    pings: tuple[PingSettings, ...] = Field(
        default=(),
        max_length=20,
        description="Signs of life that this service sends while all of it works.",
    )
    delivery: DeliverySettings = Field(
        default_factory=DeliverySettings, description="How notifications are sent."
    )

    lifecycle: LifecycleSettings = Field(
        default_factory=LifecycleSettings,
        description="How alerts live on in the store, and when people are told.",
    )

    @model_validator(mode="after")
    def _distinct_names(self) -> Self:
        names = [endpoint.name for endpoint in self.endpoints]
        if len(set(names)) != len(names):
            raise ValueError("two endpoints have the same name")
        return self

    def check_bind(self) -> None:
        """Refuse to show alerts to a network without a key.

        Raises
        ------
        ConfigError
            If the address is not loopback and no API key is set.
        """
        guarded = self.api_key is not None or self.require_key or self.insecure_no_auth
        if not guarded and not is_loopback_host(self.host):
            raise ConfigError(
                f"api.host is {self.host}, which other machines can reach, and api.api_key is not "
                "set. Set api.api_key (16 characters or more) or api.require_key, or listen on "
                "127.0.0.1."
            )

    def host_names(self) -> frozenset[str]:
        """Return the accepted values of the Host header, lower case, without port."""
        names = {name.strip("[]").lower() for name in self.allowed_hosts}
        bound = self.host.strip("[]").lower()
        return frozenset(names | ({bound} - {"0.0.0.0", "::", ""}))  # noqa: S104 - excluded


def is_loopback_host(host: str) -> bool:
    """Tell whether listening on ``host`` can be reached from this machine only.

    Examples
    --------
    >>> [is_loopback_host(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "gpu1")]
    [True, True, True, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
