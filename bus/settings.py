"""Which transport moves the messages, and how.

Only the front door reads files and the environment; this module says what may stand there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["BusSettings", "KafkaSettings", "SqliteSettings"]


class SqliteSettings(BaseModel):
    """The durable log in one file of this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    partitions: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Partitions of each topic that the file creates, at most as many as on Kafka."
        " The largest number of readers that can share a topic.",
    )
    retention_bytes: int = Field(
        default=4 * 1024**3,
        ge=1024**2,
        description="Payload kept in bytes, over all topics; beyond it the oldest records of the"
        " largest topic go first.",
    )
    retention_check_seconds: float = Field(
        default=10.0, gt=0, le=3600, description="Seconds between two passes of the retention."
    )
    max_file_bytes: int | None = Field(
        default=None,
        ge=1024**2,
        description="Hard limit of the file in bytes; a message beyond it is refused like on a"
        " full disk. None: the disk is the limit.",
    )
    queue_messages: int = Field(
        default=10_000,
        ge=1,
        description="Messages of one publisher that may wait for the disk or for their report.",
    )
    queue_bytes: int = Field(
        default=16 * 1024**2,
        ge=1024,
        description="Bytes of one publisher that may wait for the disk.",
    )
    lease_seconds: float = Field(
        default=6.0,
        ge=0.2,
        le=300,
        description="Seconds after which the partitions of a reader that no longer polls go to"
        " another one of its group.",
    )
    poll_seconds: float = Field(
        default=0.05,
        ge=0.005,
        le=1.0,
        description="Seconds between two looks for what other processes wrote.",
    )
    busy_seconds: float = Field(
        default=10.0, ge=0.1, le=120, description="Seconds to wait for another writer's lock."
    )


class KafkaSettings(BaseModel):
    """A cluster of Apache Kafka 3.x or 4.x, or compatible."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    bootstrap: str = Field(
        default="127.0.0.1:9092",
        min_length=1,
        description="Comma-separated host:port of some brokers.",
    )
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Any librdkafka property (SASL, TLS, time-outs); overrides what foreshock sets."
        " A property with the prefix producer. or consumer. goes only there.",
    )
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Partitions of each topic that foreshock creates; None: as the contract says.",
    )
    replication_factor: int = Field(
        default=-1,
        ge=-1,
        le=32,
        description="Copies of each partition of topics that foreshock creates; -1: the default of"
        " the cluster. From 3 on, two of them must confirm each write.",
    )
    group_protocol: Literal["classic", "consumer"] = Field(
        default="classic",
        description="consumer: the group protocol of Apache Kafka 4.0 and later (KIP-848); older"
        " brokers never assign anything to it.",
    )
    queue_messages: int = Field(
        default=10_000, ge=1, description="Messages of one publisher that may wait for a report."
    )
    queue_kib: int = Field(
        default=16_384, ge=1, le=2_097_151, description="KiB of one publisher that may wait."
    )


class BusSettings(BaseModel):
    """How messages move between the services."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    transport: Literal["memory", "sqlite", "kafka"] = Field(
        default="sqlite",
        description="memory: one process, nothing kept; sqlite: one machine; kafka: a cluster.",
    )
    path: Path = Field(
        default=Path("bus.sqlite"), description="File of the sqlite transport, on a local disk."
    )
    prefix: str = Field(
        default="",
        max_length=64,
        pattern=r"^[A-Za-z0-9._-]*$",
        description="Put before each topic name, so that several fleets can share a cluster.",
    )
    sqlite: SqliteSettings = Field(
        default_factory=SqliteSettings, description="The sqlite transport."
    )
    kafka: KafkaSettings = Field(default_factory=KafkaSettings, description="The kafka transport.")
