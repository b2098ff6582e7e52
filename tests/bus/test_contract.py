"""What bus.protocol promises, asked of memory, sqlite and kafka alike."""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from itertools import pairwise

import confluent_kafka  # noqa: TID251 - its murmur2 is the reference for placement
import pytest

from bus import Bus, DeliveryReport, Start, TopicPartition
from schemas.errors import BusFullError, MessageTooLargeError
from schemas.topics import ALL_TOPICS

from .conftest import PARTITIONS, Stage, Witness, numbers


def test_is_a_bus(stage: Stage) -> None:
    assert isinstance(stage.bus, Bus)


def test_records_of_one_key_keep_their_order(stage: Stage) -> None:
    stage.send(400, keys=7)
    by_key = defaultdict(list)
    for record in stage.drain(stage.reader("g"), 400):
        by_key[record.key].append((record.partition, record.offset, int(record.value)))
    assert len(by_key) == 7
    for rows in by_key.values():
        assert len({partition for partition, _, _ in rows}) == 1
        assert all(a[1] < b[1] and a[2] < b[2] for a, b in pairwise(rows))


def test_keys_lie_where_java_clients_put_them(stage: Stage) -> None:
    stage.send(60, keys=60)
    for record in stage.drain(stage.reader("g"), 60):
        assert record.partition == confluent_kafka.murmur2(record.key, PARTITIONS)


def test_a_message_arrives_as_it_was_sent(stage: Stage) -> None:
    writer = stage.writer()
    headers = (("ce_id", b"b:1"), ("twice", b"a"), ("twice", "°C".encode()), ("empty", b""))
    before = time.time() * 1000
    writer.send(stage.topic, key=None, value=b"\x00\xff" * 10, headers=headers)
    writer.send(stage.topic, key=b"k", value=b"")
    assert writer.flush(20) == 0
    by_key = {record.key: record for record in stage.drain(stage.reader("g"), 2)}
    assert by_key[None].value == b"\x00\xff" * 10
    assert by_key[None].headers == headers
    assert by_key[b"k"].value == b""
    assert by_key[b"k"].headers == ()
    assert by_key[b"k"].place == TopicPartition(stage.topic, by_key[b"k"].partition)
    assert before - 2000 < by_key[b"k"].arrived_ms < time.time() * 1000 + 2000


def test_null_keys_are_spread(stage: Stage) -> None:
    writer = stage.writer()
    partitions: set[int | None] = set()
    deadline = time.monotonic() + 20
    while len(partitions) < 2:  # Kafka's client keeps to one partition for some milliseconds
        assert time.monotonic() < deadline
        writer.send(
            stage.topic, key=None, value=b"v", on_delivery=lambda r: partitions.add(r.partition)
        )
        assert writer.flush(20) == 0


def test_the_report_says_where_the_message_lies(stage: Stage) -> None:
    reports: list[DeliveryReport] = []
    writer = stage.writer()
    for number in range(20):
        writer.send(
            stage.topic, key=b"k%d" % number, value=b"%d" % number, on_delivery=reports.append
        )
    assert reports == [] or stage.transport == "memory"
    assert writer.flush(20) == 0
    assert len(reports) == 20
    there = {(r.partition, r.offset): (r.key, r.value) for r in stage.drain(stage.reader("g"), 20)}
    for report in reports:
        assert report.error is None
        assert there[report.partition, report.offset] == (report.key, report.value)


def test_a_failing_report_is_raised_from_poll_or_flush(stage: Stage) -> None:
    def fail(report: DeliveryReport) -> None:
        raise LookupError(report.value)

    writer = stage.writer()
    writer.send(stage.topic, key=b"k", value=b"v", on_delivery=fail)
    with pytest.raises(LookupError):
        writer.flush(20)
    assert writer.flush(20) == 0


def test_what_was_not_committed_is_read_again(stage: Stage) -> None:
    stage.send(50)
    first = stage.reader("g")
    assert numbers(stage.drain(first, 50)) == list(range(50))
    first.close()
    assert numbers(stage.drain(stage.reader("g"), 50)) == list(range(50))


def test_a_commit_is_where_the_group_goes_on(stage: Stage) -> None:
    stage.send(50)
    first = stage.reader("g")
    records = stage.drain(first, 50)
    first.commit({record.place: record.offset + 1 for record in records})
    first.close()
    stage.send(10, first=50)
    second = stage.reader("g")
    assert numbers(stage.drain(second, 10)) == list(range(50, 60))
    assert second.poll(10, 0.3) == []


def test_groups_do_not_disturb_each_other(stage: Stage) -> None:
    stage.send(20)
    one = stage.reader("one")
    records = stage.drain(one, 20)
    one.commit({record.place: record.offset + 1 for record in records})
    assert numbers(stage.drain(stage.reader("two"), 20)) == list(range(20))


def test_latest_starts_at_the_end(needs_latest: Stage) -> None:
    stage = needs_latest
    stage.send(20)
    witness = Witness()
    reader = stage.reader("g", start=Start.LATEST, listener=witness)
    assert stage.until(lambda: len(witness.held) == PARTITIONS, reader) == []
    stage.send(5, first=20)
    assert numbers(stage.drain(reader, 5)) == list(range(20, 25))


def test_the_listener_says_where_to_start(stage: Stage) -> None:
    stage.send(80)
    reader = stage.reader("first")
    records = stage.drain(reader, 80)
    reader.commit({record.place: record.offset + 1 for record in records})
    wanted = dict.fromkeys(stage.places, 5)
    ends = defaultdict(int)
    for record in records:
        ends[record.place] += 1
    expected = sum(max(0, ends[place] - 5) for place in stage.places)
    again = stage.drain(stage.reader("second", listener=Witness(wanted)), expected)
    assert {record.offset for record in again if record.offset < 5} == set()
    assert len(again) == expected


def test_a_start_before_the_first_record_kept_begins_at_it(needs_expiry: Stage) -> None:
    stage = needs_expiry
    stage.send(40, keys=1)
    (place,) = {record.place for record in stage.drain(stage.reader("probe"), 40)}
    stage.expire(place, 30)
    listened = stage.reader("g", listener=Witness({place: 3}))
    assert numbers(stage.drain(listened, 10)) == list(range(30, 40))
    fresh = stage.reader("fresh")
    assert numbers(stage.drain(fresh, 10)) == list(range(30, 40))


def test_a_start_past_the_end_waits_at_the_end(needs_expiry: Stage) -> None:
    stage = needs_expiry
    stage.send(10, keys=1)
    (place,) = {record.place for record in stage.drain(stage.reader("probe"), 10)}
    witness = Witness(dict.fromkeys(stage.places, 1_000_000))
    reader = stage.reader("g", listener=witness)
    stage.until(lambda: len(witness.held) == PARTITIONS, reader)
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline and stage.transport == "kafka":
        assert reader.poll(10, 0.2) == []  # the broker refuses the offset, the reader finds the end
    stage.send(5, first=10, keys=1)
    found = stage.drain(reader, 5)
    assert numbers(found) == list(range(10, 15))
    assert {record.place for record in found} == {place}


def test_lag_counts_what_is_still_to_be_read(stage: Stage) -> None:
    stage.send(100)
    witness = Witness()
    reader = stage.reader("g", listener=witness)
    records = []
    while not records:
        records = reader.poll(30, 0.2)
    read = len(records)
    records += stage.until(
        lambda: len(reader.lag()) == PARTITIONS and sum(reader.lag().values()) == 0, reader
    )
    assert 0 < read <= 30
    assert len(records) == 100
    reader.pause(stage.places)
    stage.send(20, first=100)
    if stage.transport != "kafka":  # its client learns of the end of the log by fetching
        assert sum(reader.lag().values()) == 20
    reader.resume(stage.places)
    stage.drain(reader, 20)
    assert sum(reader.lag().values()) == 0


def test_a_paused_place_is_silent_and_loses_nothing(stage: Stage) -> None:
    stage.send(40)
    reader = stage.reader("g")
    assert len(stage.drain(reader, 40)) == 40
    reader.pause(stage.places)
    stage.send(40, first=40)
    for _ in range(5):
        assert reader.poll(10, 0.1) == []
    reader.resume(stage.places)
    assert numbers(stage.drain(reader, 40)) == list(range(40, 80))


def test_an_empty_poll_returns_in_time(stage: Stage) -> None:
    witness = Witness()
    reader = stage.reader("g", listener=witness)
    stage.until(lambda: len(witness.held) == PARTITIONS, reader)
    started = time.monotonic()
    assert reader.poll(10, 0.3) == []
    assert 0.25 < time.monotonic() - started < 2.0


def test_two_members_share_a_group_and_one_takes_over(stage: Stage) -> None:
    first_witness, second_witness = Witness(), Witness()
    first = stage.reader("g", listener=first_witness, client_id="first")
    stage.until(lambda: len(first_witness.held) == PARTITIONS, first)
    second = stage.reader("g", bus=stage.another(), listener=second_witness, client_id="second")
    stage.until(
        lambda: len(first_witness.held) == len(second_witness.held) == PARTITIONS // 2,
        first,
        second,
    )
    assert first_witness.held.isdisjoint(second_witness.held)
    stage.send(40, keys=20)
    records = []
    deadline = time.monotonic() + 20
    while len(records) < 40 and time.monotonic() < deadline:
        for reader, witness in ((first, first_witness), (second, second_witness)):
            part = reader.poll(100, 0.1)
            assert {record.place for record in part} <= witness.held
            records += part
    assert numbers(records) == list(range(40))  # each record once: nobody committed, nobody left
    first.close()
    stage.until(lambda: len(second_witness.held) == PARTITIONS, second)
    assert first_witness.held == set()
    assert ("lost", ()) not in second_witness.log


def test_close_revokes_first_and_what_is_committed_there_counts(stage: Stage) -> None:
    stage.send(30)
    witness = Witness()
    reader = stage.reader("g", listener=witness)
    records = stage.drain(reader, 30)
    witness.on_revoke = lambda places: reader.commit(
        {record.place: record.offset + 1 for record in records if record.place in places}
    )
    reader.close()
    assert witness.log[-1][0] == "revoked"
    assert witness.held == set()
    stage.send(3, first=30)
    assert numbers(stage.drain(stage.reader("g"), 3)) == [30, 31, 32]


def test_an_error_of_the_listener_comes_out_of_poll(stage: Stage) -> None:
    witness = Witness()
    witness.fail_assign = OSError("no room for the state")
    reader = stage.reader("g", listener=witness)
    with pytest.raises(OSError, match="no room for the state"):
        stage.drain(reader, 1)
    with pytest.raises(OSError, match="no room for the state"):
        reader.poll(1, 0.1)  # spent: state and position may disagree
    reader.close()


def test_an_error_of_the_listener_comes_out_of_close(stage: Stage) -> None:
    witness = Witness()

    def fail(places: object) -> None:
        raise OSError("the disk is full")

    witness.on_revoke = fail
    reader = stage.reader("g", listener=witness)
    stage.until(lambda: len(witness.held) == PARTITIONS, reader)
    with pytest.raises(OSError, match="the disk is full"):
        reader.close()
    reader.close()


def test_send_never_waits_and_says_when_it_is_full(stage: Stage) -> None:
    writer = stage.writer()
    took: list[float] = []

    def fill() -> None:
        for number in range(200_000):
            started = time.monotonic()
            writer.send(
                stage.topic,
                key=b"%d" % (number % 100),
                value=b"x" * 100,
                on_delivery=lambda _: None,
            )
            took.append(time.monotonic() - started)

    gc.disable()  # 100 000 records make a collection take half a second, which is not a wait
    try:
        with pytest.raises(BusFullError, match="wait"):
            fill()
    finally:
        gc.enable()
    assert len(took) >= 2_000
    assert max(took) < 0.5  # a thread that has to wait for the processor, never for the broker
    assert writer.flush(30) == 0
    writer.send(stage.topic, key=b"k", value=b"v")  # it takes again
    assert writer.flush(20) == 0


def test_too_large_a_message_is_refused_for_good(stage: Stage) -> None:
    writer = stage.writer()
    with pytest.raises(MessageTooLargeError, match="larger than"):
        writer.send(stage.topic, key=b"k", value=b"x" * 1_100_000)
    writer.send(stage.topic, key=b"k", value=b"x" * 1_000_000)
    assert writer.flush(20) == 0
    assert len(stage.drain(stage.reader("g"), 1)[0].value) == 1_000_000


def test_a_closed_publisher_has_delivered(stage: Stage) -> None:
    reports: list[DeliveryReport] = []
    writer = stage.bus.publisher(client_id="test", durable=True)
    for number in range(100):
        writer.send(stage.alerts, key=b"f", value=b"%d" % number, on_delivery=reports.append)
    assert writer.close() == 0
    assert [report.error for report in reports] == [None] * 100
    records = stage.drain(stage.reader("g", topics=[stage.alerts]), 100)
    assert [int(record.value) for record in records] == list(range(100))


def test_several_topics_are_read_by_one_reader(stage: Stage) -> None:
    stage.send(10)
    stage.send(10, first=10, topic=stage.alerts)
    records = stage.drain(stage.reader("g", topics=[stage.topic, stage.alerts]), 20)
    assert numbers(records) == list(range(20))
    assert {record.topic for record in records} == {stage.topic, stage.alerts}


def test_topics_are_created_once_and_described(stage: Stage) -> None:
    stage.bus.create_topics()
    assert stage.bus.create_topics() == []
    described = stage.bus.describe_topics()
    assert [topic.name for topic in described] == [s.full_name(stage.prefix) for s in ALL_TOPICS]
    assert described[0].partitions == PARTITIONS


def test_check_says_that_it_works(stage: Stage) -> None:
    said = stage.bus.check(10.0)
    assert said.endswith(".")
    assert len(said) > 20


def test_a_whole_topic_is_read_once_in_order_and_without_a_group(stage: Stage) -> None:
    stage.send(40)
    reader = stage.reader("g")
    stage.drain(reader, 40)
    found = list(stage.bus.read_all(stage.topic))
    assert sorted(numbers(found)) == list(range(40))
    by_place: dict[int, list[int]] = {}
    for record in found:
        by_place.setdefault(record.partition, []).append(record.offset)
    assert all(offsets == sorted(offsets) for offsets in by_place.values())
    # A second reading gives the same: nothing was committed for anybody.
    assert numbers(list(stage.bus.read_all(stage.topic))) == numbers(found)
