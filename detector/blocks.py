"""From admitted messages to blocks: what one message says, and what was known when it came.

This is the path of every message, so a block is made of what is cached per node wherever
possible, and its numbers stay the bytes that they came as.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from detector.admission import Admitted
from detector.arrays import BoolArray, FloatArray, IntArray
from detector.fleet import Fleet, Layout, sees_gpus
from schemas.columns import packed
from schemas.metrics import METRIC_INDEX
from schemas.sample import (
    CollectorState,
    CollectorStatus,
    NodeSample,
    SampleEvent,
    ValueStatus,
    status_cell,
)

__all__ = ["Block", "NodeFacts", "block_of", "late_block"]

_LOST = "error:15"  # nvmlReturn_t NVML_ERROR_GPU_IS_LOST
_STATES = {str(state): float(number) for number, state in enumerate(CollectorState)}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a message says of its node besides numbers; the same in nearly every message.

    Parameters
    ----------
    gone_counts
        Whether GPUs that the message does not list are to be judged at all.
    absent
        Whether GPUs are missing: fewer are listed than the node should have.
    expected, known, listed
        Numbers of GPUs: that it should have, ever listed, and listed now; NaN if unknown.
    every
        Seconds between messages.
    state, nvml_error
        Of the collector: index into CollectorState, NVML return code; NaN if unknown or none.
    uptime
        Seconds since boot, as last said; NaN if never.
    """

    gone_counts: bool
    absent: bool
    expected: float
    known: float
    listed: float
    every: float
    state: float
    nvml_error: float
    uptime: float


@dataclass(slots=True, kw_only=True)
class Block:
    """One admitted message. Not frozen only because freezing would double the cost of making it.

    ``numbers`` holds little-endian float64, (metrics in the message, ticks, GPUs listed), NaN
    where missing; ``columns`` the catalogue indices of those metrics. ``events`` carry the place
    of their GPU among the layout's rows, or -1; they belong to the first tick. ``lost`` is
    (ticks, GPUs). ``refused`` says how many readings the collector found impossible and the
    catalogue index of the last of them, (ticks, GPUs) each.
    """

    node_row: int
    layout: Layout
    facts: NodeFacts
    ts: tuple[int, ...]
    columns: IntArray
    numbers: bytes
    lost: BoolArray | None
    refused: tuple[FloatArray, FloatArray] | None
    first_tick: int
    stepped_back: bool
    arrived: float
    events: tuple[tuple[int, SampleEvent], ...]

    @property
    def size(self) -> int:
        """Rows of a frame that the block takes.

        Without a well collector nothing is said of GPUs that are not listed: they are left out.
        """
        return len(self.layout.rows) if self.facts.gone_counts else self.layout.present


def block_of(fleet: Fleet, item: Admitted, arrived_ms: int | None = None) -> Block:
    """Turn an admitted message into a block. To be called in log order: it takes in new GPUs.

    Parameters
    ----------
    arrived_ms
        When the log took the message, unix milliseconds; None where that means nothing.
    """
    sample = item.sample
    layout = fleet.layout(item.node_row, sample)
    names, numbers = packed(sample.m)
    return Block(
        node_row=item.node_row,
        layout=layout,
        facts=_facts(fleet, item.node_row, layout, sample),
        ts=sample.ts,
        columns=_columns_of(names),
        numbers=numbers,
        lost=_lost(sample) if sample.status else None,
        refused=_refused(sample) if sample.status else None,
        first_tick=item.first_tick,
        stepped_back=item.stepped_back,
        arrived=float("nan") if arrived_ms is None else float(arrived_ms),
        events=_placed(fleet, item, layout) if sample.events else (),
    )


_UNKNOWN = float("nan")
_NOTHING_SAID = NodeFacts(
    gone_counts=False,
    absent=False,
    expected=_UNKNOWN,
    known=_UNKNOWN,
    listed=_UNKNOWN,
    every=_UNKNOWN,
    state=_UNKNOWN,
    nvml_error=_UNKNOWN,
    uptime=_UNKNOWN,
)


def late_block(fleet: Fleet, item: Admitted) -> Block:
    """Turn the events of a late message into a block that says nothing else.

    It stands at the newest time of its node: no time has passed for anybody.
    """
    node = fleet.nodes[item.node_row]
    found = [fleet.find(event.gpu, item.node_row, event.pci) for event in item.sample.events]
    # A GPU that has moved to another node since is judged there.
    rows = {row: None for row in found if row is not None and fleet.gpus[row].node == node.name}
    layout = fleet.layout_of(list(rows))
    return Block(
        node_row=item.node_row,
        layout=layout,
        facts=_NOTHING_SAID,
        ts=(node.last_ts,),
        columns=_columns_of(()),
        numbers=b"",
        lost=None,
        refused=None,
        first_tick=0,
        stepped_back=False,
        arrived=_UNKNOWN,
        events=_placed(fleet, item, layout),
    )


def _facts(fleet: Fleet, node_row: int, layout: Layout, sample: NodeSample) -> NodeFacts:
    """Return the facts of a message; those of the message before it while nothing changed."""
    cached = fleet.said.get(node_row)
    if (
        cached is not None
        and cached[0] is layout
        and cached[1] == sample.collector
        and sample.inventory is None
        and not sample.parents
    ):
        facts: NodeFacts = cached[2]
        return facts
    facts = _new_facts(fleet, node_row, sample, sample.collector)
    fleet.said[node_row] = (layout, sample.collector, facts)
    return facts


def _new_facts(
    fleet: Fleet, node_row: int, sample: NodeSample, collector: CollectorStatus
) -> NodeFacts:
    expected, sees = fleet.nodes[node_row].expected, sees_gpus(sample)
    listed = len(sample.gpu) - sum(uuid in sample.parents for uuid in sample.gpu)
    return NodeFacts(
        gone_counts=sees,
        absent=sees and (expected is None or listed < expected),
        expected=float("nan") if expected is None or not sees else float(expected),
        known=float(fleet.known(node_row)),
        listed=float(listed),
        every=max(collector.interval_seconds, collector.flush_seconds),
        state=_STATES.get(collector.state, float("nan")),
        nvml_error=float("nan") if collector.nvml_error is None else float(collector.nvml_error),
        uptime=float(fleet.node_table["uptime_seconds"][node_row]),
    )


@lru_cache(maxsize=4096)
def _columns_of(names: tuple[str, ...]) -> IntArray:
    """Catalogue indices of the metrics of a message; a node sends the same ones every time."""
    return np.array([METRIC_INDEX[name] for name in names], dtype=np.int64)


def _placed(fleet: Fleet, item: Admitted, layout: Layout) -> tuple[tuple[int, SampleEvent], ...]:
    """Find the GPU of each event among the rows of its message; -1 for one that is not there."""
    place = {row: number for number, row in enumerate(layout.rows.tolist())}
    found = []
    for event in item.sample.events:
        row = fleet.find(event.gpu, item.node_row, event.pci)
        found.append((-1 if row is None else place.get(row, -1), event))
    return tuple(found)


def _lost(sample: NodeSample) -> BoolArray | None:
    """(ticks, GPUs): some reading of the GPU failed because the GPU is lost."""
    cells = {
        status_cell(cell)
        for codes in sample.status.values()
        for cell, code in codes.items()
        if code == _LOST
    }
    size = len(sample.ts) * len(sample.gpu)
    inside = [cell for cell in cells if 0 <= cell < size]
    if not inside:
        return None
    lost = np.zeros(size, dtype=bool)
    lost[inside] = True
    return lost.reshape(len(sample.ts), len(sample.gpu))


def _refused(sample: NodeSample) -> tuple[FloatArray, FloatArray] | None:
    """(ticks, GPUs) each: impossible readings, and the catalogue index of the last of them."""
    size = len(sample.ts) * len(sample.gpu)
    found = [
        (status_cell(cell), METRIC_INDEX[name])
        for name, codes in sample.status.items()
        for cell, code in codes.items()
        if code == ValueStatus.IMPLAUSIBLE and name in METRIC_INDEX
    ]
    inside = [(cell, metric) for cell, metric in found if 0 <= cell < size]
    if not inside:
        return None
    count, which = np.zeros(size), np.full(size, np.nan)
    for cell, metric in inside:
        count[cell] += 1.0
        which[cell] = metric
    shape = (len(sample.ts), len(sample.gpu))
    return count.reshape(shape), which.reshape(shape)
