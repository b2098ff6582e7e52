"""Asking a device for rows of the table, each on its own, and turning answers into columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from collector.device import Call, Code, NvmlDoor, status_of, unsupported
from collector.readings import CallRow, FieldRow
from schemas.errors import DeviceError
from schemas.metrics import METRIC_INDEX

__all__ = ["Answers", "columns_of", "field_value", "read_fields", "read_rows"]

# nvmlValueType_t to the member of the union.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


@dataclass(slots=True)
class Answers:
    """What one device said at one tick: a value or a return code per metric."""

    values: dict[str, float]
    codes: dict[str, int]

    @classmethod
    def empty(cls) -> Answers:
        """Nothing asked yet."""
        return cls({}, {})

    @property
    def lost(self) -> bool:
        """Whether the device is off the bus."""
        return Code.GPU_IS_LOST in self.codes.values()

    def failure(self) -> int | None:
        """Return the code with which every call failed; None if anything was answered."""
        if self.values:
            return None
        return next((code for code in self.codes.values() if not unsupported(code)), None)


def field_value(field: Any) -> float:
    """Take the number out of one field value, by its declared type.

    Raises
    ------
    DeviceError
        With the field's own return code. An old driver answers an unknown field id with
        "invalid argument": that is reported as not supported.
    """
    code = int(field.nvmlReturn)
    if code == Code.INVALID_ARGUMENT:
        code = int(Code.NOT_SUPPORTED)
    if code != 0:
        raise DeviceError(code, f"field {field.fieldId}")
    kind = int(field.valueType)
    if not 0 <= kind < len(_MEMBERS):
        raise DeviceError(Code.NOT_SUPPORTED, f"field {field.fieldId} has unknown type {kind}")
    return float(getattr(field.value, _MEMBERS[kind]))


def read_fields(door: NvmlDoor, handle: object, ids: Iterable[int]) -> dict[int, float | int]:
    """Ask for several fields in one call.

    Returns
    -------
    dict
        Field id to a float (its value) or an int (its return code).

    Raises
    ------
    DeviceError
        If the call as a whole failed.
    """
    answers: dict[int, float | int] = {}
    for field in door.invoke("nvmlDeviceGetFieldValues", handle, list(ids)):
        try:
            answers[int(field.fieldId)] = field_value(field)
        except DeviceError as exc:
            answers[int(field.fieldId)] = exc.code
    return answers


def read_rows(
    door: NvmlDoor,
    handle: object,
    rows: Iterable[CallRow | FieldRow],
    skip: set[str],
) -> Answers:
    """Read the rows, each on its own; a lost device ends the reading at its first answer.

    Parameters
    ----------
    door, handle
        Whom to ask.
    rows
        What to ask.
    skip
        Metrics known to be unsupported; grown here, so that they cost no call next time.
    """
    answers = Answers.empty()
    wanted = [row for row in rows if row.metric not in skip]
    for metric in skip:
        answers.codes[metric] = int(Code.NOT_SUPPORTED)
    _read_calls(door, handle, [row for row in wanted if isinstance(row, CallRow)], answers)
    fields = [row for row in wanted if isinstance(row, FieldRow)]
    if fields and not answers.lost:
        _read_field_rows(door, handle, fields, answers)
    skip.update(metric for metric, code in answers.codes.items() if unsupported(code))
    return answers


def _read_calls(door: NvmlDoor, handle: object, rows: list[CallRow], answers: Answers) -> None:
    # One call may feed several rows; it is made once, and its failure is theirs too.
    results: dict[Call, Any] = {}
    for row in rows:
        if row.question not in results:
            try:
                results[row.question] = door.ask(handle, row.question)
            except DeviceError as exc:
                results[row.question] = exc
        result = results[row.question]
        if isinstance(result, DeviceError):
            answers.codes[row.metric] = result.code
            if result.code == Code.GPU_IS_LOST:
                return
            continue
        value = row.take(result)
        if value is None:
            answers.codes[row.metric] = int(Code.NOT_SUPPORTED)
        else:
            answers.values[row.metric] = float(value) * row.times / row.per


def _read_field_rows(
    door: NvmlDoor, handle: object, rows: list[FieldRow], answers: Answers
) -> None:
    ids = [field for row in rows for field in row.fields]
    try:
        fields = read_fields(door, handle, ids)
    except DeviceError as exc:
        answers.codes.update({row.metric: exc.code for row in rows})
        return
    for row in rows:
        got = [fields.get(field, int(Code.NOT_SUPPORTED)) for field in row.fields]
        values = [value for value in got if isinstance(value, float)]
        broken = [code for code in got if isinstance(code, int) and not unsupported(code)]
        if broken:  # a sum without one of its parts would look like a counter reset
            answers.codes[row.metric] = broken[0]
        elif values:
            answers.values[row.metric] = sum(values) / row.per
        else:
            answers.codes[row.metric] = int(Code.NOT_SUPPORTED)


def columns_of(
    rows: Sequence[Answers],
) -> tuple[dict[str, list[float | None]], dict[str, dict[int, str]]]:
    """Turn answers per device into columns; what no device offers is left out.

    A metric about which a device said nothing (most of them for a MIG instance) is None without
    a status.
    """
    offered = {name for row in rows for name in row.values}
    offered |= {name for row in rows for name, code in row.codes.items() if not unsupported(code)}
    values: dict[str, list[float | None]] = {}
    status: dict[str, dict[int, str]] = {}
    for name in sorted(offered, key=lambda metric: METRIC_INDEX[metric]):
        values[name] = [row.values.get(name) for row in rows]
        codes = {
            position: status_of(row.codes[name])
            for position, row in enumerate(rows)
            if name in row.codes
        }
        if codes:
            status[name] = codes
    return values, status
