"""Reading a whole topic once, as no group's member: for compacted topics that hold state."""

from __future__ import annotations

import time
from collections.abc import Iterator

import confluent_kafka as ck  # noqa: TID251 - part of the one door

from bus.kafka_config import consumer_config
from bus.kafka_consumer import record_of
from bus.kafka_faults import PARTITION_EOF, bad_property, explain
from bus.protocol import Record
from bus.settings import KafkaSettings
from schemas.errors import BusUnavailableError

__all__ = ["scan_topic"]

_ANSWER_SECONDS = 10.0
_STALLED_SECONDS = 30.0  # without any record or end of partition
_BATCH = 200


def scan_topic(settings: KafkaSettings, topic: str) -> Iterator[Record]:
    """Yield every record that a topic keeps, up to the end that each partition has when reached.

    Raises
    ------
    BusUnavailableError
        If the topic is missing, or the cluster stops answering.
    """
    config = consumer_config(settings, "foreshock-scan", "foreshock-scan")
    config |= {"enable.partition.eof": "true", "auto.offset.reset": "earliest"}
    try:
        consumer = ck.Consumer(config)
    except (ck.KafkaException, ValueError, TypeError) as error:
        raise bad_property(error) from error
    try:
        yield from _scan(settings, consumer, topic)
    except ck.KafkaException as error:
        raise BusUnavailableError(explain(settings, error.args[0])) from error
    finally:
        consumer.close()


def _scan(settings: KafkaSettings, consumer: ck.Consumer, topic: str) -> Iterator[Record]:
    known = consumer.list_topics(topic, timeout=_ANSWER_SECONDS).topics.get(topic)
    if known is None or not known.partitions:
        raise BusUnavailableError(
            f"The topic {topic} is missing. Run `foreshock topics create` first."
        )
    open_places = set(known.partitions)
    consumer.assign(
        [ck.TopicPartition(topic, number, ck.OFFSET_BEGINNING) for number in open_places]
    )
    deadline = time.monotonic() + _STALLED_SECONDS
    while open_places:
        for message in consumer.consume(_BATCH, 0.1):
            deadline = time.monotonic() + _STALLED_SECONDS
            error = message.error()
            if error is None:
                yield record_of(message)
            elif error.code() == PARTITION_EOF:
                open_places.discard(message.partition())
            elif not error.retriable():
                raise BusUnavailableError(explain(settings, error))
        if time.monotonic() > deadline:
            raise BusUnavailableError(
                f"Reading {topic} stalled for {_STALLED_SECONDS:.0f} s; is a broker away?"
            )
