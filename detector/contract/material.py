"""What a detector is checked on, and how it is run over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from detector.arrays import BoolArray
from detector.base import AnyArray, Detector, Step
from detector.contract.telemetry import frames_for, frames_of, healthy, samples_of
from detector.frame import Frame
from schemas.alert import Scope
from schemas.errors import ForeshockError

__all__ = [
    "BrokenContractError",
    "Material",
    "State",
    "fresh",
    "healthy_frames",
    "quiet",
    "require",
    "require_same",
    "scores",
    "steps",
    "wide_frame",
]

State = dict[str, AnyArray]


class BrokenContractError(ForeshockError):
    """A detector breaks a rule that the engine relies on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Frames beside the standard ones.

    Parameters
    ----------
    speaking
        Frames in order, equal rows in each, in which the detector reaches the enter threshold
        of every kind: needed where the rough telemetry of :mod:`detector.contract.telemetry`
        does not hold what it looks for.
    """

    speaking: tuple[Frame, ...] = ()


def require(condition: object, sentence: str) -> None:
    """Raise BrokenContractError with a sentence unless a condition holds."""
    if not condition:
        raise BrokenContractError(sentence)


def require_same(a: Mapping[str, AnyArray], b: Mapping[str, AnyArray], sentence: str) -> None:
    """Require arrays of the same names to be equal, NaN equal to NaN."""
    require(set(a) == set(b), f"{sentence}: {sorted(a)} against {sorted(b)}")
    for name in a:
        try:
            np.testing.assert_array_equal(a[name], b[name])
        except AssertionError as exc:
            raise BrokenContractError(f"{sentence}: {name}.{exc}") from exc


def fresh(detector: Detector, rows: int) -> State:
    """Return the declared state of so many rows that were never seen."""
    return {name: spec.make(rows) for name, spec in detector.fields().items()}


def quiet(detector: Detector, rows: int) -> dict[str, BoolArray]:
    """Say of every kind that no alert is open."""
    return {spec.kind: np.zeros(rows, dtype=bool) for spec in detector.kinds}


def scores(step: Step) -> dict[str, AnyArray]:
    """Return the scores of a step by kind."""
    return {kind: judged.score for kind, judged in step.judgements.items()}


def steps(
    detector: Detector, material: Material, seed: int = 1
) -> Iterator[tuple[Frame, State, Step]]:
    """Run over rough frames, then over the author's: each frame, the state before it, the step.

    All arrays given to the detector are read-only.
    """
    for frames in (frames_for(detector, seed), material.speaking):
        if not frames:
            continue
        state = fresh(detector, len(frames[0]))
        for frame in frames:
            for array in state.values():
                array.flags.writeable = False
            step = detector.step(frame, state, quiet(detector, len(frame)))
            yield frame, state, step
            state = {**state, **step.state}


@cache
def healthy_frames(scope: Scope) -> tuple[Frame, ...]:
    """Return one hour of six healthy nodes of eight GPUs, each with its own noise, every 2 s."""
    values = healthy(11, nodes=6, gpus=8, ticks=1800, interval=2.0)
    samples = [
        replace(
            sample,
            inventory=sample.inventory and replace(sample.inventory, expected_gpus=len(sample.gpu)),
        )
        for sample in samples_of(values, 2.0)
    ]
    gpus, nodes = frames_of(samples)
    return tuple(gpus if scope == Scope.GPU else nodes)


@cache
def wide_frame(scope: Scope) -> Frame:
    """Return one healthy frame of 128 nodes of eight GPUs."""
    gpus, nodes = frames_of(samples_of(healthy(7, nodes=128, gpus=8, ticks=2, interval=2.0), 2.0))
    return gpus[-1] if scope == Scope.GPU else nodes[-1]
