"""From a world to the messages that its collectors would send, in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from foreshock.bench.world import GPUS, MODEL, World
from schemas.sample import (
    CollectorStatus,
    GpuInventory,
    Inventory,
    JobRef,
    NodeSample,
    SampleEvent,
    ThresholdKind,
)

__all__ = ["messages"]

_LOST = "error:15"  # NVML_ERROR_GPU_IS_LOST
_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)


def messages(world: World, per_message: int = 30) -> Iterator[list[NodeSample]]:
    """Yield batches: one message of every node, ``per_message`` ticks long.

    Parameters
    ----------
    world
        With its readings made.
    per_message
        Ticks of a message. How ticks are put into messages changes no alert; long messages are
        faster to make and to read.
    """
    nodes = [_Node(world, node) for node in range(world.nodes)]
    for start in range(0, world.ticks, per_message):
        end = min(start + per_message, world.ticks)
        yield [message for node in nodes for message in node.send(start, end)]


class _Node:
    """One collector: sequence number, what it said last of jobs and inventory."""

    def __init__(self, world: World, node: int) -> None:
        self._world, self._node, self._seq = world, node, 0
        self._said: tuple[str, ...] = ()
        self._jobs = sorted(world.jobs.get(node, ()), key=lambda change: change[0])
        self._events = sorted(world.events.get(node, ()), key=lambda event: event[0])
        self._held: NodeSample | None = None
        self._cuts = self._find_cuts()
        self._running: tuple[tuple[tuple[int, ...], str], ...] = ()

    def _find_cuts(self) -> list[int]:
        """Ticks at which a new message must begin: GPUs or jobs change, or something happens."""
        present = self._world.present[:, self._world.rows(self._node)]
        cuts = (np.flatnonzero((present[1:] != present[:-1]).any(axis=1)) + 1).tolist()
        cuts += [tick for tick, _ in self._jobs]
        # Events belong to the first tick of their message.
        cuts += [tick for tick, _ in self._events]
        cuts += [tick for (node, _), tick in self._world.swapped.items() if node == self._node]
        return sorted(set(cuts))

    def send(self, start: int, end: int) -> Iterator[NodeSample]:
        edges = [start, *(cut for cut in self._cuts if start < cut < end), end]
        for first, last in pairwise(edges):
            message = self._message(first, last)
            if message is None:
                continue
            if first in self._world.late.get(self._node, ()) and self._held is None:
                self._held = message
                continue
            yield message
            if first in self._world.repeated.get(self._node, ()):
                yield message
            if self._held is not None:
                yield self._held
                self._held = None

    def _message(self, first: int, last: int) -> NodeSample | None:
        ticks = np.flatnonzero(self._world.reported[first:last, self._node]) + first
        if not len(ticks):
            return None
        world, place = self._world, self._world.rows(self._node).start
        gpus = np.flatnonzero(world.present[first, world.rows(self._node)])
        ids = tuple(world.uuid(self._node, int(gpu), first) for gpu in gpus)
        lost = world.lost[np.ix_(ticks, place + gpus)]
        columns = self._columns(ticks, place + gpus, lost)
        self._seq += 1
        changed = ids != self._said
        self._said = ids
        return NodeSample(
            node=world.name(self._node),
            boot_id="bench",
            seq=self._seq - 1,
            ts=tuple(world.ms(int(tick)) for tick in ticks),
            gpu=ids,
            m=columns,
            collector=CollectorStatus(
                interval_seconds=world.dt, flush_seconds=world.dt, source="simulated"
            ),
            status={"power_watts": _lost_cells(lost)} if lost.any() else {},
            events=self._due(last),
            jobs=self._job_refs(first, ids, gpus.tolist(), changed=changed),
            inventory=self._inventory(ids, gpus.tolist()) if changed else None,
        )

    def _columns(
        self, ticks: np.ndarray, columns: np.ndarray, lost: np.ndarray
    ) -> dict[str, list[float | None]]:
        # NaN stands for a missing value here; the codec would write null, which decodes to None.
        whole = len(ticks) == ticks[-1] - ticks[0] + 1 and len(columns) == GPUS
        block = slice(ticks[0], ticks[-1] + 1), slice(columns[0], columns[-1] + 1)
        out: dict[str, list[float | None]] = {}
        for name, values in self._world.readings.items():
            if values.ndim == 1:
                taken = np.tile(values[columns], len(ticks)).reshape(len(ticks), -1)
            else:
                taken = values[block] if whole else values[np.ix_(ticks, columns)]
            if lost.any():
                taken = np.where(lost, np.nan, taken)
            out[name] = taken.ravel().tolist()
        return out

    def _due(self, last: int) -> tuple[SampleEvent, ...]:
        due = tuple(event for tick, event in self._events if tick < last)
        self._events = [(tick, event) for tick, event in self._events if tick >= last]
        return due

    def _job_refs(
        self, first: int, ids: tuple[str, ...], gpus: list[int], *, changed: bool
    ) -> tuple[JobRef, ...] | None:
        due = [jobs for tick, jobs in self._jobs if tick <= first]
        self._jobs = [(tick, jobs) for tick, jobs in self._jobs if tick > first]
        if not due and not changed:
            return None
        self._running = due[-1] if due else self._running
        listed = dict(zip(gpus, ids, strict=True))
        return tuple(
            JobRef(gpus=tuple(listed[gpu] for gpu in part if gpu in listed), job=job)
            for part, job in self._running
        )

    def _inventory(self, ids: tuple[str, ...], gpus: list[int]) -> Inventory:
        return Inventory(
            gpus=tuple(_item(uuid, gpu) for uuid, gpu in zip(ids, gpus, strict=True)),
            expected_gpus=GPUS,
            driver_version="590.48.01",
            labels={"rack": f"rack-{(self._world.first_node + self._node) // 4}"},
        )


def _item(uuid: str, gpu: int) -> GpuInventory:
    # Margins as captured on H100: slowdown -2, shutdown -8, maximum operating 0.
    return GpuInventory(
        gpu=uuid,
        index=gpu,
        model=MODEL,
        pci=f"00000000:{_BUSES[gpu]:02X}:00.0",
        mig_mode=False,
        threshold_kind=ThresholdKind.MARGIN,
        slowdown_celsius=-2.0,
        shutdown_celsius=-8.0,
        max_operating_celsius=0.0,
        nvlink_links=18,
        pcie_generation_max=5,
        pcie_width_max=16,
    )


def _lost_cells(lost: np.ndarray) -> dict[str, str]:
    return {str(cell): _LOST for cell in np.flatnonzero(lost.ravel()).tolist()}
