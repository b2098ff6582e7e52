"""From rows to readings: one reading for each node and time.

Rows of one tick are joined, repeated rows and rows from the past are dropped and counted, and
what a GPU is (as opposed to what it does) is remembered between the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from collector.replay.cells import Cell
from collector.replay.identity import new_boot_id
from collector.replay.newcomers import Newcomers
from collector.replay.stats import ReplayStats
from collector.replay.table import Row
from collector.source import Reading
from schemas.sample import EventKind, GpuInventory, Inventory, JobRef, SampleEvent, ValueStatus

__all__ = ["Booted", "Order", "Rounds"]

# How long, in event time, a tick of one node waits for more rows while others go on.
_STALE_MS = 10_000
_PACE_GROWTH = 1.25
# A row that is not there is a gap of the recording, until its GPU has been away for so long and
# for so many ticks; where lines are damaged one of which may be its row, for longer.
_GAP_MS = 30_000
_GAP_TICKS = 10
_DOUBT_MS = 600_000
# So far, and by not quite half the usual time between two rows of its GPU, a row may lie before its
# tick: tools stamp rows one by one and write them as they please.
_BACK_MS = 900
_BACK_STEPS = 0.45
_BACK_UNKNOWN_MS = 300  # as long as a GPU's usual time is not known


@dataclass(frozen=True, slots=True)
class Booted:
    """A reading and the boot of the replay that it belongs to."""

    boot_id: str
    reading: Reading


@dataclass(slots=True, kw_only=True)
class Order:
    """Keep time going forward on every node of a replay.

    Time may go back only at the beginning of a file: then a new boot begins, so that
    counters and sequence numbers begin anew.
    """

    stats: ReplayStats
    boot_id: str = ""
    _generation: int = -1
    _last: dict[str, int] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def begin_file(self) -> None:
        """Say that the next rows come from another file."""
        self._seen.clear()

    def starts_boot(self, node: str, ts: int) -> bool:
        """Tell whether this is a node's first row of a file and lies before its last time."""
        if node in self._seen:
            return False
        self._seen.add(node)
        return self._generation < 0 or ts < self._last.get(node, ts)

    def begin_boot(self, node: str, ts: int) -> None:
        """Begin a new boot: all times are forgotten."""
        self._generation += 1
        self.boot_id = new_boot_id(node, ts, self._generation)
        self._last.clear()

    def admits(self, node: str, ts: int, rows: int = 1) -> bool:
        """Tell whether a node may have a reading at this time; count it if not."""
        last = self._last.get(node)
        if last is None or ts > last:
            return True
        if ts == last:
            self.stats.duplicates += rows
        else:
            self.stats.backwards += rows
        return False

    def last(self, node: str) -> int | None:
        """Return the time of a node's last reading in this boot."""
        return self._last.get(node)

    def advance(self, node: str, ts: int) -> None:
        """Record that a node has a reading at this time."""
        self._last[node] = max(ts, self._last.get(node, ts))


@dataclass(slots=True)
class _Open:
    """The tick of one node that is being collected."""

    ts: int
    boot_id: str
    #: Damaged lines that were counted when the row before this tick came.
    damaged: int = 0
    rows: dict[str, Row] = field(default_factory=dict)
    indices: set[int] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Join rows into readings.

    Parameters
    ----------
    order
        Keeper of time, shared by all files of a replay.
    stats
        Counters.
    tolerance_ms
        Rows of different GPUs at most so far apart are one tick: nvidia-smi stamps every row
        on its own. Never more than half the time between two rows of one GPU. 0 joins only
        equal times.
    """

    order: Order
    stats: ReplayStats
    tolerance_ms: int = 0
    _open: dict[str, _Open] = field(default_factory=dict)
    _device_ts: dict[str, int] = field(default_factory=dict)
    _step_ms: dict[str, float] = field(default_factory=dict)
    _own_ms: dict[str, float] = field(default_factory=dict)
    _facts: dict[str, GpuInventory] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)
    _events: dict[str, list[SampleEvent]] = field(default_factory=dict)
    _inventories: dict[str, Inventory] = field(default_factory=dict)
    _listed: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    _damaged: int = 0
    _excused: int = 0
    _newcomers: Newcomers = field(init=False)

    def __post_init__(self) -> None:
        """Share the counters."""
        self._newcomers = Newcomers(stats=self.stats)

    def add(self, row: Row) -> Iterator[Booted]:
        """Take one row; yield the readings that it completes."""
        self.stats.rows += 1
        if self.order.starts_boot(row.node, row.ts):
            yield from self.finish()
            self.order.begin_boot(row.node, row.ts)
            self._device_ts.clear()
        gpu = row.facts.gpu
        last = self._device_ts.get(gpu)
        if last is not None and row.ts <= last:
            if row.ts == last:
                self.stats.duplicates += 1
            else:
                self.stats.backwards += 1
            return
        if not self._newcomers.admits(row.node, gpu, row.ts, self._own_ms):
            return
        current = self._open.get(row.node)
        if current is not None and not self._joins(current, row):
            yield self._close(row.node)
            current = None
        yield from self._close_stale(row)
        if current is None:
            if not self.order.admits(row.node, row.ts):
                return
            self._pace(row)
            self.order.advance(row.node, row.ts)
            current = self._open[row.node] = _Open(row.ts, self.order.boot_id, self._damaged)
        current.rows[gpu] = row
        if row.facts.index is not None:
            current.indices.add(row.facts.index)
        if last is not None:
            usual = self._own_ms.get(gpu, row.ts - last)
            self._own_ms[gpu] = min(row.ts - last, usual * _PACE_GROWTH)
        self._device_ts[gpu] = row.ts
        self._damaged = self._damage()

    def _damage(self) -> int:
        """Count the damaged lines so far that may have been the row of a GPU."""
        return self.stats.damaged - self._excused

    def note_lost(self, node: str, gpu: str | None, pci: str, message: str) -> None:
        """Take the driver's complaint about a GPU that has no row any more.

        The caller counts the line as damaged.
        """
        self._excused += 1
        current = self._open.get(node)
        if current is None or (gpu or pci) in self._lost:
            return
        self._events.setdefault(node, []).append(
            SampleEvent(ts=current.ts, kind=EventKind.GPU_LOST, gpu=gpu, pci=pci, message=message)
        )

    def finish(self) -> Iterator[Booted]:
        """Yield what is still open, oldest first."""
        for node in sorted(self._open, key=lambda name: self._open[name].ts):
            yield self._close(node)

    def _joins(self, current: _Open, row: Row) -> bool:
        if row.facts.gpu in current.rows:
            return False
        if row.ts == current.ts:
            return True
        same_place = row.facts.index is not None and row.facts.index in current.indices
        if row.ts < current.ts:
            own = self._own_ms.get(row.facts.gpu)
            room = _BACK_UNKNOWN_MS if own is None else min(_BACK_MS, _BACK_STEPS * own)
            return not same_place and current.ts - row.ts <= room
        # Half a step at most: after damage a late sweep must not complete the one before it.
        step = self._step_ms.get(row.node, 2.0 * self.tolerance_ms)
        return not same_place and abs(row.ts - current.ts) <= min(self.tolerance_ms, step / 2)

    def _pace(self, row: Row) -> None:
        """Follow the time between ticks: down at once, up slowly, for a gap is no new pace."""
        before = self.order.last(row.node)
        if before is not None:
            step = row.ts - before
            known = self._step_ms.get(row.node, step)
            self._step_ms[row.node] = min(step, known * _PACE_GROWTH)

    def _close_stale(self, row: Row) -> Iterator[Booted]:
        if len(self._open) > 1:
            edge = row.ts - _STALE_MS
            for node in [n for n, o in self._open.items() if o.ts < edge and n != row.node]:
                yield self._close(node)

    def _close(self, node: str) -> Booted:
        done = self._open.pop(node)
        read = tuple(done.rows.values())
        rows = (*read, *self._unread(node, done))
        self._listed[node] = rows
        self._newcomers.tick(node)
        self.stats.readings += 1
        values, status = _columns(rows)
        reading = Reading(
            node=node,
            ts=done.ts,
            gpus=tuple(row.facts.gpu for row in rows),
            values=values,
            status=status,
            events=self._events_of(node, done.ts, read),
            inventory=self._inventory_of(node, rows),
            jobs=_jobs(rows),
            parents={
                row.facts.gpu: row.facts.parent for row in rows if row.facts.parent is not None
            },
        )
        return Booted(done.boot_id, reading)

    def _unread(self, node: str, done: _Open) -> tuple[Row, ...]:
        """Return rows without readings for GPUs of which this tick says nothing.

        A line that is not there, or cannot be read, says neither a number nor that a GPU is gone;
        only the driver's own complaint does, or a long absence.
        """
        damaged = self._damage() > done.damaged
        edge = done.ts - (_DOUBT_MS if damaged else self._gap_ms(node))
        nothing = {name: _UNREAD for row in done.rows.values() for name in row.cells}
        return tuple(
            replace(row, cells=nothing)
            for row in self._listed.get(node, ())
            if row.facts.gpu not in done.rows
            and row.facts.gpu not in self._lost
            and (row.facts.index is None or row.facts.index not in done.indices)  # replaced
            and (
                self._device_ts.get(row.facts.gpu, edge) > edge
                or self._newcomers.is_doubtful(row.facts.gpu)
            )
        )

    def _gap_ms(self, node: str) -> float:
        """Return how long a GPU may have no row without being gone."""
        return max(_GAP_MS, _GAP_TICKS * self._step_ms.get(node, 0.0))

    def _events_of(self, node: str, ts: int, rows: tuple[Row, ...]) -> tuple[SampleEvent, ...]:
        events: list[SampleEvent] = []
        for row in rows:
            gpu = row.facts.gpu
            if row.lost == (gpu in self._lost):
                continue
            kind = EventKind.GPU_LOST if row.lost else EventKind.GPU_RETURNED
            message = "GPU is lost" if row.lost else None
            events.append(
                SampleEvent(ts=ts, kind=kind, gpu=gpu, pci=row.facts.pci, message=message)
            )
            (self._lost.add if row.lost else self._lost.discard)(gpu)
        # The driver's complaint came after this tick's own row of the GPU, if it had one.
        noted = self._events.pop(node, [])
        self._lost.update(event.gpu or event.pci or "" for event in noted)
        return (*events, *noted)

    def _inventory_of(self, node: str, rows: tuple[Row, ...]) -> Inventory:
        """Return what the GPUs are; the same object as long as nothing changes."""
        for row in rows:
            if not (row.lost and row.facts.gpu in self._facts):
                self._facts[row.facts.gpu] = row.facts
        gpus = tuple(self._facts[row.facts.gpu] for row in rows)
        driver = next((row.driver for row in rows if row.driver), None)
        known = self._inventories.get(node)
        if known is not None and known.gpus == gpus and known.driver_version in {driver, None}:
            return known
        fresh = Inventory(gpus=gpus, driver_version=driver)
        self._inventories[node] = fresh
        return fresh


_ABSENT = Cell(None, ValueStatus.UNSUPPORTED)
_UNREAD = Cell(None, ValueStatus.STALE)


def _columns(
    rows: tuple[Row, ...],
) -> tuple[dict[str, list[float | None]], dict[str, dict[int, str]]]:
    """Turn rows into columns; a metric that no GPU of the tick offers is left out."""
    values: dict[str, list[float | None]] = {}
    status: dict[str, dict[int, str]] = {}
    for metric in dict.fromkeys(name for row in rows for name in row.cells):
        column = [row.cells.get(metric, _ABSENT) for row in rows]
        codes = {i: str(cell.status) for i, cell in enumerate(column) if cell.status is not None}
        if len(codes) == len(column) and set(codes.values()) == {ValueStatus.UNSUPPORTED.value}:
            continue
        values[metric] = [cell.value for cell in column]
        if codes:
            status[metric] = codes
    return values, status


def _jobs(rows: tuple[Row, ...]) -> tuple[JobRef, ...] | None:
    """Group the GPUs by job; None where the recording knows nothing of jobs."""
    members: dict[str, list[str]] = {}
    for row in rows:
        if row.job is not None:
            members.setdefault(row.job, []).append(row.facts.gpu)
    if not members:
        return None
    return tuple(JobRef(gpus=tuple(gpus), job=job) for job, gpus in members.items())
