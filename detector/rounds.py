"""From blocks to frames: each GPU once per frame, each node's ticks in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from detector.arrays import BoolArray, FloatArray, IntArray, StateTable
from detector.blocks import Block
from detector.composition import Composition, composition_of
from detector.fleet import Fleet
from detector.frame import Frame
from schemas.metrics import CATALOGUE, METRIC_INDEX
from schemas.sample import SampleEvent

__all__ = ["Round", "rounds"]

_METRICS = len(METRIC_INDEX)
_LOW = np.array([metric.low for metric in CATALOGUE])
_HIGH = np.array([metric.high for metric in CATALOGUE])
_INTERVAL_WEIGHT = 0.1

_Part = tuple[Block, int]  # a block and the tick of it that stands in a round


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One frame of GPUs and the frame of their nodes."""

    gpus: Frame
    nodes: Frame


def rounds(fleet: Fleet, blocks: Sequence[Block]) -> Iterator[Round]:
    """Cut messages into rounds.

    The k-th tick of a node among these messages stands in the k-th round. Nothing crosses
    nodes, so another cut of the same stream gives every node the same ticks in the same order.
    Within a round the nodes stand in the order of the table, so that a whole fleet is one piece
    of every array.
    """
    queue: dict[int, list[_Part]] = defaultdict(list)
    ticks_of: dict[int, int] = defaultdict(int)
    for block in blocks:
        for tick in range(block.first_tick, len(block.ts)):
            queue[ticks_of[block.node_row]].append((block, tick))
            ticks_of[block.node_row] += 1
    for number in range(len(queue)):
        yield _round(fleet, sorted(queue[number], key=_node_row))


def _node_row(part: _Part) -> int:
    return part[0].node_row


def _round(fleet: Fleet, parts: list[_Part]) -> Round:
    made = composition_of(fleet, [block for block, _ in parts])
    x = np.full((_METRICS, len(made.rows)), np.nan)
    refused, culprit = made.gone_as_nan.copy(), np.full(len(made.rows), np.nan)
    offered = _fill(x, parts, made.starts)
    lost = np.zeros(len(made.rows), dtype=bool)
    for (block, tick), start in zip(parts, made.starts.tolist(), strict=True):
        if block.lost is not None:
            lost[start : start + block.layout.present] = block.lost[tick]
        if block.refused is not None:
            refused[start : start + block.layout.present] = block.refused[0][tick]
            culprit[start : start + block.layout.present] = block.refused[1][tick]
    _refuse_impossible(x, offered, refused, culprit)
    node_ts = np.array([block.ts[tick] for block, tick in parts], dtype=np.int64)
    fresh = np.array([block.stepped_back and tick == 0 for block, tick in parts], dtype=bool)
    ts, stepped = np.repeat(node_ts, made.sizes), np.repeat(fresh, made.sizes)
    dt, interval = _time(fleet.gpu_table, made.rows, ts, stepped)
    events, unplaced = _events(parts, made)
    gpus = Frame(
        rows=made.rows,
        span=made.span,
        ts=ts,
        dt=dt,
        interval=interval,
        x=x,
        offered=offered,
        blocks=made.blocks,
        lost=lost,
        absent=made.absent,
        gone=made.gone,
        mig_parent=made.mig_parent,
        mig_instance=made.mig_instance,
        model=made.model,
        job=made.job,
        events=events,
        extra={**made.extra, "implausible_readings": refused, "implausible_metric": culprit},
    )
    nodes = _node_frame(fleet, parts, made, node_ts, fresh)
    nodes.events, nodes.members = unplaced, gpus
    return Round(gpus=gpus, nodes=nodes)


def _fill(x: FloatArray, parts: Sequence[_Part], starts: IntArray) -> IntArray:
    """Write the numbers of a round into ``x``; return the indices of the metrics offered, sorted.

    Messages of one shape are written at once: a fleet has few shapes, and one write costs
    microseconds whatever its size.
    """
    shapes: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for at, (block, _) in enumerate(parts):
        shapes[id(block.columns), len(block.ts), block.layout.present].append(at)
    for (_, ticks, present), members in shapes.items():
        columns = parts[members[0]][0].columns
        if not len(columns) or not present:
            continue
        joined = b"".join([parts[at][0].numbers for at in members])
        values = np.frombuffer(joined, dtype="<f8").reshape(-1, len(columns), ticks, present)
        if ticks == 1:
            chosen = values[:, :, 0]
        else:
            chosen = values[np.arange(len(members)), :, [parts[at][1] for at in members]]
        places = (starts[members][:, None] + np.arange(present)).ravel()
        by_metric = chosen.transpose(1, 0, 2).reshape(len(columns), -1)
        first, last = int(places[0]), int(places[-1]) + 1
        if last - first == len(places):
            x[columns, first:last] = by_metric
        else:
            x[columns[:, None], places] = by_metric
    distinct = {id(block.columns): block.columns for block, _ in parts}
    return np.unique(np.concatenate(list(distinct.values())))


def _events(
    parts: Sequence[_Part], made: Composition
) -> tuple[tuple[tuple[int, SampleEvent], ...], tuple[tuple[int, SampleEvent], ...]]:
    """Events of GPUs in this round by position, and the others by position of their node."""
    placed: list[tuple[int, SampleEvent]] = []
    unplaced: list[tuple[int, SampleEvent]] = []
    for number, (block, tick) in enumerate(parts):
        if not block.events or tick != block.first_tick:
            continue
        for place, event in block.events:
            if 0 <= place < int(made.sizes[number]):
                placed.append((int(made.starts[number]) + place, event))
            else:
                unplaced.append((number, event))
    return tuple(placed), tuple(unplaced)


def _node_frame(
    fleet: Fleet, parts: Sequence[_Part], made: Composition, ts: IntArray, stepped: BoolArray
) -> Frame:
    """One row per node, with what is counted there instead of metrics."""
    size = len(parts)
    rows = made.node_rows
    dt, interval = _time(fleet.node_table, rows, ts, stepped)
    unset = np.zeros(size, dtype=bool)
    unknown = np.full(size, -1, dtype=np.int64)
    return Frame(
        rows=rows,
        span=made.node_span,
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
            **made.node_extra,
            "silent_seconds": np.zeros(size),
            "arrival_seconds": np.array([_distance(block, tick) for block, tick in parts]),
        },
    )


def _distance(block: Block, tick: int) -> float:
    """Seconds from the last event of a message to its arrival; NaN for its earlier ticks."""
    last = tick == len(block.ts) - 1
    return (block.arrived - block.ts[tick]) / 1000.0 if last else float("nan")


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
