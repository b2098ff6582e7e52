"""Readers of one file's lines: tables with a header, and wide JSON lines.

Each reader takes lines and yields readings; what cannot be used is counted with its line
number and never ends the replay.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson

from collector.replay.columnmap import ColumnMap
from collector.replay.identity import Devices
from collector.replay.lines import Line
from collector.replay.rounds import Booted, Rounds
from collector.replay.smi import is_header, layout_of
from collector.replay.stats import ReplayStats
from collector.replay.table import Layout, Role, RowReader
from collector.replay.times import TimeReader

__all__ = ["Context", "MappedCsv", "Reader", "SmiCsv", "WideJson", "split_cells"]

# nvidia-smi stamps every GPU's row on its own; a sweep of eight GPUs takes up to some tenths of
# a second (reference: 10 to 20 ms and more per call).
_SMI_ROUND_MS = 500
_NO_HANDLE = re.compile(
    r"Unable to determine the device handle for (?:gpu|GPU\d*:?) ?([0-9A-Fa-f:.]+).*", re.IGNORECASE
)
_WIDE_KEY = re.compile(r"(.+):(\d{1,4})$")


class Reader(Protocol):
    """Reads the lines of one file."""

    def readings(self, lines: Iterable[Line]) -> Iterator[Booted]:
        """Yield the readings that the lines hold."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every reader of a replay shares.

    Parameters
    ----------
    path
        The file, for complaints.
    node
        Name of the node for rows that do not say it.
    zone
        IANA zone of times without one.
    devices, rounds, stats
        Shared by all files.
    """

    path: Path
    node: str
    zone: str
    devices: Devices
    rounds: Rounds
    stats: ReplayStats

    def damage(self, line: Line, reason: str) -> None:
        """Count a damaged line."""
        self.stats.damage(self.path, line.number, reason)


def split_cells(text: str, delimiter: str = ",") -> list[str]:
    """Split a line into cells; quotes are honoured within the line."""
    if '"' not in text:
        return [cell.strip() for cell in text.split(delimiter)]
    try:
        return [cell.strip() for cell in next(csv.reader([text], delimiter=delimiter))]
    except (csv.Error, StopIteration):
        return [text]


@dataclass(slots=True, kw_only=True)
class SmiCsv:
    """The CSV of ``nvidia-smi --query-gpu``."""

    context: Context

    def readings(self, lines: Iterable[Line]) -> Iterator[Booted]:
        """Yield the readings; headers are taken wherever they stand."""
        context = self.context
        context.rounds.tolerance_ms = _SMI_ROUND_MS
        reader: RowReader | None = None
        for line in lines:
            cells = split_cells(line.text)
            if is_header(cells):
                if reader is None or tuple(cells) != reader.layout.header:
                    fresh = self._reader(line, cells)
                    if fresh is None:  # counted as damage
                        continue
                    reader = fresh
                context.stats.headers += 1
            elif reader is None or len(cells) == 1 < len(reader.layout.header):
                self._remark(line)
            else:
                yield from _row(context, reader, line, cells)

    def _reader(self, line: Line, cells: Sequence[str]) -> RowReader | None:
        layout = layout_of(cells)
        if Role.TIME not in layout.roles:
            self.context.damage(line, "is a header without the column timestamp")
            return None
        return _row_reader(self.context, layout, TimeReader(self.context.zone), None)

    def _remark(self, line: Line) -> None:
        if not line.text.strip():
            return
        match = _NO_HANDLE.search(line.text)
        if match is not None:
            context = self.context
            pci = match[1].rstrip(":.")
            gpu = context.devices.at_bus(context.node, pci)
            context.rounds.note_lost(context.node, gpu, pci, line.text.strip()[:200])
        self.context.damage(line, f"is no row of the table: {line.text.strip()[:60]!r}")


@dataclass(slots=True, kw_only=True)
class MappedCsv:
    """Another CSV, through a column map."""

    context: Context
    map: ColumnMap

    def readings(self, lines: Iterable[Line]) -> Iterator[Booted]:
        """Yield the readings; headers are taken wherever they stand."""
        context = self.context
        context.rounds.tolerance_ms = round(1000 * self.map.round_seconds)
        times = TimeReader(context.zone, self.map.time_format)
        reader: RowReader | None = None
        for line in lines:
            if not line.text.strip():
                continue
            cells = split_cells(line.text, self.map.delimiter)
            if reader is not None and tuple(cells) == reader.layout.header:
                context.stats.headers += 1
            elif self.map.fits(cells):
                context.stats.headers += 1
                layout = self.map.layout(cells)
                if reader is None:
                    self._tell_missing(layout)
                reader = _row_reader(context, layout, times, self.map.model)
            elif reader is None:
                context.damage(line, "stands before the header")
            else:
                yield from _row(context, reader, line, cells)

    def _tell_missing(self, layout: Layout) -> None:
        """Remark on columns of the map that the file lacks: it may be another file's map."""
        missing = [name for name in self.map.columns if name not in layout.header]
        if missing:
            self.context.stats.remarks.append(
                f"{self.context.path.name} lacks {len(missing)} of the {len(self.map.columns)} "
                f"columns that the map names: {', '.join(missing)}. What needs them is not watched."
            )


@dataclass(slots=True, kw_only=True)
class WideJson:
    """One JSON object per tick with keys ``name:index``, through a column map."""

    context: Context
    map: ColumnMap

    def readings(self, lines: Iterable[Line]) -> Iterator[Booted]:
        """Yield the readings, one per line."""
        context = self.context
        context.rounds.tolerance_ms = 0
        index_column = self.map.roles.get(Role.GPU_INDEX, "index")
        names = [*self.map.columns, *self.map.roles.values(), index_column]
        header = list(dict.fromkeys(names))
        wide = self.map.model_copy(
            update={"roles": {Role.GPU_INDEX: index_column, **self.map.roles}}
        )
        times = TimeReader(context.zone, self.map.time_format)
        reader = _row_reader(context, wide.layout(header), times, self.map.model)
        for line in lines:
            if not line.text.strip():
                continue
            try:
                fields = orjson.loads(line.text)
            except orjson.JSONDecodeError:
                fields = None
            if not isinstance(fields, dict):
                context.damage(line, "is no JSON object")
                continue
            for cells in _wide_rows(fields, header, index_column):
                yield from _row(context, reader, line, cells)


def _wide_rows(
    fields: Mapping[str, object], header: Sequence[str], index_column: str
) -> Iterator[list[str]]:
    by_index: dict[int, dict[str, str]] = {}
    common: dict[str, str] = {}
    for key, value in fields.items():
        text = "" if value is None else str(value)
        match = _WIDE_KEY.match(key)
        if match is None:
            common[key] = text
        elif match[1] in header:
            by_index.setdefault(int(match[2]), {})[match[1]] = text
    for index, own in sorted(by_index.items()):
        said = {**common, **own, index_column: str(index)}
        yield [said.get(name, "") for name in header]


def _row_reader(
    context: Context, layout: Layout, times: TimeReader, model: str | None
) -> RowReader:
    return RowReader(
        layout=layout,
        times=times,
        devices=context.devices,
        node=context.node,
        model=model,
        stats=context.stats,
    )


def _row(context: Context, reader: RowReader, line: Line, cells: Sequence[str]) -> Iterator[Booted]:
    try:
        row = reader.read(cells)
    except ValueError as exc:
        context.damage(line, str(exc))
        return
    yield from context.rounds.add(row)
