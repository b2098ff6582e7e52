"""Reports a node that sends nothing any more, not even a heartbeat.

Judged by the time of arrival and only while the reader has no lag: late reading is not silence.
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
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "NodeSilent"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSilent:
    """Seconds since a node was heard, against what its own rate of messages allows.

    Parameters
    ----------
    intervals
        Intervals between messages that may be missed.
    min_seconds
        Silence that is allowed at any rate, s: a restart of the collector takes less.

    Notes
    -----
    ``score = silent_seconds / max(intervals * message_seconds, min_seconds)``. The time of
    arrival is that of the log. The alert starts at the last event time of the node, so that its
    id does not depend on when it was noticed, and ends with the next message. A node that said
    it is stopping, or that is replayed, is not listened for; nodes that fall silent at once are
    one alert of the pipeline (``partition_silent``). The silence is looked at once a second by
    the service; a replay never does.

    Examples
    --------
    >>> frame = Frame.of(metrics={}, ts=[0, 0])
    >>> frame.extra["silent_seconds"] = np.array([0.0, 45.0])
    >>> frame.extra["message_seconds"] = np.array([1.0, 1.0])
    >>> NodeSilent().step(frame, {}, {}).judgements["node_silent"].score
    array([0. , 1.5])
    """

    intervals: float = 3.0
    min_seconds: float = 30.0

    name: ClassVar[str] = "node_silent"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "telemetry"
    scope: ClassVar[Scope] = Scope.NODE
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    helps: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        require_positive(min_seconds=self.min_seconds)

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``node_silent``: opens when the time is up, ends with the next message."""
        return (KindSpec(kind="node_silent", exit_seconds=0.0),)

    def fields(self) -> Mapping[str, Field]:
        """No state: arrivals are kept by the engine."""
        return {}

    def allowed_seconds(self, message_seconds: FloatArray) -> FloatArray:
        """Return how long a node may be silent, s, of its seconds between messages."""
        return np.fmax(self.intervals * message_seconds, self.min_seconds)

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score silence over allowed silence; 0 for a node that speaks."""
        del state, firing
        allowed = self.allowed_seconds(frame["message_seconds"])
        score = frame["silent_seconds"] / allowed
        return Step(
            judgements={
                "node_silent": Judgement(
                    score=score, severity=uniform_severity(score, Severity.WARNING)
                )
            },
            state={},
            columns={"allowed": allowed},
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the silence."""
        del kind
        silent, every = row["silent_seconds"], row.value("message_seconds")
        usual = "" if every is None else f"; it used to send every {every:g} s"
        return Explanation(
            summary=f"has sent nothing for {silent:.0f} s, not even a heartbeat{usual}",
            evidence=(
                Evidence(
                    metric="silent_seconds",
                    value=silent,
                    unit="s",
                    expected_high=row["allowed"],
                ),
            ),
            likely_cause=(
                "The node is down or hangs, its network is cut, or its collector was killed. A "
                "collector that is stopped says so first."
            ),
            action=Action.WATCH,
            next_steps=(
                "See whether the node answers (ping, console, scheduler) and when it last did.",
                "If it is up, look at the collector's service and its log.",
                "If the node was taken away on purpose, acknowledge this alert.",
            ),
        )


DETECTOR = NodeSilent
