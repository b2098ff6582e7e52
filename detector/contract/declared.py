"""Rules about what a detector declares and says: kinds, metrics, words, documentation."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np

from detector.base import Detector, RowView
from detector.contract.material import Material, State, quiet, require, steps
from detector.contract.telemetry import take, without
from detector.frame import Frame
from schemas.alert import FAMILIES, Action, Evidence
from schemas.metrics import METRICS

__all__ = [
    "check_documented",
    "check_every_kind_is_worded",
    "check_kinds_are_words_of_the_contract",
    "check_metrics_are_in_the_catalogue",
]

_NO_NUMBER = re.compile(r"\b(nan|inf|infinity|none)\b", re.IGNORECASE)
_SECTIONS = ("Parameters\n    ---", "Notes\n    ---", "Examples\n    ---", ">>> ")
_NUMBERS = ("value", "expected_low", "expected_high", "baseline", "peers")


def check_every_kind_is_worded(detector: Detector, material: Material) -> None:
    """Find words with numbers for every row that may speak, also where readings are missing.

    An alert is worded at its end too, when the numbers are small again.
    """
    worded = set()
    for frame, state, _ in steps(detector, material):
        for missing in ((), *[(name,) for name in detector.helps], detector.helps):
            partly = without(frame, missing)
            step = detector.step(partly, state, quiet(detector, len(frame)))
            for kind, judged in step.judgements.items():
                known = np.flatnonzero(np.isfinite(judged.score))
                for position in known[:: max(1, len(known) // 4)].tolist():
                    _check_words(detector, kind, RowView(partly, step, position))
                    worded.add(kind)
            _check_alone(detector, partly, state)
    missed = {spec.kind for spec in detector.kinds} - worded
    require(not missed, f"{sorted(missed)} has no score in any row, so it is never worded.")


def _check_alone(detector: Detector, frame: Frame, state: State) -> None:
    """Word a row that nobody stands beside, as at the end of the only alert of a fleet."""
    row = [int(frame.ts[0] // 10_000) % len(frame)]
    alone = take(frame, row)
    step = detector.step(alone, {k: v[row] for k, v in state.items()}, quiet(detector, 1))
    for kind, judged in step.judgements.items():
        if np.isfinite(judged.score[0]):
            _check_words(detector, kind, RowView(alone, step, 0))


def _check_words(detector: Detector, kind: str, row: RowView) -> None:
    said = detector.explain(kind, row)
    for sentence in (said.summary, said.likely_cause, *said.next_steps):
        require(sentence, f"{kind} leaves a sentence empty.")
        require(not _NO_NUMBER.search(sentence), f"{kind} says: {sentence}")
    require(not said.summary.endswith("."), f"{kind}: the full stop is put after the summary.")
    require(
        not said.summary[0].isupper(), f"{kind}: the summary goes on after the name of the GPU."
    )
    require(said.action in set(Action), f"{kind} names an unknown action {said.action!r}.")
    require(said.evidence, f"{kind} has no evidence.")
    require(said.next_steps, f"{kind} has no next steps.")
    unknown = set(said.unmeasured) - set(METRICS)
    require(not unknown, f"{kind} misses what the catalogue does not know: {sorted(unknown)}.")
    for item in said.evidence:
        _check_numbers(kind, item)


def _check_numbers(kind: str, item: Evidence) -> None:
    for name in _NUMBERS:
        number = getattr(item, name)
        require(
            number is None or math.isfinite(number),
            f"{kind}: {name} of {item.metric} is {number}; where it is missing it must be None.",
        )


def check_kinds_are_words_of_the_contract(detector: Detector, material: Material) -> None:
    """Use families and kinds of the contract, with thresholds and times that make sense."""
    del material
    require(detector.kinds, "There is no kind to find.")
    require(detector.family in FAMILIES, f"The contract has no family {detector.family!r}.")
    for spec in detector.kinds:
        require(
            spec.kind in FAMILIES[detector.family],
            f"The family {detector.family} has no kind {spec.kind!r}; "
            f"it has {', '.join(FAMILIES[detector.family])}.",
        )
        require(0.0 < spec.exit <= spec.enter, f"{spec.kind}: 0 < exit <= enter does not hold.")
        require(
            spec.enter_seconds >= 0.0 and spec.exit_seconds >= 0.0 and spec.enter_samples >= 1,
            f"{spec.kind}: times must be at least 0 and samples at least 1.",
        )


def check_metrics_are_in_the_catalogue(detector: Detector, material: Material) -> None:
    """Name metrics of the catalogue, each once: what is needed, and what helps."""
    del material
    unknown = {*detector.needs, *detector.helps} - set(METRICS)
    require(not unknown, f"The catalogue does not know {sorted(unknown)}.")
    both = set(detector.needs) & set(detector.helps)
    require(not both, f"{sorted(both)} is needed; it need not help as well.")


def check_documented(detector: Detector, material: Material) -> None:
    """Say what each parameter means and by which formula one judges, and show it."""
    del material
    text = type(detector).__doc__ or ""
    for section in _SECTIONS:
        require(section in text, f"The documentation lacks {section.splitlines()[0].strip()!r}.")
    for parameter in dataclasses.fields(detector):  # type: ignore[arg-type]  # a dataclass
        require(
            re.search(rf"\b{parameter.name}\b", text),
            f"The parameter {parameter.name} is not documented.",
        )
    require(detector.version, "The version is empty.")
