"""What is injected: where, when and how much of it. And the truth about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foreshock.bench.world import Floats, World

__all__ = ["Decoy", "FaultSpec", "Placed", "Truth"]

Kind = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One injection.

    Parameters
    ----------
    name
        Of the fault or decoy.
    node
        Position of the node in its world.
    gpu
        Index of the GPU that is hit first of all; node-wide injections ignore it.
    start, end
        Ticks; the end is not included.
    magnitude
        In the unit of the fault.
    ramp
        Seconds until the whole magnitude acts.
    """

    name: str
    node: int
    gpu: int
    start: int
    end: int
    magnitude: float = 0.0
    ramp: float = 0.0

    @property
    def ticks(self) -> slice:
        """When it acts."""
        return slice(self.start, self.end)

    def shape(self, world: World) -> Floats:
        """Return (ticks of the injection,) from 0 to 1: how much of the magnitude acts."""
        seconds = np.arange(self.end - self.start) * world.dt
        return np.clip(seconds / self.ramp, 0.0, 1.0) if self.ramp > 0.0 else np.ones_like(seconds)


Inject = Callable[[World, Placed, np.random.Generator], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """A class of fault, and what a detector owes for it.

    Parameters
    ----------
    name, unit, magnitudes
        The class, and how bad it is injected.
    inject
        Writes it into a world.
    scope
        ``gpu``, ``node`` or ``job``: the entity that must be named.
    accepted
        (family, kind) that name it; an empty kind accepts the whole family.
    related
        Families that may be said of other GPUs of the node meanwhile: they suffer too.
    rank
        Least severity that counts: 1 info, 2 warning.
    target_seconds
        Time to detect that the design asks for, or None.
    seconds
        How long it lasts in a trial.
    ramps
        Range of the ramp, s.
    workloads
        Work during which it can be seen.
    lead_in
        Healthy seconds before it: range from which the start is drawn.
    """

    name: str
    unit: str
    magnitudes: tuple[float, ...]
    inject: Inject
    scope: str
    accepted: tuple[Kind, ...]
    related: tuple[str, ...] = ()
    rank: int = 2
    target_seconds: float | None = None
    seconds: float = 600.0
    ramps: tuple[float, float] = (0.0, 0.0)
    workloads: tuple[str, ...] = ("train_capped", "train")
    lead_in: tuple[float, float] = (430.0, 540.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoy:
    """Something that looks like a fault and is none.

    Parameters
    ----------
    name, inject
        What it is, and what writes it into a world.
    workloads
        Work in which it happens.
    allowed
        Families that may be said nevertheless, because they are true.
    seconds
        How long it lasts.
    """

    name: str
    inject: Inject
    workloads: tuple[str, ...] = ("train_capped", "train", "train_uneven")
    allowed: tuple[str, ...] = ()
    seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What happened to whom, for the score. Times in seconds of the world.

    Parameters
    ----------
    name, magnitude
        Class of the fault, or name of the decoy, and how bad.
    node, gpus
        Number of the node over all worlds, and the indices of the GPUs hit.
    start, end
        When it acts.
    terminal
        When the job dies of it; NaN if it does not.
    spec
        What a detector owes; None for a decoy.
    allowed
        Families that may be said of the node meanwhile.
    group
        Further split in the report, such as the kind of memory.
    grace
        Seconds after the end in which an alarm still counts; negative where it must be earlier.
    """

    name: str
    magnitude: float
    node: int
    gpus: tuple[int, ...]
    start: float
    end: float
    terminal: float = float("nan")
    spec: FaultSpec | None = None
    allowed: tuple[str, ...] = ()
    group: str = ""
    grace: float = 60.0
