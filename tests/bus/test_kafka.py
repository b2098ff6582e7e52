"""What only the Kafka transport must do: brokers that are away, faults, real-broker behaviour."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import confluent_kafka as ck  # noqa: TID251 - the test's own hand on the broker
import pytest
import structlog
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: TID251 - same
from kafka_broker import start_kafka

from bus import BusSettings, DeliveryReport, KafkaSettings, TopicPartition, open_bus
from bus.kafka_config import consumer_config, producer_config
from bus.kafka_faults import explain
from bus.protocol import Subscriber
from schemas.errors import BusUnavailableError, ConfigError, MessageTooLargeError
from schemas.topics import ALERTS, ALL_TOPICS, SAMPLES, STATE

from .conftest import PARTITIONS, Stage, Witness, kafka_settings, numbers

#: Nothing listens on the discard port of the loopback.
NOWHERE = "127.0.0.1:9"


def _nowhere(**properties: str) -> BusSettings:
    return kafka_settings(NOWHERE, "", **properties)


def test_nothing_waits_for_a_broker_that_is_away() -> None:
    started = time.monotonic()
    bus = open_bus(_nowhere(producer__message__timeout__ms="1000"))
    reports: list[DeliveryReport] = []
    writer = bus.publisher(client_id="w")
    reader = bus.subscriber(group="g", topics=["gpu.samples"])
    for number in range(500):
        writer.send(
            "gpu.samples",
            key=b"k",
            value=b"%d" % number,
            headers=(("ce_id", b"%d" % number),),
            on_delivery=reports.append,
        )
    assert time.monotonic() - started < 2.0
    assert reader.poll(10, 0.1) == []
    assert writer.flush(20) == 0
    # Each message comes back whole, so that the collector can spool it.
    assert [r.value for r in reports] == [b"%d" % n for n in range(500)]
    assert all(r.headers == (("ce_id", r.value),) and r.key == b"k" for r in reports)
    assert all(r.error and "127.0.0.1:9" in r.error and r.offset is None for r in reports)
    reader.close()
    writer.close()
    bus.close()


def test_close_hands_back_what_is_still_waiting() -> None:
    bus = open_bus(_nowhere())
    reports: list[DeliveryReport] = []
    writer = bus.publisher(client_id="w")
    for number in range(50):
        writer.send("gpu.samples", key=None, value=b"%d" % number, on_delivery=reports.append)
    started = time.monotonic()
    assert writer.close(0.2) == 50
    assert time.monotonic() - started < 5.0
    assert sorted(int(r.value) for r in reports) == list(range(50))
    assert all(r.error for r in reports)
    bus.close()


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_the_client_library_speaks_only_to_who_asked_for_debug(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    """A broker that is away makes it write hundreds of lines a minute."""
    caplog.set_level(level)
    bus = open_bus(_nowhere())
    writer = bus.publisher(client_id="w")
    writer.send("gpu.samples", key=None, value=b"x", on_delivery=lambda _: None)
    writer.flush(1.0)
    writer.close(0)
    bus.close()
    said = [line for line in caplog.records if line.name == "bus.kafka.librdkafka"]
    assert {line.levelno for line in said} == ({logging.DEBUG} if level == logging.DEBUG else set())


def test_topics_are_not_asked_for_longer_than_a_person_waits() -> None:
    bus = open_bus(_nowhere())
    started = time.monotonic()
    with pytest.raises(BusUnavailableError, match=r"does not answer.*Check that"):
        bus.describe_topics()
    assert time.monotonic() - started < 10.0
    bus.close()


def test_what_is_lost_at_the_end_is_told_once_and_in_words() -> None:
    bus = open_bus(_nowhere())
    writer = bus.publisher(client_id="w")
    with structlog.testing.capture_logs() as lines:
        for _ in range(20):
            writer.send("gpu.samples.dlq", key=None, value=b"x")
        writer.close(0.1)
    bus.close()
    (lost,) = [line for line in lines if line["event"] == "bus_message_lost"]
    assert "did not take the message before foreshock ended" in lost["error"]


def test_check_says_that_nobody_answers() -> None:
    bus = open_bus(_nowhere())
    started = time.monotonic()
    with pytest.raises(BusUnavailableError, match=r"127\.0\.0\.1:9 does not answer.*Check that"):
        bus.check(1.0)
    assert time.monotonic() - started < 5.0
    bus.close()


@pytest.mark.parametrize(
    "properties",
    [
        {"no.such.property": "1"},
        {"socket.timeout.ms": "soon"},
        {"partition.assignment.strategy": "range"},
    ],
)
def test_a_property_that_cannot_be_used_is_named(properties: dict[str, str]) -> None:
    bus = open_bus(
        BusSettings(
            transport="kafka", kafka=KafkaSettings(bootstrap=NOWHERE, properties=properties)
        )
    )
    (name,) = properties
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):  # noqa: PT012 - either of the two
        bus.publisher(client_id="w").close(0)
        bus.subscriber(group="g", topics=["t"])


def test_properties_override_ours_and_can_be_meant_for_one_kind_of_client() -> None:
    settings = KafkaSettings(
        bootstrap="a:1",
        properties={
            "security.protocol": "SASL_SSL",
            "bootstrap.servers": "b:2",
            "producer.linger.ms": "7",
            "consumer.fetch.wait.max.ms": "9",
        },
    )
    producer = producer_config(settings, "c", durable=False)
    consumer = consumer_config(settings, "c", "g")
    for config in (producer, consumer):
        assert config["security.protocol"] == "SASL_SSL"
        assert config["bootstrap.servers"] == "b:2"
        assert not [name for name in config if name.startswith(("producer.", "consumer."))]
    assert producer["linger.ms"] == "7"
    assert consumer["fetch.wait.max.ms"] == "9"


def test_the_new_group_protocol_leaves_out_what_it_refuses() -> None:
    config = consumer_config(KafkaSettings(group_protocol="consumer"), "c", "g")
    assert not {
        "partition.assignment.strategy",
        "session.timeout.ms",
        "heartbeat.interval.ms",
    } & set(config)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("_AUTHENTICATION", "refused the log-in"),
        ("_SSL", "no trusted TLS connection"),
        ("TOPIC_AUTHORIZATION_FAILED", "does not allow this"),
        ("UNKNOWN_TOPIC_OR_PART", "foreshock topics create"),
        ("_ALL_BROKERS_DOWN", "does not answer"),
        ("_MSG_TIMED_OUT", "in time"),
        ("INVALID_REQUEST", "reported"),
    ],
)
def test_faults_are_put_into_words(name: str, words: str) -> None:
    error = ck.KafkaError(getattr(ck.KafkaError, name))
    said = explain(KafkaSettings(bootstrap="broker:9092"), error)
    assert words in said
    assert said.startswith("Kafka at broker:9092 ")
    assert said.endswith(".")


@pytest.fixture
def mock_cluster() -> Iterator[SimpleNamespace]:
    """librdkafka's own mock of three brokers, which can be told to fail."""
    (library,) = (Path(ck.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka-*.so*")
    rd = ctypes.CDLL(str(library))
    for name in ("rd_kafka_mock_cluster_new", "rd_kafka_new", "rd_kafka_conf_new"):
        getattr(rd, name).restype = ctypes.c_void_p
    rd.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    note = ctypes.create_string_buffer(512)
    handle = ctypes.c_void_p(rd.rd_kafka_new(0, ctypes.c_void_p(rd.rd_kafka_conf_new()), note, 512))
    cluster = ctypes.c_void_p(rd.rd_kafka_mock_cluster_new(handle, 3))
    rd.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 0)
    clients = contextlib.ExitStack()  # a client that outlives its brokers hangs at exit

    def fail(api: int, *codes: int) -> None:
        array = (ctypes.c_int * len(codes))(*codes)
        rd.rd_kafka_mock_push_request_errors_array(
            cluster, ctypes.c_int16(api), ctypes.c_size_t(len(codes)), array
        )

    yield SimpleNamespace(
        bootstrap=rd.rd_kafka_mock_cluster_bootstraps(cluster).decode(),
        create=lambda topic: rd.rd_kafka_mock_topic_create(cluster, topic.encode(), PARTITIONS, 1),
        fail=fail,
        down=lambda: [rd.rd_kafka_mock_broker_set_down(cluster, n) for n in (1, 2, 3)],
        up=lambda: [rd.rd_kafka_mock_broker_set_up(cluster, n) for n in (1, 2, 3)],
        clients=clients,
    )
    clients.close()
    rd.rd_kafka_mock_cluster_destroy(cluster)
    rd.rd_kafka_destroy(handle)


PRODUCE, FETCH, OFFSET_COMMIT = 0, 1, 8  # API keys of the Kafka protocol


def test_passing_faults_of_the_broker_are_not_noticed(mock_cluster: SimpleNamespace) -> None:
    mock_cluster.create("gpu.samples")
    bus = open_bus(kafka_settings(mock_cluster.bootstrap, ""))
    writer = mock_cluster.clients.enter_context(contextlib.closing(bus.publisher(client_id="w")))
    reader = mock_cluster.clients.enter_context(
        contextlib.closing(bus.subscriber(group="g", topics=["gpu.samples"]))
    )
    mock_cluster.fail(
        PRODUCE, ck.KafkaError.NOT_LEADER_FOR_PARTITION, ck.KafkaError.NOT_LEADER_FOR_PARTITION
    )
    mock_cluster.fail(FETCH, ck.KafkaError.NOT_LEADER_FOR_PARTITION)
    mock_cluster.fail(OFFSET_COMMIT, ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    reports: list[DeliveryReport] = []
    for number in range(100):
        writer.send("gpu.samples", key=b"k", value=b"%d" % number, on_delivery=reports.append)
    assert writer.flush(20) == 0
    assert [report.error for report in reports] == [None] * 100
    records = Stage.drain(reader, 100)
    assert [int(record.value) for record in records] == list(range(100))  # idempotent: in order
    reader.commit({record.place: record.offset + 1 for record in records})
    bus.close()


def _poll_until(is_true: Callable[[], bool], reader: Subscriber) -> None:
    end = time.monotonic() + 60.0
    while not is_true():
        assert time.monotonic() < end, "it did not happen within a minute"
        assert reader.poll(1, 0.1) == []


def test_brokers_that_come_back_are_used_again(mock_cluster: SimpleNamespace) -> None:
    mock_cluster.create("gpu.samples")
    often = {"reconnect__backoff__max__ms": "200", "consumer__statistics__interval__ms": "200"}
    bus = open_bus(kafka_settings(mock_cluster.bootstrap, "", **often))
    writer = mock_cluster.clients.enter_context(contextlib.closing(bus.publisher(client_id="w")))
    reader = mock_cluster.clients.enter_context(
        contextlib.closing(bus.subscriber(group="g", topics=["gpu.samples"]))
    )
    writer.send("gpu.samples", key=b"k", value=b"0")
    assert writer.flush(20) == 0
    Stage.drain(reader, 1)
    assert reader.outage is None
    mock_cluster.down()
    started = time.monotonic()
    for number in range(1, 50):
        writer.send("gpu.samples", key=b"k", value=b"%d" % number)
        writer.poll()
    assert time.monotonic() - started < 5.0  # a send that waited would wait for minutes
    assert reader.poll(10, 0.5) == []
    _poll_until(lambda: reader.outage is not None, reader)
    assert "does not answer. Check that it runs" in str(reader.outage)
    mock_cluster.up()
    assert writer.flush(30) == 0
    assert numbers(Stage.drain(reader, 49)) == list(range(1, 50))
    _poll_until(lambda: reader.outage is None, reader)
    bus.close()


@pytest.mark.kafka
@pytest.mark.real_kafka
def test_topics_are_what_the_contract_says(real_kafka: str, topic_prefix: str) -> None:
    bus = open_bus(
        BusSettings(
            transport="kafka",
            prefix=topic_prefix,
            kafka=KafkaSettings(bootstrap=real_kafka, replication_factor=1),
        )
    )
    assert "missing" in bus.check(10)
    assert bus.create_topics() == [spec.full_name(topic_prefix) for spec in ALL_TOPICS]
    assert "all topics are there" in bus.check(10)
    found = {topic.name.removeprefix(topic_prefix): topic for topic in bus.describe_topics()}
    for spec in ALL_TOPICS:
        topic = found[spec.name]
        assert topic.partitions == spec.partitions
        assert topic.config["message.timestamp.type"] == "LogAppendTime"
        assert topic.config["max.message.bytes"] == str(spec.max_message_bytes)
    assert found[SAMPLES.name].config["retention.ms"] == str(7 * 86_400_000)
    assert found[ALERTS.name].config["cleanup.policy"] == "delete"
    assert found[STATE.name].config["cleanup.policy"] == "compact"
    bus.close()


@pytest.mark.kafka
@pytest.mark.real_kafka
def test_the_new_group_protocol_keeps_the_promises(real_kafka: str, topic_prefix: str) -> None:
    settings = kafka_settings(real_kafka, topic_prefix)
    kafka = settings.kafka.model_copy(update={"group_protocol": "consumer", "properties": {}})
    bus = open_bus(settings.model_copy(update={"kafka": kafka}))
    bus.create_topics()
    topic = SAMPLES.full_name(topic_prefix)
    stage = Stage(
        transport="kafka",
        bus=bus,
        another=lambda: bus,
        expire=lambda place, before: None,
        prefix=topic_prefix,
    )
    stage.send(40, keys=20)
    first_witness, second_witness = Witness(), Witness()
    first = stage.reader("g", listener=first_witness)
    records = stage.drain(first, 40)
    second = stage.reader("g", listener=second_witness)
    first_witness.on_revoke = lambda places: first.commit(
        {r.place: r.offset + 1 for r in records if r.place in places}
    )
    again = stage.until(
        lambda: len(first_witness.held) == len(second_witness.held) == PARTITIONS // 2,
        first,
        second,
    )
    assert again == []  # what the first gave up it had committed
    first.close()
    stage.until(lambda: len(second_witness.held) == PARTITIONS, second)
    stage.send(5, first=40)
    found = stage.drain(second, 5)
    assert numbers(found) == list(range(40, 45))
    assert {record.topic for record in found} == {topic}
    second.close()
    for thing in stage.opened[-1:]:
        thing.close()
    bus.close()


@pytest.mark.kafka
@pytest.mark.real_kafka
def test_retention_that_was_faster_than_the_reader_leaves_a_gap_not_a_stop(
    real_kafka: str, topic_prefix: str
) -> None:
    topic = SAMPLES.full_name(topic_prefix)
    admin = AdminClient({"bootstrap.servers": real_kafka})
    config = {"retention.ms": "1000", "segment.bytes": "1048576", "segment.ms": "1000"}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(20)
    bus = open_bus(kafka_settings(real_kafka, topic_prefix))
    writer = bus.publisher(client_id="w")
    for number in range(3000):
        writer.send(topic, key=b"k", value=(b"%d" % number).ljust(1000))
    assert writer.flush(20) == 0
    place = ck.TopicPartition(topic, 0)
    probe = ck.Consumer({"bootstrap.servers": real_kafka, "group.id": "probe"})
    deadline = time.monotonic() + 60
    while True:
        low, _ = probe.get_watermark_offsets(place, 5.0)
        if low > 0:
            break
        assert time.monotonic() < deadline
        writer.send(topic, key=b"k", value=b"tick".ljust(1000))  # segments roll on arrival
        writer.flush(5)
        time.sleep(0.3)
    probe.close()
    reader = bus.subscriber(
        group=f"{topic_prefix}g", topics=[topic], listener=Witness({TopicPartition(topic, 0): 0})
    )
    writer.send(topic, key=b"k", value=b"last")
    assert writer.flush(20) == 0
    records = Stage.drain(reader, 1)
    while records[-1].value != b"last":
        records += reader.poll(500, 0.2)
    assert records[0].offset >= low
    reader.close()
    writer.close()
    bus.close()


@pytest.mark.kafka
@pytest.mark.real_kafka
def test_a_batch_that_the_broker_finds_too_large_comes_back(
    real_kafka: str, topic_prefix: str
) -> None:
    topic = SAMPLES.full_name(topic_prefix)
    admin = AdminClient({"bootstrap.servers": real_kafka})
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "2000"})])[
        topic
    ].result(20)
    bus = open_bus(kafka_settings(real_kafka, topic_prefix, producer__compression__type="none"))
    writer = bus.publisher(client_id="w")
    reports: list[DeliveryReport] = []
    writer.send(topic, key=b"k", value=b"x" * 5000, on_delivery=reports.append)
    writer.flush(20)
    assert reports[0].error
    assert len(reports[0].value) == 5000
    with pytest.raises(MessageTooLargeError):
        writer.send(topic, key=b"k", value=b"x" * 2_000_000)
    writer.send(topic, key=b"k", value=b"small", on_delivery=reports.append)
    assert writer.flush(20) == 0
    assert reports[1].error is None
    writer.close()
    bus.close()


READER = """
import sys
from bus import BusSettings, KafkaSettings, open_bus
quick = {"consumer.session.timeout.ms": "6000", "consumer.heartbeat.interval.ms": "1000"}
kafka = KafkaSettings(bootstrap=sys.argv[1], properties=quick)
bus = open_bus(BusSettings(transport="kafka", kafka=kafka))
reader = bus.subscriber(group=sys.argv[2], topics=[sys.argv[3]])
while True:
    records = reader.poll(10, 0.5)
    if records:
        print(len(records), flush=True)
"""


@pytest.mark.kafka
def test_kill_9_of_a_reader_hands_its_partitions_over(kafka: str, topic_prefix: str) -> None:
    bus = open_bus(kafka_settings(kafka, topic_prefix))
    bus.create_topics()
    topic = SAMPLES.full_name(topic_prefix)
    writer = bus.publisher(client_id="w")
    for number in range(50):
        writer.send(topic, key=b"%d" % number, value=b"%d" % number)
    assert writer.close() == 0
    process = subprocess.Popen(
        [sys.executable, "-c", READER, kafka, f"{topic_prefix}g", topic],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip()
    process.kill()
    process.communicate(timeout=10)
    reader = bus.subscriber(group=f"{topic_prefix}g", topics=[topic], client_id="heir")
    assert numbers(Stage.drain(reader, 50, 60.0)) == list(range(50))
    reader.close()
    bus.close()


@pytest.mark.kafka
@pytest.mark.real_kafka
def test_a_broker_that_loses_power_and_returns_costs_nothing(
    real_kafka: str, tmp_path: Path
) -> None:
    broker = start_kafka(tmp_path)  # its own: the shared one belongs to other tests too
    with contextlib.ExitStack() as stack:
        stack.callback(broker.stop)
        bus = open_bus(kafka_settings(broker.bootstrap, "", reconnect__backoff__max__ms="500"))
        bus.create_topics()
        writer = bus.publisher(client_id="w", durable=True)
        reader = bus.subscriber(group="g", topics=[SAMPLES.name])
        reports: list[DeliveryReport] = []
        records = []
        for number in range(300):
            if number == 100:
                # A member of the group by now: one that dies while joining is waited for by the
                # broker for as long as a rebalance may take, which is another matter.
                assert writer.flush(30) == 0
                records += Stage.drain(reader, 100 - len(records), 60.0)
                broker.kill()
            if number == 200:
                broker.start()
            writer.send(SAMPLES.name, key=b"k", value=b"%d" % number, on_delivery=reports.append)
            writer.poll()
            records += reader.poll(100, 0.01)
        assert writer.flush(60) == 0
        assert [report.error for report in reports] == [None] * 300
        # Nothing was committed, so a member that was put out of the group reads from the start.
        deadline = time.monotonic() + 120.0
        while len({record.value for record in records}) < 300:
            assert time.monotonic() < deadline, f"{len(records)} records came"
            records += reader.poll(100, 0.1)
        firsts = dict.fromkeys(int(record.value) for record in records)
        assert list(firsts) == list(range(300))
        reader.close()
        writer.close()
        bus.close()
