"""Shapes of Alertmanager's API v2: what is asked, what is answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, RootModel

from api.routes.parts import only_rfc3339

__all__ = [
    "AlertGroup",
    "GettableAlert",
    "GettableSilence",
    "PostableAlerts",
    "PostableSilence",
    "ReceiverName",
    "SilenceId",
    "Status",
]

MAX_PUSHED = 2000
_Time = Annotated[AwareDatetime, BeforeValidator(only_rfc3339)]
_Name = Annotated[str, Field(max_length=128, pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
_Labels = dict[_Name, Annotated[str, Field(max_length=1024)]]
_Annotations = dict[_Name, Annotated[str, Field(max_length=4096)]]


class _Asked(BaseModel):
    # Fields of later versions are ignored, as Alertmanager does; errors repeat nothing.
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True, frozen=True)


class PostableAlert(_Asked):
    """An alert that another tool pushes."""

    labels: _Labels = Field(min_length=1, max_length=64, description="Its identity.")
    annotations: _Annotations = Field(
        default_factory=dict, max_length=64, description="What it says."
    )
    starts_at: _Time | None = Field(
        default=None, alias="startsAt", description="Since when; now if left out."
    )
    ends_at: _Time | None = Field(
        default=None,
        alias="endsAt",
        description="Over from then on unless pushed again; in five minutes if left out.",
    )
    generator_url: str = Field(
        default="", alias="generatorURL", max_length=2048, description="Where it comes from."
    )


class PostableAlerts(RootModel[list[PostableAlert]]):
    """Alerts that another tool pushes, at most 2000."""

    model_config = ConfigDict(
        hide_input_in_errors=True,
        json_schema_extra={
            "examples": [
                [
                    {
                        "labels": {"alertname": "DiskFull", "severity": "warning", "node": "n1"},
                        "annotations": {"summary": "/var of n1 is 95 % full"},
                        "startsAt": "2026-01-31T12:00:00Z",
                    }
                ]
            ]
        },
    )

    root: list[PostableAlert] = Field(max_length=MAX_PUSHED)


class AmMatcher(_Asked):
    """One condition."""

    name: str = Field(max_length=128, description="Name of the label.")
    value: str = Field(max_length=500, description="Text or RE2 expression.")
    is_regex: bool = Field(alias="isRegex", description="Whether value is an expression.")
    is_equal: bool = Field(default=True, alias="isEqual", description="False turns it around.")


class PostableSilence(_Asked):
    """A silence to make, or with an id to replace."""

    model_config = ConfigDict(
        extra="ignore",
        hide_input_in_errors=True,
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "matchers": [{"name": "node", "value": "n1", "isRegex": False}],
                    "startsAt": "2026-01-31T12:00:00Z",
                    "endsAt": "2026-01-31T14:00:00Z",
                    "createdBy": "somebody",
                    "comment": "Fan is being replaced.",
                }
            ]
        },
    )

    id: str | None = Field(default=None, max_length=36, description="Which one to replace.")
    matchers: list[AmMatcher] = Field(min_length=1, max_length=20, description="All must hold.")
    starts_at: _Time = Field(alias="startsAt", description="When it begins.")
    ends_at: _Time = Field(alias="endsAt", description="When it ends.")
    created_by: str = Field(
        default="",
        alias="createdBy",
        max_length=200,
        description="Noted in the audit log; the author is the one whose key it is.",
    )
    comment: str = Field(max_length=1000, description="Why; needed.")


class SilenceId(BaseModel):
    """The silence that was made."""

    silenceID: str = Field(description="Its id.")  # noqa: N815 - Alertmanager's name


class ReceiverName(BaseModel):
    """Somebody who is told."""

    name: str = Field(description="Name of an endpoint, or nobody.")


class AmSilenceState(BaseModel):
    """Where a silence stands."""

    state: Literal["expired", "active", "pending"] = Field(description="A word.")


class GettableSilence(BaseModel):
    """A silence."""

    id: str = Field(description="Its id.")
    status: AmSilenceState = Field(description="Where it stands.")
    matchers: list[dict[str, Any]] = Field(  # name, value, isRegex, isEqual
        description="All must hold."
    )
    startsAt: str = Field(description="RFC 3339.")  # noqa: N815 - Alertmanager's name
    endsAt: str = Field(description="RFC 3339.")  # noqa: N815 - Alertmanager's name
    updatedAt: str = Field(description="RFC 3339.")  # noqa: N815 - Alertmanager's name
    createdBy: str = Field(description="Whose key.")  # noqa: N815 - Alertmanager's name
    comment: str = Field(description="Why.")


class AmAlertStatus(BaseModel):
    """What keeps people from being told."""

    state: Literal["unprocessed", "active", "suppressed"] = Field(description="A word.")
    silencedBy: list[str] = Field(description="Silences.")  # noqa: N815 - Alertmanager's name
    inhibitedBy: list[str] = Field(  # noqa: N815 - Alertmanager's name
        description="Fingerprint of the graver alert that explains it."
    )
    mutedBy: list[str] = Field(description="Always empty.")  # noqa: N815 - Alertmanager's name


class GettableAlert(BaseModel):
    """An open alert."""

    labels: dict[str, str] = Field(description="The words that matchers compare.")
    annotations: dict[str, str] = Field(description="What it says.")
    startsAt: str = Field(description="RFC 3339.")  # noqa: N815 - Alertmanager's name
    updatedAt: str = Field(description="RFC 3339.")  # noqa: N815 - Alertmanager's name
    endsAt: str = Field(description="RFC 3339.")  # noqa: N815 - Alertmanager's name
    fingerprint: str = Field(description="16 hexadecimal digits.")
    receivers: list[ReceiverName] = Field(description="Who is told.")
    generatorURL: str = Field(description="Its page.")  # noqa: N815 - Alertmanager's name
    status: AmAlertStatus = Field(description="What keeps people from being told.")


class AlertGroup(BaseModel):
    """Alerts with a common cause, for one receiver."""

    labels: dict[str, str] = Field(description="What they share: fleet, rack, job, node or alert.")
    receiver: ReceiverName = Field(description="Who is told.")
    alerts: list[GettableAlert] = Field(description="The alerts, the root first.")


class Status(BaseModel):
    """What runs here."""

    cluster: dict[str, Any] = Field(description="Always disabled.")  # name, status, peers
    versionInfo: dict[str, str] = Field(  # noqa: N815 - Alertmanager's name
        description="The version whose API this is; revision names foreshock's own."
    )
    config: dict[str, str] = Field(description="original: the routes, without secrets.")
    uptime: str = Field(description="Since when it runs, RFC 3339.")
