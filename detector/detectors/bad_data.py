"""Finds GPUs whose readings are impossible again and again: the reader or its unit is wrong.

One impossible value in a million is normal and becomes a gap. A metric that is refused all the
time is blind: whatever needs it says nothing, and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import (
    Explanation,
    Judgement,
    KindSpec,
    RowView,
    Step,
    require_positive,
)
from detector.frame import Frame
from detector.stats.ewma import ewma
from schemas.alert import Action, Evidence, Scope, Severity
from schemas.metrics import CATALOGUE

__all__ = ["DETECTOR", "BadData"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class BadData:
    """Impossible readings of a GPU per sample, over minutes.

    Parameters
    ----------
    share
        Mean number of impossible readings per sample at which somebody should look: half means
        that one metric is refused every other time.
    smooth_seconds
        Time constant of that mean, s. Two impossible values among eight, a minute apart, stay
        below a half.
    many
        Mean number per sample from which the note becomes a warning: with so many metrics blind
        the GPU is hardly watched.
    exit_seconds
        How long the readings must be possible again, s.

    Notes
    -----
    What counts is a value outside the range of the metric catalogue, whether the collector
    refused it (status ``implausible``) or the detector's own door did. The value itself is a gap
    for everybody. A wrong unit, milliwatts under a watt label, is wrong from the first sample
    and in one metric: a note with the name of the metric, and never a power alert.

    Examples
    --------
    >>> watch = BadData()
    >>> frame = Frame.of(metrics={"temperature_celsius": [50.0, 50.0]}, ts=[0, 0], dt=1.0)
    >>> frame.extra["implausible_readings"] = np.array([0.0, 1.0])
    >>> frame.extra["implausible_metric"] = np.array([np.nan, 3.0])
    >>> state = {name: spec.make(2) for name, spec in watch.fields().items()}
    >>> for _ in range(300):
    ...     step = watch.step(frame, state, {})
    ...     state = step.state
    >>> [round(float(s), 2) for s in step.judgements["bad_data"].score]
    [0.0, 1.26]
    """

    share: float = 0.5
    smooth_seconds: float = 300.0
    many: float = 3.0
    exit_seconds: float = 60.0

    name: ClassVar[str] = "bad_data"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "telemetry"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    helps: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        require_positive(share=self.share, smooth_seconds=self.smooth_seconds)

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; 1 where ``share`` readings per sample are impossible."""
        return (
            KindSpec(kind="bad_data", exit=0.5, enter_samples=5, exit_seconds=self.exit_seconds),
        )

    def fields(self) -> Mapping[str, Field]:
        """Mean number of impossible readings per sample, and the last metric that had one."""
        return {"mean": Field("f4", 0.0), "metric": Field("i2", -1)}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by its impossible readings per sample."""
        del firing
        count, which = frame["implausible_readings"], frame["implausible_metric"]
        answers = np.isfinite(frame.x).any(axis=0) | (count > 0.0)
        known = answers & np.isfinite(count)
        seen = np.where(known, count, np.nan)
        mean = ewma(state["mean"].astype(np.float64), seen, frame.elapsed, self.smooth_seconds)
        metric = np.where(known & np.isfinite(which), which, state["metric"]).astype(np.int16)
        score = np.where(known, mean / self.share, np.nan)
        grave, note = Severity.WARNING.rank, Severity.INFO.rank
        severity = np.where(mean >= self.many, grave, note).astype(np.int8)
        return Step(
            judgements={"bad_data": Judgement(score=score, severity=severity)},
            state={"mean": mean.astype(np.float32), "metric": metric},
            columns={"mean": mean, "metric": metric},
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word which metric is impossible and how often."""
        del kind
        mean, number = row["mean"], int(row["metric"])
        metric = CATALOGUE[number] if number >= 0 else None
        named = "" if metric is None else f", the last of them in {metric.name}"
        limits = (
            "The accepted range is that of the metric catalogue."
            if metric is None
            else f"Values of {metric.name} from {metric.low:g} to {metric.high:g} are accepted."
        )
        return Explanation(
            summary=(
                f"gives impossible readings: {mean:.1f} per sample over the last "
                f"{self.smooth_seconds / 60.0:.0f} min{named}; they are taken as missing"
            ),
            evidence=(
                Evidence(
                    metric="implausible_readings",
                    value=mean,
                    unit="1/sample",
                    expected_high=self.share,
                    window_seconds=self.smooth_seconds,
                ),
            ),
            likely_cause=(
                "The source uses another unit (milliwatts as watts), an uninitialised field of "
                "an old driver, or a structure that changed between driver branches. From the "
                "first sample on it is the source; later it is the driver."
            ),
            action=Action.WATCH,
            next_steps=(
                f"Compare the source with nvidia-smi -q on the node. {limits}",
                "Correct the unit in the column map, or update driver and collector together.",
                "Until then detectors that need this metric say nothing about this GPU.",
            ),
        )


DETECTOR = BadData
