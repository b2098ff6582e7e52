"""Rules about one step: pure, complete, finite, and blind to what is missing."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from detector.base import AnyArray, Detector, metrics_read
from detector.contract.material import (
    Material,
    fresh,
    quiet,
    require,
    require_same,
    scores,
    steps,
)
from detector.contract.telemetry import frames_for, take, without
from detector.frame import Frame
from schemas.alert import Severity

__all__ = [
    "check_a_missing_reading_changes_nothing",
    "check_an_empty_frame_is_judged",
    "check_nothing_is_said_without_a_named_metric",
    "check_scores_are_finite_or_missing",
    "check_severity_is_a_rank",
    "check_state_is_as_declared",
    "check_step_is_pure",
    "check_time_may_jump",
]

#: First samples, clock steps, equal times, an hour away, four months away; s.
_JUMPS = (math.nan, 0.0, 1e-3, 3600.0, 1e7)


def _columns(frame: Frame) -> dict[str, AnyArray]:
    """Copy all arrays of a frame."""
    found = {f.name: getattr(frame, f.name) for f in dataclasses.fields(frame)}
    arrays = {k: v.copy() for k, v in found.items() if isinstance(v, np.ndarray)}
    return arrays | {f"extra/{name}": column.copy() for name, column in frame.extra.items()}


def check_step_is_pure(detector: Detector, material: Material) -> None:
    """Give the same output for the same input, and change neither the input nor oneself."""
    parameters = dataclasses.asdict(detector)  # type: ignore[call-overload]  # a dataclass
    for frame, state, step in steps(detector, material):
        firing = quiet(detector, len(frame))
        before = _columns(frame), {name: array.copy() for name, array in state.items()}
        again = detector.step(frame, state, firing)
        require_same(_columns(frame), before[0], "The step changes its frame")
        require_same(state, before[1], "The step changes the state that it is given")
        require(
            not any(flags.any() for flags in firing.values()), "The step changes what is firing."
        )
        require_same(scores(again), scores(step), "Another score for the same input")
        require_same(again.state, step.state, "Another state for the same input")
    after = dataclasses.asdict(detector)  # type: ignore[call-overload]  # a dataclass
    require(after == parameters, "The detector changes itself: state belongs into fields().")


def check_scores_are_finite_or_missing(detector: Detector, material: Material) -> None:
    """Score every kind for every row: finite and at least 0, or NaN for "cannot say"."""
    declared = {spec.kind for spec in detector.kinds}
    for frame, _, step in steps(detector, material):
        require(
            set(step.judgements) == declared,
            f"The step judges {sorted(step.judgements)}, declared are {sorted(declared)}.",
        )
        for kind, score in scores(step).items():
            require(
                score.shape == (len(frame),),
                f"The score of {kind} has shape {score.shape} for {len(frame)} rows.",
            )
            known = score[~np.isnan(score)]
            require(np.isfinite(known).all(), f"The score of {kind} is infinite.")
            require((known >= 0.0).all(), f"The score of {kind} is negative.")


def check_severity_is_a_rank(detector: Detector, material: Material) -> None:
    """Rank the severity of every row from 1 to 3, as int8."""
    ranks = {severity.rank for severity in Severity}
    for frame, _, step in steps(detector, material):
        for kind, judged in step.judgements.items():
            found = judged.severity
            require(
                found.dtype == np.int8 and found.shape == (len(frame),),
                f"The severity of {kind} is {found.dtype}{found.shape}, not int8 per row.",
            )
            require(
                set(found.tolist()) <= ranks, f"The severity of {kind} is {set(found.tolist())}."
            )


def check_state_is_as_declared(detector: Detector, material: Material) -> None:
    """Return the declared state, with its dtypes and shapes: it never grows."""
    declared = detector.fields()
    for frame, _, step in steps(detector, material):
        require(
            set(step.state) == set(declared),
            f"The step returns the state {sorted(step.state)}, declared is {sorted(declared)}.",
        )
        for name, array in step.state.items():
            like = declared[name].make(len(frame))
            require(
                array.dtype == like.dtype and array.shape == like.shape,
                f"The state {name} is {array.dtype}{array.shape}, declared is "
                f"{like.dtype}{like.shape}.",
            )
        for name, column in step.columns.items():
            require(
                np.shape(column) == (len(frame),), f"The column {name} has not one value per row."
            )


def check_a_missing_reading_changes_nothing(detector: Detector, material: Material) -> None:
    """Open and end nothing for a row without readings, and leave its state as it was."""
    for frame, state, _ in steps(detector, material):
        blank = take(frame, list(range(len(frame))))
        dark = np.arange(len(frame)) % 3 == 0
        blank.x[:, dark] = np.nan
        for flags in (blank.lost, blank.absent, blank.gone):
            flags[dark] = False
        for column in blank.extra.values():
            column[dark] = np.nan
        blank.events = tuple((at, event) for at, event in blank.events if not dark[at])
        step = detector.step(blank, state, quiet(detector, len(frame)))
        for kind, score in scores(step).items():
            said = score[dark]
            require(
                (np.isnan(said) | (said == 0.0)).all(),
                f"{kind} scores a row without any reading.",
            )
        for name, array in step.state.items():
            require(
                array[dark].tobytes() == state[name][dark].tobytes(),
                f"The state {name} moves without any reading.",
            )


def check_an_empty_frame_is_judged(detector: Detector, material: Material) -> None:
    """Judge a round without rows: a node without GPUs still sends heartbeats."""
    del material
    frame = take(frames_for(detector)[0], [0])
    names = ("rows", "ts", "dt", "interval", "lost", "absent", "gone", "model", "job")
    none = dataclasses.replace(
        frame,
        **{name: getattr(frame, name)[:0] for name in (*names, "mig_parent", "mig_instance")},
        x=frame.x[:, :0],
        blocks=np.zeros((1, 0), dtype=np.int64),
        extra={name: column[:0] for name, column in frame.extra.items()},
        events=(),
    )
    step = detector.step(none, fresh(detector, 0), quiet(detector, 0))
    for kind, score in scores(step).items():
        require(score.shape == (0,), f"The score of {kind} has shape {score.shape} for no row.")


def check_time_may_jump(detector: Detector, material: Material) -> None:
    """Stay finite over first samples, clock steps and long absences."""
    for jump in _JUMPS:
        for frame, state, _ in steps(detector, material):
            jumped = dataclasses.replace(frame, dt=np.full(len(frame), jump))
            step = detector.step(jumped, state, quiet(detector, len(frame)))
            for kind, score in scores(step).items():
                require(not np.isinf(score).any(), f"{kind} is infinite after {jump} s.")
            for name, array in step.state.items():
                require(not np.isinf(array).any(), f"The state {name} is infinite after {jump} s.")


def check_nothing_is_said_without_a_named_metric(detector: Detector, material: Material) -> None:
    """Say nothing and remember nothing without any metric that is read.

    A detector whose metrics were never offered is not run at all. One that needs no metric
    always is.
    """
    named = metrics_read(detector)
    if not named:
        return
    for frame, _, _ in steps(detector, material):
        state = fresh(detector, len(frame))
        dark = detector.step(without(frame, named), state, quiet(detector, len(frame)))
        require_same(state, {**state, **dark.state}, "State changes without any named metric.")
        for kind, score in scores(dark).items():
            silent = (np.isnan(score) | (score == 0.0)).all()
            require(silent, f"{kind} has a score without any named metric.")
