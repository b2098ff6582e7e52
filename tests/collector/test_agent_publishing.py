"""Publishing never waits: refused and failed messages wait on disk and come back."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bus.memory import MemoryBus
from bus.protocol import DeliveryReport, Headers
from collector.agent import CollectorService
from collector.clock import ManualClock
from collector.metrics import CollectorMetrics
from collector.publishing import SamplePublisher
from collector.settings import CollectorSettings, SpoolSettings
from collector.source import Reading
from collector.spool import MEMORY_BYTES, Message, Spool
from schemas.binary import BINARY_CONTENT_TYPE
from schemas.codec import JSON_CONTENT_TYPE, decode_sample
from schemas.errors import BusFullError, DataDirError, MessageTooLargeError

NOW_MS = 1_790_000_000_000
HOUR_MS = 3_600_000


class ScriptedPublisher:
    """Takes messages while ``open``; reports wait until the test settles them."""

    def __init__(self) -> None:
        self.open = True
        self.limit = 1_000_000
        self.taken: list[tuple[str, bytes]] = []
        self.headers: list[Headers] = []
        self.reports: list[Callable[[str | None], None]] = []
        self.closed_with: float | None = None

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes,
        headers: Headers = (),
        on_delivery: Callable[[DeliveryReport], None] | None = None,
    ) -> None:
        if len(value) > self.limit:
            raise MessageTooLargeError(f"{len(value)} bytes")
        if not self.open:
            raise BusFullError("the queue is full")
        self.taken.append((topic, value))
        self.headers.append(headers)

        def settle(error: str | None) -> None:
            if on_delivery is not None:
                on_delivery(
                    DeliveryReport(topic=topic, key=key, value=value, headers=headers, error=error)
                )

        self.reports.append(settle)

    def settle(self, error: str | None = None) -> None:
        due, self.reports = self.reports, []
        for report in due:
            report(error)

    def poll(self) -> None:
        """Reports come by ``settle``."""

    def flush(self, timeout_seconds: float) -> int:
        return len(self.reports)

    def close(self, timeout_seconds: float = 5.0) -> int:
        self.closed_with = timeout_seconds
        return len(self.reports)


class Bench:
    """A publisher over a scripted transport and a real spool, with time by hand."""

    def __init__(self, path: Path | None = None, **changes: object) -> None:
        settings = SpoolSettings(**{"jitter_seconds": 0.0, **changes})  # type: ignore[arg-type]
        self.transport = ScriptedPublisher()
        self.registry = CollectorRegistry()
        self.spool = Spool(path, max_bytes=settings.max_bytes, max_hours=settings.max_hours)
        self.publisher = SamplePublisher(
            self.transport,
            self.spool,
            dead_letters="gpu.samples.dlq",
            node="n1",
            settings=settings,
            metrics=CollectorMetrics(self.registry),
        )
        self.now = 0.0

    def send(self, *values: bytes) -> None:
        for value in values:
            self.publisher.send(message(value), NOW_MS)

    def step(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.publisher.step(self.now, NOW_MS + round(self.now * 1000))

    def count(self, name: str, **labels: str) -> float:
        found = self.registry.get_sample_value(f"foreshock_collector_{name}", labels)
        return 0.0 if found is None else found

    @property
    def values(self) -> list[bytes]:
        return [value for _, value in self.transport.taken]


def message(value: bytes, headers: Headers = (("ce_id", b"\xffb:1"),)) -> Message:
    return Message(topic="gpu.samples", key=b"n1", value=value, headers=headers)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_full_bus_sends_messages_to_the_spool_at_once(bench: Bench) -> None:
    bench.transport.open = False
    bench.send(b"1", b"2")
    assert bench.publisher.waiting == 2
    assert not bench.publisher.healthy
    bench.step()
    assert bench.count("messages_spooled_total") == 2
    assert bench.count("spool_messages") == 2
    assert bench.count("spool_bytes") == bench.spool.size_bytes > 0


def test_a_failed_delivery_goes_to_the_spool_whole(bench: Bench) -> None:
    bench.send(b"1")
    bench.transport.settle("broker is away")
    (waiting,) = bench.spool.oldest(10)
    assert waiting.message == message(b"1")


def test_nothing_is_drained_before_a_live_message_was_acknowledged(bench: Bench) -> None:
    bench.transport.open = False
    bench.send(b"old")
    bench.transport.open = True
    bench.step()
    bench.send(b"live")
    bench.step()
    assert bench.values == [b"live"]
    bench.transport.settle()
    bench.send(b"live2")
    bench.step()
    assert bench.values == [b"live", b"live2", b"old"]


def test_the_spool_is_drained_oldest_first_at_five_for_each_live_one(bench: Bench) -> None:
    bench.transport.open = False
    bench.send(*(b"%02d" % number for number in range(12)))
    bench.transport.open = True
    bench.send(b"a")
    bench.transport.settle()
    for live in (b"b", b"c", b"d"):
        bench.send(live)
        bench.step()
        bench.transport.settle()
    old = [b"%02d" % number for number in range(12)]
    # The first step counts the live messages of the outage too: 12 + a + b.
    assert bench.values == [b"a", b"b", *old, b"c", b"d"]
    assert bench.publisher.waiting == 0


def test_draining_is_bounded_per_live_message(bench: Bench) -> None:
    bench.transport.open = False
    bench.send(*(b"%02d" % number for number in range(40)))
    bench.step()
    bench.transport.open = True
    bench.send(b"live")
    bench.transport.settle()
    bench.step()
    assert len(bench.values) == 1 + 5
    bench.send(b"live")
    bench.step()
    assert len(bench.values) == 1 + 5 + 1 + 5
    assert len(set(bench.values)) == 1 + 10  # none twice while it is on its way


def test_a_drained_message_leaves_the_spool_only_when_delivered(bench: Bench) -> None:
    bench.transport.open = False
    bench.send(b"old")
    bench.step()
    bench.transport.open = True
    bench.send(b"live")
    bench.transport.settle()
    bench.step()
    assert bench.values == [b"live", b"old"]
    assert bench.publisher.waiting == 1
    bench.transport.settle("away again")
    assert bench.publisher.waiting == 1
    bench.send(b"live2")
    bench.transport.settle()
    bench.step()
    assert bench.values == [b"live", b"old", b"live2", b"old"]
    bench.transport.settle()
    assert bench.publisher.waiting == 0
    assert bench.spool.size_bytes == 0


def test_after_an_outage_each_node_waits_its_own_share_of_the_jitter() -> None:
    bench = Bench(jitter_seconds=60.0)
    bench.transport.open = False
    bench.send(b"old")
    bench.transport.open = True
    started = None
    for second in range(61):
        bench.send(b"live")
        bench.step()
        bench.transport.settle()
        if b"old" in bench.values:
            started = second
            break
    assert started is not None
    assert 1 <= started <= 60


def test_too_large_a_message_goes_to_the_dead_letters_and_is_not_retried(bench: Bench) -> None:
    bench.transport.limit = 100_000
    bench.send(b"x" * 200_000)
    ((topic, value),) = bench.transport.taken
    assert topic == "gpu.samples.dlq"
    assert len(value) == 65_536  # too large even there: cut
    (headers,) = bench.transport.headers
    assert ("dlq_reason", b"too_large") in headers
    assert ("dlq_topic", b"gpu.samples") in headers
    assert bench.publisher.waiting == 0
    assert bench.count("messages_dead_lettered_total") == 1


def test_what_was_not_delivered_at_the_end_waits_for_the_next_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "spool.db")
    bench.send(b"1", b"2", b"3")
    bench.transport.reports.pop(0)(None)
    bench.publisher.close(5.0, NOW_MS)
    again = Bench(tmp_path / "spool.db")
    assert [waiting.message.value for waiting in again.spool.oldest(10)] == [b"2", b"3"]
    again.send(b"live")
    again.transport.settle()
    again.step()
    assert again.values == [b"live", b"2", b"3"]


def test_the_spool_drops_the_oldest_first_and_counts_them() -> None:
    bench = Bench(max_bytes=65_536)
    bench.transport.open = False
    bench.send(*(bytes([number]) * 10_000 for number in range(10)))
    assert bench.spool.size_bytes <= 65_536
    kept = [waiting.message.value[0] for waiting in bench.spool.oldest(100)]
    assert kept == [4, 5, 6, 7, 8, 9]
    assert bench.count("messages_dropped_total", reason="bound") == 4


def test_a_message_waits_no_longer_than_the_age_bound() -> None:
    bench = Bench(max_hours=1.0)
    bench.transport.open = False
    bench.send(b"old")
    bench.step(3601)
    assert bench.publisher.waiting == 0
    assert bench.count("messages_dropped_total", reason="age") == 1


def test_a_full_disk_loses_the_message_counted_and_raises_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "spool.db")
    bench.spool._db.execute("PRAGMA max_page_count = 8")
    bench.transport.open = False
    bench.send(*(b"x" * 4096 for _ in range(20)))
    lost = bench.count("messages_dropped_total", reason="disk")
    assert lost > 0
    assert bench.publisher.waiting == 20 - lost


def test_the_spool_file_is_private_and_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "spool.db"
    spool = Spool(path, max_bytes=1 << 20, max_hours=1.0)
    for number in range(5):
        spool.append(message(b"%d" % number), NOW_MS)
    first = spool.oldest(2)
    assert [item.message.value for item in first] == [b"0", b"1"]
    assert [i.message.value for i in spool.oldest(9, after=first[-1].place)] == [b"2", b"3", b"4"]
    spool.remove(first[0].place)
    spool.remove(first[0].place)  # again: nothing
    assert len(spool) == 4
    spool.close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    reopened = Spool(path, max_bytes=1 << 20, max_hours=1.0)
    assert len(reopened) == 4
    assert reopened.size_bytes == 4 * message(b"1").size
    reopened.close()


def test_a_spool_without_a_file_is_bounded_to_sixteen_mebibytes() -> None:
    spool = Spool(None, max_bytes=1 << 30, max_hours=1.0)
    dropped = sum(spool.append(message(b"x" * 2**20), NOW_MS) for _ in range(20))
    assert spool.size_bytes <= MEMORY_BYTES
    assert dropped == 20 - len(spool) > 0
    spool.close()


def test_a_spool_of_a_newer_version_or_a_strange_file_is_refused_with_words(
    tmp_path: Path,
) -> None:
    newer = tmp_path / "newer.db"
    db = sqlite3.connect(newer)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(DataDirError, match="newer foreshock"):
        Spool(newer, max_bytes=1 << 20, max_hours=1.0)
    strange = tmp_path / "strange.db"
    strange.write_bytes(b"not a database at all" * 100)
    with pytest.raises(DataDirError, match="cannot be used"):
        Spool(strange, max_bytes=1 << 20, max_hours=1.0)
    with pytest.raises(DataDirError, match="cannot be opened"):
        Spool(tmp_path, max_bytes=1 << 20, max_hours=1.0)


class Outage:
    """A source that takes the bus away for some ticks."""

    kind = "simulated"
    exhausted = False

    def __init__(self, bus: MemoryBus, away: range) -> None:
        self._bus, self._away, self._tick = bus, away, 0

    def read(self, ts_ms: int) -> list[Reading]:
        self._bus.outage = "the broker is away" if self._tick in self._away else None
        self._tick += 1
        return [Reading(node="n1", ts=ts_ms, gpus=("A",), values={"power_watts": [1.0]})]

    def close(self) -> None:
        """Nothing is open."""


def test_an_outage_of_ten_minutes_loses_nothing_and_never_stops_the_beat() -> None:
    bus, clock = MemoryBus(), ManualClock(stop_at=1000.5)
    settings = CollectorSettings(
        source="simulated",  # type: ignore[arg-type]
        node="n1",
        spool=SpoolSettings(jitter_seconds=10.0),
    )
    service = CollectorService(Outage(bus, range(100, 700)), bus, settings, clock=clock)
    service.run(threading.Event())
    reader = bus.subscriber(group="t", topics=["gpu.samples"])
    found = []
    while batch := reader.poll(500, 0.0):
        found += [decode_sample(record.value) for record in batch]
    reader.close()
    assert sorted(sample.seq for sample in found) == list(range(1002))
    live = [s.seq for s in found if s.seq not in range(90, 705)]
    assert live == sorted(live)  # live messages did not wait for old ones
    late = [s.seq for s in found if s.seq in range(110, 690)]
    assert late == sorted(late)  # old ones came oldest first
    assert found[-1].collector.state == "stopping"
    assert service.registry.get_sample_value("foreshock_collector_ticks_missed_total") == 0
    assert service.health()["spool_messages"] == 0


@pytest.mark.parametrize("body", ["json", "binary"])
def test_either_body_says_the_same_and_its_header_names_it(body: str) -> None:
    bus, clock = MemoryBus(), ManualClock(stop_at=5.5)
    settings = CollectorSettings(source="simulated", node="n1", body=body)  # type: ignore[arg-type]
    service = CollectorService(Outage(bus, range(0)), bus, settings, clock=clock)
    service.run(threading.Event())
    reader = bus.subscriber(group="t", topics=["gpu.samples"])
    records = reader.poll(500, 0.0)
    reader.close()
    kinds = {dict(record.headers)["content-type"] for record in records}
    assert kinds == {BINARY_CONTENT_TYPE if body == "binary" else JSON_CONTENT_TYPE}
    found = [decode_sample(record.value, *kinds) for record in records]
    assert [sample.seq for sample in found] == list(range(len(found)))
    assert [sample.m.get("power_watts") for sample in found[:-1]] == [[1.0]] * (len(found) - 1)
