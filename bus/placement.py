"""Where a message goes and who reads it: pure rules that the embedded transports share.

Keys are placed as Kafka's Java client places them, so that a node has the same neighbours on
every transport.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from bus.protocol import Headers, TopicPartition
from schemas.errors import MessageTooLargeError
from schemas.topics import ALL_TOPICS, TopicSpec

__all__ = ["check_size", "fair_share", "murmur2", "partition_of", "payload_bytes", "spec_of"]

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995  # multiplier and seed of Kafka's variant of MurmurHash2 (Utils.murmur2)
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Hash as Kafka's Java client does, as an unsigned number of 32 bits.

    >>> murmur2(b"gpu-node-00017") == murmur2(b"gpu-node-00017")
    True
    """
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if whole != length:
        h ^= int.from_bytes(data[whole:], "little")
        h = h * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ (h >> 15)


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """Partition of a key among ``partitions`` (at least 1)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def spec_of(topic: str, prefix: str) -> TopicSpec | None:
    """Return the contract's word on a full topic name, or None if it is not one of ours."""
    return next((spec for spec in ALL_TOPICS if spec.full_name(prefix) == topic), None)


def payload_bytes(key: bytes | None, value: bytes, headers: Headers) -> int:
    """Bytes that a message carries: key, value and headers."""
    size = len(value) + (len(key) if key else 0)
    for name, content in headers:
        size += len(name) + len(content)
    return size


def check_size(topic: str, size: int, limit: int) -> None:
    """Refuse what can never be delivered.

    Raises
    ------
    MessageTooLargeError
        If ``size`` bytes are more than ``limit``.
    """
    if size > limit:
        raise MessageTooLargeError(
            f"A message of {size} bytes is larger than the {limit} bytes that {topic} takes. "
            "Send fewer ticks per message."
        )


def fair_share(
    places: Iterable[TopicPartition], members: Mapping[str, Collection[str]], me: str
) -> frozenset[TopicPartition]:
    """Return the places that are due to ``me``.

    Every member computes the same answer from the same list, so no leader is needed.

    Parameters
    ----------
    places
        All partitions of the topics.
    members
        Live members of the group, each with the topics it reads.
    me
        Name of the asking member.

    >>> both = {"a": ["t"], "b": ["t"]}
    >>> sorted(fair_share([TopicPartition("t", 0), TopicPartition("t", 1)], both, "b"))
    [TopicPartition(topic='t', partition=1)]
    """
    names = sorted(members)
    readers: dict[str, list[str]] = {}
    due = set()
    for place in sorted(places):
        if place.topic not in readers:
            readers[place.topic] = [name for name in names if place.topic in members[name]]
        able = readers[place.topic]
        if able and able[place.partition % len(able)] == me:
            due.add(place)
    return frozenset(due)
