"""Creating and describing topics on Kafka, and asking whether it is well."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import confluent_kafka as ck  # noqa: TID251 - this is the one door
from confluent_kafka.admin import (  # type: ignore[attr-defined] # noqa: TID251 - same; exported, but not by its stubs
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bus.kafka_config import admin_config
from bus.kafka_faults import ALL_BROKERS_DOWN, bad_property, explain
from bus.protocol import TopicDescription
from bus.settings import KafkaSettings
from schemas.errors import BusUnavailableError
from schemas.topics import ALL_TOPICS, TopicSpec

__all__ = ["KafkaAdmin", "topic_config"]

_Answer = TypeVar("_Answer")

#: For the first answer: who asks is a person at a terminal, and a broker that is there takes
#: milliseconds. Seconds.
_ANSWER_SECONDS = 5.0
#: For work that the cluster has begun, in seconds.
_TIMEOUT_SECONDS = 30.0
_SPREAD_SECONDS = 10.0
#: From this many copies on, one may be away while the others confirm writes.
_COPIES_FOR_QUORUM = 3


def topic_config(spec: TopicSpec, replication_factor: int) -> dict[str, str]:
    """Write the configuration of one topic as the contract wants it."""
    config = {
        "cleanup.policy": "compact" if spec.compacted else "delete",
        "max.message.bytes": str(spec.max_message_bytes),
        "message.timestamp.type": "LogAppendTime" if spec.append_time else "CreateTime",
    }
    if spec.retention_ms is not None:
        config["retention.ms"] = str(spec.retention_ms)
    if spec.compacted:
        # Snapshots of one partition replace each other every minute: clean early and often.
        config |= {"segment.ms": "600000", "min.cleanable.dirty.ratio": "0.1"}
    if replication_factor >= _COPIES_FOR_QUORUM:
        config["min.insync.replicas"] = "2"
    return config


def _interruptible(question: Callable[[], _Answer]) -> _Answer:
    """Ask in a thread of its own: inside the C library the main thread hears no Ctrl-C."""
    answer: Future[_Answer] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            answer.set_exception(error)

    threading.Thread(target=ask, name="kafka-admin", daemon=True).start()
    return answer.result()


class KafkaAdmin:
    """Topics and health of one cluster.

    Parameters
    ----------
    settings
        Bootstrap, partitions, copies and properties.
    prefix
        Before each topic name.
    """

    def __init__(self, settings: KafkaSettings, prefix: str) -> None:
        self._settings = settings
        self._prefix = prefix
        self._last_error: ck.KafkaError | None = None
        config = admin_config(settings)
        config["error_cb"] = self._on_error
        try:
            self._client = AdminClient(config)
        except (ck.KafkaException, ValueError, TypeError) as error:
            raise bad_property(error) from error

    def create_topics(self) -> list[str]:
        """Create what is missing; return the names created.

        Raises
        ------
        BusUnavailableError
            If the cluster does not answer or refuses.
        """
        there = self._partitions(_ANSWER_SECONDS)
        missing = [s for s in ALL_TOPICS if s.full_name(self._prefix) not in there]
        if not missing:
            return []
        copies = self._settings.replication_factor
        futures: dict[str, Future[None]] = self._client.create_topics(
            [
                NewTopic(
                    spec.full_name(self._prefix),
                    num_partitions=self._settings.partitions or spec.partitions,
                    replication_factor=copies,
                    config=topic_config(spec, copies),
                )
                for spec in missing
            ],
            request_timeout=_TIMEOUT_SECONDS,
        )
        created = [name for name, future in futures.items() if self._created(future)]
        # The controller has them; wait until the brokers that clients ask have heard of it.
        deadline = time.monotonic() + _SPREAD_SECONDS
        while not self._partitions(_ANSWER_SECONDS).keys() >= futures.keys():
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return created

    def _created(self, future: Future[None]) -> bool:
        try:
            future.result(_TIMEOUT_SECONDS)
        except ck.KafkaException as error:
            cause = error.args[0]
            if cause.code() == ck.KafkaError.TOPIC_ALREADY_EXISTS:
                return False  # another process was faster
            raise BusUnavailableError(
                f"A topic cannot be created. {explain(self._settings, cause)}"
            ) from error
        return True

    def describe_topics(self) -> list[TopicDescription]:
        """Describe those of our topics that exist, with those settings that the contract makes."""
        there = self._partitions(_ANSWER_SECONDS)
        specs = [spec for spec in ALL_TOPICS if spec.full_name(self._prefix) in there]
        if not specs:
            return []
        resources = [
            ConfigResource(ResourceType.TOPIC, spec.full_name(self._prefix)) for spec in specs
        ]
        futures = self._client.describe_configs(resources, request_timeout=_TIMEOUT_SECONDS)
        found = []
        for spec, resource in zip(specs, resources, strict=True):
            try:
                entries = futures[resource].result(_TIMEOUT_SECONDS)
            except ck.KafkaException as error:
                raise BusUnavailableError(explain(self._settings, error.args[0])) from error
            ours = (*topic_config(spec, _COPIES_FOR_QUORUM), "retention.ms")
            config = {
                name: str(entries[name].value) for name in dict.fromkeys(ours) if name in entries
            }
            name = spec.full_name(self._prefix)
            found.append(TopicDescription(name=name, partitions=there[name], config=config))
        return found

    def check(self, timeout_seconds: float) -> str:
        """Return one sentence that says the cluster answers, and which topics it has."""
        started = time.monotonic()
        there = self._partitions(timeout_seconds)
        took_ms = (time.monotonic() - started) * 1000
        names = [spec.full_name(self._prefix) for spec in ALL_TOPICS]
        missing = [name for name in names if name not in there]
        topics = (
            f"{', '.join(missing)} missing (run `foreshock topics create`)"
            if missing
            else "all topics are there"
        )
        return f"Kafka at {self._settings.bootstrap} answered in {took_ms:.0f} ms; {topics}."

    def _partitions(self, timeout_seconds: float) -> dict[str, int]:
        try:
            metadata = _interruptible(lambda: self._client.list_topics(timeout=timeout_seconds))
        except ck.KafkaException as error:
            self._client.poll(0)  # the reason behind the time-out arrives by callback
            cause = self._last_error or error.args[0]
            raise BusUnavailableError(explain(self._settings, cause)) from error
        return {name: len(topic.partitions) for name, topic in metadata.topics.items()}

    def _on_error(self, error: ck.KafkaError) -> None:
        if error.code() != ALL_BROKERS_DOWN or self._last_error is None:
            self._last_error = error
