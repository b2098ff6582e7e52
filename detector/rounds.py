"""From admitted messages to frames: each GPU once per frame, each node's ticks in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np

from detector.admission import Admitted
from detector.arrays import BoolArray, FloatArray, IntArray, StateTable
from detector.fleet import FACTS, Fleet, Layout, sees_gpus
from detector.frame import Frame
from schemas.metrics import CATALOGUE, METRIC_INDEX
from schemas.sample import CollectorState, NodeSample, SampleEvent, ValueStatus

__all__ = ["Block", "Round", "block_of", "rounds"]

_LOST = "error:15"  # nvmlReturn_t NVML_ERROR_GPU_IS_LOST
_METRICS = len(METRIC_INDEX)
_LOW = np.array([metric.low for metric in CATALOGUE])
_HIGH = np.array([metric.high for metric in CATALOGUE])
_INTERVAL_WEIGHT = 0.1
_STATES = {str(state): float(number) for number, state in enumerate(CollectorState)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One admitted message as arrays, with what was known of its GPUs when it came.

    ``values`` is (metrics in the message, ticks, GPUs listed), NaN where missing; ``events``
    carry the place of their GPU among the layout's rows, or -1. They belong to the first tick.
    ``refused`` says how many readings the collector found impossible and the catalogue index of
    the last of them, (ticks, GPUs) each.
    """

    node_row: int
    layout: Layout
    ts: tuple[int, ...]
    columns: IntArray
    values: FloatArray
    lost: BoolArray | None
    refused: tuple[FloatArray, FloatArray] | None
    absent: bool
    gone_counts: bool
    first_tick: int
    expected: float
    known: float
    listed: float
    stepped_back: bool
    arrived: float
    every: float
    state: float
    nvml_error: float
    uptime: float
    events: tuple[tuple[int, SampleEvent], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One frame of GPUs and the frame of their nodes."""

    gpus: Frame
    nodes: Frame


def rounds(fleet: Fleet, blocks: Sequence[Block]) -> Iterator[Round]:
    """Cut messages into rounds.

    The k-th tick of a node among these messages stands in the k-th round. Nothing crosses
    nodes, so another cut of the same stream gives every node the same ticks in the same order.
    """
    queue: dict[int, list[tuple[Block, int]]] = defaultdict(list)
    ticks_of: dict[int, int] = defaultdict(int)
    for block in blocks:
        for tick in range(block.first_tick, len(block.ts)):
            queue[ticks_of[block.node_row]].append((block, tick))
            ticks_of[block.node_row] += 1
    for number in range(len(queue)):
        yield _round(fleet, queue[number])


def block_of(fleet: Fleet, item: Admitted, arrived_ms: int | None = None) -> Block:
    """Turn an admitted message into arrays. To be called in log order: it takes in new GPUs.

    Parameters
    ----------
    arrived_ms
        When the log took the message, unix milliseconds; None where that means nothing.
    """
    sample = item.sample
    layout = fleet.layout(item.node_row, sample)
    node = fleet.nodes[item.node_row]
    ticks, gpus = len(sample.ts), len(sample.gpu)
    columns = _columns_of(tuple(sample.m))
    flat = list(chain.from_iterable(sample.m.values()))
    sees = sees_gpus(sample)
    listed = gpus - sum(uuid in sample.parents for uuid in sample.gpu) if sample.parents else gpus
    return Block(
        node_row=item.node_row,
        layout=layout,
        ts=sample.ts,
        columns=columns,
        # None becomes NaN here, and nowhere else.
        values=np.array(flat, dtype=np.float64).reshape(len(columns), ticks, gpus),
        lost=_lost(sample) if sample.status else None,
        refused=_refused(sample) if sample.status else None,
        absent=sees and (node.expected is None or listed < node.expected),
        gone_counts=sees,
        first_tick=item.first_tick,
        expected=float("nan") if node.expected is None or not sees else float(node.expected),
        known=float(fleet.known(item.node_row)),
        listed=float(listed),
        stepped_back=item.stepped_back,
        arrived=_number(arrived_ms),
        every=max(sample.collector.interval_seconds, sample.collector.flush_seconds),
        state=_STATES.get(sample.collector.state, float("nan")),
        nvml_error=_number(sample.collector.nvml_error),
        uptime=float(fleet.node_table["uptime_seconds"][item.node_row]),
        events=_placed(fleet, item, layout) if sample.events else (),
    )


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _placed(fleet: Fleet, item: Admitted, layout: Layout) -> tuple[tuple[int, SampleEvent], ...]:
    """Find the GPU of each event among the rows of its message; -1 for one that is not there."""
    place = {row: number for number, row in enumerate(layout.rows.tolist())}
    found = []
    for event in item.sample.events:
        row = fleet.find(event.gpu, item.node_row, event.pci)
        found.append((-1 if row is None else place.get(row, -1), event))
    return tuple(found)


@lru_cache(maxsize=4096)
def _columns_of(names: tuple[str, ...]) -> IntArray:
    """Catalogue indices of the metrics of a message; a node sends the same ones every time."""
    return np.array([METRIC_INDEX[name] for name in names], dtype=np.int64)


def _lost(sample: NodeSample) -> BoolArray | None:
    """(ticks, GPUs): some reading of the GPU failed because the GPU is lost."""
    cells = {
        int(cell)
        for codes in sample.status.values()
        for cell, code in codes.items()
        if code == _LOST and cell.isdecimal()
    }
    size = len(sample.ts) * len(sample.gpu)
    inside = [cell for cell in cells if cell < size]
    if not inside:
        return None
    lost = np.zeros(size, dtype=bool)
    lost[inside] = True
    return lost.reshape(len(sample.ts), len(sample.gpu))


def _refused(sample: NodeSample) -> tuple[FloatArray, FloatArray] | None:
    """(ticks, GPUs) each: impossible readings, and the catalogue index of the last of them."""
    size = len(sample.ts) * len(sample.gpu)
    found = [
        (int(cell), METRIC_INDEX[name])
        for name, codes in sample.status.items()
        for cell, code in codes.items()
        if code == ValueStatus.IMPLAUSIBLE and name in METRIC_INDEX and cell.isdecimal()
    ]
    inside = [(cell, metric) for cell, metric in found if cell < size]
    if not inside:
        return None
    count, which = np.zeros(size), np.full(size, np.nan)
    for cell, metric in inside:
        count[cell] += 1.0
        which[cell] = metric
    shape = (len(sample.ts), len(sample.gpu))
    return count.reshape(shape), which.reshape(shape)


def _round(fleet: Fleet, parts: list[tuple[Block, int]]) -> Round:
    # Without a well collector nothing is said of GPUs that are not listed: they are left out.
    sizes = [
        len(block.layout.rows) if block.gone_counts else block.layout.present for block, _ in parts
    ]
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    x = np.full((_METRICS, total), np.nan)
    lost, absent, gone = (np.zeros(total, dtype=bool) for _ in range(3))
    refused, culprit = np.zeros(total), np.full(total, np.nan)
    rows = np.empty(total, dtype=np.int64)
    for (block, tick), size, end in zip(parts, sizes, ends.tolist(), strict=True):
        start, listed = end - size, end - size + block.layout.present
        rows[start:end] = block.layout.rows[:size]
        x[block.columns, start:listed] = block.values[:, tick, :]
        gone[listed:end] = True
        absent[listed : listed + block.layout.due if block.gone_counts else end] = block.absent
        if block.lost is not None:
            lost[start:listed] = block.lost[tick]
        if block.refused is not None:
            refused[start:listed] = block.refused[0][tick]
            culprit[start:listed] = block.refused[1][tick]
    offered = _offered(parts)
    _refuse_impossible(x, offered, refused, culprit)
    refused[gone] = np.nan
    node_ts = np.array([block.ts[tick] for block, tick in parts], dtype=np.int64)
    fresh = np.array([block.stepped_back and tick == 0 for block, tick in parts], dtype=bool)
    ts, stepped = np.repeat(node_ts, sizes), np.repeat(fresh, sizes)
    dt, interval = _time(fleet.gpu_table, rows, ts, stepped)
    events, unplaced = _events(parts, sizes, ends.tolist())
    layouts = [(block.layout, size) for (block, _), size in zip(parts, sizes, strict=True)]
    gpus = Frame(
        rows=rows,
        ts=ts,
        dt=dt,
        interval=interval,
        x=x,
        offered=offered,
        blocks=_blocks(np.array(sizes), ends),
        lost=lost,
        absent=absent,
        gone=gone,
        mig_parent=np.concatenate([layout.mig_parent[:size] for layout, size in layouts]),
        mig_instance=np.concatenate([layout.mig_instance[:size] for layout, size in layouts]),
        model=np.concatenate([layout.model[:size] for layout, size in layouts]),
        job=np.concatenate([layout.job[:size] for layout, size in layouts]),
        events=events,
        extra=_facts(layouts)
        | {"uptime_seconds": np.repeat([block.uptime for block, _ in parts], sizes)}
        | {"implausible_readings": refused, "implausible_metric": culprit},
    )
    nodes = _node_frame(fleet, parts, node_ts, fresh)
    nodes.events, nodes.members = unplaced, gpus
    return Round(gpus=gpus, nodes=nodes)


def _facts(layouts: list[tuple[Layout, int]]) -> dict[str, FloatArray]:
    """Put the numbers of the inventories together for the GPUs of a round, by name."""
    columns = np.concatenate([layout.facts[:, :size] for layout, size in layouts], axis=1)
    return dict(zip(FACTS, columns, strict=True))


def _events(
    parts: list[tuple[Block, int]], sizes: list[int], ends: list[int]
) -> tuple[tuple[tuple[int, SampleEvent], ...], tuple[tuple[int, SampleEvent], ...]]:
    """Events of GPUs in this round by position, and the others by position of their node."""
    placed: list[tuple[int, SampleEvent]] = []
    unplaced: list[tuple[int, SampleEvent]] = []
    for number, ((block, tick), size, end) in enumerate(zip(parts, sizes, ends, strict=True)):
        if tick != block.first_tick:
            continue
        for place, event in block.events:
            if 0 <= place < size:
                placed.append((end - size + place, event))
            else:
                unplaced.append((number, event))
    return tuple(placed), tuple(unplaced)


def _node_frame(
    fleet: Fleet, parts: list[tuple[Block, int]], ts: IntArray, stepped: BoolArray
) -> Frame:
    """One row per node, with what is counted there instead of metrics."""
    size = len(parts)
    rows = np.array([block.node_row for block, _ in parts], dtype=np.int64)
    dt, interval = _time(fleet.node_table, rows, ts, stepped)
    unset = np.zeros(size, dtype=bool)
    unknown = np.full(size, -1, dtype=np.int64)
    return Frame(
        rows=rows,
        ts=ts,
        dt=dt,
        interval=interval,
        x=np.full((_METRICS, size), np.nan),
        offered=np.zeros(0, dtype=np.int64),
        blocks=np.arange(size).reshape(size, 1),
        lost=unset,
        absent=unset,
        gone=unset,
        mig_parent=unset,
        mig_instance=unset,
        model=unknown,
        job=unknown,
        extra={
            "expected_gpus": np.array([block.expected for block, _ in parts]),
            "known_gpus": np.array([block.known for block, _ in parts]),
            "listed_gpus": np.array([block.listed for block, _ in parts]),
            "collector_state": np.array([block.state for block, _ in parts]),
            "nvml_error": np.array([block.nvml_error for block, _ in parts]),
            "uptime_seconds": np.array([block.uptime for block, _ in parts]),
            "silent_seconds": np.zeros(size),
            "message_seconds": np.array([block.every for block, _ in parts]),
            "arrival_seconds": np.array([_distance(block, tick) for block, tick in parts]),
        },
    )


def _distance(block: Block, tick: int) -> float:
    """Seconds from the last event of a message to its arrival; NaN for its earlier ticks."""
    last = tick == len(block.ts) - 1
    return (block.arrived - block.ts[tick]) / 1000.0 if last else float("nan")


def _offered(parts: list[tuple[Block, int]]) -> IntArray:
    """Union of the blocks' columns, sorted. Equal lists are one cached array: few to merge."""
    distinct = {id(block.columns): block.columns for block, _ in parts}
    return np.unique(np.concatenate(list(distinct.values())))


def _refuse_impossible(
    x: FloatArray, offered: IntArray, count: FloatArray, culprit: FloatArray
) -> None:
    """Make impossible values gaps, in place: one would ruin the means of its GPU for minutes.

    ``count`` grows by those of each row, ``culprit`` becomes the index of one of them.
    Collectors do so too; but whatever sent the message, its peers must not suffer.
    """
    values = x[offered]
    impossible = (values < _LOW[offered, None]) | (values > _HIGH[offered, None])
    if impossible.any():
        values[impossible] = np.nan
        x[offered] = values
        count += impossible.sum(axis=0)
        hit = impossible.any(axis=0)
        culprit[hit] = offered[impossible.argmax(axis=0)[hit]]


def _time(
    table: StateTable, rows: IntArray, ts: IntArray, stepped: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Distance to the rows' previous frames and their usual distance; both kept in the table."""
    last = table["last_ts"][rows]
    dt = np.where((last > 0) & ~stepped & (ts > last), (ts - last) / 1000.0, np.nan)
    usual = table["interval"][rows].astype(np.float64)
    # A gap moves the usual interval a little; a lasting change of rate moves it all the way.
    near = np.clip(dt, usual / 3.0, usual * 3.0)
    moved = usual + _INTERVAL_WEIGHT * (near - usual)
    interval = np.where(np.isnan(usual), dt, np.where(np.isnan(dt), usual, moved))
    table["last_ts"][rows] = ts
    table["interval"][rows] = interval
    return dt, interval


def _blocks(sizes: IntArray, ends: IntArray) -> IntArray:
    """(nodes, most GPUs) positions in the frame, -1 as padding."""
    width = int(sizes.max(initial=0))
    offsets = np.arange(width)
    starts = ends - sizes
    return np.where(offsets < sizes[:, None], starts[:, None] + offsets, -1)
