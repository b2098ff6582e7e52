"""Runs all detectors of one scope over a frame: step, episodes, words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from detector.arrays import BoolArray, IntArray, StateTable, prefixed, unprefixed
from detector.base import Detector, KindSpec, RowView, Step, metrics_read
from detector.episodes import EPISODE_FIELDS, advance, firing_rows
from detector.frame import Frame
from detector.remembered import Remembered
from detector.sparse import SparseTable
from detector.wording import Spoken, alert_event, closing_event
from schemas.alert import AlertEvent, Scope, Subject, fingerprint_of
from schemas.metrics import METRIC_INDEX

__all__ = ["CAUSES", "NODE_CAUSES", "Stage"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_Kind = tuple[str, str]

_HOT: tuple[_Kind, ...] = (
    ("thermal_fault", "fan"),
    ("thermal_fault", "runaway"),
    ("thermal_fault", "degraded_cooling"),
    ("thermal_fault", "peer_outlier"),
)
#: (family, kind) to the kinds on the same GPU that explain it, the likeliest first.
CAUSES: dict[_Kind, tuple[_Kind, ...]] = {
    ("gpu_lost", "missing"): (("gpu_lost", "lost"),),
    ("hardware_error", "xid"): (
        ("gpu_lost", "lost"),
        ("gpu_lost", "missing"),
        ("hardware_error", "ecc_uncorrected"),
    ),
    ("hardware_error", "needs_reset"): (
        ("gpu_lost", "lost"),
        ("hardware_error", "ecc_uncorrected"),
        ("hardware_error", "xid"),
    ),
    ("hardware_error", "row_remap"): (("hardware_error", "ecc_uncorrected"),),
    ("thermal_fault", "runaway"): (("thermal_fault", "fan"),),
    ("thermal_fault", "degraded_cooling"): (("thermal_fault", "fan"),),
    ("thermal_fault", "peer_outlier"): (("thermal_fault", "fan"),),
    ("thermal_fault", "memory_hot"): _HOT,
    ("thermal_fault", "near_limit"): _HOT,
    ("throttling", "hw_thermal"): _HOT,
    # The software slowdown acts for hot memory too, and it is the last of a hardware slowdown: the
    # driver holds the clocks down until the heat that the hardware stopped at has gone.
    ("throttling", "sw_thermal"): (
        *_HOT,
        ("thermal_fault", "memory_hot"),
        ("throttling", "hw_thermal"),
    ),
    ("throttling", "hw_slowdown"): _HOT,
    ("oom_precursor", "fast_growth"): (("oom_precursor", "leak"),),
    ("oom_precursor", "at_limit"): (("oom_precursor", "leak"), ("oom_precursor", "fast_growth")),
    ("load_imbalance", "hang"): (("gpu_lost", "lost"), ("hardware_error", "xid")),
    ("load_imbalance", "straggler"): (
        ("gpu_lost", "lost"),
        ("hardware_error", "xid"),
        ("load_imbalance", "hang"),
        ("throttling", "hw_thermal"),
        ("throttling", "power_brake"),
        ("throttling", "sw_thermal"),
        ("throttling", "hw_slowdown"),
        ("throttling", "power_limit_low"),
        ("throttling", "clock_stuck_low"),
        ("hardware_error", "pcie_degraded"),
    ),
    ("load_imbalance", "idle_member"): (
        ("gpu_lost", "lost"),
        ("load_imbalance", "hang"),
        ("hardware_error", "xid"),
        ("oom_precursor", "at_limit"),
        ("oom_precursor", "leak"),
    ),
    ("inefficiency", "idle_allocated"): (
        ("load_imbalance", "hang"),
        ("hardware_error", "xid"),
        ("oom_precursor", "at_limit"),
        ("oom_precursor", "leak"),
    ),
}
#: (family, kind) of a GPU's alert to the kinds of its node that explain it.
NODE_CAUSES: dict[_Kind, tuple[_Kind, ...]] = {
    ("throttling", "power_brake"): (("throttling", "power_brake"),),
    **dict.fromkeys(
        (
            ("thermal_fault", "runaway"),
            ("thermal_fault", "degraded_cooling"),
            ("thermal_fault", "peer_outlier"),
            ("thermal_fault", "memory_hot"),
            ("thermal_fault", "near_limit"),
            ("thermal_fault", "fan"),
            ("throttling", "hw_thermal"),
            ("throttling", "sw_thermal"),
            ("throttling", "hw_slowdown"),
        ),
        (("thermal_fault", "node_airflow"),),
    ),
}
_WORDS = "words"  # name of their array in a snapshot
# Causes are judged before what they cause, so that both may open in one frame.
_ORDER = ("gpu_lost", "hardware_error", "telemetry", "thermal_fault", "oom_precursor", "throttling")


class Stage:
    """Detectors of one scope with their state and episodes.

    Parameters
    ----------
    detectors
        Those whose rows are this stage's rows.
    subject_of
        Row of the table and frame position to the subject of an alert.
    labels_of
        Row of the table to the labels of its node.
    job_of
        Code of a job and a subject on its node to the subject of an alert about the job.
    """

    def __init__(
        self,
        detectors: Iterable[Detector],
        subject_of: Callable[[int, int, Frame], Subject],
        labels_of: Callable[[int], dict[str, str]],
        job_of: Callable[[int, Subject], Subject] = lambda _, subject: subject,
    ) -> None:
        self._job_of = job_of
        self._rows = 0
        self.detectors = sorted(detectors, key=_rank)
        #: Catalogue indices of what was ever offered here, and of what each detector reads; empty
        #: for one that can say something without any reading.
        self._reads = {d.name: _indices(metrics_read(d)) for d in self.detectors}
        self._offered: frozenset[int] = frozenset()
        self._subject_of = subject_of
        self._labels_of = labels_of
        #: Words of the open alerts.
        self.said = Remembered()
        self._states = {d.name: StateTable(d.fields()) for d in self.detectors}
        self._episodes = {
            (d.family, spec.kind): SparseTable(EPISODE_FIELDS, key="phase")
            for d in self.detectors
            for spec in d.kinds
        }

    def grow(self, rows: int) -> None:
        """Make room for new rows."""
        if rows <= self._rows:
            return
        self._rows = rows
        for table in self._tables().values():
            table.grow(rows)

    def close(
        self, rows: IntArray, subjects: Mapping[int, Subject], at_ms: int, reason: str
    ) -> list[AlertEvent]:
        """Begin anew for the given rows; alerts that are open there end with ``reason``."""
        events = []
        for detector in self.detectors:
            for spec in detector.kinds:
                table = self._episodes[detector.family, spec.kind]
                open_rows = rows[firing_rows(table, rows)]
                if not len(open_rows):
                    continue
                was = table.gather(open_rows)
                events += [
                    self.said.kept(
                        closing_event(
                            detector,
                            spec.kind,
                            self._about(detector, spec, row, subjects[row]),
                            started_ms=int(was["onset"][i]),
                            # Another node's clock may be behind.
                            ended_ms=max(at_ms, int(was["onset"][i])),
                            seq=int(was["seq"][i]) + 1,
                            severity=int(was["severity"][i]),
                            reason=reason,
                        )
                    )
                    for i, row in enumerate(open_rows.tolist())
                ]
        for states in self._tables().values():
            states.reset(rows)
        return events

    def run(self, frame: Frame, only: str | None = None) -> list[AlertEvent]:
        """Judge one frame, by one detector if it is named; return the alerts that changed."""
        events: list[AlertEvent] = []
        self._offered |= _members(frame.offered.tobytes())
        for detector in self.detectors:
            if (only is not None and detector.name != only) or self._sleeps(detector):
                continue
            table = self._states[detector.name]
            firing = {
                spec.kind: self._firing((detector.family, spec.kind), frame)
                for spec in detector.kinds
            }
            step = detector.step(frame, table.gather(frame.at), firing)
            table.scatter(frame.at, step.state)
            for spec in detector.kinds:
                episodes = self._episodes[detector.family, spec.kind]
                for moved in advance(episodes, spec, frame, step.judgements[spec.kind]):
                    spoken = self._spoken(detector, spec, frame, step, moved)
                    events.append(self.said.kept(alert_event(spoken)))
        return events

    def _sleeps(self, detector: Detector) -> bool:
        """Tell whether nothing that a detector reads was ever offered to this stage.

        A missing reading neither opens nor resolves anything and changes no state, so a step
        without any reading would do nothing: it is not taken.
        """
        reads = self._reads[detector.name]
        return bool(reads) and reads.isdisjoint(self._offered)

    def _firing(self, kind: _Kind, frame: Frame) -> BoolArray:
        """(n,) whether an alert of a kind is open; the same array of False for all idle kinds."""
        episodes = self._episodes[kind]
        if episodes.busy:
            return firing_rows(episodes, frame.rows)
        return frame.once("nothing open", lambda: _nothing(len(frame)))

    def _spoken(
        self, detector: Detector, spec: KindSpec, frame: Frame, step: Step, moved: Any
    ) -> Spoken:
        subject = self._subject_of(moved.row, moved.position, frame)
        subject = self._about(detector, spec, moved.row, subject)
        return Spoken(
            detector=detector,
            kind=spec.kind,
            transition=moved,
            row=RowView(frame, step, moved.position),
            subject=subject,
            caused_by=self._cause(detector.family, spec.kind, moved.row, subject),
            labels=self._labels_of(moved.row) or None,
        )

    def _about(self, detector: Detector, spec: KindSpec, row: int, subject: Subject) -> Subject:
        """Return what an alert is about: the row's own subject, or the job that it speaks for."""
        if spec.scope != Scope.JOB:
            return subject
        return self._job_of(int(self._states[detector.name][f"{spec.kind}_job"][row]), subject)

    def _cause(self, family: str, kind: str, row: int, subject: Subject) -> str | None:
        """Fingerprint of the open alert on the same row that explains this one."""
        for cause in CAUSES.get((family, kind), ()):
            if self.is_open(cause, row):
                return fingerprint_of(*cause, subject)
        return None

    def is_open(self, kind: tuple[str, str], row: int) -> bool:
        """Tell whether an alert of (family, kind) is open on a row; False for an unknown kind."""
        episodes = self._episodes.get(kind)
        return episodes is not None and bool(firing_rows(episodes, np.array([row]))[0])

    def open_now(self, rows: IntArray) -> dict[str, BoolArray]:
        """Tell for each kind, named "family/kind", which of the rows have an open alert."""
        nothing = _nothing(len(rows))
        return {
            f"{family}/{kind}": firing_rows(table, rows) if table.busy else nothing
            for (family, kind), table in self._episodes.items()
        }

    def holding_now(self, rows: IntArray) -> dict[str, BoolArray]:
        """Tell for the kinds of which some alert is open on which rows its condition still holds.

        An alert stays open for a while after its condition has ended, lest it comes and goes.
        """
        holding = {}
        for (family, kind), table in self._episodes.items():
            if not table.busy:
                continue
            flags = firing_rows(table, rows)
            at = np.flatnonzero(flags)
            if len(at):
                flags[at] = table.gather(rows[at])["clear"] <= 0.0
                holding[f"{family}/{kind}"] = flags
        return holding

    def open_count(self) -> int:
        """Count the open episodes."""
        return sum(int((table["phase"] == 2).sum()) for table in self._episodes.values())

    def jobs_known(self) -> set[int]:
        """Return the codes of jobs in the states; fields that hold them are named after it."""
        fields = (
            table[name]
            for table in self._states.values()
            for name in table.fields
            if name == "job" or name.endswith("_job")
        )
        return {int(code) for field in fields for code in np.unique(field)}

    def bytes_per_row(self) -> int:
        """Size of one row's state and episodes, in bytes."""
        return sum(table.bytes_per_row() for table in self._tables().values())

    def _tables(self) -> dict[str, StateTable | SparseTable]:
        states: dict[str, StateTable | SparseTable] = {
            f"state/{name}": table for name, table in self._states.items()
        }
        episodes = {f"episode/{f}/{k}": table for (f, k), table in self._episodes.items()}
        return {**states, **episodes}

    def dump(self) -> dict[str, AnyArray]:
        """Return all arrays for a snapshot."""
        arrays: dict[str, AnyArray] = {}
        for name, table in self._tables().items():
            arrays |= prefixed(name, table.dump())
        return {**arrays, _WORDS: self.said.dump()}

    def load(self, arrays: Mapping[str, AnyArray], rows: int) -> list[str]:
        """Take over saved arrays; return the names that did not fit and start fresh."""
        dropped: list[str] = []
        self._rows = rows
        self.said.load(arrays.get(_WORDS))
        # What was offered before is not in the snapshot: everybody stays awake.
        self._offered = frozenset().union(*self._reads.values()) if rows else frozenset()
        for name, table in self._tables().items():
            dropped += [f"{name}/{part}" for part in table.load(unprefixed(name, arrays), rows)]
        return dropped


def _indices(names: Iterable[str]) -> frozenset[int]:
    return frozenset(METRIC_INDEX[name] for name in names)


@lru_cache(maxsize=256)
def _members(offered: bytes) -> frozenset[int]:
    """Return the catalogue indices of a frame's metrics; most frames offer the same ones."""
    return frozenset(np.frombuffer(offered, dtype=np.int64).tolist())


def _nothing(rows: int) -> BoolArray:
    """(rows,) False; nobody may write to it, since many read it."""
    nothing = np.zeros(rows, dtype=bool)
    nothing.flags.writeable = False
    return nothing


def _rank(detector: Detector) -> tuple[int, str]:
    known = detector.family in _ORDER
    return (_ORDER.index(detector.family) if known else len(_ORDER), detector.name)
