"""Bytes to contract types and back.

Strict about what it needs, tolerant of what it does not know: unknown fields and metrics are
ignored, a missing or mistyped required field is a :class:`~schemas.errors.DecodeError` whose
``reason`` becomes the dead-letter header. Hand-written checks, because a schema validator costs
a hundred times the decoding (measured 1.6 ms against 11 µs for 24 metrics x 8 GPUs).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import chain
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import orjson

from schemas.alert import ALERT_SCHEMA, FAMILIES, AlertEvent, AlertState, Severity, parse_time
from schemas.errors import DecodeError
from schemas.metrics import METRICS
from schemas.sample import SAMPLE_SCHEMA, CollectorStatus, NodeSample
from schemas.window import WINDOW_SCHEMA, MetricWindow, WindowBatch

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

_T = TypeVar("_T")
_Fields = dict[str, Any]  # decoded JSON: any value until checked


def encode(message: NodeSample | WindowBatch | AlertEvent) -> bytes:
    """Encode one message as JSON. NaN and infinities become null, never a number."""
    return orjson.dumps(message)


def sample_headers(sample: NodeSample) -> tuple[tuple[str, bytes], ...]:
    """CloudEvents headers (binary mode) for a sample: the three that are worth their bytes."""
    return (
        (CONTENT_TYPE_HEADER, JSON_CONTENT_TYPE),
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
    if content_type.split(b";")[0].strip() != JSON_CONTENT_TYPE:
        raise DecodeError("content_type", f"unknown content type {content_type!r}")
    fields = _object(value, SAMPLE_SCHEMA)
    ts = _ts(fields.get("ts"))
    gpu = _gpus(fields.get("gpu"))
    seq = fields.get("seq")
    if not isinstance(seq, int) or isinstance(seq, bool) or seq < 0:
        raise DecodeError("bad_field", f"seq must be an integer >= 0, got {seq!r}")
    return NodeSample(
        node=_text(fields, "node"),
        boot_id=_text(fields, "boot_id"),
        seq=seq,
        ts=ts,
        gpu=gpu,
        m=_columns(fields.get("m"), len(ts) * len(gpu)),
        collector=_collector(_mapping(fields, "collector")),
        status=_status(fields.get("status")),
        events=_rare(fields, "events") or (),
        jobs=_rare(fields, "jobs"),
        inventory=_rare(fields, "inventory"),
        parents=_rare(fields, "parents") or {},
    )


def decode_window(value: bytes) -> WindowBatch:
    """Decode and check one WindowBatch. Raises DecodeError."""
    fields = _object(value, WINDOW_SCHEMA)
    # The columns are checked by hand: they are a thousand numbers, the rest is a dozen.
    columns = _mapping(fields, "m")
    batch = _build(WindowBatch, {**fields, "m": {}}, "window")
    size = len(batch.gpu)
    facts = (batch.model, batch.samples, batch.missing, batch.clock_event_reasons)
    if any(len(column) != size for column in facts):
        raise DecodeError("bad_length", f"a window of {size} GPUs needs {size} values of each")
    if batch.end <= batch.start:
        raise DecodeError(
            "bad_field", f"window ends at {batch.end}, before its start {batch.start}"
        )
    return replace(batch, m=_window_columns(columns, size))


def _window_columns(columns: _Fields, size: int) -> dict[str, MetricWindow]:
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
    event = _build(AlertEvent, _object(value, ALERT_SCHEMA), "alert")
    if event.state not in set(AlertState):
        raise DecodeError("bad_field", f"state must be firing or resolved, got {event.state!r}")
    if event.severity not in set(Severity):
        raise DecodeError("bad_field", f"severity is unknown: {event.severity!r}")
    if event.family not in FAMILIES:
        raise DecodeError("bad_field", f"family is unknown: {event.family!r}")
    for name, text in (("started_at", event.started_at), ("observed_at", event.observed_at)):
        try:
            parse_time(text)
        except ValueError as exc:
            raise DecodeError("bad_field", f"{name} is no RFC 3339 time: {text!r}") from exc
    return event


def _rare(fields: _Fields, name: str) -> Any:
    """Check a field that most messages leave out; None where it is absent or null."""
    value = fields.get(name)
    return None if value is None else _convert(value, _hints(NodeSample)[name], name)


def _object(value: bytes, schema: str) -> _Fields:
    try:
        fields = orjson.loads(value)
    except orjson.JSONDecodeError as exc:
        raise DecodeError("not_json", str(exc)) from exc
    if not isinstance(fields, dict):
        raise DecodeError("not_object", f"expected an object, got {type(fields).__name__}")
    if fields.get("schema") != schema:
        raise DecodeError("schema", f"expected {schema}, got {fields.get('schema')!r}")
    return fields


def _text(fields: _Fields, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise DecodeError("bad_field", f"{name} must be a non-empty string, got {value!r}")
    return value


def _mapping(fields: _Fields, name: str) -> _Fields:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise DecodeError("bad_field", f"{name} must be an object, got {value!r}")
    return value


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


def _collector(fields: _Fields) -> CollectorStatus:
    try:
        return _checked_collector(tuple(fields.items()))
    except TypeError:  # a list or an object among the values: of a newer minor version
        return _build(CollectorStatus, fields, "collector")


@lru_cache(maxsize=1024)
def _checked_collector(items: tuple[tuple[str, object], ...]) -> CollectorStatus:
    """Check the state of a collector; it is the same in almost every message."""
    return _build(CollectorStatus, dict(items), "collector")


_NUMBERS = frozenset({int, float, NoneType})


def _columns(value: object, length: int) -> dict[str, list[float | None]]:
    if not isinstance(value, dict):
        raise DecodeError("bad_field", f"m must be an object, got {type(value).__name__}")
    # What is not in the catalogue comes from a newer minor version and is left out.
    columns = {name: column for name, column in value.items() if name in METRICS}
    for name, column in columns.items():
        if type(column) is not list or len(column) != length:
            raise DecodeError("bad_length", f"m.{name} needs {length} values")
    # One pass over all columns: this is the path of every sample.
    if not _NUMBERS.issuperset(map(type, chain.from_iterable(columns.values()))):
        wrong = next(n for n, c in columns.items() if not _NUMBERS.issuperset(map(type, c)))
        raise DecodeError("bad_value", f"m.{wrong} must hold numbers or null")
    return columns


def _status(value: object) -> dict[str, dict[str, str]]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(codes, dict) for codes in value.values()):
        raise DecodeError("bad_field", "status must be an object of objects")
    return value


# Any: mypy does not take a generic class for hashable.
@cache
def _hints(cls: Any) -> Mapping[str, Any]:
    return get_type_hints(cls)


@cache
def _plan(cls: Any) -> tuple[tuple[str, Any, bool], ...]:
    hints = _hints(cls)
    return tuple(
        (
            f.name,
            hints[f.name],
            f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING,
        )
        for f in dataclasses.fields(cls)
    )


def _build(cls: type[_T], fields: object, where: str) -> _T:
    """Build a contract dataclass from decoded JSON, checking types, ignoring what is unknown."""
    if not isinstance(fields, dict):
        raise DecodeError("bad_field", f"{where} must be an object, got {fields!r}")
    values = {}
    for name, hint, required in _plan(cast("Any", cls)):
        if name in fields:
            values[name] = _convert(fields[name], hint, f"{where}.{name}")
        elif required:
            raise DecodeError("missing_field", f"{where}.{name} is required")
    return cls(**values)


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Check one decoded value against a type hint of the contract and convert lists to tuples."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        inner = [arg for arg in get_args(hint) if arg is not NoneType]
        return None if value is None else _convert(value, inner[0], where)
    if origin in (tuple, list):
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise DecodeError("bad_field", f"{where} must be a list, got {value!r}")
        make: Callable[[Any], Any] = tuple if origin is tuple else list
        return make(_convert(item, get_args(hint)[0], where) for item in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise DecodeError("bad_field", f"{where} must be an object, got {value!r}")
        inner_hint = get_args(hint)[1]
        return {key: _convert(item, inner_hint, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where)  # type: ignore[arg-type]  # a class, not an instance
    return _scalar(value, hint, where)


def _scalar(value: Any, hint: Any, where: str) -> Any:
    accepted = (int, float) if hint is float else hint
    wrong_bool = isinstance(value, bool) and hint is not bool
    if wrong_bool or not isinstance(value, accepted):
        raise DecodeError("bad_field", f"{where} must be {hint.__name__}, got {value!r}")
    return value
