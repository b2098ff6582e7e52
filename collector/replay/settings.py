"""Settings of a replay: which files, in which format, in which time zone."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = ["ReplayFormat", "ReplaySettings"]


class ReplayFormat(StrEnum):
    """How the lines of a recording are read."""

    AUTO = "auto"
    NVIDIA_SMI = "nvidia-smi"
    JSONL = "jsonl"
    CSV = "csv"
    SMI_XML = "smi-xml"
    SMI_TEXT = "smi-text"
    SMI_TABLE = "smi-table"
    NVLINK = "nvlink"
    DMON = "dmon"
    PROM = "prometheus"
    PROFILE = "nvml-profile"


class ReplaySettings(BaseModel):
    """What a replay reads. Only times without a zone of their own need ``timezone``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    files: tuple[Path, ...] = Field(
        default=(),
        description="Recordings, read one after the other in this order; plain or gzip.",
    )
    format: ReplayFormat = Field(
        default=ReplayFormat.AUTO,
        description="Format of the files: auto looks at the first lines, nvidia-smi is the CSV of "
        "--query-gpu, smi-xml and smi-text are its -q -x and -q, smi-table its plain table, nvlink "
        "its list of links, dmon its monitor mode or that of dcgmi, prometheus is scraped text of "
        "dcgm-exporter or nvidia_gpu_exporter, nvml-profile is a YAML profile of a simulated NVML, "
        "jsonl is foreshock's own messages one per line, csv needs a column map.",
    )
    map: Path | None = Field(
        default=None,
        description="Column map (TOML) that says what the columns of another recording mean.",
    )
    timezone: str = Field(
        default="UTC",
        description="IANA time zone of times that carry none, for example Europe/Berlin.",
    )
    node: str | None = Field(
        default=None,
        description="Name of the node for recordings that do not name it; default: the map's "
        "name, else the host name in the file, else the name of the file.",
    )

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (KeyError, ValueError, OSError) as exc:
            raise ValueError(
                f"{name!r} is no IANA time zone; use a name such as UTC or Europe/Berlin"
            ) from exc
        return name
