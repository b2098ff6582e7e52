"""The two sides of the benchmark: what settings may be tuned on, and what is reported.

The sides differ in seeds and in the ranges that parameters are drawn from, so that a setting
fitted to one kind of host is measured on another. Ranges follow two hosts of public 10 Hz
recordings of 8 x H100 SXM5: R_theta 0.044 to 0.066 and 0.058 to 0.086 °C/W, a fast pole below a
second with 33 to 62 % of the rise, a slow one of 15 to 57 s, ambient air of 22 to 33 °C.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["HELD_OUT", "SIDES", "TUNE", "Side"]

Pair = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Ranges from which one side of the benchmark draws, uniformly.

    Parameters
    ----------
    name
        ``tune`` or ``held-out``.
    number
        Takes part in every seed, so that the sides share no random number.
    resistance
        Chip to air, °C/W.
    fast_share
        Share of the rise that follows within a second, 0 to 1.
    slow_seconds
        Time constant of the slow pole, s.
    ambient
        Air at the node's inlet, °C.
    slot_celsius
        Largest offset of a slot's air from the inlet's, °C.
    silicon
        Spread of dynamic power among equal GPUs, as a factor.
    fill
        Share of the memory that a job's plateau takes, 0 to 1.
    duty
        Share of time in which an inference replica works, 0 to 1.
    checkpoint_seconds
        Time between checkpoints, s.
    """

    name: str
    number: int
    resistance: Pair
    fast_share: Pair
    slow_seconds: Pair
    ambient: Pair
    slot_celsius: float
    silicon: Pair
    fill: Pair
    duty: Pair
    checkpoint_seconds: Pair

    def rng(self, *key: int) -> np.random.Generator:
        """Return a generator that no other side and no other key has."""
        return np.random.default_rng([self.number, *key])


TUNE = Side(
    name="tune",
    number=1,
    resistance=(0.044, 0.066),
    fast_share=(0.33, 0.47),
    slow_seconds=(15.0, 36.0),
    ambient=(22.0, 27.0),
    slot_celsius=3.0,
    silicon=(0.985, 1.015),
    fill=(0.30, 0.75),
    duty=(0.05, 0.40),
    checkpoint_seconds=(300.0, 900.0),
)
HELD_OUT = Side(
    name="held-out",
    number=2,
    resistance=(0.050, 0.078),
    fast_share=(0.45, 0.62),
    slow_seconds=(30.0, 57.0),
    ambient=(24.0, 30.0),
    slot_celsius=4.5,
    silicon=(0.975, 1.025),
    fill=(0.35, 0.93),
    duty=(0.03, 0.60),
    checkpoint_seconds=(240.0, 1800.0),
)
SIDES: dict[str, Side] = {side.name: side for side in (TUNE, HELD_OUT)}
