"""Where snapshots are kept: a Protocol, and files on one machine.

Files are written beside, synced and renamed, so that a crash leaves the old or the new one and
never half of one. The newest few are kept; a damaged one falls back to the one before.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import structlog

from detector.snapshot import Snapshot, pack, unpack
from schemas.errors import DataDirError, SnapshotError

__all__ = ["FileSnapshots", "MemorySnapshots", "Snapshots"]

_log = structlog.get_logger()
_BESIDE = ".writing"


class Snapshots(Protocol):
    """A store of snapshots, one current per (topic, partition)."""

    def save(self, snapshot: Snapshot) -> None:
        """Keep a snapshot durably. A snapshot older than the one kept is not taken."""
        ...

    def load(self, topic: str, partition: int) -> Snapshot | None:
        """Return the newest readable snapshot, or None."""
        ...

    def refresh(self) -> None:
        """Look at what others have saved; called before partitions are taken over."""
        ...

    def forget(self, topic: str, partition: int) -> None:
        """Drop every snapshot of a partition: its topic was made anew."""
        ...


class MemorySnapshots:
    """Keeps packed snapshots in memory, for tests and replays."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], bytes] = {}

    def save(self, snapshot: Snapshot) -> None:
        """Keep a snapshot, unless a newer one is kept."""
        kept = self.load(snapshot.topic, snapshot.partition)
        if kept is None or kept.next_offset <= snapshot.next_offset:
            self._kept[snapshot.topic, snapshot.partition] = pack(snapshot)

    def load(self, topic: str, partition: int) -> Snapshot | None:
        """Return the snapshot, or None."""
        data = self._kept.get((topic, partition))
        return None if data is None else unpack(data)

    def refresh(self) -> None:
        """Do nothing: there is only this process."""

    def forget(self, topic: str, partition: int) -> None:
        """Drop the snapshot."""
        self._kept.pop((topic, partition), None)


class FileSnapshots:
    """Snapshot files ``<folder>/<topic>-<partition>-<next_offset>.snapshot``.

    Parameters
    ----------
    folder
        Made if missing, with its parents, mode 0700; files have mode 0600.
    keep
        Files kept per partition.
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self._folder = folder
        self._keep = keep
        # One by one: mkdir gives parents that it makes on the way the mode of everybody.
        for part in (*reversed(folder.parents), folder):
            part.mkdir(mode=0o700, exist_ok=True)

    def save(self, snapshot: Snapshot) -> None:
        """Write, sync, rename, sync the folder, and drop the oldest files.

        Raises
        ------
        DataDirError
            If the disk is full or cannot be written; the older files stay.
        """
        files = self._files(snapshot.topic, snapshot.partition)
        if files and _offset_of(files[0]) > snapshot.next_offset:
            _log.warning("snapshot_is_older", kept=files[0].name, offered=snapshot.next_offset)
            return
        name = f"{snapshot.topic}-{snapshot.partition}-{snapshot.next_offset:020d}.snapshot"
        target = self._folder / name
        try:
            self._write(target, pack(snapshot))
        except OSError as exc:
            # Half a file would only keep the disk full.
            target.with_suffix(_BESIDE).unlink(missing_ok=True)
            raise DataDirError(
                f"The detector cannot save its state in {self._folder}: {exc.strerror}. "
                "Free space or give it another data_dir."
            ) from exc
        for old in self._files(snapshot.topic, snapshot.partition)[self._keep :]:
            old.unlink(missing_ok=True)

    def _write(self, target: Path, data: bytes) -> None:
        beside = target.with_suffix(_BESIDE)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        beside.replace(target)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def load(self, topic: str, partition: int) -> Snapshot | None:
        """Return the newest snapshot that is whole; say which were not."""
        for path in self._files(topic, partition):
            try:
                return unpack(path.read_bytes())
            except (SnapshotError, OSError) as exc:
                _log.warning("snapshot_unreadable", file=path.name, reason=str(exc))
        return None

    def refresh(self) -> None:
        """Do nothing: files are looked at when they are loaded."""

    def forget(self, topic: str, partition: int) -> None:
        """Delete the files of a partition."""
        for path in self._files(topic, partition):
            path.unlink(missing_ok=True)

    def _files(self, topic: str, partition: int) -> list[Path]:
        """Files of one partition, the newest first."""
        found = self._folder.glob(f"{topic}-{partition}-*.snapshot")
        return sorted(found, key=_offset_of, reverse=True)


def _offset_of(path: Path) -> int:
    return int(path.stem.rsplit("-", 1)[1])
