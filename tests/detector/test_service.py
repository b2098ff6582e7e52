"""The detector as a service over real transports: nothing lost, nothing invented, nothing stuck."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from telemetry import MIB, telemetry

from bus import Bus, BusSettings, Record, open_bus
from bus.memory import MemoryBus
from bus.placement import partition_of
from detector.consuming import Consuming, Wiring
from detector.engine import Engine
from detector.metrics import DetectorMetrics
from detector.pace import Pace
from detector.registry import build
from detector.service import DetectorService
from detector.settings import DetectorSettings
from detector.snapshot import Snapshot
from detector.snapshots import FileSnapshots, MemorySnapshots, Snapshots
from detector.worker import Output, SampleWorker
from schemas.alert import AlertEvent
from schemas.codec import (
    alert_headers,
    decode_alert,
    decode_window,
    encode,
    sample_headers,
)
from schemas.errors import ConfigError, DataDirError
from schemas.sample import NodeSample
from schemas.topics import ALERTS, DEAD_LETTERS, SAMPLES, WINDOWS, TopicSpec

NODES = ("n1", "n2", "n3")
FAST = DetectorSettings(checkpoint_seconds=0.05, poll_records=16)


@cache
def stream() -> tuple[NodeSample, ...]:
    """Three nodes, ten minutes at 10 s: an outlier, a brake that ends, a GPU that leaves."""
    ticks = 60
    heat = np.full((ticks, 5), 50.0)
    heat[:, 1] += 20
    bits = np.zeros((ticks, 5))
    bits[15:20, 2] = 0x80
    metrics = {
        "temperature_celsius": heat,
        "power_watts": 400.0,
        "clock_event_reasons": bits,
        "memory_used_bytes": 8000 * MIB,
        "memory_total_bytes": 81559 * MIB,
    }
    nodes = []
    for node in NODES:
        plain = telemetry(metrics, gpus=5, ticks=ticks, interval=10.0, node=node)
        nodes.append([_own(sample, tick) for tick, sample in enumerate(plain)])
    return tuple(sample for tick in zip(*nodes, strict=True) for sample in tick)


def _own(sample: NodeSample, tick: int) -> NodeSample:
    """Ids that are unique in the fleet; the last GPU is gone from the 30th tick on."""
    listed = sample.inventory and replace(
        sample.inventory,
        gpus=tuple(
            replace(item, gpu=f"{sample.node}-{item.gpu}") for item in sample.inventory.gpus
        ),
    )
    count = 5 if tick < 30 else 4
    return replace(
        sample,
        gpu=tuple(f"{sample.node}-{uuid}" for uuid in sample.gpu[:count]),
        m={name: values[:count] for name, values in sample.m.items()},
        inventory=listed,
    )


Ids = set[tuple[str, int]]


def ids(alerts: Sequence[AlertEvent]) -> Ids:
    """What a replay gives too: nothing from models, nothing by the wall clock."""
    apart = {"multivariate", "drift", "node_silent", "clock_skew"}
    return {(alert.alert_id, alert.seq) for alert in alerts if alert.kind not in apart}


@cache
def undisturbed() -> frozenset[tuple[str, int]]:
    engine = Engine(build(), topic="gpu.samples", partition=0)
    return frozenset(ids(engine.process(stream()).alerts))


def test_the_stream_holds_an_outlier_a_brake_and_a_loss_per_node() -> None:
    engine = Engine(build(), topic="gpu.samples", partition=0)
    said = sorted((a.kind, str(a.state)) for a in engine.process(stream()).alerts)
    assert said == sorted(
        [
            ("peer_outlier", "firing"),
            ("power_brake", "firing"),
            ("power_brake", "resolved"),
            ("missing", "firing"),
        ]
        * len(NODES)
    )


# -- the world around the service ------------------------------------------------------------------


def publish(bus: Bus, samples: Sequence[NodeSample], prefix: str = "") -> None:
    publisher = bus.publisher(client_id="test")
    for sample in samples:
        publisher.send(
            SAMPLES.full_name(prefix),
            key=sample.node.encode(),
            value=encode(sample),
            headers=sample_headers(sample),
        )
    assert publisher.close() == 0


def publish_raw(bus: Bus, *values: bytes, key: bytes = b"n1") -> None:
    publisher = bus.publisher(client_id="test")
    for value in values:
        publisher.send(SAMPLES.name, key=key, value=value, headers=(("trace", b"7"),))
    assert publisher.close() == 0


def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"after {seconds} s: {what}")
        time.sleep(0.01)


class Reader:
    """Everything on one topic, as it comes."""

    def __init__(self, bus: Bus, topic: TopicSpec, prefix: str = "") -> None:
        self._subscriber = bus.subscriber(
            group=f"test-{topic.name}", topics=[topic.full_name(prefix)], client_id="test"
        )
        self.records: list[Record] = []

    def all(self) -> list[Record]:
        while more := self._subscriber.poll(1000, 0.02):
            self.records += more
        return self.records

    def alerts(self) -> list[AlertEvent]:
        return [decode_alert(record.value) for record in self.all()]

    def wait_for(self, wanted: Ids | frozenset[tuple[str, int]]) -> None:
        until(lambda: wanted <= ids(self.alerts()), "alerts are missing")


class Running:
    """A service or loop in a thread of its own."""

    def __init__(self, run: Callable[[threading.Event], None]) -> None:
        self._run = run
        self._stop = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="under-test")
        self._thread.start()

    def _work(self) -> None:
        try:
            self._run(self._stop)
        except Exception as exc:  # noqa: BLE001 - handed to the test
            self.failure = exc

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(10.0)
        assert not self._thread.is_alive(), "a service must end within ten seconds"


@contextmanager
def running(service: DetectorService | Consuming) -> Iterator[Running]:
    one = Running(service.run)
    try:
        yield one
    finally:
        one.end()
        # Before the test's own failure, which it explains.
        if one.failure is not None:
            raise one.failure


def service(bus: Bus, store: Snapshots, settings: DetectorSettings = FAST) -> DetectorService:
    return DetectorService(bus, settings, data_dir=Path("/nowhere"), snapshots=store)


def value(subject: DetectorService | CollectorRegistry, name: str, **labels: str) -> float:
    registry = subject.registry if isinstance(subject, DetectorService) else subject
    return registry.get_sample_value(f"foreshock_detector_{name}", labels) or 0.0


def idle(subject: DetectorService) -> bool:
    """Everything was read and processed; health alone knows only that it was read."""
    lag: Any = subject.health()["lag"]
    return bool(lag["stream"] == 0 and lag["cohort"] == 0)


# -- samples in, alerts and windows out ------------------------------------------------------------


def test_samples_become_alerts_and_windows() -> None:
    bus = MemoryBus(partitions=2)
    publish(bus, stream())
    alerts, windows = Reader(bus, ALERTS), Reader(bus, WINDOWS)
    subject = service(bus, MemorySnapshots())
    with running(subject):
        alerts.wait_for(undisturbed())
        until(lambda: len(windows.all()) == 3 * 59, "windows are missing")
    assert ids(alerts.alerts()) == undisturbed()
    for record in alerts.all():
        event = decode_alert(record.value)
        assert record.key == event.fingerprint.encode()
        assert record.headers == alert_headers(event)
        assert event.labels is None
    for record in windows.all():
        window = decode_window(record.value)
        assert record.key == window.cohort.encode()
        assert window.source.partition == partition_of(window.node.encode(), 2)
    assert not Reader(bus, DEAD_LETTERS).all()


def test_topics_carry_the_prefix() -> None:
    bus = MemoryBus(prefix="lab.", partitions=2)
    publish(bus, stream(), prefix="lab.")
    alerts = Reader(bus, ALERTS, "lab.")
    subject = DetectorService(
        bus, FAST, prefix="lab.", data_dir=Path("/nowhere"), snapshots=MemorySnapshots()
    )
    with running(subject):
        alerts.wait_for(undisturbed())
    assert ids(alerts.alerts()) == undisturbed()


def test_over_the_sqlite_bus_with_a_restart_and_files(tmp_path: Path) -> None:
    settings = BusSettings(transport="sqlite", path=tmp_path / "bus.db")
    bus = open_bus(settings)
    bus.create_topics()
    alerts = Reader(bus, ALERTS)
    half = len(stream()) // 2
    try:
        for part in (stream()[:half], stream()[half:]):
            publish(bus, part)
            subject = DetectorService(bus, FAST, data_dir=tmp_path)
            with running(subject):
                until(
                    lambda n=part, s=subject: (  # type: ignore[misc]  # bound now, not later
                        value(s, "events_total", event="accepted") >= len(n)
                    ),
                    "samples were not read",
                )
        alerts.wait_for(undisturbed())
        assert ids(alerts.alerts()) == undisturbed()
        assert len(alerts.alerts()) == len(undisturbed()), "a clean restart repeats nothing"
        assert list((tmp_path / "detector" / "snapshots").glob("gpu.samples-*.snapshot"))
    finally:
        bus.close()


def test_health_and_metrics_tell_the_state() -> None:
    bus = MemoryBus(partitions=2)
    publish(bus, stream())
    subject = service(bus, MemorySnapshots())
    before = subject.health()
    assert before["ok"] is False
    assert "not turned" in str(before["detail"])
    with running(subject):
        until(
            lambda: (
                value(subject, "events_total", event="accepted") == len(stream())
                and bool(subject.health()["ok"])
                and idle(subject)
            ),
            "the service is not well",
        )
        assert value(subject, "partitions", topic="gpu.samples") == 2
        assert value(subject, "lag_records", topic="gpu.samples") == 0
        until(
            lambda: value(subject, "open_alerts", topic="gpu.samples") == 2 * len(NODES),
            "open alerts are not counted",
        )
    assert value(subject, "records_total", topic="gpu.samples") == len(stream())
    fired = {"family": "throttling", "kind": "power_brake", "severity": "critical"}
    assert value(subject, "alerts_total", state="firing", **fired) == len(NODES)
    text = generate_latest(subject.registry).decode()
    assert "foreshock_detector_checkpoint_seconds_bucket" in text


class _AwayBus(MemoryBus):
    """Its readers can be made to say that it does not answer."""

    def __init__(self, text: str) -> None:
        super().__init__(partitions=1)
        self.readers: list[Any] = []
        self.text: str | None = text

    def subscriber(self, **options: Any) -> Any:
        reader = super().subscriber(**options)
        reader.outage = self.text
        self.readers.append(reader)
        return reader


def test_a_bus_that_is_away_makes_the_service_unready_until_it_is_back() -> None:
    bus = _AwayBus("Kafka at k:9092 does not answer.")
    subject = service(bus, MemorySnapshots())
    with running(subject):
        until(lambda: subject.health()["detail"] == bus.text, "the outage is not told")
        assert subject.health()["ok"] is False
        for reader in bus.readers:
            reader.outage = None
        until(lambda: bool(subject.health()["ok"]), "the service is not well again")


def test_an_unknown_parameter_is_refused_before_anything_runs() -> None:
    wrong = DetectorSettings(parameters={"leak": {"horizon": 1}})
    with pytest.raises(ConfigError, match="horizon_seconds"):
        service(MemoryBus(), MemorySnapshots(), wrong)


# -- bad messages ----------------------------------------------------------------------------------


def test_an_undecodable_message_becomes_a_dead_letter_and_the_stream_goes_on() -> None:
    bus = MemoryBus(partitions=1)
    bad = [b"", b"\xff{", b"{}", b'{"schema":"gpu.sample/1","node":"n1"}']
    publish(bus, stream()[:50])
    publish_raw(bus, *bad)
    publish(bus, stream()[50:])
    alerts, buried = Reader(bus, ALERTS), Reader(bus, DEAD_LETTERS)
    subject = service(bus, MemorySnapshots())
    with running(subject):
        alerts.wait_for(undisturbed())
        until(lambda: len(buried.all()) == len(bad), "dead letters are missing")
    assert ids(alerts.alerts()) == undisturbed()
    assert {record.value for record in buried.all()} == set(bad)
    for record in buried.all():
        headers = dict(record.headers)
        assert record.key == b"n1"
        assert headers["trace"] == b"7", "the original headers stay"
        assert headers["dlq_topic"] == b"gpu.samples"
        assert headers["dlq_partition"] == b"0"
        assert bad[int(headers["dlq_offset"]) - 50] == record.value
        assert headers["dlq_reason"] in {b"not_json", b"schema", b"bad_field", b"missing_field"}
        assert headers["dlq_detail"]
    assert value(subject, "events_total", event="dead_letters") == len(bad)


def test_an_undecodable_window_becomes_a_dead_letter() -> None:
    bus = MemoryBus(partitions=1)
    publisher = bus.publisher(client_id="test")
    publisher.send(WINDOWS.name, key=b"j", value=b"no window")
    publisher.close()
    buried = Reader(bus, DEAD_LETTERS)
    with running(service(bus, MemorySnapshots())):
        until(lambda: bool(buried.all()), "the dead letter is missing")
    assert dict(buried.all()[0].headers)["dlq_topic"] == b"gpu.windows"


class Fragile(SampleWorker):
    """An engine with a fault: a marked message breaks it, after it changed the state."""

    def process(self, records: Sequence[Record], *, caught_up: bool) -> Output:
        output = super().process(records, caught_up=caught_up)
        if any(b"marker" in record.value for record in records):
            raise ZeroDivisionError("marker")
        return output


def loop(bus: Bus, store: Snapshots, registry: CollectorRegistry, **changes: Any) -> Consuming:
    wiring = Wiring(
        bus=bus,
        source=SAMPLES,
        prefix="",
        group="g",
        make=lambda partition: Fragile(build(), partition),
        snapshots=store,
        metrics=DetectorMetrics(registry),
        checkpoint_seconds=0.05,
        poll_records=16,
    )
    return Consuming(replace(wiring, **changes))


@pytest.mark.parametrize("places", [[0], [70], [179], [20, 21, 90]])
def test_a_message_that_breaks_the_engine_is_found_and_buried_alone(places: list[int]) -> None:
    bus, registry = MemoryBus(partitions=2), CollectorRegistry()
    poison = [replace(stream()[place], node=f"marker-{place}", inventory=None) for place in places]
    publisher = bus.publisher(client_id="test")
    for number, sample in enumerate(stream()):
        mine = [bad for bad, place in zip(poison, places, strict=True) if place == number]
        for one in (*mine, sample):
            publisher.send(SAMPLES.name, key=sample.node.encode(), value=encode(one))
    publisher.close()
    alerts, buried = Reader(bus, ALERTS), Reader(bus, DEAD_LETTERS)
    with running(loop(bus, MemorySnapshots(), registry)):
        alerts.wait_for(undisturbed())
        until(lambda: len(buried.all()) == len(places), "the message was not buried")
    assert ids(alerts.alerts()) == undisturbed()
    assert {record.value for record in buried.all()} == {encode(bad) for bad in poison}
    for record in buried.all():
        assert dict(record.headers)["dlq_reason"] == b"engine"
        assert dict(record.headers)["dlq_detail"] == b"ZeroDivisionError: marker"
    assert value(registry, "events_total", event="engine_errors") >= len(places)


# -- stops, kills, restarts ------------------------------------------------------------------------


class Mortal:
    """A store that dies on command: what was not saved then never will be, as after kill -9."""

    def __init__(self, kept: Snapshots) -> None:
        self.kept = kept
        self.dead = False

    def save(self, snapshot: Snapshot) -> None:
        if self.dead:
            raise DataDirError("The disk is full.")
        self.kept.save(snapshot)

    def load(self, topic: str, partition: int) -> Snapshot | None:
        return self.kept.load(topic, partition)

    def refresh(self) -> None:
        self.kept.refresh()

    def forget(self, topic: str, partition: int) -> None:
        self.kept.forget(topic, partition)


def run_until(subject: DetectorService, messages: int, store: Mortal, *, kill: bool) -> None:
    """Let a service read at least so many messages, then stop it or kill it."""
    one = Running(subject.run)
    until(
        lambda: value(subject, "records_total", topic="gpu.samples") >= messages or idle(subject),
        "nothing was read",
    )
    store.dead = kill
    if kill:
        until(lambda: not one.alive or idle(subject), "a full disk does not end the service")
    one.end()
    assert one.failure is None or isinstance(one.failure, DataDirError)


@pytest.mark.parametrize("seed", range(4))
def test_stops_and_kills_at_any_point_change_no_alert(seed: int) -> None:
    chance = Random(seed)
    bus, kept = MemoryBus(partitions=2), MemorySnapshots()
    publish(bus, stream())
    alerts = Reader(bus, ALERTS)
    settings = FAST.model_copy(update={"poll_records": chance.choice([1, 5, 16])})
    for _ in range(3):
        store = Mortal(kept)
        messages = chance.randrange(1, 60)
        run_until(service(bus, store, settings), messages, store, kill=chance.random() < 0.6)
    with running(service(bus, kept)):
        alerts.wait_for(undisturbed())
    assert ids(alerts.alerts()) == undisturbed()


def test_a_disk_that_is_full_for_a_while_stops_no_alert_and_is_saved_to_afterwards() -> None:
    bus, store = MemoryBus(partitions=1), Mortal(MemorySnapshots())
    store.dead = True
    publish(bus, stream())
    alerts = Reader(bus, ALERTS)
    subject = service(bus, store)
    with running(subject):
        alerts.wait_for(undisturbed())
        assert store.load("gpu.samples", 0) is None
        store.dead = False
        until(lambda: store.load("gpu.samples", 0) is not None, "the state is never saved")


def test_a_turn_that_was_slow_takes_less_the_next_time() -> None:
    """Whatever the machine and the messages, a turn must leave time to hear that it should end."""
    pace, cost = Pace(512), 0.05
    for _ in range(20):
        took = pace.limit
        pace.took(took, took * cost)
    assert took * cost <= 1.0
    for _ in range(20):
        pace.took(pace.limit, 1e-4)
    assert pace.limit == 512


def test_a_clean_stop_saves_everything_and_a_restart_repeats_nothing() -> None:
    bus, kept = MemoryBus(partitions=2), MemorySnapshots()
    publish(bus, stream())
    alerts = Reader(bus, ALERTS)
    slow = FAST.model_copy(update={"checkpoint_seconds": 600.0})
    for _ in range(2):
        subject = service(bus, kept, slow)
        with running(subject):
            until(lambda s=subject: idle(s), "samples were not read")  # type: ignore[misc]  # bound now, not later
    assert sorted(ids(alerts.alerts())) == sorted((a.alert_id, a.seq) for a in alerts.alerts())
    assert ids(alerts.alerts()) == undisturbed()


# -- a bus that does not take everything -----------------------------------------------------------


def test_a_full_bus_loses_no_alert() -> None:
    """Every second message is refused at first."""
    bus = MemoryBus(partitions=1, capacity=16)
    publish(bus, stream())
    alerts, windows = Reader(bus, ALERTS), Reader(bus, WINDOWS)
    with running(service(bus, MemorySnapshots())):
        alerts.wait_for(undisturbed())
        until(lambda: len(windows.all()) >= 3 * 59, "windows are missing")
    assert ids(alerts.alerts()) == undisturbed()


def test_what_could_not_be_delivered_is_sent_again() -> None:
    bus, kept = MemoryBus(partitions=1), MemorySnapshots()
    publish(bus, stream())
    alerts = Reader(bus, ALERTS)
    subject = service(bus, kept)
    bus.outage = "the broker is away"
    with running(subject):
        until(
            lambda: value(subject, "events_total", event="accepted") == len(stream()),
            "samples were not read",
        )
        assert alerts.alerts() == []
        saved = kept.load("gpu.samples", 0)
        assert saved is None or saved.next_offset < len(stream()), "saved what was not said"
        bus.outage = None
        alerts.wait_for(undisturbed())
    assert ids(alerts.alerts()) == undisturbed()
    seqs: dict[str, list[int]] = {}
    for alert in alerts.alerts():
        seqs.setdefault(alert.alert_id, []).append(alert.seq)
    assert all(order == sorted(order) for order in seqs.values()), "older news first"


def test_a_stop_while_the_bus_is_away_saves_nothing_and_ends_in_time() -> None:
    bus, kept = MemoryBus(partitions=1, capacity=4), MemorySnapshots()
    publish(bus, stream())
    alerts = Reader(bus, ALERTS)
    bus.outage = "the broker is away"
    subject = service(bus, kept)
    with running(subject):
        until(
            lambda: value(subject, "events_total", event="accepted") > 0,
            "samples were not read",
        )
    assert kept.load("gpu.samples", 0) is None, "saved what was not said"
    bus.outage = None
    with running(service(bus, kept)):
        alerts.wait_for(undisturbed())
    assert ids(alerts.alerts()) == undisturbed()


# -- several detectors -----------------------------------------------------------------------------


def test_two_detectors_share_the_partitions_and_take_over_with_the_state(tmp_path: Path) -> None:
    """The second joins in the middle, the first leaves: every node's episode goes on."""
    partitions = 4
    assert len({partition_of(node.encode(), partitions) for node in NODES}) > 1
    bus = MemoryBus(partitions=partitions)
    alerts = Reader(bus, ALERTS)
    folder = tmp_path / "snapshots"
    first, second = (service(bus, FileSnapshots(folder)) for _ in range(2))
    third = len(stream()) // 3

    def shares() -> tuple[float, float]:
        return (
            value(first, "partitions", topic="gpu.samples"),
            value(second, "partitions", topic="gpu.samples"),
        )

    def read_by(*subjects: DetectorService) -> float:
        return sum(value(s, "events_total", event="accepted") for s in subjects)

    publish(bus, stream()[:third])
    leaver = Running(first.run)
    until(lambda: read_by(first) >= third, "the first did not read")
    with running(second):
        until(lambda: shares() == (2.0, 2.0), "the partitions were not shared")
        publish(bus, stream()[third : 2 * third])
        until(lambda: read_by(first, second) >= 2 * third, "the second third was not read")
        leaver.end()
        assert leaver.failure is None
        until(lambda: shares()[1] == partitions, "the partitions were not taken over")
        publish(bus, stream()[2 * third :])
        alerts.wait_for(undisturbed())
    assert ids(alerts.alerts()) == undisturbed()
    assert len(alerts.alerts()) == len(undisturbed()), "an orderly hand-over repeats nothing"
