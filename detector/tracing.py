"""Looking over a detector's shoulder: every score of some moments, and what became of it.

A :class:`Watch` stands in a detector's place, hands everything through and keeps what it saw, with
the same episodes beside it that the engine keeps. It changes no score, so what is explained is
what was said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detector.arrays import BoolArray, Field, StateTable
from detector.base import Detector, Explanation, KindSpec, RowView, Step
from detector.episodes import EPISODE_FIELDS, Transition, advance
from detector.frame import Frame
from schemas.alert import AlertEvent, parse_time

__all__ = ["Moment", "Trace", "Wanted", "Watch"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One kind on one row, over some event time (unix milliseconds, both ends included)."""

    kind: str
    row: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One reading of one row, as a detector saw it.

    Parameters
    ----------
    ts
        Event time, unix milliseconds.
    score
        NaN where nothing could be said.
    phase
        0 idle, 1 pending, 2 firing, 3 resting: after this reading.
    held_seconds, held_samples, clear_seconds
        How long the condition has held, and has ended, after this reading.
    metrics, columns
        Readings that the detector uses, and quantities that it derived; NaN where missing.
    """

    ts: int
    score: float
    phase: int
    held_seconds: float
    held_samples: int
    clear_seconds: float
    metrics: Mapping[str, float]
    columns: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All moments of one alert, oldest first, under the rules of its kind."""

    detector: Detector
    spec: KindSpec
    moments: tuple[Moment, ...]


@dataclass(slots=True)
class Watch:
    """Stands in for a detector and keeps what it saw.

    Parameters
    ----------
    inner
        The detector.
    wanted
        What to keep every reading of; changes of episodes are always kept.
    """

    inner: Detector
    wanted: tuple[Wanted, ...] = ()
    _tables: dict[str, StateTable] = field(default_factory=dict)
    _moments: dict[Wanted, list[Moment]] = field(default_factory=dict)
    _moves: dict[tuple[str, int, int, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tables = {spec.kind: StateTable(EPISODE_FIELDS) for spec in self.inner.kinds}

    def __getattr__(self, name: str) -> Any:
        """Answer as the detector does: its name, its family, its parameters."""
        return getattr(self.inner, name)

    def fields(self) -> Mapping[str, Field]:
        """Declare the detector's state."""
        return self.inner.fields()

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word an alert as the detector does."""
        return self.inner.explain(kind, row)

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Judge as the detector does, and note it."""
        step = self.inner.step(frame, state, firing)
        for spec in self.inner.kinds:
            table = self._tables[spec.kind]
            table.grow(int(frame.rows.max(initial=-1)) + 1)
            for moved in advance(table, spec, frame, step.judgements[spec.kind]):
                self._note(spec.kind, moved)
        for wanted in self.wanted:
            for position in np.flatnonzero(frame.rows == wanted.row).tolist():
                if wanted.first_ms <= frame.ts[position] <= wanted.last_ms:
                    moment = self._moment(frame, step, wanted.kind, position)
                    self._moments.setdefault(wanted, []).append(moment)
        return step

    def _note(self, kind: str, moved: Transition) -> None:
        key = (kind, moved.seq, moved.started_ms, moved.observed_ms)
        self._moves.setdefault(key, []).append(moved.row)

    def rows_of(self, alert: AlertEvent) -> list[int]:
        """Return the rows of which this event may be: more than one only at one same moment."""
        started, observed = parse_time(alert.started_at), parse_time(alert.observed_at)
        return self._moves.get((alert.kind, alert.seq, started, observed), [])

    def trace(self, wanted: Wanted) -> Trace:
        """Return what was kept of one row and kind."""
        spec = next(spec for spec in self.inner.kinds if spec.kind == wanted.kind)
        moments = tuple(self._moments.get(wanted, ()))
        return Trace(detector=self.inner, spec=spec, moments=moments)

    def _moment(self, frame: Frame, step: Step, kind: str, position: int) -> Moment:
        episode = self._tables[kind].gather(frame.rows[position : position + 1])
        names = (*self.inner.needs, *self.inner.helps)
        return Moment(
            ts=int(frame.ts[position]),
            score=float(step.judgements[kind].score[position]),
            phase=int(episode["phase"][0]),
            held_seconds=float(episode["held"][0]),
            held_samples=int(episode["samples"][0]),
            clear_seconds=float(episode["clear"][0]),
            metrics={name: float(frame[name][position]) for name in names},
            columns={name: float(column[position]) for name, column in step.columns.items()},
        )
