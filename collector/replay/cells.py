"""One cell of a table: a number, a word, or one of the many spellings of nothing.

Missing is not zero: every spelling of absence becomes None, with its reason beside it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from schemas.sample import ValueStatus

__all__ = ["LOST", "RESET_REQUIRED", "UNITS", "Cell", "DamagedCellError", "absence", "number"]

# NVML return codes (nvml.h, nvmlReturn_t): 13 function not found, 15 GPU is lost,
# 16 reset required, 999 unknown.
LOST = "error:15"
RESET_REQUIRED = "error:16"
_UNKNOWN = "error:999"
#: More is no number with a unit.
_MOST_CHARS = 100
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([%°µa-zA-Z]*)\s*$")

_ABSENT = {
    "": ValueStatus.UNSUPPORTED.value,
    "-": ValueStatus.UNSUPPORTED.value,
    "n/a": ValueStatus.UNSUPPORTED.value,
    "na": ValueStatus.UNSUPPORTED.value,
    "nan": ValueStatus.UNSUPPORTED.value,
    "null": ValueStatus.UNSUPPORTED.value,
    "none": ValueStatus.UNSUPPORTED.value,
    "not supported": ValueStatus.UNSUPPORTED.value,
    "not available": ValueStatus.UNSUPPORTED.value,
    "requested functionality has been deprecated": ValueStatus.UNSUPPORTED.value,
    "insufficient permissions": ValueStatus.NO_PERMISSION.value,
    "no permission": ValueStatus.NO_PERMISSION.value,
    "function not found": "error:13",
    "gpu is lost": LOST,
    "gpu requires reset": RESET_REQUIRED,
    "reset required": RESET_REQUIRED,
    "unknown error": _UNKNOWN,
    "err!": _UNKNOWN,
    "error": _UNKNOWN,
}

#: Unit as written to its factor to the base unit of the catalogue.
UNITS: dict[str, float] = {
    "": 1.0,
    "%": 0.01,
    "W": 1.0,
    "mW": 1e-3,
    "kW": 1e3,
    "J": 1.0,
    "mJ": 1e-3,
    "kJ": 1e3,
    "C": 1.0,
    "°C": 1.0,
    "B": 1.0,
    "bytes": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "Hz": 1.0,
    "kHz": 1e3,
    "MHz": 1e6,
    "GHz": 1e9,
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "ratio": 1.0,
}


class DamagedCellError(ValueError):
    """The text is neither a value nor a known absence: the line is damaged."""


class Cell(NamedTuple):
    """What a cell says: a value, or None and the reason."""

    value: float | None
    status: str | None = None


def absence(text: str) -> str | None:
    """Return why there is no value, or None if the text may be one.

    Any text in square brackets is an absence: nvidia-smi puts error texts there, and new
    ones come with new drivers.

    Examples
    --------
    >>> absence("[N/A]"), absence("ERR!"), absence("GPU is lost"), absence("42 %")
    ('unsupported', 'error:999', 'error:15', None)
    """
    stripped = text.strip()
    bracketed = stripped.startswith("[") and stripped.endswith("]")
    known = _ABSENT.get((stripped[1:-1] if bracketed else stripped).strip().lower())
    return _UNKNOWN if known is None and bracketed else known


def number(text: str, unit: str) -> Cell:
    """Read a number with an optional unit behind it, in the catalogue's base unit.

    Parameters
    ----------
    text
        For example ``631.95 W``, ``100 %``, ``345`` or an absence.
    unit
        Unit where the cell carries none: one of :data:`UNITS`.

    Raises
    ------
    DamagedCellError
        If it is neither.

    Examples
    --------
    >>> number("81559 MiB", "MiB")
    Cell(value=85520809984.0, status=None)
    >>> number("[Not Supported]", "W")
    Cell(value=None, status='unsupported')
    """
    match = _NUMBER.match(text) if len(text) <= _MOST_CHARS else None
    if match is not None:
        factor = UNITS.get(match[2] or unit)
        if factor is not None:
            return Cell(_scaled(float(match[1]), factor))
    status = absence(text)
    if status is None:
        raise DamagedCellError(f"{text[:40]!r} is no number")
    return Cell(None, status)


def _scaled(value: float, factor: float) -> float:
    # Dividing by the exact inverse keeps 37 % at 0.37 and 7 us at 7e-06.
    return value * factor if factor >= 1.0 else value / round(1.0 / factor)
