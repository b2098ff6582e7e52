"""What the Kafka clients are told."""

from __future__ import annotations

import logging
from typing import Any

from bus.settings import KafkaSettings
from schemas.errors import ConfigError
from schemas.topics import ALL_TOPICS

__all__ = ["admin_config", "consumer_config", "producer_config"]

#: Room for the record batch around one message (61 bytes and varints), so that what the client
#: takes the broker takes too.
_BATCH_BYTES = 2_048


def _only_at_debug(line: logging.LogRecord) -> bool:
    """Keep what librdkafka says to itself for who asked for debug lines.

    A broker that is away makes it repeat the same fault several times a second, per client. Our
    own lines say each fault once, in words, and what to do.
    """
    line.levelno, line.levelname = logging.DEBUG, "DEBUG"
    return logging.getLogger(line.name).isEnabledFor(logging.DEBUG)


_librdkafka = logging.getLogger("bus.kafka.librdkafka")
_librdkafka.addFilter(_only_at_debug)


def _common(settings: KafkaSettings, client_id: str) -> dict[str, Any]:
    """Give what every client gets. Callbacks and logger are objects, everything else is text."""
    return {
        "bootstrap.servers": settings.bootstrap,
        "client.id": client_id,
        "allow.auto.create.topics": "false",  # a topic made by accident has the wrong partitions
        "reconnect.backoff.max.ms": "10000",
        "socket.keepalive.enable": "true",
        "enable.metrics.push": "false",
        "logger": _librdkafka,
    }


def _override(
    config: dict[str, Any], settings: KafkaSettings, mine: str, other: str
) -> dict[str, Any]:
    """Lay the user's properties over ours; those of the other kind of client are left out."""
    for name, value in settings.properties.items():
        if not name.startswith(other):
            config[name.removeprefix(mine)] = value
    return config


def producer_config(settings: KafkaSettings, client_id: str, *, durable: bool) -> dict[str, Any]:
    """Properties of a producer.

    Parameters
    ----------
    settings
        Bootstrap, queue bounds and the user's own properties.
    client_id
        Name in the broker's logs and quotas.
    durable
        Whether messages are few and precious: sent at once (5 ms) and tried for 60 s instead of
        30 s. What fails after that is handed back.
    """
    config = _common(settings, client_id) | {
        "acks": "all",
        "enable.idempotence": "true",
        "compression.type": "zstd",
        "linger.ms": "5" if durable else "50",
        "message.timeout.ms": "60000" if durable else "30000",
        "message.max.bytes": str(max(s.max_message_bytes for s in ALL_TOPICS) - _BATCH_BYTES),
        "queue.buffering.max.messages": str(settings.queue_messages),
        "queue.buffering.max.kbytes": str(settings.queue_kib),
        "partitioner": "murmur2_random",  # as Java clients place keys
    }
    return _override(config, settings, "producer.", "consumer.")


def consumer_config(settings: KafkaSettings, client_id: str, group: str) -> dict[str, Any]:
    """Properties of a consumer.

    Raises
    ------
    ConfigError
        If the user's properties contradict the incremental assignment that readers rely on.
    """
    config = _common(settings, client_id) | {
        "group.id": group,
        "group.protocol": settings.group_protocol,
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "auto.offset.reset": "error",  # never silently from the beginning: see kafka_consumer
        "max.poll.interval.ms": "120000",
        "fetch.min.bytes": "65536",
        "fetch.wait.max.ms": "100",
        "fetch.queue.backoff.ms": "20",
        "queued.max.messages.kbytes": "65536",
        "isolation.level": "read_committed",
        # How soon it is noticed that the brokers are back.
        "statistics.interval.ms": "5000",
    }
    if settings.group_protocol == "classic":
        config |= {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": "15000",
            "heartbeat.interval.ms": "3000",
        }
    _override(config, settings, "consumer.", "producer.")
    strategy = config.get("partition.assignment.strategy", "cooperative-sticky")
    if strategy != "cooperative-sticky":
        raise ConfigError(
            f"bus.kafka.properties: partition.assignment.strategy is {strategy!r}, but "
            "readers need cooperative-sticky. Leave the property out."
        )
    return config


def admin_config(settings: KafkaSettings) -> dict[str, Any]:
    """Properties of the client that creates and describes topics."""
    config = _common(settings, "foreshock-admin")
    del config["allow.auto.create.topics"]
    for name, value in settings.properties.items():
        if not name.startswith(("producer.", "consumer.")):
            config[name] = value
    return config
