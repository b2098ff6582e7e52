"""Bytes to contract types and back.

Strict about what it needs, tolerant of what it does not know: unknown fields and metrics are
ignored, a missing or mistyped required field is a :class:`~schemas.errors.DecodeError` whose
``reason`` becomes the dead-letter header.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from types import NoneType
from typing import Any

import orjson

from schemas.alert import ALERT_SCHEMA, FAMILIES, AlertEvent, AlertState, Severity, parse_time
from schemas.binary import BINARY_CONTENT_TYPE, binary_columns, split_binary
from schemas.checking import Fields, build, convert, hints, mapping, object_of, require_schema, text
from schemas.columns import Columns, columns_of_lists
from schemas.errors import DecodeError
from schemas.metrics import METRICS
from schemas.sample import SAMPLE_SCHEMA, CollectorStatus, NodeSample
from schemas.window import WINDOW_SCHEMA, MetricWindow, WindowBatch, WindowColumns

__all__ = [
    "CONTENT_TYPE_HEADER",
    "JSON_CONTENT_TYPE",
    "alert_headers",
    "decode_alert",
    "decode_sample",
    "decode_window",
    "encode",
    "sample_headers",
]

CONTENT_TYPE_HEADER = "content-type"
JSON_CONTENT_TYPE = b"application/json"
MAX_TICKS = 3600
MAX_GPUS = 1024
# Event times outside 2000..2100 are a broken clock or seconds given as milliseconds.
MIN_TS_MS = 946_684_800_000
MAX_TS_MS = 4_102_444_800_000

_NUMBERS = frozenset({int, float, NoneType})
# Python reads other forms of ISO 8601 as well; readers in other languages do not.
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


def encode(message: NodeSample | WindowBatch | AlertEvent) -> bytes:
    """Encode one message as JSON. NaN and infinities become null, never a number."""
    return orjson.dumps(message, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)


def _plain(value: object) -> object:
    """Turn what orjson does not know into what it does. TypeError for anything of others."""
    if isinstance(value, Columns):
        return dict(value)
    if isinstance(value, WindowColumns):
        return value.rows()
    raise TypeError(f"cannot encode {type(value).__name__}")


def sample_headers(sample: NodeSample, *, binary: bool = False) -> tuple[tuple[str, bytes], ...]:
    """CloudEvents headers (binary mode) for a sample: the three that are worth their bytes.

    Parameters
    ----------
    binary
        Whether the body is that of :func:`~schemas.binary.encode_binary`.
    """
    return (
        (CONTENT_TYPE_HEADER, BINARY_CONTENT_TYPE if binary else JSON_CONTENT_TYPE),
        ("ce_type", b"io.foreshock.sample.v1"),
        ("ce_id", f"{sample.boot_id}:{sample.seq}".encode()),
    )


def alert_headers(event: AlertEvent) -> tuple[tuple[str, bytes], ...]:
    """CloudEvents headers (binary mode) for an alert, complete."""
    return (
        (CONTENT_TYPE_HEADER, JSON_CONTENT_TYPE),
        ("ce_specversion", b"1.0"),
        ("ce_type", b"io.foreshock.alert.v1"),
        ("ce_source", b"/detector"),
        ("ce_id", f"{event.alert_id}:{event.seq}".encode()),
        ("ce_time", event.observed_at.encode()),
    )


def decode_sample(value: bytes, content_type: bytes = JSON_CONTENT_TYPE) -> NodeSample:
    """Decode and check one NodeSample.

    Parameters
    ----------
    value
        Body of the record.
    content_type
        The record's content-type header; decides the form of the body.

    Raises
    ------
    DecodeError
        With a reason for the dead-letter topic.
    """
    kind = content_type.split(b";")[0].strip()
    if kind == JSON_CONTENT_TYPE:
        fields = object_of(value, SAMPLE_SCHEMA)
        return _sample(fields, None, flags=b"true" in value or b"false" in value)
    if kind == BINARY_CONTENT_TYPE:
        fields, block = split_binary(value)
        require_schema(fields, SAMPLE_SCHEMA)
        return _sample(fields, block, flags=False)
    raise DecodeError("content_type", f"unknown content type {content_type!r}")


def _sample(fields: Fields, block: bytes | None, *, flags: bool) -> NodeSample:
    """Check the fields of a sample; its numbers are in ``block``, or else in the fields."""
    ts = _ts(fields.get("ts"))
    gpu = _gpus(fields.get("gpu"))
    seq = fields.get("seq")
    if type(seq) is not int or seq < 0:
        raise DecodeError("bad_field", f"seq must be an integer >= 0, got {seq!r}")
    return NodeSample(
        node=text(fields, "node"),
        boot_id=text(fields, "boot_id"),
        seq=seq,
        ts=ts,
        gpu=gpu,
        m=_columns(fields.get("m"), block, len(ts) * len(gpu), flags=flags),
        collector=_collector(mapping(fields, "collector")),
        status=_status(fields.get("status")),
        events=_rare(fields, "events") or (),
        jobs=_rare(fields, "jobs"),
        inventory=_rare(fields, "inventory"),
        parents=_rare(fields, "parents") or {},
        host=_rare(fields, "host"),
    )


def decode_window(value: bytes) -> WindowBatch:
    """Decode and check one WindowBatch. Raises DecodeError."""
    fields = object_of(value, WINDOW_SCHEMA)
    # The columns are checked by hand: they are a thousand numbers, the rest is a dozen.
    columns = mapping(fields, "m")
    batch = build(WindowBatch, {**fields, "m": {}}, "window")
    size = len(batch.gpu)
    facts = (batch.model, batch.samples, batch.missing, batch.clock_event_reasons)
    if any(len(column) != size for column in facts):
        raise DecodeError("bad_length", f"a window of {size} GPUs needs {size} values of each")
    if batch.end <= batch.start:
        raise DecodeError(
            "bad_field", f"window ends at {batch.end}, before its start {batch.start}"
        )
    return replace(batch, m=_window_columns(columns, size))


def _window_columns(columns: Fields, size: int) -> dict[str, MetricWindow]:
    known = {name: summary for name, summary in columns.items() if name in METRICS}
    parts = []
    for name, summary in known.items():
        if not isinstance(summary, dict):
            raise DecodeError("bad_field", f"m.{name} must be an object, got {summary!r}")
        for part in ("mean", "min", "max", "last"):
            column = summary.get(part)
            if type(column) is not list or len(column) != size:
                raise DecodeError("bad_length", f"m.{name}.{part} needs {size} values")
            parts.append(column)
    if not _NUMBERS.issuperset(map(type, chain.from_iterable(parts))):
        raise DecodeError("bad_value", "the columns of a window must hold numbers or null")
    return {
        name: MetricWindow(
            mean=summary["mean"], min=summary["min"], max=summary["max"], last=summary["last"]
        )
        for name, summary in known.items()
    }


def decode_alert(value: bytes) -> AlertEvent:
    """Decode and check one AlertEvent. Raises DecodeError."""
    event = build(AlertEvent, object_of(value, ALERT_SCHEMA), "alert")
    if event.state not in set(AlertState):
        raise DecodeError("bad_field", f"state must be firing or resolved, got {event.state!r}")
    if event.severity not in set(Severity):
        raise DecodeError("bad_field", f"severity is unknown: {event.severity!r}")
    if event.family not in FAMILIES:
        raise DecodeError("bad_field", f"family is unknown: {event.family!r}")
    for name in ("started_at", "observed_at", "ended_at"):
        moment = getattr(event, name)
        if moment is not None:
            _check_time(name, moment)
    return event


def _check_time(name: str, moment: str) -> None:
    """Refuse what is no time, and a time that cannot be written again or is no event's."""
    try:
        unix_ms = parse_time(moment) if _RFC3339.fullmatch(moment) else None
    except ValueError:
        unix_ms = None
    if unix_ms is None:
        raise DecodeError("bad_field", f"{name} is no RFC 3339 time: {moment[:64]!r}")
    if not MIN_TS_MS <= unix_ms <= MAX_TS_MS:
        raise DecodeError("bad_time", f"{name} must be in 2000..2100, got {moment!r}")


def _rare(fields: Fields, name: str) -> Any:
    """Check a field that most messages leave out or empty; None where it is absent or null."""
    value = fields.get(name)
    if value is None or (name == "events" and value == []) or (name == "parents" and value == {}):
        return None
    return convert(value, hints(NodeSample)[name], name)


def _ts(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or len(value) > MAX_TICKS:
        raise DecodeError("bad_field", f"ts must be a list of 1 to {MAX_TICKS} integers")
    last = MIN_TS_MS - 1
    for moment in value:
        if type(moment) is not int or not last < moment <= MAX_TS_MS:
            raise DecodeError(
                "bad_time", f"ts must be growing unix milliseconds of 2000..2100, got {moment!r}"
            )
        last = moment
    return tuple(value)


def _gpus(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_GPUS:
        raise DecodeError("bad_field", f"gpu must be a list of at most {MAX_GPUS} ids")
    try:
        return _checked_gpus(tuple(value))
    except TypeError as exc:  # a list or an object among the ids
        raise DecodeError("bad_field", "gpu must hold non-empty strings") from exc


@lru_cache(maxsize=65_536)
def _checked_gpus(ids: tuple[object, ...]) -> tuple[str, ...]:
    """Check a list of GPU ids; a node sends the same one in every message."""
    strings = tuple(item for item in ids if isinstance(item, str) and item)
    if len(strings) != len(ids):
        raise DecodeError("bad_field", "gpu must hold non-empty strings")
    if len(set(strings)) != len(strings):
        raise DecodeError("duplicate_gpu", "a GPU stands twice in one message")
    return strings


def _collector(fields: Fields) -> CollectorStatus:
    try:
        return _checked_collector(tuple(fields.items()))
    except TypeError:  # a list or an object among the values: of a newer minor version
        return build(CollectorStatus, fields, "collector")


@lru_cache(maxsize=1024)
def _checked_collector(items: tuple[tuple[str, object], ...]) -> CollectorStatus:
    """Check the state of a collector; it is the same in almost every message."""
    return build(CollectorStatus, dict(items), "collector")


def _columns(value: object, block: bytes | None, length: int, *, flags: bool) -> Columns:
    if block is not None:
        return binary_columns(value, block, length)
    if not isinstance(value, dict):
        raise DecodeError("bad_field", f"m must be an object, got {type(value).__name__}")
    return columns_of_lists(value, length, flags=flags)


def _status(value: object) -> dict[str, dict[str, str]]:
    if not value and value in (None, {}):
        return {}
    if not isinstance(value, dict) or not all(isinstance(codes, dict) for codes in value.values()):
        raise DecodeError("bad_field", "status must be an object of objects")
    return value
