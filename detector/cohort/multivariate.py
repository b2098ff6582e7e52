"""Novelty: a cohort that behaves as it has not for hours, on several quantities at once.

A curiosity, not a fault: severity info. It says where to look when nothing else speaks. Only if
a second signal agrees, one that knows nothing of the cohort's past, it is a warning: a member of
the job is a straggler, idle or hung, or clocks are cut by heat or a power brake. A drift is no
second signal: it sees the same past.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, Judgement, KindSpec, RowView, Step
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

    braked_ratio
        Share of the job's GPUs whose clocks are cut by heat or a power brake that agrees, 0 to 1.

    Notes
    -----
    Severity: warning while a member of the job has an open alert of ``load_imbalance``, or at
    least ``braked_ratio`` of its GPUs are braked; else info.

    Score: ``(rarity - q99) / margin``. The forest and its quantile are in
    :mod:`detector.cohort.forest`.
    """

    margin: float = 0.05
    enter_seconds: float = 60.0
    exit_seconds: float = 60.0
    history_windows: int = 180
    braked_ratio: float = 0.1

    name: ClassVar[str] = "multivariate"
    version: ClassVar[str] = "2"
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
        braked = (frame["braked_ratio"] > 0.0) & (frame["braked_ratio"] >= self.braked_ratio)
        agrees = braked | (frame["imbalanced_members"] > 0.0)
        severity = np.where(agrees, Severity.WARNING.rank, Severity.INFO.rank).astype(np.int8)
        return Step(
            judgements={"multivariate": Judgement(score=score, severity=severity)}, state={}
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
        second = self._second(row)
        return Explanation(
            summary=(
                f"behaves unlike its recent past (rarity {row['rarity']:.2f}, usually below "
                f"{row['usual']:.2f}): {said}{second}"
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

    def _second(self, row: RowView) -> str:
        """Name the second signal that agrees, if one does."""
        members, braked = row["imbalanced_members"], row["braked_ratio"]
        if members > 0.0:
            many = "s are" if members > 1.0 else " is"
            return f"; {members:.0f} member{many} out of step at the same time"
        if braked > 0.0 and braked >= self.braked_ratio:
            return f"; the clocks of {100 * braked:.0f} % of its GPUs are cut by heat or a brake"
        return ""
