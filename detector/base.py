"""What a detector is: declared parameters, declared state, a pure step, words for people.

A detector is one file in ``detector/detectors``; dropping it in adds it. It reads no clock and
does no I/O: the same frames give the same alerts, in production, in a replay and in a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
from detector.frame import Frame
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = [
    "Detector",
    "Explanation",
    "Judgement",
    "KindSpec",
    "RowView",
    "Step",
    "metrics_read",
    "require_positive",
    "uniform_severity",
]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSpec:
    """How scores of one kind become an episode.

    Parameters
    ----------
    kind
        Word from the contract.
    enter, exit
        The condition holds at ``score >= enter`` and has ended at ``score < exit``, in the unit
        of the score; ``exit <= enter`` is the hysteresis.
    enter_seconds, enter_samples
        How long, and over how many samples, the condition must hold before the alert. Time
        below ``enter`` but not below ``exit`` is taken off again second by second.
    exit_seconds
        How long the condition must have ended before the alert resolves.
    latched
        Never resolves by itself: a hardware fact stands until reset.
    scope
        What an alert is about, if not what a row is. ``job``: the job of the row, or its node
        where no job is known; the detector keeps the job's code in the state array
        ``<kind>_job``, unchanged while the alert is open, and lets one row speak per job.
    """

    kind: str
    enter: float = 1.0
    exit: float = 0.5
    enter_seconds: float = 0.0
    enter_samples: int = 1
    exit_seconds: float = 60.0
    latched: bool = False
    scope: Scope | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Scores of one kind for one frame.

    Parameters
    ----------
    score
        (n,) finite and >= 0, or NaN where nothing can be said: such a row neither opens nor
        closes anything.
    severity
        (n,) int8 rank (1 info, 2 warning, 3 critical) that an alert would have now.
    """

    score: FloatArray
    severity: AnyArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Outcome of a step.

    Parameters
    ----------
    judgements
        Kind to judgement.
    state
        New values of the declared state arrays, (n,) each.
    columns
        Derived quantities, (n,) each, from which :meth:`Detector.explain` words the evidence.
    """

    judgements: dict[str, Judgement]
    state: dict[str, AnyArray]
    columns: dict[str, AnyArray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowView:
    """One row of a frame and of a step's columns, for the few rows that are worth words."""

    frame: Frame
    step: Step
    position: int

    def __getitem__(self, name: str) -> float:
        """Return a derived column, else a metric, as a float; NaN if missing."""
        source = self.step.columns
        column = source[name] if name in source else self.frame[name]
        return float(column[self.position])

    def value(self, name: str) -> float | None:
        """Return the same as None where it is missing, for evidence."""
        number = self[name]
        return number if np.isfinite(number) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An alert in words and numbers.

    Parameters
    ----------
    summary
        One sentence without the GPU's name.
    end_reason, end_words
        Why the alert ends, if this explanation is of its end: a word for machines, and what
        stands after "has ended after 10 min: ". Without them the condition has ended.
    """

    summary: str
    evidence: tuple[Evidence, ...]
    likely_cause: str
    action: Action
    next_steps: tuple[str, ...]
    unmeasured: tuple[str, ...] = ()
    end_reason: str = "condition_ended"
    end_words: str = ""


class Detector(Protocol):
    """One mechanism that turns frames into scores.

    Implementations are frozen dataclasses whose fields are the parameters, each with unit and
    source in the docstring.
    """

    #: Name for settings and documents; the name of the file.
    name: ClassVar[str]
    #: Grows when scores change for the same input.
    version: ClassVar[str]
    #: Family from the contract.
    family: ClassVar[str]
    #: ``gpu``: a row is a GPU. ``node``: a row is a node.
    scope: ClassVar[Scope]
    #: Whether a row's score may depend on other rows of its node.
    peers: ClassVar[bool]
    #: Metrics without which nothing can be said.
    needs: ClassVar[tuple[str, ...]]
    #: Metrics that sharpen the evidence; those missing are listed as ``unmeasured``.
    helps: ClassVar[tuple[str, ...]]

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """The kinds that this detector judges, with their episode rules."""
        ...

    def fields(self) -> Mapping[str, Field]:
        """Declare the state arrays."""
        ...

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Judge one frame. Pure: changes neither ``frame`` nor ``state``.

        Parameters
        ----------
        frame
            The round.
        state
            The declared arrays, rows of this frame, (n,) each.
        firing
            Kind to (n,): an alert of that kind is open, so its baseline stays frozen.
        """
        ...

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word an alert of ``kind`` for one row."""
        ...


def metrics_read(detector: Detector) -> tuple[str, ...]:
    """Return every metric that a detector reads; empty for one that needs none.

    Those are what it needs, what helps it, and what it lists in an attribute ``reads`` of its
    own: readings that it takes where they are and that nobody misses where they are not.

    Examples
    --------
    >>> from detector.detectors.row_remap import RowRemap
    >>> "retired_pages_pending" in metrics_read(RowRemap())
    True
    """
    if not detector.needs:
        return ()
    also: tuple[str, ...] = getattr(detector, "reads", ())
    return (*detector.needs, *detector.helps, *also)


def require_positive(**values: float) -> None:
    """Refuse parameters that must be above zero, time constants above all.

    Raises
    ------
    ValueError
        Naming the parameter.

    Examples
    --------
    >>> require_positive(smooth_seconds=0.0)
    Traceback (most recent call last):
        ...
    ValueError: smooth_seconds must be above 0, got 0.0
    """
    for name, value in values.items():
        if not value > 0.0:
            raise ValueError(f"{name} must be above 0, got {value}")


def uniform_severity(score: FloatArray, severity: Severity) -> AnyArray:
    """Return (n,) ranks, the same severity for every row.

    Examples
    --------
    >>> uniform_severity(np.zeros(2), Severity.WARNING)
    array([2, 2], dtype=int8)
    """
    return np.full(len(score), severity.rank, dtype=np.int8)
