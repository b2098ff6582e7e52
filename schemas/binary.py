"""The binary body of a sample: a small JSON header, then the numbers as one float64 block.

For very large fleets: the numbers are three quarters of a message, and as float64 they need no
parsing. Layout, little-endian::

    uint32   length of the header in bytes
    bytes    header: the sample as JSON, ``m`` being the list of metric names
    float64  names x ticks x GPUs, metric by metric, each row-major as in JSON; NaN = missing

The content-type header of the record tells which body it has.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from typing import Any

import orjson

from schemas.checking import Fields, json_object
from schemas.columns import Columns, columns_of_block, packed
from schemas.errors import DecodeError
from schemas.sample import NodeSample

__all__ = ["BINARY_CONTENT_TYPE", "binary_columns", "encode_binary", "split_binary"]

BINARY_CONTENT_TYPE = b"application/vnd.foreshock.sample+f64"

_LENGTH = struct.Struct("<I")
_FIELDS = tuple(f.name for f in fields(NodeSample) if f.name != "m")


def encode_binary(sample: NodeSample) -> bytes:
    """Encode one sample with its numbers as float64.

    Examples
    --------
    >>> sample = NodeSample(node="n", boot_id="b", seq=0, ts=(1_790_000_000_000,), gpu=("G",),
    ...                     m={"power_watts": [None]})
    >>> encode_binary(sample)[-8:] == struct.pack("<d", float("nan"))
    True
    """
    names, block = packed(sample.m)
    header = orjson.dumps({**{name: getattr(sample, name) for name in _FIELDS}, "m": names})
    return _LENGTH.pack(len(header)) + header + block


def split_binary(value: bytes) -> tuple[Fields, bytes]:
    """Cut a binary body into its header's fields and its block.

    Raises
    ------
    DecodeError
        ``not_binary`` if it is too short for what it says.
    """
    if len(value) < _LENGTH.size:
        raise DecodeError("not_binary", f"a body of {len(value)} bytes has no header")
    start, end = _LENGTH.size, _LENGTH.size + _LENGTH.unpack_from(value)[0]
    if end > len(value):
        raise DecodeError("not_binary", f"the header ends at byte {end} of {len(value)}")
    return json_object(memoryview(value)[start:end]), value[end:]


def binary_columns(names: Any, block: bytes, length: int) -> Columns:
    """Check the names of a binary body and take over its block. Raises DecodeError."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DecodeError("bad_field", "m must be a list of metric names in a binary body")
    if len(set(names)) != len(names):
        raise DecodeError("bad_field", "a metric stands twice in one message")
    return columns_of_block(names, block, length)
