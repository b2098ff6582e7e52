"""Readings as people write them: 1410 MHz, 71.2 GiB, 87 %, 2 min. Pure functions of evidence.

On the wire values are in base units; nobody reads 1410000000 Hz or a share of 0.0213.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.metrics import METRICS

__all__ = ["DASH", "duration", "evidence_rows", "is_empty", "label", "reading"]

DASH = "–"
_BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
# nvidia-smi says MHz for every clock of today's GPUs, so GHz begins where five digits would.
_HERTZ = ((1e10, 1e9, "GHz"), (1e6, 1e6, "MHz"), (1e3, 1e3, "kHz"))
# Endings that say the unit of a derived quantity, which its label need not repeat.
_ENDINGS = (
    "_bytes_per_hour",
    "_bytes_per_second",
    "_seconds_total",
    "_ratio",
    "_celsius",
    "_watts",
    "_hertz",
    "_bytes",
    "_joules_total",
    "_seconds",
    "_total",
)
_ACRONYMS = {"gpu": "GPU", "gpus": "GPUs", "sm": "SM", "pcie": "PCIe", "nvml": "NVML", "ecc": "ECC"}
_NUMBERS = ("value", "expected_low", "expected_high", "baseline", "peers")
Item = Mapping[str, Any]  # decoded JSON of an Evidence


def label(metric: str) -> str:
    """Return the English label of a metric of the catalogue, else its name in words.

    Examples
    --------
    >>> label("power_watts"), label("power_brake_share_ratio"), label("known_gpus")
    ('Power', 'Power brake share', 'Known GPUs')
    """
    known = METRICS.get(metric)
    if known is not None:
        return known.label_en
    ending = next((end for end in _ENDINGS if metric.endswith(end) and metric != end), "")
    words = metric.removesuffix(ending).strip("_").split("_")
    text = " ".join(_ACRONYMS.get(word, word) for word in words)
    return text[:1].upper() + text[1:]


def reading(value: float | None, metric: str, unit: str) -> str:
    """Write one reading with its unit; a missing one is a dash, never 0.

    Parameters
    ----------
    value
        In the base unit: hertz, bytes, seconds, a share of 1.
    metric
        Its name; one that ends in ``_ratio`` is a share of 1, whatever unit is named.
    unit
        As on the wire; may be empty, then that of the catalogue.

    Examples
    --------
    >>> reading(1.41e9, "sm_clock_hertz", "Hz"), reading(76_450_000_000, "memory_used_bytes", "")
    ('1410 MHz', '71.2 GiB')
    >>> reading(0.0213, "power_brake_share_ratio", ""), reading(87.0, "temperature_celsius", "°C")
    ('2.13 %', '87 °C')
    >>> reading(None, "fan_ratio", "%"), reading(0.0, "power_watts", "")
    ('–', '0 W')
    """
    if value is None:
        return DASH
    known = METRICS.get(metric)
    said = unit or ("" if known is None else known.unit)
    if metric.endswith("_ratio") or said == "ratio":
        return f"{_figure(value * 100.0)} %"
    if said == "Hz":
        return _hertz(value)
    base, slash, per = said.partition("/")
    if base in {"bytes", "B"}:
        return f"{_bytes(value)}{slash}{per}"
    if said == "s":
        return duration(value)
    return f"{_figure(value)} {said}".rstrip()


def duration(seconds: float) -> str:
    """Write a span of time.

    Examples
    --------
    >>> [duration(seconds) for seconds in (0.25, 42.0, 119.4, 120.0, 5400.0, 9000.0, 400_000.0)]
    ['0.25 s', '42 s', '119 s', '2 min', '90 min', '2 h 30 min', '4 d 15 h']
    """
    if abs(seconds) < 120:
        return f"{_figure(seconds)} s"
    minutes = round(seconds / 60)
    if abs(minutes) < 120:
        return f"{minutes} min"
    sign, minutes = ("-" if minutes < 0 else ""), abs(minutes)
    if minutes < 48 * 60:
        return f"{sign}{minutes // 60} h {minutes % 60:02d} min"
    return f"{sign}{minutes // 1440} d {minutes % 1440 // 60} h"


def is_empty(item: Item) -> bool:
    """Tell whether evidence holds no number at all: what was not measured is said elsewhere.

    Examples
    --------
    >>> is_empty({"metric": "fan_speed_ratio", "value": None, "unit": "ratio"})
    True
    >>> is_empty({"metric": "fan_speed_ratio", "value": None, "unit": "ratio", "peers": 0.0})
    False
    """
    return all(item.get(name) is None for name in _NUMBERS)


def evidence_rows(items: Sequence[Item]) -> list[dict[str, str]]:
    """Return evidence as rows of a table, each row once, none without a number.

    Returns
    -------
    list of dict
        ``metric``, ``label``, ``value``, ``expected``, ``baseline``, ``peers`` and ``window``,
        all of them texts.
    """
    rows: list[dict[str, str]] = []
    for item in items:
        if is_empty(item):
            continue
        row = _row(item)
        if row not in rows:
            rows.append(row)
    return rows


def _row(item: Item) -> dict[str, str]:
    metric, unit = item["metric"], item["unit"]
    window = item.get("window_seconds")
    return {
        "metric": metric,
        "label": label(metric),
        "value": reading(item["value"], metric, unit),
        "expected": _expected(item.get("expected_low"), item.get("expected_high"), metric, unit),
        "baseline": reading(item.get("baseline"), metric, unit),
        "peers": reading(item.get("peers"), metric, unit),
        "window": DASH if window is None else duration(window),
    }


def _expected(low: float | None, high: float | None, metric: str, unit: str) -> str:
    if low is None and high is None:
        return DASH
    if low is None:
        return f"at most {reading(high, metric, unit)}"
    if high is None:
        return f"at least {reading(low, metric, unit)}"
    if low == high:
        return reading(low, metric, unit)
    return f"{reading(low, metric, unit)} to {reading(high, metric, unit)}"


def _figure(value: float) -> str:
    """Round to three digits, but never below a whole number; no digits that say nothing.

    Examples
    --------
    >>> [_figure(value) for value in (0.0, 0.012345, 71.234, 1410.4, 1234567.0, -0.0)]
    ['0', '0.0123', '71.2', '1410', '1,234,567', '0']
    """
    if abs(value) >= 100:
        whole = round(value)
        return f"{whole:,}" if abs(whole) >= 10_000 else str(whole)
    return f"{float(f'{value:.3g}') + 0.0:g}"


def _hertz(value: float) -> str:
    for least, factor, unit in _HERTZ:
        if abs(value) >= least:
            return f"{_figure(value / factor)} {unit}"
    return f"{_figure(value)} Hz"


def _bytes(value: float) -> str:
    for factor, unit in _BINARY:
        if abs(value) >= factor:
            return f"{_figure(value / factor)} {unit}"
    return f"{_figure(value)} B"
