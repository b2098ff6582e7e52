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

__all__ = [
    "AssignmentListener",
    "Bus",
    "DeliveryReport",
    "Headers",
    "Publisher",
    "Record",
    "Start",
    "Subscriber",
    "TopicDescription",
    "TopicPartition",
]
