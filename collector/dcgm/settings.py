"""Settings of the source dcgm."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, SecretStr

__all__ = ["DcgmSettings"]


class DcgmSettings(BaseModel):
    """A dcgm-exporter that runs already and is read instead of the driver."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    url: HttpUrl = Field(
        default=HttpUrl("http://127.0.0.1:9400/metrics"),
        description="Where dcgm-exporter (or nvidia_gpu_exporter) of this node serves its metrics.",
    )
    timeout_seconds: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="Longest time for one whole answer, in seconds.",
    )
    max_bytes: int = Field(
        default=16 * 2**20, ge=2**16, description="Largest answer that is read, in bytes."
    )
    token: SecretStr | None = Field(
        default=None, description="Bearer token, if the exporter asks for one."
    )
