"""Finds GPUs that are paid for and not used: held by a process that computes little or nothing.

No fault and no alarm: notes for whoever looks after the budget, with the loss in GPU-hours.
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
from detector.frame import Frame
from detector.stats.ewma import ewma
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "Utilization"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_GIB = 2.0**30
# Scores are ratios of a limit to a mean that may be 0; above this they say nothing more.
_MOST = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """Utilisation over minutes of GPUs whose memory is taken.

    Parameters
    ----------
    held_memory
        Share of the memory in use from which a GPU counts as allocated, 0 to 1. The driver's
        own share is up to 3 % of a small card.
    idle_utilization, idle_smooth_seconds
        Mean utilisation below which the GPU idles, 0 to 1, and the time constant of the mean, s.
    idle_power
        Share of the power limit above which a GPU works whatever its utilisation says, 0 to 1:
        a loaded model without work draws 120 W of 700 W on an H100.
    idle_seconds
        How long it must idle, s.
    low_utilization, low_smooth_seconds, low_seconds
        Mean utilisation below which a working GPU is badly used, 0 to 1, the time constant of
        the mean, s, and how long, s.
    exit_seconds
        How long the GPU must be used again, s.

    Notes
    -----
    ``idle_allocated``: ``idle_utilization / EW(utilisation)`` while memory is held and power is
    low. ``low_utilization``: ``low_utilization / EW(utilisation)`` of GPUs that do work at
    times; the fraction lost is ``1 - EW``. Utilisation counts the time in which some kernel ran,
    so the true loss is at least that. Neither is more than info: hot standby and inference with
    a mean duty of 7 % look the same and are meant so. Partitioned GPUs have no utilisation, and
    some exporters write 0 for it: they are not judged.

    Examples
    --------
    Nine tenths of the memory taken and nothing running:

    >>> watch = Utilization()
    >>> metrics = {
    ...     "gpu_utilization_ratio": [0.0, 0.9],
    ...     "memory_used_bytes": [9e9, 9e9],
    ...     "memory_total_bytes": [1e10, 1e10],
    ... }
    >>> frame = Frame.of(metrics=metrics, ts=[0, 0])
    >>> fresh = {name: spec.make(2) for name, spec in watch.fields().items()}
    >>> step = watch.step(frame, fresh, {})
    >>> [round(float(s), 2) for s in step.judgements["idle_allocated"].score]
    [10.0, 0.01]
    """

    held_memory: float = 0.05
    idle_utilization: float = 0.01
    idle_smooth_seconds: float = 60.0
    idle_power: float = 0.25
    idle_seconds: float = 900.0
    low_utilization: float = 0.2
    low_smooth_seconds: float = 900.0
    low_seconds: float = 3600.0
    exit_seconds: float = 120.0

    name: ClassVar[str] = "utilization"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "inefficiency"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = (
        "gpu_utilization_ratio",
        "memory_used_bytes",
        "memory_total_bytes",
    )
    helps: ClassVar[tuple[str, ...]] = ("power_watts", "power_limit_watts")

    def __post_init__(self) -> None:
        require_positive(
            idle_smooth_seconds=self.idle_smooth_seconds,
            low_smooth_seconds=self.low_smooth_seconds,
        )

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """Both judge a limit over a mean: 1 at the limit, more below it."""
        return (
            KindSpec(
                kind="idle_allocated",
                enter_seconds=self.idle_seconds,
                enter_samples=5,
                exit_seconds=self.exit_seconds,
            ),
            KindSpec(
                kind="low_utilization",
                enter_seconds=self.low_seconds,
                enter_samples=5,
                exit=0.8,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """Two means of the utilisation, and since when it idles, s."""
        return {"short": Field("f4"), "long": Field("f4"), "idle": Field("f4", 0.0)}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by how far its mean utilisation is below the two limits."""
        del firing
        busy, dt = frame["gpu_utilization_ratio"], frame.elapsed
        share = _share(frame["memory_used_bytes"], frame["memory_total_bytes"])
        known = np.isfinite(busy) & np.isfinite(share) & ~frame.mig_parent
        seen = np.where(known, busy, np.nan)
        short = ewma(state["short"].astype(np.float64), seen, dt, self.idle_smooth_seconds)
        long = ewma(state["long"].astype(np.float64), seen, dt, self.low_smooth_seconds)
        held = share >= self.held_memory
        idle_score = _below(self.idle_utilization, short, held & ~self._works(frame))
        low_score = _below(self.low_utilization, long, held & (long > self.idle_utilization))
        idling = np.where(idle_score >= 1.0, state["idle"] + dt, 0.0)
        return Step(
            judgements={
                "idle_allocated": _info(np.where(known, idle_score, np.nan)),
                "low_utilization": _info(np.where(known, low_score, np.nan)),
            },
            state={
                "short": short.astype(np.float32),
                "long": long.astype(np.float32),
                "idle": np.where(known, idling, state["idle"]).astype(np.float32),
            },
            columns={"short": short, "long": long, "idle": idling, "share": share},
        )

    def _works(self, frame: Frame) -> BoolArray:
        """(n,) the power says that the GPU works; False where it is unknown."""
        works: BoolArray = frame["power_watts"] > self.idle_power * frame["power_limit_watts"]
        return works

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the waste in GPU-hours."""
        return self._idle_words(row) if kind == "idle_allocated" else self._low_words(row)

    def _idle_words(self, row: RowView) -> Explanation:
        used, share = row["memory_used_bytes"], row["share"]
        minutes = max(row["idle"], self.idle_seconds) / 60.0
        watts = row.value("power_watts")
        drawn = "" if watts is None else f" at {watts:.0f} W"
        return Explanation(
            summary=(
                f"holds {used / _GIB:.1f} GiB ({share:.0%} of its memory) and has computed next "
                f"to nothing for {minutes:.0f} min{drawn}: {minutes / 60.0:.2f} GPU-hours paid "
                "and not used so far"
            ),
            evidence=(
                Evidence(
                    metric="gpu_utilization_ratio",
                    value=row.value("short"),
                    unit="",
                    expected_low=self.idle_utilization,
                    window_seconds=self.idle_smooth_seconds,
                ),
                Evidence(metric="memory_used_bytes", value=used, unit="bytes"),
                Evidence(metric="power_watts", value=watts, unit="W"),
            ),
            likely_cause=(
                "A forgotten notebook, a server without requests, a job that waits or has died "
                "and left its memory behind."
            ),
            action=Action.NONE,
            next_steps=(
                "Ask the owner whether the GPU may be given back; nvidia-smi names the processes.",
                "If no process is listed on the whole host, the allocation is stale: restart what "
                "held it, or reset the GPU when it is free.",
                "If it is hot standby on purpose, acknowledge this note or switch it off.",
            ),
        )

    def _low_words(self, row: RowView) -> Explanation:
        mean = row["long"]
        lost = max(0.0, 1.0 - mean)
        return Explanation(
            summary=(
                f"is used for {mean:.0%} of the time (mean of "
                f"{self.low_smooth_seconds / 60.0:.0f} min), and has been used that little for "
                f"{self.low_seconds / 60.0:.0f} min or longer: {lost:.0%} of every GPU-hour is lost"
            ),
            evidence=(
                Evidence(
                    metric="gpu_utilization_ratio",
                    value=mean,
                    unit="",
                    expected_low=self.low_utilization,
                    window_seconds=self.low_smooth_seconds,
                ),
                Evidence(
                    metric="memory_used_bytes", value=row.value("memory_used_bytes"), unit="bytes"
                ),
                Evidence(metric="power_watts", value=row.value("power_watts"), unit="W"),
            ),
            likely_cause=(
                "The program gives the GPU little to do: small batches, work on the host between "
                "kernels, few requests, or waiting for data or other workers."
            ),
            action=Action.NONE,
            next_steps=(
                "Profile the program for gaps between kernels; raise batch size or prefetching.",
                "Share the GPU (partitions, time slicing, several servers) or use a smaller one.",
            ),
        )


def _share(used: FloatArray, total: FloatArray) -> FloatArray:
    """(n,) used share of the memory; NaN where unknown."""
    unknown = np.full(len(used), np.nan)
    share: FloatArray = np.divide(used, total, out=unknown, where=total > 0.0)
    return share


def _below(limit: float, mean: FloatArray, counts: BoolArray) -> FloatArray:
    """(n,) limit over mean, at most :data:`_MOST`; 0 where it does not count."""
    most = np.full(len(mean), _MOST)
    ratio = np.divide(limit, mean, out=most, where=mean > limit / _MOST)
    return np.where(counts, ratio, 0.0)


def _info(score: FloatArray) -> Judgement:
    return Judgement(score=score, severity=uniform_severity(score, Severity.INFO))


DETECTOR = Utilization
