"""Snapshots: the state of one partition and the offset to go on from, in one value.

Form: magic, length and CRC-32 of the header, JSON header, raw arrays. Never pickle: a snapshot
outlives the code that wrote it and may come from elsewhere. Every array carries a CRC-32.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from schemas.errors import SnapshotError

__all__ = ["Snapshot", "pack", "unpack"]

_MAGIC = b"FSHK"
_FORMAT = 1
_LENGTH_BYTES, _CHECK_BYTES = 8, 4
AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of one partition.

    Parameters
    ----------
    topic, partition
        Whose state it is.
    next_offset
        First record that is not in the state.
    facts
        JSON values: names and what is not numeric.
    arrays
        Numeric state by name.
    code_version
        Version of foreshock that wrote it.
    """

    topic: str
    partition: int
    next_offset: int
    facts: dict[str, Any]
    arrays: Mapping[str, AnyArray]
    code_version: str


def pack(snapshot: Snapshot) -> bytes:
    """Encode a snapshot."""
    bodies = [np.asarray(array, order="C") for array in snapshot.arrays.values()]
    header = {
        "format": _FORMAT,
        "topic": snapshot.topic,
        "partition": snapshot.partition,
        "next_offset": snapshot.next_offset,
        "code_version": snapshot.code_version,
        "facts": snapshot.facts,
        "arrays": [
            {
                "name": name,
                "dtype": body.dtype.str,
                "shape": list(body.shape),
                "crc32": zlib.crc32(body.data),
            }
            for name, body in zip(snapshot.arrays, bodies, strict=True)
        ],
    }
    head = orjson.dumps(header)
    length = len(head).to_bytes(_LENGTH_BYTES, "little")
    check = zlib.crc32(head).to_bytes(_CHECK_BYTES, "little")
    return b"".join([_MAGIC, length, check, head, *(body.tobytes() for body in bodies)])


def unpack(data: bytes) -> Snapshot:
    """Decode a snapshot.

    Raises
    ------
    SnapshotError
        If it is cut, damaged or of an unknown format.
    """
    check = len(_MAGIC) + _LENGTH_BYTES
    start = check + _CHECK_BYTES
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start:
        raise SnapshotError("The file is no foreshock snapshot.")
    end = start + int.from_bytes(data[len(_MAGIC) : check], "little")
    if zlib.crc32(data[start:end]) != int.from_bytes(data[check:start], "little"):
        raise SnapshotError("The snapshot's header is damaged or cut.")
    header = orjson.loads(data[start:end])
    if header.get("format") != _FORMAT:
        raise SnapshotError(f"The snapshot has format {header.get('format')}, not {_FORMAT}.")
    return Snapshot(
        topic=header["topic"],
        partition=header["partition"],
        next_offset=header["next_offset"],
        facts=header["facts"],
        arrays=_arrays(header["arrays"], memoryview(data)[end:]),
        code_version=header["code_version"],
    )


def _arrays(declared: list[dict[str, Any]], body: memoryview) -> dict[str, AnyArray]:
    arrays: dict[str, AnyArray] = {}
    position = 0
    for item in declared:
        dtype, shape = np.dtype(item["dtype"]), tuple(item["shape"])
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        part = body[position : position + size]
        if len(part) != size or zlib.crc32(part) != item["crc32"]:
            raise SnapshotError(f"The array {item['name']!r} of the snapshot is damaged or cut.")
        arrays[item["name"]] = np.frombuffer(part, dtype=dtype).reshape(shape).copy()
        position += size
    return arrays
