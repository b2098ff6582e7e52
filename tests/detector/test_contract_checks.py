"""The contract's checks find what they are for: each sabotage is named by its own rule."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from detector.base import AnyArray, Detector, Explanation, Judgement, RowView, Step
from detector.contract import BrokenContractError, Material, check_detector
from detector.contract.material import steps
from detector.detectors.near_limit import NearLimit
from detector.frame import Frame

Change = Callable[[Frame, Mapping[str, AnyArray], Step], Step]


@dataclasses.dataclass(frozen=True)
class Sabotaged(NearLimit):
    """Parameters
    ----------
    """


Sabotaged.__doc__ = NearLimit.__doc__


def sabotaged(change: Change) -> Detector:
    """A detector that was right until somebody changed what its step returns."""

    class Changed(Sabotaged):
        def step(self, frame: Frame, state: Mapping[str, AnyArray], firing: Any) -> Step:
            return change(frame, state, super().step(frame, state, firing))

    Changed.__doc__ = NearLimit.__doc__
    return Changed()


def scored(step: Step, make: Callable[[AnyArray], AnyArray]) -> Step:
    return dataclasses.replace(
        step,
        judgements={
            kind: Judgement(score=make(judged.score), severity=judged.severity)
            for kind, judged in step.judgements.items()
        },
    )


def sticky(score: AnyArray) -> AnyArray:
    return np.where(np.isnan(score), 0.5, score)


CALLS: list[int] = []


def counting(frame: Frame, state: Mapping[str, AnyArray], step: Step) -> Step:
    CALLS.append(1)
    return scored(step, lambda score: score + len(CALLS))


def writing(frame: Frame, state: Mapping[str, AnyArray], step: Step) -> Step:
    frame.ts[:] = 0
    return step


def looping(frame: Frame, state: Mapping[str, AnyArray], step: Step) -> Step:
    time.sleep(200e-6 * len(frame) if len(frame) > 100 else 0.0)
    return step


SABOTAGE: dict[str, tuple[str, Change]] = {
    "impure": ("step is pure", counting),
    "negative": ("finite or missing", lambda f, s, t: scored(t, lambda score: score - 9.0)),
    "infinite": ("finite or missing", lambda f, s, t: scored(t, lambda score: score + np.inf)),
    "short": ("finite or missing", lambda f, s, t: scored(t, lambda score: score[:-1])),
    "severe": (
        "severity is a rank",
        lambda f, s, t: dataclasses.replace(
            t,
            judgements={
                k: Judgement(score=j.score, severity=np.full(len(f), 7, dtype=np.int8))
                for k, j in t.judgements.items()
            },
        ),
    ),
    "undeclared": (
        "state is as declared",
        lambda f, s, t: dataclasses.replace(t, state={**t.state, "secret": np.zeros(len(f))}),
    ),
    "deaf": ("missing reading", lambda f, s, t: scored(t, sticky)),
    "ordered": (
        "order of rows|finite or missing",
        lambda f, s, t: scored(t, lambda score: score + np.arange(len(score))),
    ),
    "crowded": (
        "row does not depend|row depends|order of rows|missing reading",
        lambda f, s, t: scored(t, lambda score: score + len(score)),
    ),
    "nervous": (
        "healthy hour",
        lambda f, s, t: dataclasses.replace(
            scored(t, lambda score: np.where(np.isnan(score), score, 50.0)),
            judgements={
                k: Judgement(
                    score=np.where(np.isnan(j.score), j.score, 50.0),
                    severity=np.full(len(f), 2, dtype=np.int8),
                )
                for k, j in t.judgements.items()
            },
        ),
    ),
    "silent": (
        "reaches enter",
        lambda f, s, t: scored(t, lambda score: np.minimum(score, 0.0)),
    ),
    "slow": ("cost of a row", looping),
}


@pytest.mark.parametrize("sabotage", SABOTAGE)
def test_each_sabotage_is_named_by_its_rule(sabotage: str) -> None:
    rule, change = SABOTAGE[sabotage]
    with pytest.raises(BrokenContractError, match=rule):
        check_detector(sabotaged(change))


def test_a_step_that_writes_into_its_frame_fails_on_the_spot() -> None:
    with pytest.raises(ValueError, match="read-only"):
        check_detector(sabotaged(writing))


def test_words_without_a_number_are_refused() -> None:
    class Speechless(Sabotaged):
        def explain(self, kind: str, row: RowView) -> Explanation:
            said = super().explain(kind, row)
            return dataclasses.replace(said, summary="is nan °C from its limit")

    Speechless.__doc__ = NearLimit.__doc__
    with pytest.raises(BrokenContractError, match=r"every kind is worded.*nan"):
        check_detector(Speechless())


def test_a_detector_without_documentation_is_refused() -> None:
    class Undocumented(Sabotaged):
        __doc__ = "Finds something."

    with pytest.raises(BrokenContractError, match=r"documented.*Parameters"):
        check_detector(Undocumented())


def test_frames_of_the_author_count_as_material() -> None:
    subject = NearLimit()
    frames = tuple(frame for frame, _, _ in steps(subject, Material()))
    check_detector(subject, Material(speaking=frames[:3]))
