"""Settings of the collector. Only the front door fills them from files or environment."""

from __future__ import annotations

import socket
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from collector.dcgm.settings import DcgmSettings
from collector.jobs.settings import JobSettings
from collector.kernel.settings import KernelLogSettings
from collector.readings import Group
from collector.replay.settings import ReplaySettings
from collector.simulated.settings import SimulatedSettings

__all__ = ["CollectorSettings", "SourceKind", "SpoolSettings"]


class SourceKind(StrEnum):
    """Where samples come from."""

    NVML = "nvml"
    SIMULATED = "simulated"
    REPLAY = "replay"
    DCGM = "dcgm"
    AMDSMI = "amdsmi"


class SpoolSettings(BaseModel):
    """Where messages wait while the bus takes none, and how many may."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    path: Path | None = Field(
        default=None,
        description="SQLite file for messages that the bus did not take; default: memory only, "
        "bounded to 16 MiB.",
    )
    max_bytes: int = Field(
        default=256 * 2**20,
        ge=2**16,
        description="Largest sum of waiting messages, in bytes; the oldest are dropped first.",
    )
    max_hours: float = Field(
        default=24.0,
        gt=0,
        le=24 * 7,
        description="How long a message may wait, in hours; older ones are dropped.",
    )
    jitter_seconds: float = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="Longest pause between the return of the bus and the first waiting message, "
        "in seconds; every node takes its own share so that a fleet does not return at once.",
    )
    drain_factor: int = Field(
        default=5,
        ge=1,
        le=100,
        description="How many waiting messages are sent for each live one.",
    )


class CollectorSettings(BaseModel):
    """What to read, how often, and how to hand it on."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    source: SourceKind = Field(
        default=SourceKind.NVML,
        description="What is read: nvml (the GPUs of this node), dcgm (a dcgm-exporter that runs "
        "already), amdsmi (AMD GPUs, where ROCm's library is installed), simulated (a fleet that "
        "does not exist) or replay (recorded telemetry).",
    )
    node: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=253,
        description="Name of this node in every message; default: the host name.",
    )
    interval_seconds: float = Field(
        default=1.0, ge=0.05, le=3600, description="Time between two readings, in seconds."
    )
    body: Literal["json", "binary"] = Field(
        default="json",
        description="Form of the messages: json is read by people too; binary carries the numbers "
        "as float64 and costs a very large fleet's detectors less.",
    )
    flush_seconds: float = Field(
        default=1.0,
        ge=0.05,
        le=3600,
        description="Readings of this many seconds travel in one message; events and changes "
        "travel at once.",
    )
    keyframe_seconds: float = Field(
        default=60.0,
        ge=1,
        le=3600,
        description="How often the inventory and the jobs travel even unchanged, in seconds.",
    )
    call_deadline_seconds: float = Field(
        default=10.0,
        ge=0.1,
        le=600,
        description="A reading that takes longer, in seconds, makes the driver unresponsive.",
    )
    device_deadline_seconds: float = Field(
        default=0.7,
        ge=0.05,
        le=60,
        description="How long one GPU may keep the others waiting, in seconds; one that takes "
        "longer is left out until its call comes back.",
    )
    groups: tuple[Group, ...] = Field(
        default=tuple(Group),
        min_length=1,
        description="What is read of each GPU: core (temperature, power, utilisation, memory, "
        "clocks, throttling, ECC totals, row remap, recovery action), limits, errors, links, media "
        "(encoder, decoder, fans), samples (the driver's own), profiling (GPM), processes.",
    )
    slow_seconds: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="How often limits, lifetime error counters, link states, encoder, fans and "
        "processes are asked for, in seconds; their last values are repeated in between. 0: at "
        "every reading.",
    )
    host_numbers: bool = Field(
        default=True,
        description="Publish numbers of this machine (processor, load, memory, swap) every "
        "slow_seconds, beside GPUs that are in it.",
    )
    nvml_library: Path | None = Field(
        default=None,
        description="Where libnvidia-ml.so.1 lies; default: where the system looks for libraries.",
    )
    release_seconds: float = Field(
        default=600.0,
        ge=1,
        le=24 * 3600,
        description="After SIGUSR1 the GPUs are let go of so that they can be reset; after so "
        "many seconds, or after a second SIGUSR1, they are taken back.",
    )
    expected_gpus: int | None = Field(
        default=None,
        ge=0,
        le=1024,
        description="How many GPUs the node should have; default: counted on the PCI bus.",
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="Words about the node that travel with its inventory: cluster, rack, slot.",
    )
    host: str = Field(
        default="127.0.0.1", description="Address on which health and metrics are served."
    )
    port: int = Field(
        default=8601, ge=0, le=65535, description="Port of health and metrics; 0 takes a free one."
    )
    api_key: SecretStr | None = Field(
        default=None,
        description="Key that /metrics asks for; required for an address beyond loopback.",
    )
    spool: SpoolSettings = Field(
        default_factory=SpoolSettings, description="Where messages wait while the bus is away."
    )
    kernel: KernelLogSettings = Field(
        default_factory=KernelLogSettings, description="The kernel log of this node."
    )
    jobs: JobSettings = Field(
        default_factory=JobSettings, description="Which job uses which GPU of this node."
    )
    dcgm: DcgmSettings = Field(
        default_factory=DcgmSettings, description="The exporter that the source dcgm reads."
    )
    simulated: SimulatedSettings = Field(
        default_factory=SimulatedSettings, description="The simulated fleet."
    )
    replay: ReplaySettings = Field(
        default_factory=ReplaySettings, description="The recordings to replay."
    )
