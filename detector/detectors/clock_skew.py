"""Reports a node whose clock is wrong: its event times are not those at which messages arrive.

Within a node nothing suffers; across nodes windows do not meet, and alerts carry wrong times.
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
    uniform_severity,
)
from detector.frame import Frame
from detector.stats.ewma import ewma
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "ClockSkew"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSkew:
    """Least recent distance between arrival and event time of a node's messages.

    Parameters
    ----------
    ahead_seconds
        Event times so far after the arrival are a clock that is fast, s. Transport only makes
        the distance smaller, and clocks under NTP agree to milliseconds.
    behind_seconds
        Event times always so far before the arrival are a clock that is slow, s; delays of
        transport and flushing stay below it.
    backfill_seconds
        Event times longer ago than this are old telemetry brought in later and no clock, s.
    smooth_seconds
        Time constant with which the least distance is forgotten, s. Messages that waited for
        the broker come with live ones between them, so that the least stays that of the live.
    enter_seconds, exit_seconds
        How long it must hold, or have ended, s.

    Notes
    -----
    ``d = arrival - event time`` of the last tick of a message; the state follows a smaller ``d``
    at once and a larger one slowly. ``score = max(-d / ahead_seconds, d / behind_seconds)``.
    The arrival is the time at which the log took the message. Off in replays and for sources
    with a time of their own.

    Examples
    --------
    >>> watch = ClockSkew()
    >>> state = {name: spec.make(2) for name, spec in watch.fields().items()}
    >>> frame = Frame.of(metrics={}, ts=[0, 0], dt=1.0)
    >>> frame.extra["arrival_seconds"] = np.array([0.2, -30.0])
    >>> step = watch.step(frame, state, {})
    >>> [round(float(s), 3) for s in step.judgements["clock_skew"].score]
    [0.003, 6.0]
    """

    ahead_seconds: float = 5.0
    behind_seconds: float = 60.0
    backfill_seconds: float = 86_400.0
    smooth_seconds: float = 300.0
    enter_seconds: float = 60.0
    exit_seconds: float = 60.0

    name: ClassVar[str] = "clock_skew"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "telemetry"
    scope: ClassVar[Scope] = Scope.NODE
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    helps: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        require_positive(
            ahead_seconds=self.ahead_seconds,
            behind_seconds=self.behind_seconds,
            smooth_seconds=self.smooth_seconds,
        )

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``clock_skew``, of the node."""
        return (
            KindSpec(
                kind="clock_skew",
                enter_seconds=self.enter_seconds,
                enter_samples=5,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """Least recent distance, s."""
        return {"least": Field("f4")}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score the least recent distance against what is allowed on either side."""
        del firing
        distance = frame["arrival_seconds"]
        distance = np.where(distance <= self.backfill_seconds, distance, np.nan)
        before = state["least"].astype(np.float64)
        # A fast clock that was set right: the distance grows at once, nothing hides behind it.
        least = np.where(before < 0.0, np.nan, before)
        least = ewma(least, distance, frame.elapsed, self.smooth_seconds)
        least = np.fmin(least, distance)
        least = np.where(np.isnan(distance), before, least)
        score = np.maximum(-least / self.ahead_seconds, least / self.behind_seconds)
        score = np.where(np.isnan(distance), np.nan, np.maximum(score, 0.0))
        judged = Judgement(score=score, severity=uniform_severity(score, Severity.WARNING))
        return Step(
            judgements={"clock_skew": judged},
            state={"least": least.astype(np.float32)},
            columns={"least": least},
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word by how much the clock is wrong."""
        del kind
        least = row["least"]
        side = "ahead of" if least < 0.0 else "behind"
        return Explanation(
            summary=(
                f"has a clock that is {abs(least):.0f} s {side} the time at which its messages "
                "arrive"
            ),
            evidence=(
                Evidence(
                    metric="arrival_minus_event_seconds",
                    value=least,
                    unit="s",
                    expected_low=-self.ahead_seconds,
                    expected_high=self.behind_seconds,
                    window_seconds=self.smooth_seconds,
                ),
            ),
            likely_cause=(
                "The node's time synchronisation (chrony, NTP) does not run or reaches no server. "
                "If every node shows it, the clock of the message broker is wrong."
            ),
            action=Action.WATCH,
            next_steps=(
                "Run chronyc tracking or timedatectl on the node and repair its time source.",
                "Until then times of alerts of this node are wrong by as much.",
            ),
        )


DETECTOR = ClockSkew
