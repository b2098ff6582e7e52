"""Moving messages: one protocol, three transports (memory, SQLite, Kafka).

This package must not know what the messages mean. It imports nothing of ours but ``schemas``.
"""

from bus.protocol import (
    AssignmentListener,
    Bus,
    DeliveryReport,
    Headers,
    Publisher,
    Record,
    Start,
    Subscriber,
    TopicDescription,
    TopicPartition,
)
from bus.settings import BusSettings, KafkaSettings, SqliteSettings

__all__ = [
    "AssignmentListener",
    "Bus",
    "BusSettings",
    "DeliveryReport",
    "Headers",
    "KafkaSettings",
    "Publisher",
    "Record",
    "SqliteSettings",
    "Start",
    "Subscriber",
    "TopicDescription",
    "TopicPartition",
    "open_bus",
]


def open_bus(settings: BusSettings) -> Bus:
    """Open the transport that the settings name. Never waits for a broker.

    Raises
    ------
    BusUnavailableError
        If the file of the sqlite transport cannot be used.
    ConfigError
        If a property of the kafka transport is unknown or contradicts how readers work.
    """
    # Imported here so that one machine on sqlite never loads the Kafka library (8 MB, threads).
    if settings.transport == "kafka":
        from bus.kafka import KafkaBus  # noqa: PLC0415

        return KafkaBus(settings)
    if settings.transport == "memory":
        from bus.memory import MemoryBus  # noqa: PLC0415

        return MemoryBus(prefix=settings.prefix)
    from bus.sqlite import SqliteBus  # noqa: PLC0415

    return SqliteBus(settings)
