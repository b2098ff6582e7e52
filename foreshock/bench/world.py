"""A stretch of time of some nodes as arrays: demand in, readings out.

Workloads, look-alikes and faults write what the GPUs want and what is broken; the physics turns
that into what the sensors say. All arrays are (ticks, GPUs), the GPUs of a node side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreshock.bench.ranges import Side
from schemas.sample import SampleEvent

__all__ = [
    "CAPACITY",
    "GIB",
    "GPUS",
    "LIMIT_WATTS",
    "MODEL",
    "Flags",
    "Floats",
    "World",
    "gpu_uuid",
]

Floats = NDArray[Any]  # float32 or float64
Flags = NDArray[np.bool_]

GPUS = 8
GIB = float(2**30)
MODEL = "NVIDIA H100 80GB HBM3"
LIMIT_WATTS = 700.0
# Captured on an H100 80GB with driver 590.
TOTAL = 81_559.0 * 2**20
RESERVED = 479.0 * 2**20
CAPACITY = TOTAL - RESERVED
#: 2026-10-05 00:00 UTC, a Monday: the daily swing begins at midnight.
ORIGIN_MS = 1_791_158_400_000


def gpu_uuid(side: int, seed: int, node: int, gpu: int) -> str:
    """Return the UUID of one GPU; the same place gives the same UUID."""
    return f"GPU-{seed % 2**32:08x}-{side:04x}-4000-8{node % 4096:03x}-{node:08x}{gpu:04x}"


@dataclass(slots=True, kw_only=True)
class World:
    """Some nodes over some time.

    Parameters
    ----------
    side, seed
        Where the parameters come from.
    first_node
        Number of the first node, which makes names and UUIDs.
    nodes, ticks
        Size.
    dt
        Sampling interval, s.

    Attributes
    ----------
    activity
        Share of the full dynamic power that the work wants, 0 to about 1.1.
    utilization, bus
        Share of time with a kernel resident, and with the memory bus active, 0 to 1.
    spin
        Whether the GPU only waits in a collective.
    memory
        Bytes in use.
    resistance, air
        Factor on the thermal resistance; degrees added to the air.
    speed
        Factor on the clock that a fault leaves.
    limit
        Enforced power limit, W.
    readings
        Metric name to (ticks, GPUs), or (GPUs,) where it is constant; made by the physics.
    present, lost
        Whether the node lists the GPU, and whether the driver calls it lost.
    reported
        (ticks, nodes) whether the collector said anything at that tick.
    jobs
        Per node: (tick, ((GPU indices, job), ...)) from which tick on these jobs run.
    events
        Per node: (tick, event).
    doing
        Per node: its kind of work and of memory, for the report.
    late, repeated
        Per node: ticks whose message comes one place late, or twice.
    after
        Changes to the readings, made when the physics is done.
    """

    side: Side
    seed: int
    first_node: int
    nodes: int
    ticks: int
    dt: float
    activity: Floats = field(init=False)
    utilization: Floats = field(init=False)
    bus: Floats = field(init=False)
    spin: Flags = field(init=False)
    memory: Floats = field(init=False)
    resistance: Floats = field(init=False)
    air: Floats = field(init=False)
    speed: Floats = field(init=False)
    limit: Floats = field(init=False)
    present: Flags = field(init=False)
    lost: Flags = field(init=False)
    reported: Flags = field(init=False)
    wander: Floats = field(init=False)
    common: Floats = field(init=False)
    readings: dict[str, Floats] = field(default_factory=dict)
    jobs: dict[int, list[tuple[int, tuple[tuple[tuple[int, ...], str], ...]]]] = field(
        default_factory=dict
    )
    events: dict[int, list[tuple[int, SampleEvent]]] = field(default_factory=dict)
    swapped: dict[tuple[int, int], int] = field(default_factory=dict)
    doing: dict[int, str] = field(default_factory=dict)
    late: dict[int, set[int]] = field(default_factory=dict)
    repeated: dict[int, set[int]] = field(default_factory=dict)
    after: list[Callable[[World], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = (self.ticks, self.nodes * GPUS)
        self.activity, self.utilization, self.bus, self.air = (
            np.zeros(shape, dtype=np.float32) for _ in range(4)
        )
        self.resistance, self.speed = (np.ones(shape, dtype=np.float32) for _ in range(2))
        self.limit = np.full(shape, LIMIT_WATTS, dtype=np.float32)
        self.spin, self.lost = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
        self.present = np.ones(shape, dtype=bool)
        self.memory = np.full(shape, 3.0 * 2**20)
        self.reported = np.ones((self.ticks, self.nodes), dtype=bool)
        rng = self.side.rng(self.seed, self.first_node, 7)
        self.wander = _wander(rng, shape, self.dt, 8.0)
        self.common = _wander(rng, (self.ticks, self.nodes), self.dt, 20.0)

    def rows(self, node: int) -> slice:
        """Columns of the GPUs of the node at position ``node`` in this world."""
        return slice(node * GPUS, (node + 1) * GPUS)

    def column(self, node: int, gpu: int) -> int:
        """Column of one GPU of the node at position ``node``."""
        return node * GPUS + gpu

    def tick(self, seconds: float) -> int:
        """Tick at or after ``seconds``, within the world."""
        return int(np.clip(np.ceil(seconds / self.dt), 0, self.ticks))

    def ms(self, tick: int) -> int:
        """Event time of a tick, unix milliseconds."""
        return ORIGIN_MS + round(tick * self.dt * 1000)

    def name(self, node: int) -> str:
        """Name of the node at position ``node``."""
        return f"bench-{self.first_node + node:05d}"

    def uuid(self, node: int, gpu: int, tick: int) -> str:
        """UUID of the GPU in a slot at a tick; another one after a swap."""
        since = self.swapped.get((node, gpu))
        place = gpu + (GPUS if since is not None and tick >= since else 0)
        return gpu_uuid(self.side.number, self.seed, self.first_node + node, place)

    @property
    def gpu_days(self) -> float:
        """GPU-days that this world lasts."""
        return self.ticks * self.dt * self.nodes * GPUS / 86_400.0


def _wander(rng: np.random.Generator, shape: tuple[int, int], dt: float, seconds: float) -> Floats:
    """Return noise of unit variance whose correlation falls with the given time constant."""
    noise = rng.standard_normal(shape, dtype=np.float32)
    keep = np.float32(np.exp(-dt / seconds))
    gain = np.float32(np.sqrt(1.0 - keep * keep))
    for tick in range(1, shape[0]):
        noise[tick] = keep * noise[tick - 1] + gain * noise[tick]
    return noise
