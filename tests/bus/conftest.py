"""One stage per transport, so that the contract is asked of all three in the same words."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bus import (
    Bus,
    BusSettings,
    KafkaSettings,
    Publisher,
    Record,
    SqliteSettings,
    Subscriber,
    TopicPartition,
    open_bus,
)
from bus.memory import MemoryBus
from bus.sqlite_file import OFFSET_BITS, connect, writing
from schemas.errors import BusFullError
from schemas.topics import ALERTS, SAMPLES

PARTITIONS = 4


class Witness:
    """A listener that notes what happens, and can be told where to start or to fail."""

    def __init__(self, start_at: Mapping[TopicPartition, int] | None = None) -> None:
        self.start_at = start_at
        self.log: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.held: set[TopicPartition] = set()
        self.on_revoke: Callable[[Sequence[TopicPartition]], None] | None = None
        self.fail_assign: Exception | None = None

    def on_assigned(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int] | None:
        self.log.append(("assigned", tuple(places)))
        if self.fail_assign is not None:
            raise self.fail_assign
        self.held.update(places)
        return self.start_at

    def on_revoked(self, places: Sequence[TopicPartition]) -> None:
        self.log.append(("revoked", tuple(places)))
        if self.on_revoke is not None:
            self.on_revoke(places)
        self.held.difference_update(places)

    def on_lost(self, places: Sequence[TopicPartition]) -> None:
        self.log.append(("lost", tuple(places)))
        self.held.difference_update(places)


@dataclass
class Stage:
    """One transport with a bus of its own, and what the contract tests need around it."""

    transport: str
    bus: Bus
    another: Callable[[], Bus]
    expire: Callable[[TopicPartition, int], None]
    prefix: str
    opened: list[Publisher | Subscriber] = field(default_factory=list)

    @property
    def topic(self) -> str:
        return SAMPLES.full_name(self.prefix)

    @property
    def alerts(self) -> str:
        return ALERTS.full_name(self.prefix)

    @property
    def places(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in range(PARTITIONS)]

    def reader(
        self, group: str, *, bus: Bus | None = None, topics: Sequence[str] = (), **more: Any
    ) -> Subscriber:
        reader = (bus or self.bus).subscriber(
            group=f"{self.prefix}{group}", topics=topics or [self.topic], **more
        )
        self.opened.append(reader)
        return reader

    def writer(self, **more: Any) -> Publisher:
        writer = self.bus.publisher(client_id="test", **more)
        self.opened.append(writer)
        return writer

    def send(self, count: int, *, keys: int = 8, first: int = 0, topic: str | None = None) -> None:
        """Deliver ``count`` messages, numbered in their values."""
        writer = self.writer()
        for number in range(first, first + count):
            while True:
                try:
                    writer.send(
                        topic or self.topic, key=b"node-%d" % (number % keys), value=b"%d" % number
                    )
                    break
                except BusFullError:
                    writer.poll()
        assert writer.flush(20.0) == 0

    @staticmethod
    def drain(reader: Subscriber, count: int, seconds: float = 30.0) -> list[Record]:
        """Read until ``count`` records came."""
        records: list[Record] = []
        deadline = time.monotonic() + seconds
        while len(records) < count:
            assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
            records += reader.poll(500, 0.2)
        return records

    @staticmethod
    def until(
        true: Callable[[], bool], *readers: Subscriber, seconds: float = 30.0
    ) -> list[Record]:
        """Poll the readers until a condition holds."""
        records: list[Record] = []
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, "it never came true"
            for reader in readers:
                records += reader.poll(500, 0.05)
        return records


def numbers(records: Sequence[Record]) -> list[int]:
    return sorted(int(record.value) for record in records)


def _memory() -> Stage:
    prefix = f"m{uuid.uuid4().hex[:6]}."
    bus = MemoryBus(prefix=prefix, partitions=PARTITIONS, lease_seconds=1.0, capacity=20_000)
    return Stage(transport="memory", bus=bus, another=lambda: bus, expire=bus.expire, prefix=prefix)


def _sqlite(folder: Path) -> Stage:
    settings = BusSettings(
        path=folder / "bus.sqlite",
        prefix="s.",
        sqlite=SqliteSettings(lease_seconds=1.0, partitions=PARTITIONS),
    )

    def expire(place: TopicPartition, before: int) -> None:
        connection = connect(settings.path, settings.sqlite)
        with writing(connection):
            (number,) = connection.execute(
                "SELECT id FROM place WHERE topic = ? AND partition = ?", place
            ).fetchone()
            connection.execute(
                "DELETE FROM record WHERE id >= ? AND id < ?",
                (number << OFFSET_BITS, (number << OFFSET_BITS) + before),
            )
            connection.execute("UPDATE place SET low_offset = ? WHERE id = ?", (before, number))
        connection.close()

    return Stage(
        transport="sqlite",
        bus=open_bus(settings),
        another=lambda: open_bus(settings),
        expire=expire,
        prefix="s.",
    )


def kafka_settings(bootstrap: str, prefix: str, **properties: str) -> BusSettings:
    """Kafka with short time-outs; the stand-in takes half of a session to let a member join."""
    quick = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}
    return BusSettings(
        transport="kafka",
        prefix=prefix,
        kafka=KafkaSettings(
            bootstrap=bootstrap,
            partitions=PARTITIONS,
            replication_factor=1,
            properties={f"consumer.{name}": value for name, value in quick.items()}
            | {name.replace("__", "."): value for name, value in properties.items()},
        ),
    )


def _kafka(bootstrap: str) -> Stage:
    from confluent_kafka import TopicPartition as Place  # noqa: TID251 - the test's own hand
    from confluent_kafka.admin import AdminClient  # noqa: TID251 - same

    prefix = f"k{uuid.uuid4().hex[:8]}."
    settings = kafka_settings(bootstrap, prefix)

    def expire(place: TopicPartition, before: int) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.delete_records([Place(*place, before)]).values():
            future.result(20)

    bus = open_bus(settings)
    bus.create_topics()
    return Stage(
        transport="kafka", bus=bus, another=lambda: open_bus(settings), expire=expire, prefix=prefix
    )


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("kafka", marks=pytest.mark.kafka)],
)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    if request.param == "memory":
        made = _memory()
    elif request.param == "sqlite":
        made = _sqlite(tmp_path)
    else:
        made = _kafka(request.getfixturevalue("kafka"))
    yield made
    for thing in reversed(made.opened):
        thing.close()
    made.bus.close()


@pytest.fixture
def needs_expiry(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    """A stage whose log can be cut at the front, which the stand-in for Kafka cannot."""
    if stage.transport == "kafka":
        request.getfixturevalue("real_kafka")
    return stage


@pytest.fixture
def needs_latest(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    """A stage whose groups can start at the end, which they cannot on the stand-in for Kafka."""
    if stage.transport == "kafka":
        request.getfixturevalue("real_kafka")
    return stage
