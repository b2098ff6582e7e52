"""What a replay counted on its way, for the progress bar and for the summary."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["MAX_COMPLAINTS", "Complaint", "ReplayStats"]

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
    implausible
        Single values out of their metric's range, published as null.
    bytes_read, total_bytes
        Position in the files as they lie on disk, and their size together.
    complaints
        The first damaged lines.
    """

    rows: int = 0
    readings: int = 0
    headers: int = 0
    damaged: int = 0
    duplicates: int = 0
    backwards: int = 0
    implausible: int = 0
    bytes_read: int = 0
    total_bytes: int = 0
    complaints: list[Complaint] = field(default_factory=list)

    def damage(self, path: Path, line: int, reason: str) -> None:
        """Count one damaged line and keep the first few with their place."""
        self.damaged += 1
        if len(self.complaints) < MAX_COMPLAINTS:
            self.complaints.append(Complaint(path=path, line=line, reason=reason))
