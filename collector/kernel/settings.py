"""Settings of the kernel log."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = ["KernelLogSettings", "KernelLogUse"]


class KernelLogUse(StrEnum):
    """Whether the kernel log is read."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class KernelLogSettings(BaseModel):
    """Where the kernel says what happens to the GPUs of this node."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    use: KernelLogUse = Field(
        default=KernelLogUse.AUTO,
        description="auto reads the kernel log beside the source nvml, on beside every live "
        "source (the log must be that of the same node), off never.",
    )
    path: Path = Field(
        default=Path("/dev/kmsg"),
        description="The device /dev/kmsg (needs CAP_SYSLOG where dmesg is restricted), or a text "
        "log that holds the kernel's lines, such as /var/log/kern.log; rotation is followed.",
    )
    place: Path | None = Field(
        default=None,
        description="File that keeps how far the log was read; default: kernel.json in the data "
        "directory of the collector.",
    )
    history_seconds: float = Field(
        default=600.0,
        ge=0,
        le=86_400,
        description="Lines that stood in the log before it was first read count if they are not "
        "older, in seconds; after a restart reading goes on where it stopped.",
    )
    timezone: str | None = Field(
        default=None,
        description="IANA zone of times in the log that carry none; default: this machine's.",
    )

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, name: str | None) -> str | None:
        try:
            if name is not None:
                ZoneInfo(name)
        except (KeyError, ValueError, OSError) as exc:
            raise ValueError(f"{name!r} is no IANA time zone; use a name such as UTC") from exc
        return name
