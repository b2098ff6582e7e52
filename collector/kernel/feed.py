"""What every kind of kernel log offers: lines that are new, and a place to go on from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

__all__ = ["Feed", "FeedState", "Place", "load_place", "save_place"]


class FeedState(StrEnum):
    """Whether a log can be read."""

    READING = "reading"
    MISSING = "missing"
    NO_PERMISSION = "no_permission"
    FAILED = "failed"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far a log was read.

    Parameters
    ----------
    path
        The log.
    boot, seq
        For ``/dev/kmsg``: boot id of the kernel and number of the last record.
    device, inode, offset
        For a file: which one, and the bytes of complete lines read.
    """

    path: str
    boot: str = ""
    seq: int = -1
    device: int = 0
    inode: int = 0
    offset: int = 0


class Feed(Protocol):
    """One log. Belongs to one thread; never waits, never raises for the log's sake."""

    state: FeedState
    detail: str
    #: Records or lines that were lost before they could be read.
    lost: int

    def lines(self) -> list[str]:
        """Return new complete lines or records, oldest first; a bounded number at a time."""
        ...

    @property
    def history(self) -> bool:
        """Whether the last lines stood in the log before this reader ever looked at it."""
        ...

    @property
    def place(self) -> Place:
        """Where to go on after a restart."""
        ...

    def close(self) -> None:
        """Let go of the log."""
        ...


def load_place(path: Path | None) -> Place | None:
    """Return the place kept in a file, or None where there is none that makes sense."""
    if path is None:
        return None
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        kinds = {"path": str, "boot": str, "seq": int, "device": int, "inode": int, "offset": int}
        return Place(**{name: kind(said[name]) for name, kind in kinds.items()})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def save_place(path: Path, place: Place) -> None:
    """Keep a place in a file, whole or not at all.

    Raises
    ------
    OSError
        If the disk takes nothing.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(asdict(place)), encoding="utf-8")
    beside.replace(path)
