"""What a device answered at one tick, and many answers as columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from collector.device import Code, NvmlDoor, status_of, unsupported
from schemas.errors import DeviceError
from schemas.metrics import METRIC_INDEX

__all__ = ["Answers", "columns_of", "field_value", "read_fields"]

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


def columns_of(
    rows: Sequence[Answers],
) -> tuple[dict[str, list[float | None]], dict[str, dict[int, str]]]:
    """Turn answers per device into columns; what no device offers is left out.

    A metric about which a device said nothing (most of them for a MIG instance) is None without
    a status.
    """
    offered: set[str] = set()
    for row in rows:
        offered.update(row.values)
        offered.update(name for name, code in row.codes.items() if not unsupported(code))
    ask = [row.values.get for row in rows]
    values = {name: [get(name) for get in ask] for name in _in_order(frozenset(offered))}
    status: dict[str, dict[int, str]] = {}
    for position, row in enumerate(rows):
        for name, code in row.codes.items():
            if name in offered:
                status.setdefault(name, {})[position] = status_of(code)
    return values, status


@lru_cache(maxsize=64)
def _in_order(names: frozenset[str]) -> tuple[str, ...]:
    """Sort names as the catalogue does; a node asks for the same few sets again and again."""
    return tuple(sorted(names, key=METRIC_INDEX.__getitem__))
