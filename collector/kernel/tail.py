"""A log file that grows, is cut, moved away and begun anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from collector.kernel.feed import FeedState, Place

__all__ = ["FileFeed"]

_CHUNK_BYTES = 2**20  # at a time: a long log must not keep the loop
_HISTORY_BYTES = 2**20  # of a log that is met for the first time
_LINE_BYTES = 65_536  # a longer line is no line of a kernel log
_RETRY_POLLS = 20  # five seconds of four polls a second


class FileFeed:
    """Follows a text log, like ``tail -F``, from where it was left.

    Parameters
    ----------
    path
        The log; it may come later.
    place
        Where to go on. If the file was moved to ``<path>.1`` meanwhile, its rest is read first.
    open_log
        Opens the file for reading, unbuffered; tests pass one that refuses.
    """

    def __init__(
        self,
        path: Path,
        *,
        place: Place | None = None,
        open_log: Callable[[Path], BinaryIO] | None = None,
    ) -> None:
        self._path = path
        self._open_log = open_log or (lambda path: path.open("rb", buffering=0))
        self._place = place if place is not None and place.path == str(path) else None
        self._file: BinaryIO | None = None
        self._rest = b""
        self._offset = 0
        # What the log held when this reader was made is history. Looked at now and not at the
        # first reading: a line that is written in between is new.
        self._before = None if self._place is not None else self._look()
        self._history = False
        self._skipping = False
        self._wait = 0
        self.state = FeedState.READING
        self.detail = ""
        self.lost = 0

    @property
    def history(self) -> bool:
        """Whether the last lines are older than this reader."""
        return self._history

    @property
    def place(self) -> Place:
        """Which file, and the bytes of its complete lines."""
        if self._file is None:
            return self._place or Place(path=str(self._path))
        found = os.fstat(self._file.fileno())
        return Place(
            path=str(self._path), device=found.st_dev, inode=found.st_ino, offset=self._offset
        )

    def lines(self) -> list[str]:
        """Return the complete lines since the last call."""
        try:
            if self._file is None and not self._open():
                return []
            found = self._read()
            if not found and self._is_replaced():
                found = self._finish()
        except PermissionError:
            self._fail(
                FeedState.NO_PERMISSION,
                f"The kernel log {self._path} may not be read: add the collector's user to the "
                "group of the file (adm on Debian), or read /dev/kmsg with CAP_SYSLOG.",
            )
            return []
        except FileNotFoundError:
            self._fail(
                FeedState.MISSING,
                f"There is no kernel log {self._path}: correct collector.kernel.path, or wait "
                "until it is written.",
            )
            self._before = None  # whatever it will hold is new
            return []
        except OSError as exc:
            self._fail(FeedState.FAILED, f"The kernel log {self._path} cannot be read: {exc}.")
            return []
        return found

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fail(self, state: FeedState, detail: str) -> None:
        if self._file is not None:
            self._place = self.place
        self.close()
        self.state, self.detail, self._wait = state, detail, _RETRY_POLLS

    def _open(self) -> bool:
        self._wait -= 1
        if self._wait > 0:
            return False
        path, offset = self._where()
        self._file = self._open_log(path)
        self._file.seek(offset)
        self._offset, self._rest, self._wait = offset, b"", 0
        if offset and self._place is None:  # in the middle of a line, most likely
            self._skipping = True
        self.state, self.detail = FeedState.READING, f"The kernel log {self._path} is being read."
        return True

    def _where(self) -> tuple[Path, int]:
        """Return the file to open and the byte to begin with."""
        place = self._place
        if place is None:
            there = self._look()
            if self._before is None or not _is_grown(there, self._before):
                self._before = None
                return self._path, 0
            return self._path, max(0, self._before.offset - _HISTORY_BYTES)
        for path in (self._path, self._path.with_name(f"{self._path.name}.1")):
            try:
                found = path.stat()
            except OSError:
                continue
            if (found.st_dev, found.st_ino) == (place.device, place.inode):
                return path, place.offset if place.offset <= found.st_size else 0
        return self._path, 0

    def _read(self) -> list[str]:
        if self._file is None:
            return []
        if os.fstat(self._file.fileno()).st_size < self._offset:  # cut and begun anew
            self._file.seek(0)
            self._offset, self._rest, self._skipping, self._before = 0, b"", False, None
        data = self._file.read(self._bytes_at_once()) or b""
        if not data:
            return []
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._offset += sum(len(line) + 1 for line in whole)
        if len(self._rest) > _LINE_BYTES:
            self._offset += len(self._rest)
            self._rest, self._skipping, self.lost = b"", True, self.lost + 1
        if whole and self._skipping:
            del whole[0]
            self._skipping = False
        return [line.decode("utf-8", errors="replace").rstrip("\r") for line in whole]

    def _bytes_at_once(self) -> int:
        """Return how much to read, so that one reading never mixes history with what is new."""
        old = 0
        if self._before is not None and self._file is not None:
            old = self._before.offset - self._file.tell()
        self._history = old > 0
        return min(old, _CHUNK_BYTES) if self._history else _CHUNK_BYTES

    def _look(self) -> Place | None:
        """Return which file stands at the path and its size, or None."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return Place(
            path=str(self._path), device=found.st_dev, inode=found.st_ino, offset=found.st_size
        )

    def _is_replaced(self) -> bool:
        """Tell whether another file stands at the path; a path that is empty keeps the old one."""
        if self._file is None:
            return False
        own = os.fstat(self._file.fileno())
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        return (own.st_dev, own.st_ino) != (there.st_dev, there.st_ino)

    def _finish(self) -> list[str]:
        """Take what the old file ended with, and turn to the new one."""
        last = [self._rest.decode("utf-8", errors="replace")] if self._rest else []
        self.close()
        self._place, self._before, self._rest, self._skipping = None, None, b"", False
        self._wait = 0
        return last


def _is_grown(there: Place | None, before: Place) -> bool:
    """Tell whether the file is the one seen before, not cut since."""
    return there is not None and (
        (there.device, there.inode) == (before.device, before.inode)
        and there.offset >= before.offset
    )
