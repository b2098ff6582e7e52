"""The CSV of ``nvidia-smi --query-gpu``: any set and order of columns, any driver.

What the columns mean stands in :mod:`collector.replay.smi_columns`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from collector.replay.cells import UNITS, Cell, DamagedCellError, absence
from collector.replay.smi_columns import (
    ECC,
    ECC_PARTS,
    ECC_SRAM_PARTS,
    HEADER_NAMES,
    HEADER_PREFIXES,
    NUMBERS,
    REASON_BITS,
    REASON_PREFIXES,
    ROLES,
    THROTTLE_COUNTERS,
    UNKNOWN_ACTION,
    WORDS,
)
from collector.replay.table import Layout, Recipe, number_at, one

__all__ = ["is_header", "layout_of"]

_UUID = re.compile(r"(GPU|MIG)-[0-9a-zA-Z/-]{1,64}$")
#: Longer than any column's name: to look for a unit there would take for ever.
_MOST_CELL = 200
_HEADER_CELL = re.compile(r"(.*?)\s*\[([^\]]*)\]$")


def _split_name(cell: str) -> tuple[str, str]:
    match = _HEADER_CELL.match(cell.strip()) if len(cell) <= _MOST_CELL else None
    return (match[1], match[2]) if match else (cell.strip(), "")


def is_header(cells: Sequence[str]) -> bool:
    """Tell whether a line names columns of nvidia-smi: most of its cells are known names.

    Examples
    --------
    >>> is_header(["index", "temperature.gpu", "power.draw [W]"])
    True
    >>> is_header(["0", "41", "69.85 W"])
    False
    """
    if any(cell[:1].isdigit() for cell in cells):
        return False  # settled by the first cell of nearly every row
    names = [_split_name(cell)[0] for cell in cells]
    known = sum(name in HEADER_NAMES or name.startswith(HEADER_PREFIXES) for name in names)
    return known >= 1 and 3 * known >= len(names)


def layout_of(header: Sequence[str]) -> Layout:
    """Make the layout of a header line. Columns that are not known are ignored."""
    names: dict[str, int] = {}
    units: dict[int, str] = {}
    for position, cell in enumerate(header):
        name, unit = _split_name(cell)
        names.setdefault(name, position)
        units[position] = unit
    roles = {
        role: names[found]
        for role, choices in ROLES.items()
        if (found := next((name for name in choices if name in names), None)) is not None
    }
    recipes: dict[str, list[Recipe]] = {}
    labels: dict[str, list[str]] = {}
    for metric, (default, choices) in _numbers().items():
        for name in choices:
            if name in names:
                unit = units[names[name]]
                chosen = unit if unit in UNITS and unit else default
                recipes.setdefault(metric, []).append(number_at(names[name], chosen))
                labels.setdefault(metric, []).append(header[names[name]].strip())
    for metric, (choices, words) in WORDS.items():
        for name in choices:
            if name in names:
                recipe = one(names[name], partial(_word, metric, words))
                recipes.setdefault(metric, []).append(recipe)
    _add_reasons(names, recipes)
    _add_ecc_sums(names, recipes)
    return Layout(
        header=tuple(header),
        roles=roles,
        recipes={metric: tuple(ways) for metric, ways in recipes.items()},
        labels=labels,
        uuids=_UUID,
    )


def _numbers() -> dict[str, tuple[str, tuple[str, ...]]]:
    counters = {
        metric: ("us", (f"clocks_event_reasons_counters.{last}",))
        for metric, last in THROTTLE_COUNTERS.items()
    }
    ecc = {metric: ("", (f"{prefix}total",)) for metric, prefix in ECC.items()}
    return NUMBERS | counters | ecc


def _add_reasons(names: Mapping[str, int], recipes: dict[str, list[Recipe]]) -> None:
    ways: list[Recipe] = []
    bits: dict[int, int] = {}
    for prefix in REASON_PREFIXES:
        if f"{prefix}active" in names:
            ways.append(one(names[f"{prefix}active"], _mask))
        for last, bit in REASON_BITS.items():
            if f"{prefix}{last}" in names:
                bits[names[f"{prefix}{last}"]] = bit
    if bits:
        ways.append(partial(_combine_bits, bits))
    if ways:
        recipes["clock_event_reasons"] = ways


def _add_ecc_sums(names: Mapping[str, int], recipes: dict[str, list[Recipe]]) -> None:
    for metric, prefix in ECC.items():
        found = [
            next((names[f"{prefix}{name}"] for name in choices if f"{prefix}{name}" in names), None)
            for choices in ECC_PARTS
        ]
        positions = [position for position in found if position is not None]
        if found[1] is not None:
            positions = [p for p in found[:ECC_SRAM_PARTS] if p is not None]
        if positions:
            recipes.setdefault(metric, []).append(partial(_total, tuple(positions)))


def _mask(text: str) -> Cell:
    status = absence(text)
    if status is not None:
        return Cell(None, status)
    try:
        return Cell(float(int(text.strip(), 0)))
    except (ValueError, OverflowError) as exc:
        raise DamagedCellError(f"{text[:40]!r} is no bit mask") from exc


def _combine_bits(bits: Mapping[int, int], cells: Sequence[str]) -> Cell:
    """Combine the single reasons; those that are absent take no part, all absent is null."""
    combined = 0
    seen = False
    status: str | None = None
    for position, bit in bits.items():
        word = cells[position].strip().lower()
        if word == "active":
            combined |= bit
        elif word != "not active":
            status = absence(word)
            if status is None:
                raise DamagedCellError(f"{word[:40]!r} is neither Active nor Not Active")
            continue
        seen = True
    return Cell(float(combined)) if seen else Cell(None, status)


def _total(positions: Sequence[int], cells: Sequence[str]) -> Cell:
    read = [number_at(position, "")(cells) for position in positions]
    values = [cell.value for cell in read if cell.value is not None]
    return Cell(sum(values)) if values else read[0]


def _word(metric: str, words: Mapping[str, float], text: str) -> Cell:
    word = text.strip().lower()
    value = words.get(word)
    if value is not None:
        return Cell(value)
    status = absence(word)
    if status is not None:
        return Cell(None, status)
    if metric == "recovery_action" and word.replace(" ", "").isalnum():
        return Cell(UNKNOWN_ACTION)
    raise DamagedCellError(f"{text[:40]!r} is no known word for {metric}")
