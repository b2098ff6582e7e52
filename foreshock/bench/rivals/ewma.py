"""EWMA control chart per GPU and metric: mean and deviation that follow, alarm at k sigma."""

from __future__ import annotations

import numpy as np

from foreshock.bench.rivals.base import Setting, alarms_of_flags, core
from foreshock.bench.scoring import Alarm
from foreshock.bench.world import Flags, Floats, World

__all__ = ["Ewma"]

# Of the sensors, in scaled units: half a percent. Without a floor a flat signal has no deviation.
_FLOOR = 0.005
_TAUS = (300.0, 60.0, 900.0)
_HOLDS = (0.0, 5.0, 30.0, 60.0)


class Ewma:
    """Alarm where any of the core metrics leaves k standard deviations.

    Parameters
    ----------
    sigmas
        The k.
    """

    stride = 1
    settings: tuple[Setting, ...] = tuple(
        {"seconds": tau, "hold": hold} for tau in _TAUS for hold in _HOLDS
    )

    def __init__(self, sigmas: float) -> None:
        self.name = f"EWMA {sigmas:g}σ"
        self._sigmas = sigmas

    def prepare(self, world: World) -> dict[float, Flags]:
        """Score all metrics with each time constant; (ticks, GPUs) flags each."""
        out = {tau: np.zeros(world.activity.shape, dtype=bool) for tau in _TAUS}
        for _, values in core(world):
            for tau in _TAUS:
                out[tau] |= np.abs(_scores(values, world.dt, tau)) > self._sigmas
        return out

    def alarms(self, world: World, prepared: dict[float, Flags], setting: Setting) -> list[Alarm]:
        """Return what holds long enough."""
        return alarms_of_flags(world, prepared[setting["seconds"]], setting["hold"])


def _scores(values: Floats, dt: float, tau: float) -> Floats:
    """Distance from the mean before each sample, in deviations; 0 in the first ``tau``."""
    weight = 1.0 - np.exp(-dt / tau)
    mean, variance = np.nan_to_num(values[0]), np.zeros(values.shape[1])
    scores = np.zeros(values.shape)
    for tick in range(1, len(values)):
        # A missing reading moves nothing.
        away = np.nan_to_num(values[tick] - mean)
        scores[tick] = away / np.sqrt(variance + _FLOOR**2)
        mean = mean + weight * away
        variance = (1.0 - weight) * (variance + weight * away * away)
    scores[: int(tau / dt)] = 0.0
    return scores
