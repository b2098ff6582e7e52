"""Novelty: the level at which a job works has moved and stays moved.

The question is "since when is this job not what it was?". One minute is nothing, an hour at
another level is: a slower data source, another input size, a fleet that runs warmer. Severity
info; the number is what a person or another alert can be checked against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
from detector.base import (
    Explanation,
    Judgement,
    KindSpec,
    RowView,
    Step,
    require_positive,
    uniform_severity,
)
from detector.cohort.features import FEATURE_WORDS, FEATURES
from detector.frame import Frame
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["Drift", "level_columns"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_NONE, _RETURNED, _ACCEPTED = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Distance of a job's present level from the one before ADWIN noticed a shift.

    Parameters
    ----------
    min_shift
        Shift of a feature that is worth a word; features are shares of their limit, 0 to 1.
        Power of one job wanders by 3 to 7 % at one load.
    returned_ratio
        Share of ``min_shift`` within which a level counts as returned.
    history_windows
        Windows of 10 s that must have been seen first; 180 are half an hour.
    enter_seconds, exit_seconds
        How long the level must stay away, or be back, s.
    accept_seconds
        After so long the new level is the normal one and the alert ends, s.
    rest_seconds
        After an end no shift is taken up for so long: the way back is no drift of its own, s.

    Notes
    -----
    ``score = max over features of |level - reference| / min_shift``; the level is the mean of
    the last three minutes, the reference ADWIN's mean before the shift
    (:mod:`detector.cohort.adwin`). Five features, one univariate model each.

    References
    ----------
    .. [1] Bifet and Gavaldà (2007), "Learning from Time-Changing Data with Adaptive Windowing",
       SDM.

    Examples
    --------
    A job that drew 90 % of its power limit draws 60 % from now on:

    >>> watch = Drift()
    >>> state = {name: spec.make(1) for name, spec in watch.fields().items()}
    >>> frame = Frame.of(metrics={}, ts=[0], dt=10.0)
    >>> for name in FEATURES:
    ...     frame.extra[f"level_{name}"] = np.array([0.6])
    ...     frame.extra[f"before_{name}"] = np.array([0.9 if name == "power_ratio" else np.nan])
    >>> frame.extra["history"] = np.array([300.0])
    >>> step = watch.step(frame, state, {"drift": np.zeros(1, dtype=bool)})
    >>> step.judgements["drift"].score
    array([3.])
    """

    min_shift: float = 0.1
    returned_ratio: float = 0.5
    history_windows: int = 180
    enter_seconds: float = 180.0
    exit_seconds: float = 60.0
    accept_seconds: float = 3600.0
    rest_seconds: float = 1800.0

    name: ClassVar[str] = "drift"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "novelty"
    scope: ClassVar[Scope] = Scope.JOB
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    helps: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        require_positive(min_shift=self.min_shift)

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; a score of 1 is a shift of ``min_shift``."""
        return (
            KindSpec(
                kind="drift",
                enter=1.0,
                exit=0.5,
                enter_seconds=self.enter_seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """Level before the shift (a share, per feature), two times (s), how the last one ended."""
        return {
            "reference": Field("f8", np.nan, len(FEATURES)),
            "away_seconds": Field("f4", 0.0),
            "rest_seconds": Field("f4", 0.0),
            "ended": Field("i1", _NONE),
        }

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Judge windows whose levels and shifts stand in ``frame.extra``."""
        del firing
        level = np.column_stack([frame[f"level_{name}"] for name in FEATURES])
        before = np.column_stack([frame[f"before_{name}"] for name in FEATURES])
        rest = np.maximum(state["rest_seconds"] - frame.elapsed, 0.0)
        reference = state["reference"]
        taken = np.isnan(reference) & np.isfinite(before) & (rest <= 0.0)[:, None]
        taken[:, :] &= np.abs(level - before) >= self.min_shift
        reference = np.where(taken, before, reference)
        distance = np.abs(level - reference) / self.min_shift
        away = np.isfinite(reference).any(axis=1)
        seconds = np.where(away, state["away_seconds"] + frame.elapsed, 0.0)
        accepted = away & (seconds >= self.accept_seconds)
        back = away & ~(np.nan_to_num(distance) >= self.returned_ratio).any(axis=1)
        over = accepted | back
        score = np.where(over, 0.0, np.nan_to_num(distance).max(axis=1))
        ready = frame["history"] >= self.history_windows
        score = np.where(ready, score, np.nan)
        ended = np.where(accepted, _ACCEPTED, np.where(back, _RETURNED, state["ended"]))
        ended = np.where(taken.any(axis=1), _NONE, ended)
        return Step(
            judgements={
                "drift": Judgement(score=score, severity=uniform_severity(score, Severity.INFO))
            },
            state={
                "reference": np.where(over[:, None], np.nan, reference),
                "away_seconds": np.where(over, 0.0, seconds).astype(np.float32),
                "rest_seconds": np.where(over, self.rest_seconds, rest).astype(np.float32),
                "ended": ended.astype(np.int8),
            },
            columns={
                **{f"reference_{name}": reference[:, i] for i, name in enumerate(FEATURES)},
                "away_seconds": seconds,
                "accepted": (ended == _ACCEPTED).astype(np.float64),
            },
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the drift: which features moved, from where to where."""
        del kind
        moved = self._moved(row)
        said = ", ".join(
            f"{FEATURE_WORDS[name]} {100 * level:.0f} % (was {100 * was:.0f} %)"
            for name, level, was in moved
        )
        accepted = row["accepted"] > 0.0
        return Explanation(
            summary=f"works at another level than before: {said or 'it is back where it was'}",
            evidence=tuple(
                Evidence(
                    metric=name,
                    value=level,
                    unit="",
                    expected_low=was - self.min_shift,
                    expected_high=was + self.min_shift,
                    baseline=was,
                    window_seconds=180.0,
                )
                for name, level, was in moved
            )
            or (Evidence(metric="away_seconds", value=row.value("away_seconds"), unit="s"),),
            likely_cause=(
                "The work changed (another phase, batch size, data or software), or something "
                "that every GPU of the job depends on became slower or faster: storage, network, "
                "cooling, a power limit."
            ),
            action=Action.WATCH,
            next_steps=(
                "Compare the job's throughput with that before the change.",
                "If nothing was changed on purpose, look at storage, network and room temperature.",
            ),
            end_reason="new_normal" if accepted else "condition_ended",
            end_words="the new level has lasted and is the normal one now" if accepted else "",
        )

    def _moved(self, row: RowView) -> list[tuple[str, float, float]]:
        """Features that left their reference, the furthest first: name, level, reference."""
        found = [
            (name, row[f"level_{name}"], row[f"reference_{name}"])
            for name in FEATURES
            if np.isfinite(row[f"reference_{name}"]) and np.isfinite(row[f"level_{name}"])
        ]
        away = [item for item in found if _distance(item) >= self.returned_ratio * self.min_shift]
        return sorted(away or found, key=_distance, reverse=True)


def _distance(item: tuple[str, float, float]) -> float:
    return abs(item[1] - item[2])


def level_columns(level: FloatArray, before: FloatArray) -> dict[str, FloatArray]:
    """Name the columns that :class:`Drift` reads, one row; (features,) each, NaN if unknown."""
    return {
        f"{word}_{name}": values[number : number + 1]
        for word, values in (("level", level), ("before", before))
        for number, name in enumerate(FEATURES)
    }
