"""Recorded telemetry as a source: the collector reads it like a driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from statistics import median
from types import MappingProxyType

from collector.replay.columnmap import ColumnMap, load_map
from collector.replay.dmon import Dmon
from collector.replay.formats import FileKind, decide
from collector.replay.identity import Devices
from collector.replay.lines import open_error, read_lines
from collector.replay.messages import MessageLines
from collector.replay.profile import Profile
from collector.replay.rounds import Booted, Order, Rounds
from collector.replay.scrape import PromText
from collector.replay.settings import ReplaySettings
from collector.replay.smi_documents import SmiText, SmiXml
from collector.replay.smi_screen import NvlinkList, SmiTable
from collector.replay.stats import ReplayStats
from collector.replay.tables import Context, MappedCsv, Reader, SmiCsv, WideJson
from collector.source import Reading
from schemas.errors import SourceError

__all__ = ["ReplaySource"]

# Enough for a steady median, little to hold in memory.
_HEAD_READINGS = 32
#: Kinds of file that need no column map, in words.
_OWN_WORDS: Mapping[FileKind, str] = MappingProxyType(
    {
        FileKind.SMI: "the CSV of nvidia-smi",
        FileKind.MESSAGES: "foreshock's own messages",
        FileKind.SMI_XML: "the XML of nvidia-smi",
        FileKind.SMI_TEXT: "the status of nvidia-smi",
        FileKind.SMI_TABLE: "the table of nvidia-smi",
        FileKind.NVLINK: "nvidia-smi's list of links",
        FileKind.DMON: "the output of a monitor mode",
        FileKind.PROM: "the text of an exporter",
        FileKind.PROFILE: "a profile of devices",
    }
)


class ReplaySource:
    """Files of recorded telemetry, one after the other, in constant memory.

    Parameters
    ----------
    settings
        Files, format, column map, time zone, name of the node.

    Raises
    ------
    SourceError
        If there is no file, or one cannot be read or understood. All files are looked at first.

    Attributes
    ----------
    boot_id
        Boot of the readings last returned by :meth:`read`. Derived from the recording, so that
        every replay gives the same messages; changes only where a later file goes back in time.
    interval_seconds
        Usual time between two readings of a node, from the first ones; None where there is
        only one.
    stats
        What was counted so far; a few readings ahead of what was returned.
    """

    kind = "replay"

    def __init__(self, settings: ReplaySettings) -> None:
        if not settings.files:
            raise SourceError("There is nothing to replay: name at least one file.")
        self._settings = settings
        self._map = load_map(settings.map) if settings.map is not None else None
        kinds = [decide(path, settings.format, self._map) for path in settings.files]
        self.stats = ReplayStats(total_bytes=sum(map(_size, settings.files)))
        if settings.map is not None:
            self.stats.remarks += _unused(settings.map, settings.files, kinds)
        self._readings: Iterator[Booted] = self._read_all(kinds)
        head = list(islice(self._readings, _HEAD_READINGS))
        self.interval_seconds = _interval(head)
        self._readings = chain(head, self._readings)
        self._next = next(self._readings, None)
        self.boot_id: str | None = None if self._next is None else self._next.boot_id

    def read(self, ts_ms: int) -> list[Reading]:
        """Return the next readings: all nodes of one time. ``ts_ms`` is not looked at.

        Raises
        ------
        SourceError
            If a file cannot be read any further.
        """
        del ts_ms  # a recording has its own time
        first = self._next
        if first is None:
            return []
        batch = [first.reading]
        nodes = {first.reading.node}
        self._next = next(self._readings, None)
        while (
            self._next is not None
            and self._next.boot_id == first.boot_id
            and self._next.reading.ts == first.reading.ts
            and self._next.reading.node not in nodes
        ):
            batch.append(self._next.reading)
            nodes.add(self._next.reading.node)
            self._next = next(self._readings, None)
        self.boot_id = first.boot_id
        return batch

    @property
    def exhausted(self) -> bool:
        """Whether the last file has ended."""
        return self._next is None

    def close(self) -> None:
        """Let go of the files; nothing can be read afterwards."""
        self._readings = iter(())
        self._next = None

    def _read_all(self, kinds: list[FileKind]) -> Iterator[Booted]:
        order = Order(stats=self.stats)
        rounds = Rounds(order=order, stats=self.stats)
        devices = Devices(table={} if self._map is None else self._map.gpus)
        for path, kind in zip(self._settings.files, kinds, strict=True):
            context = Context(
                path=path,
                node=self._node(),
                zone=self._zone(kind),
                devices=devices,
                rounds=rounds,
                stats=self.stats,
            )
            order.begin_file()
            reader = _reader(kind, context, order, self._map)
            yield from chain(reader.readings(read_lines(path, self.stats)), rounds.finish())

    def _node(self) -> str:
        """Return the name for rows that name no node: later files continue the first one's."""
        named = self._settings.node or (None if self._map is None else self._map.node)
        return named or self._settings.files[0].name.split(".")[0] or "replay"

    def _zone(self, kind: FileKind) -> str:
        """Return the zone of times without one: the flag, else the map's, else UTC."""
        flag_given = "timezone" in self._settings.model_fields_set
        by_map = self._map.timezone if self._map is not None else None
        if flag_given or by_map is None or kind not in {FileKind.MAPPED, FileKind.WIDE}:
            return self._settings.timezone
        return by_map


def _reader(kind: FileKind, context: Context, order: Order, column_map: ColumnMap | None) -> Reader:
    if kind is FileKind.MESSAGES:
        return MessageLines(context=context, order=order)
    plain = _PLAIN.get(kind)
    if plain is not None or column_map is None:
        return (plain or SmiCsv)(context=context)
    if kind is FileKind.WIDE:
        return WideJson(context=context, map=column_map)
    return MappedCsv(context=context, map=column_map)


#: Readers that need nothing but the context.
_PLAIN: Mapping[FileKind, Callable[..., Reader]] = MappingProxyType(
    {
        FileKind.SMI: SmiCsv,
        FileKind.SMI_XML: SmiXml,
        FileKind.SMI_TEXT: SmiText,
        FileKind.SMI_TABLE: SmiTable,
        FileKind.NVLINK: NvlinkList,
        FileKind.DMON: Dmon,
        FileKind.PROM: PromText,
        FileKind.PROFILE: Profile,
    }
)


def _unused(column_map: Path, files: Sequence[Path], kinds: Sequence[FileKind]) -> Iterator[str]:
    """Say for which files the column map is of no use."""
    for path, kind in zip(files, kinds, strict=True):
        what = _OWN_WORDS.get(kind)
        if what is not None:
            yield (
                f"The column map {column_map} is not used for {path}: it fits no column of it, "
                f"and the file is {what}, which needs none."
            )


def _interval(head: Sequence[Booted]) -> float | None:
    last: dict[str, int] = {}
    steps = []
    for reading in (booted.reading for booted in head):
        before = last.get(reading.node)
        if before is not None and reading.ts > before:
            steps.append(reading.ts - before)
        last[reading.node] = reading.ts
    return median(steps) / 1000 if steps else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as exc:
        raise open_error(path, exc) from exc
