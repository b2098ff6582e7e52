"""The topics through which the processes speak, with what each must guarantee.

Names, keys and retention are part of the contract: a reader that is away must find what it
missed. Partition counts are defaults; growing them moves keys (see docs/architecture.md).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALERTS", "ALL_TOPICS", "DEAD_LETTERS", "SAMPLES", "STATE", "WINDOWS", "TopicSpec"]

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """One topic of the contract.

    Parameters
    ----------
    name
        Name without the configurable prefix.
    partitions
        Default number of partitions on Kafka. 48 divides by 2, 3, 4, 6, 8, 12, 16 and 24.
    retention_ms
        How long a record is kept, in milliseconds; None where the topic is compacted.
    compacted
        Whether only the newest record of each key is kept.
    append_time
        Whether the log stamps records on arrival. With sender time a node whose clock is more
        than one hour ahead has every record refused (``message.timestamp.after.max.ms``,
        Apache Kafka KIP-1030).
    max_message_bytes
        Largest record, in bytes.
    """

    name: str
    partitions: int
    retention_ms: int | None
    compacted: bool = False
    append_time: bool = True
    max_message_bytes: int = 1_048_576

    def full_name(self, prefix: str = "") -> str:
        """Name on the wire, for example ``lab.gpu.samples`` with the prefix ``lab.``."""
        return f"{prefix}{self.name}"


SAMPLES = TopicSpec(name="gpu.samples", partitions=48, retention_ms=7 * _DAY_MS)
WINDOWS = TopicSpec(name="gpu.windows", partitions=48, retention_ms=7 * _DAY_MS)
ALERTS = TopicSpec(name="gpu.alerts", partitions=12, retention_ms=90 * _DAY_MS)
STATE = TopicSpec(name="gpu.detector.state", partitions=48, retention_ms=None, compacted=True)
DEAD_LETTERS = TopicSpec(name="gpu.samples.dlq", partitions=3, retention_ms=7 * _DAY_MS)

ALL_TOPICS: tuple[TopicSpec, ...] = (SAMPLES, WINDOWS, ALERTS, STATE, DEAD_LETTERS)
