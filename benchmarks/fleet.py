"""Messages for the benchmarks: a healthy fleet with noise, 24 metrics, one tick a message."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from schemas.codec import encode
from schemas.metrics import CATALOGUE, Kind
from schemas.sample import GpuInventory, Inventory, NodeSample

__all__ = ["GPUS", "METRICS", "messages"]

T0 = 1_790_000_000_000
GPUS = 8
# What the detectors of this version read, and others up to 24 as a collector would send them.
_LEVELS = {
    "temperature_celsius": (60.0, 1.0),
    "power_watts": (600.0, 5.0),
    "power_instant_watts": (600.0, 20.0),
    "power_limit_watts": (700.0, 0.0),
    "power_default_limit_watts": (700.0, 0.0),
    "temperature_margin_celsius": (27.0, 1.0),
    "memory_temperature_celsius": (58.0, 1.0),
    "gpu_utilization_ratio": (0.97, 0.01),
    "memory_utilization_ratio": (0.5, 0.02),
    "memory_used_bytes": (60.0 * 2**30, 0.0),
    "memory_total_bytes": (80.0 * 2**30, 0.0),
    "memory_reserved_bytes": (0.5 * 2**30, 0.0),
    "sm_clock_hertz": (1.9e9, 1.5e7),
    "sm_clock_max_hertz": (1.98e9, 0.0),
    "clock_event_reasons": (4.0, 0.0),
    "throttle_hw_thermal_seconds_total": (0.0, 0.0),
    "throttle_sw_thermal_seconds_total": (0.0, 0.0),
    "throttle_power_brake_seconds_total": (0.0, 0.0),
}
_REST = [m.name for m in CATALOGUE if m.name not in _LEVELS and m.kind is not Kind.BITMASK]
METRICS = tuple([*_LEVELS, *_REST][:24])


def messages(nodes: int, ticks: int, seed: int = 1) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, body) of ``nodes * ticks`` messages, tick by tick."""
    rng = np.random.default_rng(seed)
    ids = {
        node: tuple(f"GPU-{node:06d}-0000-0000-{gpu:012d}" for gpu in range(GPUS))
        for node in range(nodes)
    }
    for tick in range(ticks):
        for node in range(nodes):
            yield f"node-{node}".encode(), encode(_sample(rng, node, ids[node], tick))


def _sample(rng: np.random.Generator, node: int, gpus: tuple[str, ...], tick: int) -> NodeSample:
    columns: dict[str, list[float | None]] = {}
    for name in METRICS:
        level, noise = _LEVELS.get(name, (0.0, 0.0))
        values = np.full(GPUS, level) if noise == 0.0 else rng.normal(level, noise, GPUS)
        columns[name] = [round(float(value), 2) for value in values]
    inventory = Inventory(
        gpus=tuple(
            GpuInventory(gpu=uuid, index=i, model="NVIDIA H100 80GB HBM3")
            for i, uuid in enumerate(gpus)
        ),
        expected_gpus=GPUS,
    )
    return NodeSample(
        node=f"node-{node}",
        boot_id="bench",
        seq=tick,
        ts=(T0 + tick * 1000,),
        gpu=gpus,
        m=columns,
        inventory=inventory if tick == 0 else None,
    )
