"""What a replay counted on its way, for the progress bar and for the summary."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["MAX_COMPLAINTS", "ColumnTally", "Complaint", "ReplayStats"]

#: So many damaged lines are kept with their place; the others are only counted.
MAX_COMPLAINTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """One line that could not be used: where it stands and why."""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path.name}, line {self.line}: {self.reason}"


@dataclass(slots=True, kw_only=True)
class ColumnTally:
    """How many values of one column were read and how many of them refused.

    Parameters
    ----------
    column
        Name in the file.
    metric
        What it was read as.
    values
        Cells with a number in them.
    refused
        Those of them out of the metric's plausible range.
    example
        The first refused value, in the metric's base unit.
    """

    column: str
    metric: str
    values: int = 0
    refused: int = 0
    example: float | None = None

    def refuse(self, value: float) -> None:
        """Count a refused value and keep the first one."""
        self.refused += 1
        if self.example is None:
            self.example = value


@dataclass(slots=True, kw_only=True)
class ReplayStats:
    """Counters of one replay.

    Parameters
    ----------
    rows
        Records taken: table rows, or GPU-ticks of messages.
    readings
        Readings handed out.
    headers
        Header lines met, the first of each file included.
    damaged
        Lines that could not be understood: cut, interleaved, foreign.
    duplicates
        Rows of one device at the time it already had.
    backwards
        Rows whose time lies before the device's or the node's last.
    unconfirmed
        Rows of GPUs that appear in the middle of a recording, until they have come again.
    implausible
        Single values out of their metric's range, published as null.
    bytes_read, total_bytes
        Position in the files as they lie on disk, and their size together.
    complaints
        The first damaged lines.
    columns
        Values read and refused, by column and metric.
    remarks
        Sentences about how the files are read, for people.
    """

    rows: int = 0
    readings: int = 0
    headers: int = 0
    damaged: int = 0
    duplicates: int = 0
    backwards: int = 0
    unconfirmed: int = 0
    implausible: int = 0
    bytes_read: int = 0
    total_bytes: int = 0
    complaints: list[Complaint] = field(default_factory=list)
    columns: dict[tuple[str, str], ColumnTally] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def column(self, column: str, metric: str) -> ColumnTally:
        """Return the tally of a column, the same for all files."""
        key = (column, metric)
        return self.columns.setdefault(key, ColumnTally(column=column, metric=metric))

    def damage(self, path: Path, line: int, reason: str) -> None:
        """Count one damaged line and keep the first few with their place."""
        self.damaged += 1
        if len(self.complaints) < MAX_COMPLAINTS:
            self.complaints.append(Complaint(path=path, line=line, reason=reason))
