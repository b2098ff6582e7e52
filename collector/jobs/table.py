"""Jobs from a file that a scheduler, or a person, writes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from schemas.sample import JobRef

__all__ = ["JobTable"]

log = structlog.get_logger()

_MAX_BYTES = 2**20


class _Entry(BaseModel):
    """One object of the file."""

    model_config = ConfigDict(extra="ignore")

    gpus: Literal["all"] | list[str]
    job: str = Field(min_length=1, max_length=253)
    project: str | None = None
    container: str | None = None
    rank: int | None = None


_ENTRIES = TypeAdapter(list[_Entry])


class JobTable:
    """The file, read again when it changes. What it last said holds while it cannot be read.

    Parameters
    ----------
    path
        A JSON list of objects.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._entries: list[_Entry] = []

    def jobs(self, gpus: tuple[str, ...]) -> tuple[JobRef, ...]:
        """Return the entries that concern these GPUs."""
        self._refresh()
        found = []
        for entry in self._entries:
            listed = gpus if entry.gpus == "all" else tuple(g for g in gpus if g in entry.gpus)
            if listed:
                found.append(
                    JobRef(
                        gpus=listed,
                        job=entry.job,
                        project=entry.project,
                        container=entry.container,
                        rank=entry.rank,
                    )
                )
        return tuple(found)

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_size)
            if seen == self._seen:
                return
            self._seen = seen
            if stat.st_size > _MAX_BYTES:
                log.warning("job_file_too_large", path=str(self._path), bytes=stat.st_size)
                return
            self._entries = _ENTRIES.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            if self._entries or self._seen is None:
                log.warning("job_file_missing", path=str(self._path))
            self._entries, self._seen = [], (0, 0)
        except (OSError, ValueError, ValidationError) as exc:
            log.warning("job_file_unusable", path=str(self._path), reason=str(exc)[:200])
