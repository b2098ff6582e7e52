"""Keys lie where Kafka's Java client puts them, and members agree on their shares."""

from __future__ import annotations

import confluent_kafka  # noqa: TID251 - its murmur2 is the reference
from hypothesis import given
from hypothesis import strategies as st

from bus import TopicPartition
from bus.placement import fair_share, partition_of
from bus.sqlite_file import pack_headers, unpack_headers


@given(st.binary(min_size=1, max_size=40), st.integers(1, 200))
def test_partition_is_kafkas(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == confluent_kafka.murmur2(key, partitions)


def test_partition_of_known_keys() -> None:
    # Values of the Java client's own tests (org.apache.kafka.common.utils.UtilsTest, murmur2),
    # as they come out modulo 2^31.
    assert partition_of(b"21", 0x7FFFFFFF) == (-973932308 & 0x7FFFFFFF)
    assert partition_of(b"foobar", 0x7FFFFFFF) == (-790332482 & 0x7FFFFFFF)


@given(
    st.dictionaries(
        st.text("abcdef", min_size=1, max_size=3),
        st.sets(st.sampled_from(["t", "u"]), min_size=1),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 9),
)
def test_every_place_is_due_to_exactly_one_of_its_readers(
    members: dict[str, set[str]], partitions: int
) -> None:
    places = [TopicPartition(topic, n) for topic in ("t", "u") for n in range(partitions)]
    shares = {name: fair_share(places, members, name) for name in members}
    for place in places:
        readers = [name for name, topics in members.items() if place.topic in topics]
        owners = [name for name, share in shares.items() if place in share]
        assert len(owners) == (1 if readers else 0)
        assert set(owners) <= set(readers)
    for topic in ("t", "u"):
        sizes = [
            sum(place.topic == topic for place in shares[name])
            for name, topics in members.items()
            if topic in topics
        ]
        assert not sizes or max(sizes) - min(sizes) <= 1


@given(st.lists(st.tuples(st.text(max_size=10), st.binary(max_size=20)), max_size=6))
def test_headers_survive_packing(headers: list[tuple[str, bytes]]) -> None:
    assert unpack_headers(pack_headers(tuple(headers))) == tuple(headers)
