"""Asking a device what it is: answers that may be missing without anybody minding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collector.answers import read_fields
from collector.device import Call, NvmlDoor, call
from schemas.errors import DeviceError
from schemas.sample import ThresholdKind

__all__ = ["Thresholds", "ask_fact", "read_field_facts", "read_thresholds", "text_of"]

# Fields: shutdown, slowdown, memory-maximum and GPU-maximum margins.
_MARGINS = (193, 194, 196, 195)
# nvmlTemperatureThresholds_t: shutdown, slowdown, GPU maximum, memory maximum.
_DEGREES = (0, 1, 3, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Temperature limits: degrees, or margins below the limit (then mostly negative)."""

    kind: ThresholdKind | None = None
    shutdown: float | None = None
    slowdown: float | None = None
    maximum: float | None = None
    memory_maximum: float | None = None


# Any: ctypes structures of the binding.
def ask_fact(door: NvmlDoor, handle: object, question: Call) -> Any:
    """Ask for a fact; None if it cannot be had. The reason does not matter for an inventory."""
    try:
        return door.ask(handle, question)
    except DeviceError:
        return None


def text_of(value: object) -> str | None:
    """Text of the binding, which older versions return as bytes."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    text = str(value).strip("\x00 ") if value is not None else ""
    return text or None


def read_field_facts(door: NvmlDoor, handle: object, *ids: int) -> list[float | None]:
    """Ask for fields; None for each that cannot be had."""
    try:
        answers = read_fields(door, handle, ids)
    except DeviceError:
        return [None] * len(ids)
    found = [answers.get(field) for field in ids]
    return [_signed(value) if isinstance(value, float) else None for value in found]


def read_thresholds(door: NvmlDoor, handle: object) -> Thresholds:
    """Margins where the device states them (Ada, Hopper and later), else degrees."""
    margins = read_field_facts(door, handle, *_MARGINS)
    if any(value is not None for value in margins):
        return _thresholds(ThresholdKind.MARGIN, *margins)
    found = [
        ask_fact(door, handle, call("nvmlDeviceGetTemperatureThreshold", which))
        for which in _DEGREES
    ]
    degrees = [None if value is None else _signed(value) for value in found]
    if all(value is None for value in degrees):
        return Thresholds()
    # A negative threshold cannot be a temperature to slow down at: it is a margin.
    negative = any(value is not None and value < 0 for value in degrees)
    return _thresholds(ThresholdKind.MARGIN if negative else ThresholdKind.ABSOLUTE, *degrees)


def _thresholds(
    kind: ThresholdKind,
    shutdown: float | None,
    slowdown: float | None,
    maximum: float | None,
    memory_maximum: float | None,
) -> Thresholds:
    return Thresholds(
        kind=kind,
        shutdown=shutdown,
        slowdown=slowdown,
        maximum=maximum,
        memory_maximum=memory_maximum,
    )


def _signed(value: float) -> float:
    """Undo the wrap of a negative number that was handed over as unsigned 32 bits."""
    return value - 2.0**32 if value >= 2.0**31 else float(value)
