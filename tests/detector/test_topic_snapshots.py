"""Snapshots on the compacted topic: whole or not at all, newest first, on every transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bus import open_bus
from bus.memory import MemoryBus
from bus.protocol import Bus
from bus.settings import BusSettings, KafkaSettings
from detector.snapshot import Snapshot
from detector.topic_snapshots import TopicSnapshots
from schemas.errors import BusUnavailableError
from schemas.topics import STATE


def snapshot(offset: int, partition: int = 0, numbers: int = 500) -> Snapshot:
    rng = np.random.default_rng(offset)
    return Snapshot(
        topic="gpu.samples",
        partition=partition,
        next_offset=offset,
        facts={"offset": offset},
        arrays={"level": rng.normal(size=numbers)},
        code_version="1",
    )


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("kafka", marks=[pytest.mark.kafka])],
)
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Bus, str]]:
    """A bus with its topics, and the prefix of their names."""
    if request.param == "memory":
        yield MemoryBus(), ""
        return
    if request.param == "sqlite":
        made = open_bus(BusSettings(transport="sqlite", path=tmp_path / "bus.sqlite"))
        prefix = ""
    else:
        prefix = request.getfixturevalue("topic_prefix")
        made = open_bus(
            BusSettings(
                transport="kafka",
                prefix=prefix,
                kafka=KafkaSettings(
                    bootstrap=request.getfixturevalue("real_kafka"),
                    partitions=3,
                    replication_factor=1,
                ),
            )
        )
    made.create_topics()
    yield made, prefix
    made.close()


@pytest.fixture
def store(bus: tuple[Bus, str]) -> Callable[[], TopicSnapshots]:
    """Stores of several detectors on one bus, with chunks far smaller than a snapshot."""

    def make() -> TopicSnapshots:
        made = TopicSnapshots(bus[0], bus[1], chunk_bytes=1000)
        made.refresh()
        return made

    return make


def test_another_detector_loads_what_was_saved(store: Callable[[], TopicSnapshots]) -> None:
    first = store()
    assert first.load("gpu.samples", 0) is None
    for offset in (10, 20, 30):
        first.save(snapshot(offset))
    first.save(snapshot(7, partition=1))
    found = store().load("gpu.samples", 0)
    assert found is not None
    assert found.next_offset == 30
    assert found.facts == {"offset": 30}
    np.testing.assert_array_equal(found.arrays["level"], snapshot(30).arrays["level"])
    other = store().load("gpu.samples", 1)
    assert other is not None
    assert other.next_offset == 7


def test_a_smaller_snapshot_after_a_larger_one_is_whole(
    store: Callable[[], TopicSnapshots],
) -> None:
    first = store()
    for offset, numbers in ((10, 3000), (20, 2000), (30, 10), (40, 5)):
        first.save(snapshot(offset, numbers=numbers))
    found = store().load("gpu.samples", 0)
    assert found is not None
    assert found.next_offset == 40
    assert len(found.arrays["level"]) == 5


def test_a_forgotten_snapshot_is_void_for_all(store: Callable[[], TopicSnapshots]) -> None:
    first = store()
    first.save(snapshot(10))
    first.save(snapshot(20))
    first.forget("gpu.samples", 0)
    assert first.load("gpu.samples", 0) is None
    assert store().load("gpu.samples", 0) is None
    first.save(snapshot(3))
    found = store().load("gpu.samples", 0)
    assert found is not None
    assert found.next_offset == 3


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_writer_that_dies_half_way_leaves_the_snapshot_before(lost: int) -> None:
    """Also after compaction: the slots take turns, so what is overwritten is the older one."""
    source, target = MemoryBus(), MemoryBus()
    writer = TopicSnapshots(source, "", chunk_bytes=1000)
    for offset in (10, 20, 30):
        writer.save(snapshot(offset))
    records = list(source.read_all(STATE.name))
    newest = [r for r in records if dict(r.headers)["numbers"].startswith(b"30,")]
    kept = {r.key: r for r in records if r not in newest[lost:]}  # compaction: newest per key
    publisher = target.publisher(client_id="t")
    for record in kept.values():
        publisher.send(STATE.name, key=record.key, value=record.value, headers=record.headers)
    reader = TopicSnapshots(target, "")
    reader.refresh()
    found = reader.load("gpu.samples", 0)
    assert found is not None
    assert found.next_offset == 20


def test_foreign_records_are_passed_over() -> None:
    bus = MemoryBus()
    publisher = bus.publisher(client_id="t")
    for key in (None, b"x", b"gpu.samples/zero/0/0", b"gpu.samples/0/0/0"):
        publisher.send(STATE.name, key=key, value=b"?", headers=(("numbers", b"what"),))
    reader = TopicSnapshots(bus, "")
    reader.refresh()
    assert reader.load("gpu.samples", 0) is None


def test_a_damaged_snapshot_is_not_loaded() -> None:
    bus = MemoryBus()
    publisher = bus.publisher(client_id="t")
    headers = (("numbers", b"5,0,1"),)
    publisher.send(STATE.name, key=b"gpu.samples/0/0/0", value=b"FSHK?", headers=headers)
    reader = TopicSnapshots(bus, "")
    reader.refresh()
    assert reader.load("gpu.samples", 0) is None


def test_a_bus_that_is_away_refuses_the_save_in_words_and_keeps_the_one_before() -> None:
    bus = MemoryBus()
    store = TopicSnapshots(bus, "")
    store.save(snapshot(10))
    bus.outage = "no broker"
    with pytest.raises(BusUnavailableError, match="no broker"):
        store.save(snapshot(20))
    found = store.load("gpu.samples", 0)
    assert found is not None
    assert found.next_offset == 10
