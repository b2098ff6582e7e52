"""Episodes: how scores over time become one alert that opens, escalates and resolves.

One mechanism for all kinds, vectorised over rows. Time in it is event time. A row whose score
is NaN is left exactly as it was: no data is neither a fault nor a recovery.

What comes and goes is one alert, not dozens: the third opening within half an hour is *flapping*
and stays open until the condition has been away for a quarter of an hour. Until then it has
cost four events besides its own opening; from then on it costs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray, IntArray
from detector.base import Judgement, KindSpec
from detector.frame import Frame

__all__ = [
    "EPISODE_FIELDS",
    "FLAP_EPISODES",
    "FLAP_MS",
    "QUIET_SECONDS",
    "Change",
    "EpisodeStore",
    "Transition",
    "advance",
    "firing_rows",
]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
#: ``RESTING``: resolved a short while ago; the times of the last openings are still known.
IDLE, PENDING, FIRING, RESTING = 0, 1, 2, 3
#: So many openings within so long are flapping, and how long must be quiet then. Operators call
#: an alert flapping from the third episode in half an hour on.
FLAP_EPISODES = 3
FLAP_MS = 30 * 60_000
QUIET_SECONDS = 15 * 60.0

EPISODE_FIELDS: dict[str, Field] = {
    "phase": Field("i1", IDLE),
    # Seconds that the enter condition has held, net of interruptions.
    "held": Field("f4", 0),
    "samples": Field("i2", 0),
    # Seconds that the exit condition has held, while firing.
    "clear": Field("f4", 0),
    "onset": Field("i8", 0),
    "clear_since": Field("i8", 0),
    "severity": Field("i1", 0),
    "seq": Field("i4", 0),
    "peak": Field("f4", 0),
    # Event times of the last opening and of the one before it; kept while resting.
    "opened": Field("i8", 0),
    "opened_before": Field("i8", 0),
    # How often a flapping episode came; 0 where it does not flap.
    "flaps": Field("i2", 0),
}
_KEPT_AT_REST = ("opened", "opened_before")
_MAX_SAMPLES = 32_000


class EpisodeStore(Protocol):
    """Where episodes of one kind are kept: arrays named as in :data:`EPISODE_FIELDS`."""

    @property
    def busy(self) -> bool:
        """Whether any row may be in an episode."""
        ...

    def __getitem__(self, name: str) -> AnyArray:
        """Return one array."""
        ...

    def gather(self, rows: IntArray) -> dict[str, AnyArray]:
        """Copy rows of every array."""
        ...

    def scatter(self, rows: IntArray, values: Mapping[str, AnyArray]) -> None:
        """Write rows back."""
        ...


class Change(StrEnum):
    """What happened to an episode."""

    OPENED = "opened"
    ESCALATED = "escalated"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One change of one episode.

    Parameters
    ----------
    position, row
        Position in the frame, row of the table.
    started_ms, observed_ms, ended_ms
        Event times, unix milliseconds; ``ended_ms`` only when resolved.
    severity
        Rank 1 to 3.
    score
        0 to 1, 0.5 at the enter threshold.
    flaps
        How often the condition came, if the episode is flapping; else 0.
    """

    change: Change
    position: int
    row: int
    started_ms: int
    observed_ms: int
    ended_ms: int | None
    severity: int
    seq: int
    score: float
    flaps: int = 0


def firing_rows(table: EpisodeStore, rows: IntArray) -> BoolArray:
    """Tell for each row whether its episode is open, (n,)."""
    firing: BoolArray = table["phase"][rows] == FIRING
    return firing


def advance(
    table: EpisodeStore, spec: KindSpec, frame: Frame, judgement: Judgement
) -> list[Transition]:
    """Move the episodes of one kind by one frame.

    Parameters
    ----------
    table
        State of the kind's episodes, changed in place.
    spec
        Thresholds and times.
    frame, judgement
        The round and its scores.

    Returns
    -------
    list of Transition
        In order of position; usually empty.
    """
    score = judgement.score
    enter = score >= spec.enter
    # Almost every frame of almost every kind ends here.
    if not np.count_nonzero(enter) and not table.busy:
        return []
    judged = np.isfinite(score)
    enter &= judged
    phase = table["phase"][frame.rows]
    if not enter.any() and not phase[judged].any():
        return []
    at = np.flatnonzero(judged & (enter | (phase != IDLE)))
    rows = frame.rows[at]
    state = table.gather(rows)
    seen = _Seen(frame.elapsed[at], enter[at], score[at] < spec.exit, frame.ts[at], score[at])
    _count(state, spec, seen)
    changes = _changes(state, spec, seen, judgement.severity[at])
    transitions = [
        _transition(state, i, change, position=int(at[i]), row=int(rows[i]), frame=frame, spec=spec)
        for i, change in changes
    ]
    for i, change in changes:
        if change is Change.RESOLVED:
            _rest(state, i)
    _forget(state, seen.ts)
    table.scatter(rows, state)
    return transitions


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a frame says of the rows that are in an episode or may begin one."""

    elapsed: FloatArray
    enter: BoolArray
    ended: BoolArray
    ts: IntArray
    score: FloatArray


def _rest(state: dict[str, AnyArray], i: int) -> None:
    """End an episode; its opening is remembered, unless flapping has ended with it."""
    flapped = state["flaps"][i] > 0
    for name, declared in EPISODE_FIELDS.items():
        if flapped or name not in _KEPT_AT_REST:
            state[name][i] = declared.fresh
    if not flapped:
        state["phase"][i] = RESTING


def _forget(state: dict[str, AnyArray], ts: IntArray) -> None:
    """Let go of openings that are too long ago to count."""
    old = (state["phase"] == RESTING) & ~_recent(state["opened"], ts)
    for name in ("phase", *_KEPT_AT_REST):
        state[name][old] = EPISODE_FIELDS[name].fresh


def _recent(moment: IntArray, ts: IntArray) -> BoolArray:
    """(n,) the moment is known and near; also one ahead, which a clock set back leaves behind."""
    recent: BoolArray = (moment > 0) & (np.abs(ts - moment) <= FLAP_MS)
    return recent


def _count(state: dict[str, AnyArray], spec: KindSpec, seen: _Seen) -> None:
    """Advance clocks and phases up to, not including, opening and resolving."""
    elapsed, enter, ended, ts = seen.elapsed, seen.enter, seen.ended, seen.ts
    firing = state["phase"] == FIRING
    starting = enter & ((state["phase"] == IDLE) | (state["phase"] == RESTING))
    state["onset"] = np.where(starting, ts, state["onset"])
    state["phase"] = np.where(starting, PENDING, state["phase"]).astype(np.int8)
    held = np.maximum(state["held"] + np.where(enter, elapsed, -elapsed), 0.0)
    given_up = ~firing & ~enter & (ended | (held <= 0.0))
    state["held"] = np.where(given_up, 0.0, held).astype(np.float32)
    counted = np.minimum(state["samples"] + enter, _MAX_SAMPLES)
    state["samples"] = np.where(given_up, 0, counted).astype(np.int16)
    idle = np.where(state["opened"] > 0, RESTING, IDLE)
    state["phase"] = np.where(given_up, idle, state["phase"]).astype(np.int8)
    again = firing & enter & (state["flaps"] > 0) & (state["clear"] > 0.0)
    again &= state["clear"] >= spec.exit_seconds
    state["flaps"] = np.minimum(state["flaps"] + again, _MAX_SAMPLES).astype(np.int16)
    first_clear = firing & ended & (state["clear"] <= 0.0)
    state["clear_since"] = np.where(first_clear, ts, state["clear_since"])
    # The smallest step keeps "has begun to clear" apart from "has not" at elapsed = 0.
    clear = state["clear"] + np.maximum(elapsed, 1e-3)
    state["clear"] = np.where(firing & ended, clear, 0.0).astype(np.float32)
    peak = np.where(enter, np.maximum(state["peak"], seen.score), state["peak"])
    state["peak"] = np.where(given_up, 0.0, peak).astype(np.float32)


def _changes(
    state: dict[str, AnyArray],
    spec: KindSpec,
    seen: _Seen,
    severity: AnyArray,
) -> list[tuple[int, Change]]:
    """Decide what opens, escalates and resolves, and write phase, severity and seq."""
    enter = seen.enter
    opening = (
        (state["phase"] == PENDING)
        & enter
        & (state["held"] >= spec.enter_seconds)
        & (state["samples"] >= spec.enter_samples)
    )
    firing = state["phase"] == FIRING
    escalating = firing & enter & (severity > state["severity"])
    quiet = np.where(state["flaps"] > 0, max(spec.exit_seconds, QUIET_SECONDS), spec.exit_seconds)
    resolving = firing & (state["clear"] > 0.0) & (state["clear"] >= quiet)
    if spec.latched:
        resolving[:] = False
    state["phase"] = np.where(opening, FIRING, state["phase"]).astype(np.int8)
    state["severity"] = np.where(opening | escalating, severity, state["severity"]).astype(np.int8)
    state["seq"] = state["seq"] + (opening | escalating | resolving)
    _remember(state, opening, seen.ts)
    changes = [(int(i), Change.OPENED) for i in np.flatnonzero(opening)]
    changes += [(int(i), Change.ESCALATED) for i in np.flatnonzero(escalating)]
    changes += [(int(i), Change.RESOLVED) for i in np.flatnonzero(resolving)]
    return sorted(changes)


def _remember(state: dict[str, AnyArray], opening: BoolArray, ts: IntArray) -> None:
    """Note the openings, and which of them are the third within the time of flapping."""
    third = opening & _recent(state["opened_before"], ts)
    state["flaps"] = np.where(third, FLAP_EPISODES, state["flaps"]).astype(np.int16)
    state["opened_before"] = np.where(opening, state["opened"], state["opened_before"])
    state["opened"] = np.where(opening, ts, state["opened"])


def _transition(
    state: dict[str, AnyArray],
    i: int,
    change: Change,
    *,
    position: int,
    row: int,
    frame: Frame,
    spec: KindSpec,
) -> Transition:
    resolved = change is Change.RESOLVED
    return Transition(
        change=change,
        position=position,
        row=row,
        started_ms=int(state["onset"][i]),
        observed_ms=int(frame.ts[position]),
        ended_ms=int(state["clear_since"][i]) if resolved else None,
        severity=int(state["severity"][i]),
        seq=int(state["seq"][i]),
        score=relative_score(float(state["peak"][i]), spec.enter),
        flaps=int(state["flaps"][i]),
    )


def relative_score(score: float, enter: float) -> float:
    """Map a score to 0..1 with 0.5 at the enter threshold: ``s / (s + enter)``.

    Examples
    --------
    >>> relative_score(15.0, 15.0)
    0.5
    """
    if score <= 0.0:
        return 0.0
    return round(score / (score + enter), 4)
