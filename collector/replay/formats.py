"""Which reader a file needs, decided from its first lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path

import orjson

from collector.replay.columnmap import ColumnMap, MapFormat
from collector.replay.dmon import is_dmon_header
from collector.replay.lines import Line, read_lines
from collector.replay.profile import is_profile_line
from collector.replay.scrape import is_prom_line
from collector.replay.settings import ReplayFormat
from collector.replay.smi import is_header, layout_of
from collector.replay.smi_documents import is_text_start, is_xml_start
from collector.replay.smi_screen import is_link_line, is_table_start
from collector.replay.stats import ReplayStats
from collector.replay.table import Role
from collector.replay.tables import split_cells
from schemas.errors import SourceError
from schemas.sample import SAMPLE_SCHEMA

__all__ = ["FileKind", "decide"]

_HEAD_LINES = 50
_FAR_LINES = 5000
_SHOWN_COLUMNS = 12
_LOOKED_AT = 4096
_MAGICS = (
    (b"PK\x03\x04", "a zip archive or spreadsheet; unpack or export it first"),
    (b"PAR1", "a Parquet file; export it as CSV first"),
    (b"SQLite f", "an SQLite database"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd; unpack it first"),
    (b"\xfd7zXZ", "packed with xz; unpack it first"),
    (b"BZh", "packed with bzip2; unpack it first"),
)


class FileKind(StrEnum):
    """The kinds of file that can be read."""

    SMI = "nvidia-smi"
    MESSAGES = "jsonl"
    MAPPED = "csv"
    WIDE = "jsonl-wide"
    SMI_XML = "smi-xml"
    SMI_TEXT = "smi-text"
    SMI_TABLE = "smi-table"
    NVLINK = "nvlink"
    DMON = "dmon"
    PROM = "prometheus"
    PROFILE = "nvml-profile"


def decide(path: Path, wanted: ReplayFormat, column_map: ColumnMap | None) -> FileKind:
    """Look at the first lines of a file and say how to read it.

    Raises
    ------
    SourceError
        If it cannot be read or understood, with a sentence that says why and what to do.
    """
    if wanted is ReplayFormat.CSV and column_map is None:
        raise SourceError(
            f"The format csv needs a column map: give one with --map (see docs/replay.md) to read "
            f"{path}, or leave out --format to have nvidia-smi's own CSV recognised."
        )
    head = _head(path)
    kind = _recognise(head, column_map) or _by_a_line(path)
    if kind is None or not _allowed(kind, wanted):
        raise _refusal(path, wanted, head, column_map)
    return kind


def _head(path: Path) -> list[Line]:
    """Return the first lines that are not empty."""
    stats = ReplayStats()
    lines = islice(read_lines(path, stats), _HEAD_LINES)
    head = [line for line in lines if line.text.strip()]
    if not head and stats.complaints:
        raise SourceError(f"Cannot read {path}: {stats.complaints[0].reason}.")
    if not head:
        raise SourceError(f"{path} is empty: there is nothing to replay.")
    return head


def _is_binary(head: Sequence[Line]) -> bool:
    """Tell whether a tenth of what should be text is none; a flipped byte is only damage."""
    sample = "".join(line.text[:_LOOKED_AT] for line in head)[:_LOOKED_AT]
    odd = sum(sample.count(char) for char in "\0\ufffd")
    return 10 * odd > len(sample)


def _guess(path: Path) -> str:
    """Name the kind of a binary file by its first bytes; empty where it is not known."""
    with path.open("rb") as file:
        begin = file.read(8)
    for magic, words in _MAGICS:
        if begin.startswith(magic):
            return f" ({words})"
    return ""


def _allowed(kind: FileKind, wanted: ReplayFormat) -> bool:
    if wanted is ReplayFormat.AUTO:
        return True
    if kind is FileKind.WIDE:  # the map says so, whatever the flag calls it
        return wanted in {ReplayFormat.CSV, ReplayFormat.JSONL}
    return kind.value == wanted.value


def _recognise(head: Sequence[Line], column_map: ColumnMap | None) -> FileKind | None:
    objects = [fields for line in head if (fields := _json(line.text)) is not None]
    if any(fields.get("schema") == SAMPLE_SCHEMA for fields in objects):
        return FileKind.MESSAGES
    if column_map is not None:
        if column_map.format is MapFormat.JSONL_WIDE:
            time = column_map.roles[Role.TIME]
            return FileKind.WIDE if any(time in fields for fields in objects) else None
        rows = (split_cells(line.text, column_map.delimiter) for line in head)
        if any(column_map.fits(cells) for cells in rows):
            return FileKind.MAPPED
    headers = [cells for line in head if is_header(cells := split_cells(line.text))]
    if any(_readable(cells) for cells in headers):
        return FileKind.SMI
    return None


#: What a single line gives away, best first. Captures hold several forms: the fullest one counts.
_TELLING: tuple[tuple[Callable[[str], bool], FileKind], ...] = (
    (is_xml_start, FileKind.SMI_XML),
    (is_text_start, FileKind.SMI_TEXT),
    (is_profile_line, FileKind.PROFILE),
    (is_dmon_header, FileKind.DMON),
    (is_prom_line, FileKind.PROM),
    (is_table_start, FileKind.SMI_TABLE),
    (is_link_line, FileKind.NVLINK),
)


def _by_a_line(path: Path) -> FileKind | None:
    """Look further into a text for the line that tells what it is: captures begin with talk."""
    found: set[FileKind] = set()
    for line in islice(read_lines(path, ReplayStats()), _FAR_LINES):
        found.update(kind for tells, kind in _TELLING if kind not in found and tells(line.text))
        if FileKind.SMI_XML in found or FileKind.SMI_TEXT in found:
            break
    return next((kind for _, kind in _TELLING if kind in found), None)


def _readable(header: Sequence[str]) -> bool:
    layout = layout_of(header)
    return Role.TIME in layout.roles and bool(layout.recipes)


def _json(text: str) -> dict[str, object] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return fields if isinstance(fields, dict) else None


def _refusal(
    path: Path, wanted: ReplayFormat, head: Sequence[Line], column_map: ColumnMap | None
) -> SourceError:
    first = head[0].text
    headers = [cells for line in head if is_header(cells := split_cells(line.text))]
    if _is_binary(head):
        return SourceError(
            f"{path} is no text but binary data{_guess(path)}: a recording is CSV or JSON lines "
            "in UTF-8, or in UTF-16 with a byte order mark, plain or packed with gzip."
        )
    if wanted is not ReplayFormat.AUTO:
        return SourceError(
            f"{path} is not in the format {wanted.value}: it begins with {first[:80]!r}. "
            "Leave out --format to have it recognised."
        )
    if headers and Role.TIME not in layout_of(headers[0]).roles:
        return SourceError(
            f"{path} has no column timestamp, so nothing can be placed in time. "
            "Record it with --query-gpu=timestamp,index,uuid,..."
        )
    if column_map is not None:
        time = column_map.roles[Role.TIME]
        return SourceError(
            f"{path} does not fit the column map: it needs the time column {time!r} and one "
            f"mapped column, but the file has {_columns_of(first)}."
        )
    if _looks_like_values(first):
        return SourceError(
            f"{path} begins with values instead of the names of its columns ({first[:60]!r}). "
            "Record it without noheader, or put the header line back at the top."
        )
    return _needs_map(path, head)


def _needs_map(path: Path, head: Sequence[Line]) -> SourceError:
    first = head[0].text
    return SourceError(
        f"{path} is neither the CSV of nvidia-smi nor foreshock's JSON lines; it has "
        f"{_columns_of(first)}. Write a column map that says what they mean and give it with "
        "--map (see docs/replay.md)."
    )


def _columns_of(text: str) -> str:
    fields = _json(text)
    names = list(fields) if fields is not None else split_cells(text)
    if len(names) == 1:
        return f"one column, {names[0][:60]!r}"
    shown = ", ".join(name[:40] for name in names[:_SHOWN_COLUMNS])
    more = f" and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
    return f"the columns {shown}{more}"


def _looks_like_values(text: str) -> bool:
    cells = split_cells(text)
    numeric = sum(cell[:1].isdigit() or cell.startswith("[") for cell in cells)
    return len(cells) > 1 and 2 * numeric >= len(cells)
