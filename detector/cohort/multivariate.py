"""Novelty: a cohort that behaves as it has not for hours, on several quantities at once.

A curiosity, not a fault: severity info. It says where to look when nothing else speaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, uniform_severity
from detector.cohort.features import FEATURES
from detector.frame import Frame
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["Multivariate"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class Multivariate:
    """Rarity of a cohort's window above the moving quantile of its own past.

    Parameters
    ----------
    margin
        How far the score must stand above the quantile, in units of the score (0 to 1).
    enter_seconds, exit_seconds
        How long it must hold, or have ended, s.
    history_windows
        Windows that must have been learned before anything is said; 180 are half an hour.

    Notes
    -----
    Score: ``(rarity - q99) / margin``. The forest and its quantile are in
    :mod:`detector.cohort.forest`.
    """

    margin: float = 0.05
    enter_seconds: float = 60.0
    exit_seconds: float = 60.0
    history_windows: int = 180

    name: ClassVar[str] = "multivariate"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "novelty"
    scope: ClassVar[Scope] = Scope.JOB
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    helps: ClassVar[tuple[str, ...]] = ()

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; a score of 1 is ``margin`` above the quantile."""
        return (
            KindSpec(
                kind="multivariate",
                enter=1.0,
                exit=0.5,
                enter_seconds=self.enter_seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """No state of its own: the forest is state."""
        return {}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Judge windows whose rarity, quantile and history stand in ``frame.extra``."""
        del state, firing
        ready = frame["history"] >= self.history_windows
        above = (frame["rarity"] - frame["usual"]) / self.margin
        score = np.where(ready, np.maximum(above, 0.0), np.nan)
        return Step(
            judgements={
                "multivariate": Judgement(
                    score=score, severity=uniform_severity(score, Severity.INFO)
                )
            },
            state={},
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the novelty with the features' values."""
        del kind
        values = {name: row.value(name) for name in FEATURES}
        evidence = [
            Evidence(metric=name, value=value, unit="", window_seconds=self.enter_seconds)
            for name, value in values.items()
            if value is not None
        ]
        said = ", ".join(f"{item.metric} {item.value:.2f}" for item in evidence)
        return Explanation(
            summary=(
                f"behaves unlike its recent past (rarity {row['rarity']:.2f}, usually below "
                f"{row['usual']:.2f}): {said}"
            ),
            evidence=(
                Evidence(
                    metric="rarity",
                    value=row["rarity"],
                    unit="",
                    expected_high=row["usual"] + self.margin,
                    window_seconds=self.enter_seconds,
                ),
                *evidence,
            ),
            likely_cause=(
                "The work changed (another phase, batch size or data), or several quantities "
                "moved a little at once, which no single limit shows."
            ),
            action=Action.WATCH,
            next_steps=(
                "Compare the job's throughput with that before the change.",
                "If the work did not change, compare the job's GPUs with each other.",
            ),
        )
