"""Finds GPUs that stop and go: they compute for a moment and then wait for their next data.

The question is "how often does the load toggle, and for what share of the time is it away?". A
period is not estimated: at one reading a second a period of 3.5 s looks like one of 7 s.
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

__all__ = ["DETECTOR", "DataStarvation"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_UNKNOWN, _LOW, _HIGH = -1, 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStarvation:
    """Rate at which the utilisation toggles, and the share of time in which it is low.

    Parameters
    ----------
    high_utilization, low_utilization
        A GPU works above the one and waits below the other, 0 to 1; between them it stays what
        it was.
    toggles_per_second
        Changes between working and waiting per second at which a GPU is starved.
    waiting_share
        Share of the time spent waiting at which it is starved, 0 to 1.
    smooth_seconds
        Time constant of both, s.
    warm_up_seconds
        Time from the first memory held before anything is said, s: loading toggles by nature.
    enter_seconds, exit_seconds
        How long it must hold, or have ended, s.
    held_memory
        Share of the memory in use from which a GPU counts as allocated, 0 to 1.
    slowest_seconds
        At a slower sampling than this, toggling cannot be told from chance, s.

    Notes
    -----
    ``score = min(rate / toggles_per_second, waiting / waiting_share)`` with exponential means of
    both. Training with its optimiser in host memory, evaluation, pipeline bubbles and inference
    in bursts look the same and are meant so: this is a note, never a warning.

    References
    ----------
    .. [1] Sampling below twice the rate of a signal folds its period: Shannon (1949),
       "Communication in the Presence of Noise", Proc. IRE 37(1).

    Examples
    --------
    Two readings on, two off, a second apart, for two minutes:

    >>> watch = DataStarvation()
    >>> state = {name: spec.make(1) for name, spec in watch.fields().items()}
    >>> held = {"memory_used_bytes": [6e10], "memory_total_bytes": [8e10]}
    >>> for second in range(120):
    ...     busy = 0.9 if second % 4 < 2 else 0.05
    ...     metrics = held | {"gpu_utilization_ratio": [busy]}
    ...     frame = Frame.of(metrics=metrics, ts=[1000 * second], dt=1.0)
    ...     step = watch.step(frame, state, {})
    ...     state = step.state
    >>> bool(step.judgements["data_starvation"].score[0] > 1.0)
    True
    """

    high_utilization: float = 0.6
    low_utilization: float = 0.2
    toggles_per_second: float = 0.08
    waiting_share: float = 0.25
    smooth_seconds: float = 60.0
    warm_up_seconds: float = 90.0
    enter_seconds: float = 30.0
    exit_seconds: float = 120.0
    held_memory: float = 0.05
    slowest_seconds: float = 10.0

    name: ClassVar[str] = "data_starvation"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "inefficiency"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = (
        "gpu_utilization_ratio",
        "memory_used_bytes",
        "memory_total_bytes",
    )
    helps: ClassVar[tuple[str, ...]] = ("power_watts", "pcie_receive_bytes_total")

    def __post_init__(self) -> None:
        require_positive(
            toggles_per_second=self.toggles_per_second,
            waiting_share=self.waiting_share,
            smooth_seconds=self.smooth_seconds,
        )
        if self.low_utilization > self.high_utilization:
            raise ValueError("low_utilization must not be above high_utilization")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; 1 where both the rate and the share are at their limits."""
        return (
            KindSpec(
                kind="data_starvation",
                enter_seconds=self.enter_seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """Working or waiting, toggles per second, share of waiting, seconds since allocation."""
        return {
            "side": Field("i1", _UNKNOWN),
            "rate": Field("f4", 0.0),
            "waiting": Field("f4", 0.0),
            "age": Field("f4", 0.0),
        }

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by how often it toggles and how long it waits."""
        del firing
        busy, dt = frame["gpu_utilization_ratio"], frame.elapsed
        total, used = frame["memory_total_bytes"], frame["memory_used_bytes"]
        known = np.isfinite(busy) & np.isfinite(used) & np.isfinite(total) & ~frame.mig_parent
        # A job that leaves takes its history along; the next one starts anew.
        held = known & (used >= self.held_memory * total) & (used > 0.0)
        began = np.where(held, 1.0, 0.0)
        side = self._side(state["side"], busy, known)
        toggled = (state["side"] != _UNKNOWN) & (side != state["side"])
        events = np.divide(toggled, dt, out=np.full(len(frame), np.nan), where=known & (dt > 0.0))
        away = np.where(known, (side == _LOW).astype(np.float64), np.nan)
        rate = ewma(state["rate"].astype(np.float64), events, dt, self.smooth_seconds) * began
        waiting = ewma(state["waiting"].astype(np.float64), away, dt, self.smooth_seconds) * began
        age = np.minimum(state["age"] + dt, 1e6) * began
        new = {"side": side, "rate": rate, "waiting": waiting, "age": age}
        kept = {
            name: np.where(known, value, state[name]).astype(state[name].dtype)
            for name, value in new.items()
        }
        score = np.minimum(rate / self.toggles_per_second, waiting / self.waiting_share)
        score = np.where(age >= self.warm_up_seconds, score, 0.0)
        judgeable = known & (frame.interval <= self.slowest_seconds)
        score = np.where(judgeable, score, np.nan)
        judged = Judgement(score=score, severity=uniform_severity(score, Severity.INFO))
        return Step(
            judgements={"data_starvation": judged},
            state=kept,
            columns={"rate": rate, "waiting": waiting},
        )

    def _side(self, before: AnyArray, busy: FloatArray, known: BoolArray) -> AnyArray:
        """(n,) working or waiting now; between the two limits as before."""
        side = np.where(busy >= self.high_utilization, _HIGH, before)
        side = np.where(busy <= self.low_utilization, _LOW, side)
        return np.where(known, side, before)

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the stalls with the share of time that they cost."""
        del kind
        rate, waiting = row["rate"], row["waiting"]
        minute = rate * 60.0
        return Explanation(
            summary=(
                f"stops and goes: its load toggled {minute:.0f} times in the last minute and was "
                f"away for {waiting:.0%} of it, time in which the GPU waited"
            ),
            evidence=(
                Evidence(
                    metric="utilization_toggles_per_second",
                    value=rate,
                    unit="1/s",
                    expected_high=self.toggles_per_second,
                    window_seconds=self.smooth_seconds,
                ),
                Evidence(
                    metric="waiting_share_ratio",
                    value=waiting,
                    unit="",
                    expected_high=self.waiting_share,
                    window_seconds=self.smooth_seconds,
                ),
                Evidence(metric="power_watts", value=row.value("power_watts"), unit="W"),
            ),
            likely_cause=(
                "The data loader, the storage or work on the host between steps cannot keep up. "
                "Offloading to the host, evaluation and bursts of requests look the same."
            ),
            action=Action.NONE,
            next_steps=(
                "Profile one step: how long does it wait for the next batch?",
                "Give the loader more workers and prefetching, or move the data nearer.",
                "If the pauses are part of the method, take no action.",
            ),
        )


DETECTOR = DataStarvation
