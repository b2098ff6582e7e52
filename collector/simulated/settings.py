"""Settings of the simulated fleet. Only the front door fills them from files or environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["SimulatedSettings"]


class SimulatedSettings(BaseModel):
    """What to simulate; the same settings and times give the same samples."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    nodes: int = Field(default=2, ge=1, le=1024, description="How many nodes to simulate.")
    gpus: int = Field(default=8, ge=1, le=16, description="GPUs in each node.")
    seed: int = Field(
        default=1, ge=0, description="Seed of everything random: identities, slots and noise."
    )
    jobs: bool = Field(
        default=True, description="Whether every node runs a training job; else all GPUs idle."
    )
    schedule: Path | None = Field(
        default=None, description="TOML file with faults to inject; without it there are none."
    )
    model: str = Field(
        default="NVIDIA H100 80GB HBM3", min_length=1, description="Model name every GPU reports."
    )
