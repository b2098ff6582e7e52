"""The cohort tier of one partition of ``gpu.windows``.

A cohort's window closes at the minimum watermark over the sources that feed it, never at the
maximum: partitions run at different speeds while they catch up. A source without news is left
out only while there is no lag, and the end of input closes nothing that is incomplete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detector.arrays import FloatArray, StateTable
from detector.base import RowView
from detector.cohort.features import FEATURES, LIMITS, cohort_features
from detector.cohort.forest import Forest, ModelError
from detector.cohort.multivariate import Multivariate
from detector.episodes import EPISODE_FIELDS, advance, firing_rows
from detector.frame import Frame
from detector.wording import Spoken, alert_event
from schemas.alert import AlertEvent, Scope, Subject
from schemas.window import WINDOW_MS, WindowBatch

__all__ = ["CohortTier"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_SILENT_MS = 60_000
_FORGET_MS = 6 * 3600 * 1000
#: A node whose windows fall behind its own by more had its clock set back.
_BACK_MS = 24 * 3600 * 1000
#: Rows from which a model is rebuilt, and distance of the fixed boundaries: one hour each.
_MEMORY = 360
_BOUNDARY_MS = _MEMORY * WINDOW_MS
_NO_ROWS = np.zeros((0, len(FEATURES) + 2))


@dataclass(slots=True)
class _Cohort:
    """State of one job or node.

    ``history`` has a row per closed window: start, five features, 1 if it was learned.
    """

    key: str
    job: str | None
    sources: dict[str, int] = field(default_factory=dict)
    waiting: dict[int, list[WindowBatch]] = field(default_factory=dict)
    history: AnyArray = field(default_factory=_NO_ROWS.copy)
    closed_until: int = 0
    chosen: tuple[int, ...] = ()
    forest: Forest | None = None


class CohortTier:
    """All cohorts of one partition.

    Parameters
    ----------
    detector
        Judges rarity; its parameters come from the settings.
    """

    def __init__(self, detector: Multivariate | None = None) -> None:
        self._detector = detector or Multivariate()
        self._cohorts: dict[str, _Cohort] = {}
        self._rows: dict[str, int] = {}
        self._episodes = StateTable(EPISODE_FIELDS)

    def process(self, batches: Sequence[WindowBatch], *, caught_up: bool) -> list[AlertEvent]:
        """Take windows in log order and judge every cohort window that they complete.

        Parameters
        ----------
        batches
            Windows of this partition.
        caught_up
            Whether the readers of all sources have no lag, so that silence means silence.
        """
        events: list[AlertEvent] = []
        for batch in batches:
            cohort = self._take(batch)
            events += self._close(cohort, caught_up=False)
        if caught_up:
            for cohort in list(self._cohorts.values()):
                events += self._close(cohort, caught_up=True)
        self._forget()
        return events

    def _take(self, batch: WindowBatch) -> _Cohort:
        cohort = self._cohorts.get(batch.cohort)
        if cohort is None:
            cohort = self._cohorts[batch.cohort] = _Cohort(batch.cohort, batch.job)
            self._row_of(batch.cohort)
        if batch.end < cohort.closed_until - _BACK_MS:
            cohort.closed_until, cohort.waiting = 0, {}
        known = cohort.sources.get(batch.node, 0)
        if batch.source.watermark < known - _BACK_MS:
            known = 0
        cohort.sources[batch.node] = max(known, batch.source.watermark)
        already = [one.node for one in cohort.waiting.get(batch.start, ())]
        if batch.end > cohort.closed_until and batch.node not in already:
            cohort.waiting.setdefault(batch.start, []).append(batch)
        return cohort

    def _row_of(self, key: str) -> int:
        """Return the row of a cohort's episode; rows of forgotten cohorts are used again."""
        if key not in self._rows:
            taken = set(self._rows.values())
            free = (row for row in range(len(taken) + 1) if row not in taken)
            self._rows[key] = next(free)
            self._episodes.grow(self._rows[key] + 1)
        return self._rows[key]

    def _close(self, cohort: _Cohort, *, caught_up: bool) -> list[AlertEvent]:
        marks = list(cohort.sources.values())
        if caught_up:
            newest = max(marks)
            marks = [mark for mark in marks if mark > newest - _SILENT_MS]
            cohort.sources = {
                node: mark for node, mark in cohort.sources.items() if mark in set(marks)
            }
        until = min(marks)
        events: list[AlertEvent] = []
        for start in sorted(cohort.waiting):
            if start + WINDOW_MS > until:
                break
            events += self._judge(cohort, start, cohort.waiting.pop(start))
            cohort.closed_until = start + WINDOW_MS
        return events

    def _judge(self, cohort: _Cohort, start: int, batches: list[WindowBatch]) -> list[AlertEvent]:
        """Score one closed window, move the episode, then learn."""
        row = cohort_features(sorted(batches, key=lambda batch: batch.node))
        self._prepare(cohort, start, row)
        picked = row[list(cohort.chosen)]
        forest = cohort.forest
        if forest is None or not cohort.chosen or not np.isfinite(picked).all():
            return []
        try:
            frame = self._frame(cohort, start, row, forest, forest.score(picked))
            events = self._advance(cohort, frame, batches)
            learned = not self._is_open(cohort)
            if learned:
                forest.learn(picked)
        except ModelError:
            cohort.forest, cohort.history = None, _NO_ROWS.copy()
            return []
        entry = np.concatenate([[start], row, [float(learned)]])
        cohort.history = np.vstack([cohort.history, entry])
        return events

    def _prepare(self, cohort: _Cohort, start: int, row: FloatArray) -> None:
        """Build the model at first sight, and anew when a fixed boundary is crossed."""
        if not cohort.chosen:
            cohort.chosen = tuple(np.flatnonzero(np.isfinite(row)).tolist())
            cohort.forest = None  # one that was made before had no features
        last = int(cohort.history[-1, 0]) if len(cohort.history) else start
        if cohort.forest is None or last // _BOUNDARY_MS != start // _BOUNDARY_MS:
            cohort.history = cohort.history[-_MEMORY:]
            cohort.forest = _rebuild(cohort, boundary=start // _BOUNDARY_MS * _BOUNDARY_MS)

    def _frame(
        self, cohort: _Cohort, start: int, row: FloatArray, forest: Forest, rarity: float
    ) -> Frame:
        seconds = WINDOW_MS / 1000.0
        frame = Frame.of(metrics={}, ts=[start + WINDOW_MS], dt=seconds)
        frame.rows = np.array([self._rows[cohort.key]])
        frame.extra = {name: row[i : i + 1] for i, name in enumerate(FEATURES)}
        frame.extra["rarity"] = np.array([rarity])
        frame.extra["usual"] = np.array([forest.usual])
        frame.extra["history"] = np.array([float(forest.learned)])
        return frame

    def _advance(
        self, cohort: _Cohort, frame: Frame, batches: list[WindowBatch]
    ) -> list[AlertEvent]:
        spec = self._detector.kinds[0]
        step = self._detector.step(frame, {}, {})
        scope = Scope.JOB if cohort.job else Scope.NODE
        node = None if cohort.job else cohort.key
        return [
            alert_event(
                Spoken(
                    detector=self._detector,
                    kind=spec.kind,
                    transition=moved,
                    row=RowView(frame, step, 0),
                    subject=Subject(scope=scope, node=node, job=cohort.job),
                    labels=dict(batches[0].labels) or None,
                )
            )
            for moved in advance(self._episodes, spec, frame, step.judgements[spec.kind])
        ]

    def _is_open(self, cohort: _Cohort) -> bool:
        return bool(firing_rows(self._episodes, np.array([self._rows[cohort.key]]))[0])

    def _forget(self) -> None:
        """Drop cohorts without a window for hours; their episodes end unsaid with the job.

        The time is what two cohorts agree on: one node whose clock runs years ahead must not
        make the tier forget all others.
        """
        marks = {key: max(one.sources.values()) for key, one in self._cohorts.items()}
        if len(marks) < 2:
            return
        now = sorted(marks.values())[-2]
        for key in [key for key, mark in marks.items() if mark <= now - _FORGET_MS]:
            del self._cohorts[key]
            self._episodes.reset(np.array([self._rows.pop(key)]))

    def open_count(self) -> int:
        """Count the open episodes."""
        return int((self._episodes["phase"] == 2).sum())

    def dump(self) -> tuple[dict[str, Any], dict[str, AnyArray]]:
        """Return the state: JSON values and arrays. Models are not in it."""
        facts = {
            "rows": self._rows,
            "cohorts": [
                {
                    "key": cohort.key,
                    "job": cohort.job,
                    "sources": cohort.sources,
                    "waiting": [batch for some in cohort.waiting.values() for batch in some],
                    "closed_until": cohort.closed_until,
                    "chosen": cohort.chosen,
                }
                for cohort in self._cohorts.values()
            ],
        }
        arrays = {
            f"history/{self._rows[cohort.key]}": cohort.history for cohort in self._cohorts.values()
        }
        return facts, arrays | {f"episode/{k}": v for k, v in self._episodes.dump().items()}

    def load(
        self,
        facts: Mapping[str, Any],
        arrays: Mapping[str, AnyArray],
        decode: Callable[[Any], WindowBatch],
    ) -> list[str]:
        """Take over a dumped state and rebuild the models; return what did not fit.

        Parameters
        ----------
        facts, arrays
            As :meth:`dump` gave them.
        decode
            Turns one decoded JSON window back into a WindowBatch.
        """
        self._rows = dict(facts["rows"])
        own = {k.split("/", 1)[1]: v for k, v in arrays.items() if k.startswith("episode/")}
        dropped = self._episodes.load(own, max(self._rows.values(), default=-1) + 1)
        self._cohorts = {}
        for saved in facts["cohorts"]:
            history = arrays.get(f"history/{self._rows[saved['key']]}", _NO_ROWS.copy())
            cohort = _Cohort(
                saved["key"],
                saved["job"],
                sources=dict(saved["sources"]),
                history=history,
                closed_until=saved["closed_until"],
                chosen=tuple(saved["chosen"]),
            )
            for batch in map(decode, saved["waiting"]):
                cohort.waiting.setdefault(batch.start, []).append(batch)
            if len(history):
                boundary = int(history[-1, 0]) // _BOUNDARY_MS * _BOUNDARY_MS
                cohort.forest = _rebuild(cohort, boundary=boundary)
            self._cohorts[cohort.key] = cohort
        return dropped


def _rebuild(cohort: _Cohort, *, boundary: int) -> Forest:
    """Make the model that a tier which never stopped would have.

    Rows before the boundary are learned all of them, so what has lasted for an hour is the new
    normal; rows since then as they were learned at the time.
    """
    limits = [tuple(LIMITS.values())[number] for number in cohort.chosen]
    forest = Forest(limits=limits)
    columns = [1 + number for number in cohort.chosen]
    for entry in cohort.history:
        if entry[0] < boundary or entry[-1] > 0.0:
            forest.learn(entry[columns])
    return forest
