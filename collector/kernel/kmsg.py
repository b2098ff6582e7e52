"""``/dev/kmsg``: one record per read, from the oldest that the kernel still holds."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from collector.kernel.feed import FeedState, Place

__all__ = ["KmsgFeed"]

# The kernel refuses a smaller buffer than its longest record, 8 KiB with dictionary.
_RECORD_BYTES = 16_384
_RECORDS = 4096  # at a time: a storm must not keep the loop
_RETRY_POLLS = 240  # a minute of four polls a second

_WORDS = {
    FeedState.NO_PERMISSION: "The kernel log {path} may not be read: give the collector the "
    "capability CAP_SYSLOG and read access to the device, or name a log file in "
    "collector.kernel.path. Until then Xids come from the driver alone.",
    FeedState.MISSING: "There is no kernel log {path}: name a log file in collector.kernel.path, "
    "or give the container the device.",
}


class KmsgFeed:
    """Follows the kernel's ring buffer without waiting.

    Parameters
    ----------
    path
        The device.
    boot_id
        Of the running kernel; a place kept in another boot says nothing.
    place
        Where to go on, or None to begin with the oldest record.
    open_log
        Opens the device non-blocking and returns a descriptor; tests pass another one.
    """

    def __init__(
        self,
        path: Path,
        *,
        boot_id: str,
        place: Place | None = None,
        open_log: Callable[[], int] | None = None,
    ) -> None:
        self._path = path
        self._open_log = open_log or (lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        self._boot = boot_id
        known = place is not None and place.boot == boot_id and place.path == str(path)
        self._seq = place.seq if known and place is not None else -1
        self._history = not known
        self._ended = False
        self._fd: int | None = None
        self._tells = False
        self._wait = 0
        self.state = FeedState.READING
        self.detail = f"The kernel log {path} is being read."
        self.lost = 0

    @property
    def history(self) -> bool:
        """Whether the last records are older than this reader."""
        return self._history

    @property
    def place(self) -> Place:
        """Number of the last record in this boot."""
        return Place(path=str(self._path), boot=self._boot, seq=self._seq)

    def ears(self) -> tuple[int, ...] | None:
        """Return the descriptor that says when there is a record; None while it is not open."""
        return None if self._fd is None or not self._tells else (self._fd,)

    def lines(self) -> list[str]:
        """Return the records since the last call."""
        if self._ended:  # the end was reached before: what comes now is new
            self._history = False
        if self._fd is None and not self._open():
            return []
        found: list[str] = []
        for _ in range(_RECORDS):
            record = self._record()
            if record is None:
                break
            if self._take(record):
                found.append(record)
        return found

    def close(self) -> None:
        """Close the device."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> bool:
        self._wait -= 1
        if self._wait > 0:
            return False
        self._wait = _RETRY_POLLS
        try:
            self._fd = self._open_log()
        except PermissionError:
            self._say(FeedState.NO_PERMISSION, _WORDS[FeedState.NO_PERMISSION])
        except FileNotFoundError:
            self._say(FeedState.MISSING, _WORDS[FeedState.MISSING])
        except OSError as exc:
            self._say(FeedState.FAILED, f"The kernel log {{path}} cannot be opened: {exc}.")
        else:
            self._wait = 0
            # A plain file, as in a test, always has something to read and never says so.
            self._tells = not stat.S_ISREG(os.fstat(self._fd).st_mode)
            self._say(FeedState.READING, "The kernel log {path} is being read.")
        return self._fd is not None

    def _say(self, state: FeedState, detail: str) -> None:
        self.state, self.detail = state, detail.format(path=self._path)

    def _record(self) -> str | None:
        """Read one record; None when there is none now."""
        while self._fd is not None:
            try:
                data = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                self._ended = True
                return None
            except BrokenPipeError:
                self.lost += 1  # overwritten before it was read: go on with the oldest there is
                continue
            except OSError as exc:
                self._say(FeedState.FAILED, f"The kernel log {{path}} cannot be read: {exc}.")
                self.close()
                self._wait = _RETRY_POLLS
                return None
            if not data:
                self._ended = True
                return None
            return data.decode("utf-8", errors="replace").rstrip("\n")
        return None

    def _take(self, record: str) -> bool:
        """Tell whether the record is a new one; number the place."""
        words = record.split(",", 2)
        if len(words) < 3 or not words[1].isdecimal():
            return False
        seq = int(words[1])
        if seq <= self._seq:
            return False
        self._seq = seq
        return True
