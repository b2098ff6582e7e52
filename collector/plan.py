"""What is asked of one device, and how: its capability map, learned from its own answers.

A row that a device does not offer is replaced by its fall-back at once, and left out when it has
none; a call with an older name is made under the name that worked. So a healthy device costs one
call per question and one for all fields, and what it does not offer costs nothing.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable
from typing import Any

from collector.answers import Answers, field_value
from collector.device import Call, Code, NvmlDoor, unsupported
from collector.readings import CallRow, Group, Row, Take
from schemas.errors import DeviceError

__all__ = ["Plan"]

# nvmlFieldValue_t: id, scope, time stamp, latency, type, return code, value.
_FIELD = struct.Struct("=IIqqIiQ")
_TYPE_DOUBLE, _TYPE_UNSIGNED, _TYPE_SIGNED_LONG, _TYPE_SIGNED, _TYPE_SHORT = 0, 1, 4, 5, 6
_LONGS = frozenset({2, 3})
#: Metrics of one call: name, how to take it out of the result, factor, divisor.
_Metrics = tuple[tuple[str, Take, float, float], ...]


class Plan:
    """The rows that one device is asked for.

    Parameters
    ----------
    rows
        The table, or a part of it.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._table = tuple(rows)
        self._rows: dict[str, Row] = {}
        self._names: dict[Call, int] = {}
        self._batches: dict[frozenset[Group] | None, _Batch] = {}
        #: Longest latency of a field that the driver reported in the last batch, seconds.
        self.latency: float | None = None
        self.unsupported: set[str] = set()
        self.probe()

    def probe(self) -> None:
        """Forget what the device does not offer: the next reading finds out anew."""
        self._rows = {row.metric: row for row in self._table}
        self._names = {}
        self._batches = {}
        self.unsupported = set()

    def read(
        self, door: NvmlDoor, handle: object, groups: frozenset[Group] | None = None
    ) -> Answers:
        """Ask everything of these groups, each question on its own; a lost device ends it.

        Parameters
        ----------
        door, handle
            Whom to ask.
        groups
            What to ask; None for everything.
        """
        answers = Answers.empty()
        self.latency = None
        batch = self._batches.get(groups)
        if batch is None:
            batch = self._batches[groups] = _Batch(
                row for row in self._rows.values() if groups is None or row.group in groups
            )
        # A row can be replaced by its fall-back, that by its own: the chains are short.
        while batch.calls or batch.fields:
            self._read_calls(door, handle, batch, answers)
            if batch.fields and not answers.lost:
                self._read_fields(door, handle, batch, answers)
            if answers.lost:
                return answers
            fresh = self._replaced(answers)
            if not fresh:
                break
            batch = _Batch(fresh)
        answers.codes.update(dict.fromkeys(self.unsupported, int(Code.NOT_SUPPORTED)))
        return answers

    def _replaced(self, answers: Answers) -> list[Row]:
        """Take the rows just found unsupported out of the plan; return their fall-backs."""
        fresh: list[Row] = []
        for metric in [name for name, code in answers.codes.items() if unsupported(code)]:
            row = self._rows.pop(metric, None)
            if row is None:
                continue
            self._batches = {}
            if row.otherwise is None:
                self.unsupported.add(metric)
            else:
                self._rows[metric] = row.otherwise
                del answers.codes[metric]
                fresh.append(row.otherwise)
        return fresh

    def _ask(self, door: NvmlDoor, handle: object, question: Call) -> Any:
        """Ask under the name that worked last, or older ones."""
        alternatives = question.alternatives
        if len(alternatives) == 1:
            name, args = alternatives[0]
            return door.invoke(name, handle, *args)
        first = self._names.get(question, 0)
        for place in range(first, len(alternatives)):
            name, args = alternatives[place]
            try:
                result = door.invoke(name, handle, *args)
            except DeviceError as exc:
                if place + 1 == len(alternatives) or not unsupported(exc.code):
                    raise
                self._names[question] = place + 1
            else:
                return result
        raise DeviceError(Code.FUNCTION_NOT_FOUND, "no alternative left")

    def _read_calls(self, door: NvmlDoor, handle: object, batch: _Batch, answers: Answers) -> None:
        values, codes = answers.values, answers.codes
        invoke = door.invoke
        for question, name, args, rows in batch.calls:
            try:
                if name is None:
                    result = self._ask(door, handle, question)
                else:  # nearly all of them
                    result = invoke(name, handle, *args)
            except DeviceError as exc:
                for metric, *_ in rows:
                    codes[metric] = exc.code
                if exc.code == Code.GPU_IS_LOST:
                    return
                continue
            for metric, take, times, per in rows:
                value = take(result)
                if value is None:
                    codes[metric] = int(Code.NOT_SUPPORTED)
                else:
                    values[metric] = float(value) * times / per

    def _read_fields(self, door: NvmlDoor, handle: object, batch: _Batch, answers: Answers) -> None:
        try:
            result = door.invoke("nvmlDeviceGetFieldValues", handle, batch.ids)
        except DeviceError as exc:
            answers.codes.update({metric: exc.code for metric, _, _ in batch.fields})
            return
        got, latency = _decoded(result)
        if latency is not None:
            self.latency = latency
        for metric, per, places in batch.fields:
            parts = [got[place] for place in places]
            if len(parts) == 1 and isinstance(parts[0], float):  # nearly all of them
                answers.values[metric] = parts[0] / per
                continue
            values = [value for value in parts if isinstance(value, float)]
            broken = [code for code in parts if isinstance(code, int) and not unsupported(code)]
            if broken:  # a sum without one of its parts would look like a counter reset
                answers.codes[metric] = broken[0]
            elif values:
                answers.values[metric] = sum(values) / per
            else:
                answers.codes[metric] = int(Code.NOT_SUPPORTED)


class _Batch:
    """Rows in the order in which they are asked: each call once, each field once."""

    def __init__(self, rows: Iterable[Row]) -> None:
        # As tuples rather than rows: these are gone through for every GPU at every tick.
        calls: dict[Call, list[tuple[str, Take, float, float]]] = {}
        places: dict[int, int] = {}
        self.fields: list[tuple[str, float, tuple[int, ...]]] = []
        for row in rows:
            if isinstance(row, CallRow):
                calls.setdefault(row.question, []).append(
                    (row.metric, row.take, row.times, row.per)
                )
            else:
                where = tuple(places.setdefault(field, len(places)) for field in row.fields)
                self.fields.append((row.metric, row.per, where))
        # What has one name only is called by it without further thought.
        self.calls: list[tuple[Call, str | None, tuple[int, ...], _Metrics]] = []
        for question, metrics in calls.items():
            name, args = question.alternatives[0]
            only = name if len(question.alternatives) == 1 else None
            self.calls.append((question, only, args, tuple(metrics)))
        # As pairs with scope 0: numbers alone make the binding try and fail for each.
        self.ids = [(field, 0) for field in places]


def _decoded(fields: Any) -> tuple[list[float | int], float | None]:
    """Turn field values into floats (values) and ints (return codes); add the longest latency.

    The array of the binding is read as bytes: attribute by attribute it costs ten times as much.
    """
    if not isinstance(fields, ctypes.Array):
        return [_one(field) for field in fields], None
    got: list[float | int] = []
    longest = 0
    for _, _, _, latency, kind, code, raw in _FIELD.iter_unpack(bytes(fields)):
        longest = max(longest, latency)
        if code != 0:
            # An old driver answers an unknown field id with "invalid argument".
            got.append(int(Code.NOT_SUPPORTED) if code == Code.INVALID_ARGUMENT else code)
        elif kind in _LONGS:
            got.append(float(raw))
        else:
            got.append(_number(kind, raw))
    return got, longest / 1e6


def _number(kind: int, raw: int) -> float | int:
    if kind == _TYPE_UNSIGNED:
        return float(raw & 0xFFFFFFFF)
    packed = raw.to_bytes(8, "little")
    if kind == _TYPE_DOUBLE:
        return float(struct.unpack("<d", packed)[0])
    if kind == _TYPE_SIGNED:
        return float(int.from_bytes(packed[:4], "little", signed=True))
    if kind == _TYPE_SIGNED_LONG:
        return float(int.from_bytes(packed, "little", signed=True))
    if kind == _TYPE_SHORT:
        return float(raw & 0xFFFF)
    return int(Code.NOT_SUPPORTED)


def _one(field: Any) -> float | int:
    try:
        return field_value(field)
    except DeviceError as exc:
        return exc.code
