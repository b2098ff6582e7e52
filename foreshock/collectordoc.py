"""The table of docs/collector.md: every metric, its source, who offers it, what unlocks it."""

from __future__ import annotations

from collector.readings import ROWS, CallRow, Row
from collector.support import CARDS, Offer, group_of, how_often, offers_of, privilege_of
from schemas.metrics import CATALOGUE

__all__ = ["metric_sources"]

_WORDS = {Offer.YES: "yes", Offer.NO: "–", Offer.DERIVED: "derived", Offer.UNSEEN: "?"}


def metric_sources() -> str:
    """Return a Markdown table with a row per metric, in the order of the catalogue."""
    head = ["metric", "group", "asked", "call or field", "else", *CARDS, "needs"]
    rows = {row.metric: row for row in ROWS}
    lines = [
        [
            f"`{metric.name}`",
            str(group_of(metric.name)),
            how_often(metric.name),
            _first(rows.get(metric.name), metric.source),
            _older(rows.get(metric.name)),
            *(_WORDS[offer] for offer in offers_of(metric.name)),
            privilege_of(metric.name),
        ]
        for metric in CATALOGUE
    ]
    table = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in table)


def _first(row: Row | None, source: str) -> str:
    return source if row is None else _said(row, newest=True)


def _older(row: Row | None) -> str:
    """Name what is asked of a device or driver that does not offer the first."""
    if row is None:
        return ""
    names = [] if not isinstance(row, CallRow) else _alternatives(row)[1:]
    fallback = row.otherwise
    while fallback is not None:
        names.append(_said(fallback, newest=False))
        fallback = fallback.otherwise
    return ", ".join(dict.fromkeys(names))


def _said(row: Row, *, newest: bool) -> str:
    if isinstance(row, CallRow):
        names = _alternatives(row)
        return names[0] if newest else ", ".join(names)
    return f"field {', '.join(str(number) for number in row.fields)}"


def _alternatives(row: CallRow) -> list[str]:
    return [
        f"`{name}({', '.join(map(_argument, args))})`" for name, args in row.question.alternatives
    ]


def _argument(value: int) -> str:
    # A version of a structure is its number over its size (nvml.h, NVML_STRUCT_VERSION).
    return f"version {value >> 24}" if value >> 24 else str(value)
