"""The simulated fleet as a source of readings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from collector.simulated.counters import Counters
from collector.simulated.faults import (
    Fault,
    FaultKind,
    Truth,
    check_schedule,
    load_schedule,
    truths_of,
)
from collector.simulated.identity import gpu_uuid, node_inventory, node_name, pci_address
from collector.simulated.jobs import JobBoard
from collector.simulated.load import LoadModel, Memory
from collector.simulated.physics import Physics
from collector.simulated.readings import MEMORY_CAPACITY, Snapshot, columns
from collector.simulated.settings import SimulatedSettings
from collector.source import Reading
from schemas.sample import EventKind, SampleEvent

__all__ = ["GRID_SECONDS", "SimulatedFleet"]

Floats = NDArray[np.float64]

#: The model moves on a fixed grid and readings lie between grid points, so that they do not
#: depend on how often anyone reads.
GRID_SECONDS = 0.5
_PREROLL_STEPS = 240
_UPTIME_SECONDS = 5 * 86_400.0
_LOST = "error:15"  # NVML_ERROR_GPU_IS_LOST
_EVENTS = {"lost": EventKind.GPU_LOST, "returned": EventKind.GPU_RETURNED}


class SimulatedFleet:
    """Nodes of H100-class GPUs that exist only in numbers; implements ``Source``.

    Deterministic: the same settings, schedule and first reading time give the same values at
    the same times, whatever was read in between.

    Parameters
    ----------
    settings
        What to simulate.
    faults
        Schedule to inject; None reads ``settings.schedule``, and without that there is none.

    Raises
    ------
    SourceError
        If the schedule cannot be read or names a place outside the fleet.
    """

    kind = "simulated"
    exhausted = False

    def __init__(
        self, settings: SimulatedSettings, *, faults: Sequence[Fault] | None = None
    ) -> None:
        if faults is None:
            faults = load_schedule(settings.schedule) if settings.schedule else ()
        check_schedule(faults, nodes=settings.nodes, gpus=settings.gpus)
        self.settings = settings
        self.faults = tuple(faults)
        self._rng = np.random.default_rng([settings.seed, 3])
        self._board = JobBoard(settings, faults)
        self._load = LoadModel(settings, faults)
        self._memory = Memory(settings, faults, MEMORY_CAPACITY)
        self._physics = Physics(settings, faults, self._load.level)
        self._counters = Counters(settings, faults)
        size = settings.nodes * settings.gpus
        self._wobble: Floats = np.zeros(size)
        self._last_power: Floats = self._physics.power.copy()
        self._spikes = [f for f in faults if f.kind is FaultKind.SENSOR_SPIKE]
        self._origin_ms: int | None = None
        self._step = -_PREROLL_STEPS
        self._events: list[list[SampleEvent]] = [[] for _ in range(settings.nodes)]
        for node in range(settings.nodes):
            members = tuple(range(node * settings.gpus, (node + 1) * settings.gpus))
            self._memory.start(node, self._board.number[node], members, 0.0)
        self._before = self._after = self._snapshot(self._used(0.0))

    @property
    def origin_ms(self) -> int | None:
        """Event time of the first reading, unix milliseconds; None before it."""
        return self._origin_ms

    def begin(self, origin_ms: int) -> None:
        """Let simulated time begin at ``origin_ms`` rather than at the first reading."""
        self._origin_ms = origin_ms

    def truths(self, origin_ms: int) -> tuple[Truth, ...]:
        """Say what a detector owes if the first reading is at ``origin_ms``."""
        return truths_of(
            self.faults,
            seed=self.settings.seed,
            gpus=self.settings.gpus,
            origin_ms=origin_ms,
        )

    def read(self, ts_ms: int) -> list[Reading]:
        """Read all nodes at ``ts_ms``; an earlier time than the last one reads the last state."""
        if self._origin_ms is None:
            self._origin_ms = ts_ms
        seconds = max(ts_ms - self._origin_ms, 0) / 1000.0
        grid = math.floor(seconds / GRID_SECONDS + 1e-9)
        while self._step < grid + 1:
            self._advance()
        share = min(max(seconds / GRID_SECONDS - (self._step - 1), 0.0), 1.0)
        table = columns(self._before, self._after, share)
        for fault in self._spikes:
            if fault.active(seconds) and fault.gpu is not None:
                row = fault.node * self.settings.gpus + fault.gpu
                table["temperature_celsius"][row] += fault.size
                table["temperature_margin_celsius"][row] -= fault.size
        return [self._reading(node, ts_ms, seconds, table) for node in range(self.settings.nodes)]

    def close(self) -> None:
        """Nothing to let go of."""

    def _advance(self) -> None:
        """Move one grid step; the new point becomes ``_after``."""
        self._step += 1
        seconds = self._step * GRID_SECONDS
        for when, action, node, positions in self._board.advance(seconds):
            self._happened(when, action, node, positions)
        noise = self._rng.standard_normal((2, self._wobble.size))
        # Work differs a little from step to step, with a memory of about five seconds.
        self._wobble += GRID_SECONDS / 5.0 * (0.0 - self._wobble) + 0.003 * noise[0]
        want = self._load.demand(seconds, self._board, 1.0 + self._wobble)
        self._last_power = self._physics.power
        self._physics.step(seconds, GRID_SECONDS, want, noise[1])
        self._counters.add(
            seconds, GRID_SECONDS, self._physics.power, self._physics.reasons, want.transfer
        )
        used = self._used(seconds)
        for row in np.flatnonzero(self._memory.exhausted(used) & self._board.running):
            self._board.crash(int(row) // self.settings.gpus, seconds)
        self._before = self._after
        self._after = self._snapshot(used, want.utilization)

    def _used(self, seconds: float) -> Floats:
        return self._memory.used(seconds, GRID_SECONDS, self._board, self._rng)

    def _happened(self, seconds: float, action: str, node: int, positions: tuple[int, ...]) -> None:
        if action == "start":
            self._memory.start(node, self._board.number[node], positions, seconds)
        if action == "returned":
            self._counters.reset(list(positions))
        kind = _EVENTS.get(action)
        if kind is None or self._origin_ms is None:
            return
        when = self._origin_ms + round(seconds * 1000)
        for position in positions:
            index = position % self.settings.gpus
            event = SampleEvent(
                ts=when,
                kind=kind,
                gpu=gpu_uuid(self.settings.seed, node, index),
                pci=pci_address(index),
                message="GPU is lost" if kind is EventKind.GPU_LOST else "GPU answers again",
            )
            self._events[node].append(event)

    def _snapshot(self, used: Floats, utilization: Floats | None = None) -> Snapshot:
        physics = self._physics
        busy = np.zeros_like(used) if utilization is None else utilization
        working = np.clip((physics.power - 150.0) / 1100.0, 0.0, 1.0)
        smooth = {
            "temperature_celsius": physics.temperature,
            "memory_temperature_celsius": physics.temperature + 2.0 + 0.006 * physics.power,
            # The driver's figure is an average over a second, two grid steps.
            "power_watts": 0.5 * (physics.power + self._last_power),
            "power_instant_watts": physics.power,
            "gpu_utilization_ratio": busy,
            "memory_utilization_ratio": working,
            "sm_clock_hertz": physics.clock,
            **self._counters.smooth(),
        }
        held = {
            "memory_used_bytes": used,
            "clock_event_reasons": physics.reasons.astype(np.float64),
            **self._counters.whole(),
            "present": self._board.present.astype(np.float64),
            "lost": self._board.lost.astype(np.float64),
        }
        return Snapshot(smooth=smooth, held=held)

    def _reading(self, node: int, ts_ms: int, seconds: float, table: dict[str, Floats]) -> Reading:
        settings = self.settings
        first = node * settings.gpus
        rows = slice(first, first + settings.gpus)
        present = tuple(np.flatnonzero(table["present"][rows]).tolist())
        values: dict[str, list[float | None]] = {
            name: column[rows][list(present)].tolist()
            for name, column in table.items()
            if name not in ("present", "lost")
        }
        gone = [i for i, gpu in enumerate(present) if table["lost"][first + gpu]]
        for column in values.values():
            for position in gone:
                column[position] = None
        return Reading(
            node=node_name(node),
            ts=ts_ms,
            gpus=tuple(gpu_uuid(settings.seed, node, gpu) for gpu in present),
            values=values,
            status={name: dict.fromkeys(gone, _LOST) for name in values} if gone else {},
            events=self._due(node, ts_ms),
            inventory=node_inventory(settings, node, present, _UPTIME_SECONDS + seconds),
            jobs=self._board.refs(node),
        )

    def _due(self, node: int, ts_ms: int) -> tuple[SampleEvent, ...]:
        due = tuple(event for event in self._events[node] if event.ts <= ts_ms)
        self._events[node] = [event for event in self._events[node] if event.ts > ts_ms]
        return due
