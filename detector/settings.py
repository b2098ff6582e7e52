"""Settings of the detector service."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

__all__ = ["DetectorSettings"]


class DetectorSettings(BaseModel):
    """How the detector runs. Parameters of single detectors stand under ``parameters``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: str = Field(
        default="127.0.0.1", description="Address of the detector's own /healthz and /metrics."
    )
    port: int = Field(
        default=8602, ge=0, le=65535, description="Port of /healthz and /metrics; 0 takes any."
    )
    api_key: SecretStr | None = Field(
        default=None,
        description="Key that /metrics asks for; required for an address beyond loopback.",
    )
    group: str = Field(
        default="foreshock-detector",
        description="Consumer group that shares the partitions of gpu.samples.",
    )
    cohort_group: str = Field(
        default="foreshock-cohort",
        description="Consumer group that shares the partitions of gpu.windows.",
    )
    checkpoint_seconds: float = Field(
        default=30.0,
        gt=0,
        le=600,
        description="Seconds between snapshots; after a crash that much is read again.",
    )
    snapshot_store: Literal["auto", "files", "topic"] = Field(
        default="auto",
        description="Where states are saved: files in data_dir; topic is the compacted topic "
        "gpu.detector.state, so that a state follows its partition to another machine; auto is "
        "topic on Kafka and files elsewhere.",
    )
    snapshots_kept: int = Field(
        default=3, ge=1, le=100, description="Snapshot files kept per partition."
    )
    poll_records: int = Field(
        default=512, ge=1, le=10_000, description="Most messages taken from the bus at once."
    )
    forget_hours: float = Field(
        default=168.0,
        gt=0,
        description="Hours after which a node that is not heard of is forgotten with its GPUs, and "
        "a partition of a GPU that its node no longer lists; what is open of them then ends.",
    )
    series_minutes: float = Field(
        default=10.0,
        ge=0,
        le=120,
        description="How far back the lines beside an alert go, in minutes; 0 for none. Costs 264 "
        "bytes of memory per minute and GPU.",
    )
    disabled: tuple[str, ...] = Field(
        default=(), description="Names of detectors that are switched off."
    )
    parameters: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Overrides by detector name, for example [detector.parameters.peer_outlier]. "
        "shadow = true among them puts a detector on trial: its alerts are marked and stored, and "
        "nobody is told.",
    )
