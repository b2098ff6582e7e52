"""The cohort tier of one partition of ``gpu.windows``.

All windows of a job meet here, whatever node, partition or detector they come from. When one is
complete (:mod:`detector.cohort.sources`), the job's members are compared with each other, then
the job with its own past.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detector.arrays import FloatArray, prefixed, unprefixed
from detector.base import Detector
from detector.cohort.drift import Drift, level_columns
from detector.cohort.features import FEATURES, braked_ratio, cohort_features
from detector.cohort.listing import COHORT_DETECTORS
from detector.cohort.members import Member, members_frame, members_of
from detector.cohort.past import Past, Verdict
from detector.cohort.rowbook import RowBook
from detector.cohort.sources import Arrivals, Clocks
from detector.frame import Frame
from detector.stage import Stage
from schemas.alert import AlertEvent, Scope, Subject
from schemas.window import WINDOW_MS, WindowBatch

__all__ = ["CohortTier"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
#: A cohort is forgotten after so long without a window; its past might still be of use before.
_FORGET_MS = 6 * 3600 * 1000
#: A job, or a member of it, without a window for so long has ended, if nothing lags.
_ENDED_MS = 10 * 60_000
_IMBALANCE = ("load_imbalance/straggler", "load_imbalance/hang", "load_imbalance/idle_member")


@dataclass(slots=True)
class _Cohort:
    """State of one job or node. ``members`` are those of its last windows, by key."""

    key: str
    job: str | None
    arrivals: Arrivals = field(default_factory=Arrivals)
    past: Past = field(default_factory=Past)
    members: dict[str, Member] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def mark(self) -> int:
        """How far the cohort's fastest node has got."""
        return max(self.arrivals.sources.values(), default=0)


class CohortTier:
    """All cohorts of one partition.

    Parameters
    ----------
    detectors
        From ``detector.registry.build_cohort``; all of them by default. Those of scope ``job``
        judge cohorts, those of scope ``gpu`` the members of jobs.
    """

    def __init__(self, detectors: Iterable[Detector] | None = None) -> None:
        chosen = tuple(cls() for cls in COHORT_DETECTORS) if detectors is None else tuple(detectors)
        self._cohorts: dict[str, _Cohort] = {}
        self._clocks = Clocks()
        self._rows, self._member_rows = RowBook(), RowBook()
        # Asked by name: something may stand in the detector's place, to look over its shoulder.
        drift = next((d for d in chosen if d.name == Drift.name), Drift())
        self._shift_unit = float(getattr(drift, "min_shift", Drift().min_shift))
        self._homes: dict[str, set[str]] = {}
        self._jobs = Stage(
            (d for d in chosen if d.scope == Scope.JOB),
            lambda row, _position, _frame: self._subject(self._rows.key(row)),
            lambda row: self._cohorts[self._rows.key(row)].labels,
        )
        self._members = Stage(
            (d for d in chosen if d.scope == Scope.GPU),
            lambda row, _position, _frame: self._member_subject(row),
            lambda row: self._cohorts[_split(self._member_rows.key(row))[0]].labels,
        )

    # -- input ---------------------------------------------------------------------------------

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
            for key in self._take(batch):
                events += self._close(self._cohorts[key], caught_up=False)
        if caught_up:
            self._clocks.leave_out_silent()
            for cohort in list(self._cohorts.values()):
                events += self._close(cohort, caught_up=True)
            events += self._end_jobs()
        return events + self._forget()

    def _take(self, batch: WindowBatch) -> list[str]:
        """Take one window; return the cohorts of which it may complete one, its own first.

        It is found here, window by window, and not once per call: how windows were batched
        must not decide what is in one that closes.
        """
        slowest = self._clocks.slowest_partition()
        self._clocks.hear(batch)
        cohort = self._cohorts.get(batch.cohort)
        if cohort is None:
            past = Past(shift_unit=self._shift_unit)
            cohort = self._cohorts[batch.cohort] = _Cohort(batch.cohort, batch.job, past=past)
            self._jobs.grow(self._rows.row(batch.cohort) + 1)
        cohort.arrivals.take(batch)
        home = self._homes.setdefault(batch.node, set())
        home.add(batch.cohort)
        moved = self._clocks.slowest_partition() != slowest
        others = self._cohorts if moved else home
        return [
            batch.cohort,
            *sorted(k for k in others if k != batch.cohort and self._cohorts[k].arrivals.waiting),
        ]

    def _close(self, cohort: _Cohort, *, caught_up: bool) -> list[AlertEvent]:
        events: list[AlertEvent] = []
        for start in cohort.arrivals.complete(self._clocks, caught_up=caught_up):
            batches = cohort.arrivals.close(start)
            cohort.labels = dict(batches[0].labels)
            if cohort.job is not None:
                events += self._judge_members(cohort, start, batches)
            events += self._judge_cohort(cohort, start, batches)
        return events

    # -- members of a job ----------------------------------------------------------------------

    def _judge_members(
        self, cohort: _Cohort, start: int, batches: Sequence[WindowBatch]
    ) -> list[AlertEvent]:
        """Compare the members; those that are no longer there are let go first."""
        members = {member.key: member for member in members_of(batches)}
        speaking = {batch.node for batch in batches}
        gone = {
            key: "compared_on_its_node" if member.node in speaking else "left_the_job"
            for key, member in cohort.members.items()
            if key not in members
            and (member.node in speaking or cohort.seen[key] < start - _ENDED_MS)
        }
        events = self._let_go(cohort, gone, start)
        if len(members) < 2:
            return events
        cohort.members |= members
        rows = [self._member_rows.row(_joined(cohort.key, key)) for key in members]
        self._members.grow(max(rows) + 1)
        before = [cohort.seen.get(key, 0) for key in members]
        frame = members_frame(list(members.values()), rows, start, before)
        cohort.seen |= dict.fromkeys(members, start)
        return events + self._members.run(frame)

    def _let_go(self, cohort: _Cohort, gone: Mapping[str, str], at_ms: int) -> list[AlertEvent]:
        """End what is open on members and free their rows; ``gone`` is key to reason."""
        events: list[AlertEvent] = []
        for key, reason in sorted(gone.items()):
            name = _joined(cohort.key, key)
            if name in self._member_rows:
                row = self._member_rows.row(name)
                subjects = {row: self._member_subject(row)}
                events += self._members.close(np.array([row]), subjects, at_ms, reason)
                self._member_rows.free(name)
            cohort.members.pop(key, None)
            cohort.seen.pop(key, None)
        return events

    def _imbalanced(self, cohort: _Cohort) -> float:
        """Count the members with an open alert."""
        names = [_joined(cohort.key, key) for key in cohort.members]
        rows = [self._member_rows.row(name) for name in names if name in self._member_rows]
        if not rows:
            return 0.0
        opened = self._members.open_now(np.array(rows))
        flags = [opened[kind] for kind in _IMBALANCE if kind in opened]
        return float(np.any(flags, axis=0).sum()) if flags else 0.0

    # -- a job against its past ----------------------------------------------------------------

    def _judge_cohort(
        self, cohort: _Cohort, start: int, batches: Sequence[WindowBatch]
    ) -> list[AlertEvent]:
        """Score one closed window, move the episodes, then learn."""
        if not self._jobs.detectors:
            return []
        row = cohort_features(batches)
        verdict = cohort.past.judge(start, row)
        if verdict is None:
            return []
        frame = self._cohort_frame(cohort, start, row, verdict, braked_ratio(batches))
        events = self._jobs.run(frame)
        at = self._rows.row(cohort.key)
        unusual = self._jobs.is_open(("novelty", "multivariate"), at)
        cohort.past.learn(start, row, usual=not unusual)
        return events

    def _cohort_frame(
        self, cohort: _Cohort, start: int, row: FloatArray, said: Verdict, braked: float
    ) -> Frame:
        frame = Frame.of(metrics={}, ts=[start + WINDOW_MS], dt=WINDOW_MS / 1000.0)
        frame.rows = np.array([self._rows.row(cohort.key)])
        frame.extra = {name: row[i : i + 1] for i, name in enumerate(FEATURES)}
        frame.extra |= level_columns(said.level, said.before)
        for name, value in (
            ("rarity", said.rarity),
            ("usual", said.usual),
            ("history", said.history),
            ("braked_ratio", braked),
            ("imbalanced_members", self._imbalanced(cohort)),
        ):
            frame.extra[name] = np.array([value])
        return frame

    # -- who is meant --------------------------------------------------------------------------

    def _subject(self, key: str) -> Subject:
        cohort = self._cohorts[key]
        scope = Scope.JOB if cohort.job else Scope.NODE
        return Subject(scope=scope, node=None if cohort.job else key, job=cohort.job)

    def _member_subject(self, row: int) -> Subject:
        key, member = _split(self._member_rows.key(row))
        cohort = self._cohorts[key]
        return cohort.members[member].subject(cohort.job)

    # -- the end of jobs -----------------------------------------------------------------------

    def _now(self) -> int:
        """Return the time that two cohorts agree on, unix milliseconds; 0 while there is one.

        One node whose clock runs years ahead must not make the tier forget all others.
        """
        marks = sorted(cohort.mark for cohort in self._cohorts.values())
        return marks[-2] if len(marks) > 1 else 0

    def _end_jobs(self) -> list[AlertEvent]:
        """End what is open in cohorts that have no windows any more, while nothing lags."""
        ended = self._now() - _ENDED_MS
        events: list[AlertEvent] = []
        for cohort in self._cohorts.values():
            if cohort.mark <= ended:
                events += self._end(cohort)
        return events

    def _end(self, cohort: _Cohort) -> list[AlertEvent]:
        at_ms = cohort.arrivals.closed_until or cohort.mark
        events = self._let_go(cohort, dict.fromkeys(cohort.members, "job_ended"), at_ms)
        row = self._rows.row(cohort.key)
        if any(flags[0] for flags in self._jobs.open_now(np.array([row])).values()):
            subjects = {row: self._subject(cohort.key)}
            events += self._jobs.close(np.array([row]), subjects, at_ms, "job_ended")
        return events

    def _forget(self) -> list[AlertEvent]:
        """Drop cohorts without a window for hours."""
        old = self._now() - _FORGET_MS
        events: list[AlertEvent] = []
        for cohort in [one for one in self._cohorts.values() if one.mark <= old]:
            events += self._end(cohort)
            self._jobs.close(np.array([self._rows.row(cohort.key)]), {}, 0, "forgotten")
            self._rows.free(cohort.key)
            for node in cohort.arrivals.sources:
                self._homes.get(node, set()).discard(cohort.key)
            del self._cohorts[cohort.key]
        return events

    # -- state ---------------------------------------------------------------------------------

    def open_count(self) -> int:
        """Count the open episodes."""
        return self._jobs.open_count() + self._members.open_count()

    def dump(self) -> tuple[dict[str, Any], dict[str, AnyArray]]:
        """Return the state: JSON values and arrays. Models are not in it."""
        facts = {
            "rows": self._rows.dump(),
            "member_rows": self._member_rows.dump(),
            "clocks": {"nodes": self._clocks.nodes, "partitions": self._clocks.partitions},
            "cohorts": [
                {
                    "key": cohort.key,
                    "job": cohort.job,
                    **cohort.arrivals.dump(),
                    "chosen": cohort.past.chosen,
                    "members": list(cohort.members.values()),
                    "seen": cohort.seen,
                    "labels": cohort.labels,
                }
                for cohort in self._cohorts.values()
            ],
        }
        history = {
            f"history/{self._rows.row(cohort.key)}": cohort.past.history
            for cohort in self._cohorts.values()
        }
        return facts, {
            **history,
            **prefixed("jobs", self._jobs.dump()),
            **prefixed("members", self._members.dump()),
        }

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
            As :meth:`dump` gave them, or an older version, which knew no members.
        decode
            Turns one decoded JSON window back into a WindowBatch.
        """
        self._rows.load(facts["rows"])
        self._member_rows.load(facts.get("member_rows", {}))
        clocks = facts.get("clocks", {})
        self._clocks = Clocks(
            nodes=dict(clocks.get("nodes", {})), partitions=dict(clocks.get("partitions", {}))
        )
        dropped = self._jobs.load(unprefixed("jobs", arrays), self._rows.size)
        dropped += self._members.load(unprefixed("members", arrays), self._member_rows.size)
        self._cohorts = {
            saved["key"]: self._loaded(saved, arrays, decode) for saved in facts["cohorts"]
        }
        self._homes = {}
        for cohort in self._cohorts.values():
            for node in cohort.arrivals.sources:
                self._homes.setdefault(node, set()).add(cohort.key)
        return dropped

    def _loaded(
        self,
        saved: Mapping[str, Any],
        arrays: Mapping[str, AnyArray],
        decode: Callable[[Any], WindowBatch],
    ) -> _Cohort:
        arrivals = Arrivals(
            sources=dict(saved["sources"]),
            closed_until=saved["closed_until"],
            # An older version did not keep it; then the cohort is not new any more.
            began=saved.get("began", min(saved["closed_until"], 1)),
        )
        for batch in map(decode, saved["waiting"]):
            arrivals.waiting.setdefault(batch.start, []).append(batch)
        past = Past(shift_unit=self._shift_unit, chosen=tuple(saved["chosen"]))
        history = arrays.get(f"history/{self._rows.row(saved['key'])}")
        if history is not None:
            past.history = history
        past.rebuild()
        members = [
            Member(**{**one, "values": _numbers(one["values"])}) for one in saved.get("members", ())
        ]
        return _Cohort(
            saved["key"],
            saved["job"],
            arrivals=arrivals,
            past=past,
            members={member.key: member for member in members},
            seen=dict(saved.get("seen", {})),
            labels=dict(saved.get("labels", {})),
        )


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return numbers as they were before JSON, which has null for a missing one."""
    return {name: float("nan") if value is None else value for name, value in values.items()}


def _joined(cohort: str, member: str) -> str:
    return f"{cohort}\n{member}"


def _split(name: str) -> tuple[str, str]:
    cohort, _, member = name.rpartition("\n")
    return cohort, member
