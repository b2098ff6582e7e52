"""Foreshock's own messages, one NodeSample per line, as they lie on ``gpu.samples``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from collector.replay.lines import Line
from collector.replay.rounds import Booted, Order
from collector.replay.tables import Context
from collector.source import Reading
from schemas.codec import decode_sample
from schemas.errors import DecodeError
from schemas.sample import Inventory, JobRef, NodeSample, SampleEvent, status_cell

__all__ = ["MessageLines"]


@dataclass(slots=True)
class _Known:
    """What earlier messages of a node said and later ones do not repeat."""

    inventory: Inventory = field(default_factory=Inventory)
    jobs: tuple[JobRef, ...] | None = None


@dataclass(slots=True, kw_only=True)
class MessageLines:
    """Recorded NodeSamples.

    Node, GPUs and times are those of the recording; boot and sequence begin anew.
    """

    context: Context
    order: Order
    _known: dict[str, _Known] = field(default_factory=dict)

    def readings(self, lines: Iterable[Line]) -> Iterator[Booted]:
        """Yield one reading per tick."""
        for line in lines:
            if not line.text.strip():
                continue
            try:
                sample = decode_sample(line.text.encode())
            except DecodeError as exc:
                self.context.damage(line, exc.detail)
                continue
            yield from self._ticks(sample)

    def _ticks(self, sample: NodeSample) -> Iterator[Booted]:
        known = self._known.setdefault(sample.node, _Known())
        if sample.inventory is not None:
            known.inventory = sample.inventory
        if sample.jobs is not None:
            known.jobs = sample.jobs
        stats, order = self.context.stats, self.order
        rows = max(1, len(sample.gpu))
        events = list(sample.events)
        for tick, ts in enumerate(sample.ts):
            stats.rows += rows
            if order.starts_boot(sample.node, ts):
                order.begin_boot(sample.node, ts)
            if not order.admits(sample.node, ts, rows):
                continue
            order.advance(sample.node, ts)
            due = [event for event in events if event.ts <= ts or ts == sample.ts[-1]]
            events = [event for event in events if event not in due]
            stats.readings += 1
            yield Booted(order.boot_id, _reading(sample, tick, known, tuple(due)))


def _reading(
    sample: NodeSample, tick: int, known: _Known, events: tuple[SampleEvent, ...]
) -> Reading:
    width = len(sample.gpu)
    begin = tick * width
    status: dict[str, dict[int, str]] = {}
    for metric, codes in sample.status.items():
        for place, code in codes.items():
            position = status_cell(place) - begin
            if 0 <= position < width:
                status.setdefault(metric, {})[position] = code
    return Reading(
        node=sample.node,
        ts=sample.ts[tick],
        gpus=sample.gpu,
        values={name: column[begin : begin + width] for name, column in sample.m.items()},
        status=status,
        state=sample.collector.state,
        nvml_error=sample.collector.nvml_error,
        events=events,
        inventory=known.inventory,
        jobs=known.jobs,
        parents=sample.parents,
    )
