"""Netdata-style k-means: two clusters per metric on short feature vectors, unanimous models.

A vector holds six lags of the differenced and smoothed metric; a point is odd for a model if it
lies further from both centres than 99 % of the range seen in training, and odd at all if every
model trained so far says so. Alarm where enough of the core metrics are odd for long enough.
Netdata trains on six hours and keeps 18 models; the worlds here are shorter, so a model is made
every 400 s (or 120 samples) from all before it.
"""

from __future__ import annotations

import numpy as np

from foreshock.bench.rivals.base import CORE, Setting, alarms_of_flags, core
from foreshock.bench.scoring import Alarm
from foreshock.bench.world import Floats, World

__all__ = ["KMeans"]

_LAGS, _SMOOTH, _ROUNDS = 6, 3, 6
_ROWS = 200  # training rows per model at most


class KMeans:
    """Share of odd metrics, averaged over a window."""

    name = "k-means (netdata-style)"
    stride = 1
    settings: tuple[Setting, ...] = tuple(
        {"share": share, "window": window}
        for share in (0.2, 0.1, 0.35, 0.6)
        for window in (60.0, 30.0, 120.0)
    )

    def prepare(self, world: World) -> Floats:
        """Return (ticks, GPUs) the share of the core metrics that are odd."""
        odd = np.zeros(world.activity.shape, dtype=np.float32)
        for _, values in core(world):
            odd += _odd(values, max(round(400.0 / world.dt), 120))
        return odd / len(CORE)

    def alarms(self, world: World, prepared: Floats, setting: Setting) -> list[Alarm]:
        """Return where the mean share over the window is high."""
        size = max(round(setting["window"] / world.dt), 1)
        total = np.cumsum(prepared, axis=0)
        total[size:] = total[size:] - total[:-size]
        return alarms_of_flags(world, total / size >= setting["share"], 0.0)


def _odd(values: Floats, every: int) -> Floats:
    """(ticks, GPUs) 1 where all models trained so far find the point odd."""
    filled = np.nan_to_num(values)
    diff = np.zeros_like(filled)
    diff[1:] = filled[1:] - filled[:-1]
    smooth = (diff + np.roll(diff, 1, axis=0) + np.roll(diff, 2, axis=0)) / _SMOOTH
    vectors = np.stack([np.roll(smooth, lag, axis=0) for lag in range(_LAGS)], axis=-1)
    vectors[: _LAGS + _SMOOTH] = 0.0
    odd = np.zeros(values.shape, dtype=np.float32)
    for begin in range(every, len(values), every):
        if begin == every:
            odd[begin:] = 1.0
        centres, limit = _train(vectors[:begin])
        odd[begin:] *= _nearest(vectors[begin:], centres) > limit
    return odd


def _train(vectors: Floats) -> tuple[Floats, Floats]:
    """Fit two centres per GPU; return them and the distance beyond which a point is odd."""
    step = max(len(vectors) // _ROWS, 1)
    rows = vectors[::step]
    norm = (rows**2).sum(axis=-1)
    gpus = np.arange(rows.shape[1])
    centres = np.stack([rows[norm.argmin(axis=0), gpus], rows[norm.argmax(axis=0), gpus]])
    for _ in range(_ROUNDS):
        far = [((rows - centre) ** 2).sum(axis=-1) for centre in centres]
        second = (far[1] < far[0])[..., None]
        for number, mine in enumerate((~second, second)):
            count = np.maximum(mine.sum(axis=0), 1)
            centres[number] = (rows * mine).sum(axis=0) / count
    distance = _nearest(rows, centres)
    low, high = distance.min(axis=0), distance.max(axis=0)
    return centres, low + 0.99 * (high - low) + 1e-6


def _nearest(vectors: Floats, centres: Floats) -> Floats:
    return np.asarray(
        np.sqrt(np.minimum(*(((vectors - centre) ** 2).sum(axis=-1) for centre in centres)))
    )
