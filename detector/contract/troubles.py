"""Troubles of heat, power and memory for the rough telemetry of the contract."""

from __future__ import annotations

from typing import Any

import numpy as np

from detector.frame import Frame
from detector.registry import build
from schemas.alert import Scope

__all__ = ["hot_and_held_back", "open_alerts"]

Floats = np.ndarray[Any, np.dtype[np.float64]]


def hot_and_held_back(values: dict[str, Floats]) -> None:
    """On node 0 draw a runaway, a stuck clock, slowdown bits, a low limit, no margin."""
    ticks, nodes, gpus = values["power_watts"].shape
    if nodes < 3 or gpus < 5:
        return
    late = np.maximum(np.arange(ticks) - 0.8 * ticks, 0.0)
    values["temperature_celsius"][:, 0, 3] += 12.0 * late
    values["sm_clock_hertz"][:, 0, 0] *= 0.3
    values["power_watts"][:, 0, 0] = 200.0
    values["clock_event_reasons"][:, 0, 0] = np.where(np.arange(ticks) % 2, 8.0, 0.0)
    used = 76.0 + 0.5 * np.maximum(np.arange(ticks) - ticks // 3, 0)
    values["memory_used_bytes"][:, 0, 1] = np.minimum(used, 78.9) * 2.0**30
    values["gpu_utilization_ratio"][ticks // 3 :, 0, 1] = 0.0
    leaks = (75.5 + 0.1 * np.arange(ticks)) * 2.0**30
    values["memory_used_bytes"][:, 1, :] = leaks[:, None]
    values["temperature_celsius"][:, 1, 4] = 60.0
    values["power_watts"][ticks // 3 :, 1, 4] = 140.0
    values["power_limit_watts"][:, 0, 4] = 500.0
    values["temperature_margin_celsius"][:, 0, 4] -= 27.0
    _badly_cooled(values)


def _badly_cooled(values: dict[str, Floats]) -> None:
    """Stop a fan, overheat a memory, and at last let the whole first node become hot."""
    values["fan_ratio"][:, 1, 0] = 0.0
    values["temperature_celsius"][:, 1, 0] = 85.0
    values["memory_temperature_celsius"][:, 1, 2] = 97.0
    at_last = len(values["fan_ratio"]) * 5 // 6
    values["temperature_celsius"][at_last:, 0, :] += 40.0


def open_alerts(nodes: Frame, seed: int) -> dict[str, Any]:
    """Draw flags for the GPUs of a frame of nodes: any alert may be open."""
    if nodes.members is None:
        return {}
    rng = np.random.default_rng(seed)
    names = [
        f"{detector.family}/{spec.kind}"
        for detector in build()
        if detector.scope == Scope.GPU
        for spec in detector.kinds
    ]
    return {name: rng.random(len(nodes.members)) < 0.4 for name in names}
