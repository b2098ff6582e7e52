"""Plain river HalfSpaceTrees, one forest per GPU on the core metrics, river's default sizes."""

from __future__ import annotations

import numpy as np

from detector.cohort.forest import Forest
from foreshock.bench.rivals.base import CORE, Setting, alarms_of_flags, core
from foreshock.bench.scoring import Alarm
from foreshock.bench.world import GPUS, Floats, World

__all__ = ["HalfSpaceTrees"]

_WARM_ROWS = 250  # river's default window: before it is full every score is 0
_HOLDS = (0.0, 15.0, 60.0)
_QUANTILES = (0.995, 0.99, 0.999, 0.9995)


class HalfSpaceTrees:
    """Alarm where the rarity lies above a quantile of the GPU's own beginning."""

    name = "river HalfSpaceTrees"
    # A forest costs up to 100 µs per row, so one node in twelve is scored.
    stride = 12
    settings: tuple[Setting, ...] = tuple(
        {"quantile": quantile, "hold": hold} for quantile in _QUANTILES for hold in _HOLDS
    )

    def prepare(self, world: World) -> Floats:
        """Return (ticks, GPUs) rarity; 0 for nodes that are not scored."""
        features = np.clip(np.stack([values for _, values in core(world)], axis=-1), 0.0, 1.0)
        scores = np.zeros(features.shape[:2])
        for node in range(0, world.nodes, self.stride):
            for column in range(node * GPUS, (node + 1) * GPUS):
                scores[:, column] = _scored(features[:, column])
        return scores

    def alarms(self, world: World, prepared: Floats, setting: Setting) -> list[Alarm]:
        """Return where the rarity is above the quantile of the world's first third."""
        third = max(len(prepared) // 3, _WARM_ROWS + 50)
        if third >= len(prepared):
            return []
        usual = np.quantile(prepared[_WARM_ROWS:third], setting["quantile"], axis=0)
        flags = prepared > np.maximum(usual, 1e-9)
        flags[:third] = False
        return alarms_of_flags(world, flags, setting["hold"])


def _scored(rows: Floats) -> Floats:
    forest = Forest(limits=[(0.0, 1.0)] * len(CORE), trees=10, height=8, window=_WARM_ROWS)
    out = np.zeros(len(rows))
    for number, row in enumerate(rows):
        if np.isfinite(row).all():
            out[number] = forest.score(row)
            forest.learn(row)
    return out
