"""Prometheus' ``predict_linear`` on memory: a least-squares line over a window, an hour ahead."""

from __future__ import annotations

import numpy as np

from foreshock.bench.rivals.base import Setting, alarms_of_flags, seen
from foreshock.bench.scoring import Alarm
from foreshock.bench.world import CAPACITY, Flags, Floats, World

__all__ = ["PredictLinear"]

_WINDOWS = (600.0, 300.0, 1800.0, 3600.0)
_HOLDS = (0.0, 300.0, 900.0)
_AHEAD_SECONDS = 3600.0


class PredictLinear:
    """``predict_linear(memory_used[window], 3600) > capacity``, for a time."""

    name = "predict_linear"
    stride = 1
    settings: tuple[Setting, ...] = tuple(
        {"window": window, "hold": hold} for window in _WINDOWS for hold in _HOLDS
    )

    def prepare(self, world: World) -> dict[float, Flags]:
        """Forecast with each window; (ticks, GPUs) flags each."""
        used = seen(world, "memory_used_bytes") / CAPACITY
        return {window: _predicted(used, world.dt, window) > 1.0 for window in _WINDOWS}

    def alarms(self, world: World, prepared: dict[float, Flags], setting: Setting) -> list[Alarm]:
        """Return what holds long enough."""
        flags = prepared[setting["window"]]
        return alarms_of_flags(world, flags, setting["hold"], "oom_precursor", "leak")


def _predicted(values: Floats, dt: float, window: float) -> Floats:
    """Value of the fitted line an hour from now; NaN before the window is full."""
    size = max(round(window / dt), 2)
    known = np.isfinite(values)
    time = np.arange(len(values))[:, None] * dt
    filled = np.where(known, values, 0.0)
    sums = [
        _moving(part, size)
        for part in (known * 1.0, known * time, known * time * time, filled, filled * time)
    ]
    count, t, tt, y, ty = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = tt - t * t / count
        slope = (ty - t * y / count) / spread
        out = y / count + slope * (time + _AHEAD_SECONDS - t / count)
    out[: size - 1] = np.nan
    return np.where((count >= 2) & (spread > 1e-9), out, np.nan)


def _moving(values: Floats, size: int) -> Floats:
    total = np.cumsum(values, axis=0)
    total[size:] = total[size:] - total[:-size]
    return total
