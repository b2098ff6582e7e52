"""Replay: recordings through the detector, in this process, as fast as it goes.

The same readers and the same engine as in the services; only the bus and the wall clock are
left out, so a replay of the same files gives the same alerts with the same ids.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from collector.replay.samples import samples_of
from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from foreshock.replay_summary import Outcome, show
from schemas.alert import AlertEvent
from schemas.codec import encode
from schemas.errors import SourceError
from schemas.sample import NodeSample

if TYPE_CHECKING:
    from detector.settings import DetectorSettings

__all__ = ["EXIT_OK", "EXIT_UNUSABLE", "Feed", "people", "replay_settings", "run_replay"]

EXIT_OK = 0
EXIT_UNUSABLE = 2
_STDOUT = Path("-")
# Fed together, which is faster and gives the same alerts; little to hold in memory.
_BATCH = 128
_PLAIN_WIDTH = 160


class Feed(Protocol):
    """What a replay needs of the detector."""

    def feed(self, samples: Sequence[NodeSample]) -> list[AlertEvent]:
        """Take some messages in order; return what there is to say because of them."""
        ...

    def finish(self) -> list[AlertEvent]:
        """Say what is left at the end of the input; open alerts stay open."""
        ...


def run_replay(
    files: Sequence[Path],
    *,
    alerts_out: Path | None = None,
    format: str = "auto",  # noqa: A002 - the name of the option
    map_path: Path | None = None,
    timezone: str | None = None,
    node: str | None = None,
    settings: DetectorSettings | None = None,
    console: Console | None = None,
    pipeline: Feed | None = None,
) -> int:
    """Run recordings through the detector and report.

    Parameters
    ----------
    files
        Recordings, one after the other.
    alerts_out
        File for the alerts as JSON lines, ``-`` for standard output; None writes none.
    format, map_path, timezone, node
        See :class:`~collector.replay.settings.ReplaySettings`. A time zone of None means that
        of the column map, else UTC.
    settings
        Parameters of the detector; None: the defaults.
    console
        Where people read progress and summary; default: standard error.
    pipeline
        The detector, for tests.

    Returns
    -------
    int
        Exit code: 0, or 2 if a recording cannot be used or cannot be read to its end, or if
        every value in it was refused.
    """
    console = console or people()
    try:
        source = ReplaySource(replay_settings(files, format, map_path, timezone, node))
        _require_rows(source)
        with contextlib.closing(source), _sink(alerts_out, files) as sink:
            outcome = _drive(source, pipeline or _pipeline(settings), sink, console)
    except SourceError as exc:
        console.print(str(exc), style="red", markup=False, highlight=False)
        return EXIT_UNUSABLE
    show(outcome, console)
    unusable = outcome.stopped_by is not None or outcome.nothing_usable
    return EXIT_UNUSABLE if unusable else EXIT_OK


def people() -> Console:
    """Make the console for people; a log file is wider than a forgotten terminal's 80."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else _PLAIN_WIDTH)


def replay_settings(
    files: Sequence[Path],
    wanted: str,
    map_path: Path | None,
    timezone: str | None,
    node: str | None,
) -> ReplaySettings:
    """Check how recordings are to be read. Raises SourceError with a sentence."""
    chosen = {"files": tuple(files), "format": wanted, "map": map_path, "node": node}
    if timezone is not None:
        chosen["timezone"] = timezone
    try:
        return ReplaySettings.model_validate(chosen)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise SourceError(f"The replay cannot start: {where}: {said}.") from exc


def _pipeline(settings: DetectorSettings | None) -> Feed:
    from detector.pipeline import Pipeline  # noqa: PLC0415 - numpy only when a replay runs

    return Pipeline(settings)


def _drive(
    source: ReplaySource, pipeline: Feed, sink: BinaryIO | None, console: Console
) -> Outcome:
    outcome = Outcome(stats=source.stats, interval_seconds=source.interval_seconds)
    console.print(
        "Replaying with the time of the recording. Rules that need the wall clock "
        "(silence, clock skew) are off.",
        highlight=False,
    )
    for remark in source.stats.remarks:
        console.print(f"WARNING: {remark}", style="yellow", markup=False, highlight=False)
    begin = time.perf_counter()
    try:
        with _progress(console) as progress:
            task = progress.add_task("replay", total=source.stats.total_bytes)
            samples = samples_of(source)
            while batch := list(islice(samples, _BATCH)):
                outcome.count(batch)
                _take(outcome, pipeline.feed(batch), sink)
                progress.update(task, completed=source.stats.bytes_read)
            _take(outcome, pipeline.finish(), sink)
            progress.update(task, completed=source.stats.total_bytes)
    except SourceError as exc:
        outcome.stopped_by = str(exc)
    outcome.elapsed_seconds = time.perf_counter() - begin
    return outcome


def _take(outcome: Outcome, events: Sequence[AlertEvent], sink: BinaryIO | None) -> None:
    for event in events:
        outcome.note(event)
        if sink is not None:
            sink.write(encode(event) + b"\n")


@contextlib.contextmanager
def _sink(path: Path | None, files: Sequence[Path]) -> Iterator[BinaryIO | None]:
    """Open the file for the alerts; never one of the recordings."""
    if path is None:
        yield None
        return
    if path == _STDOUT:
        with _stdout() as sink:
            yield sink
        return
    if path.exists() and any(path.samefile(file) for file in files):
        raise SourceError(f"{path} is one of the recordings; write the alerts to another file.")
    try:
        with path.open("wb") as file:
            yield file
    except OSError as exc:
        raise SourceError(f"Cannot write the alerts to {path}: {exc.strerror or exc}.") from exc


@contextlib.contextmanager
def _stdout() -> Iterator[BinaryIO]:
    """Write to standard output, whose reader may go away at any time."""
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError as exc:
        # What is still buffered must not fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SourceError("Standard output was closed before all alerts were written.") from exc


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _require_rows(source: ReplaySource) -> None:
    if not source.exhausted:
        return
    stats = source.stats
    if stats.complaints:
        raise SourceError(
            f"There is no usable row in the recording. Damaged lines: {stats.damaged}, "
            f"the first one is {stats.complaints[0]}."
        )
    raise SourceError("There is no row in the recording, only the names of the columns.")
