"""Tuning on one side, measuring on the other: the same budget of evaluations for everybody."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foreshock.bench.rivals.base import Rival, Setting
from foreshock.bench.rivals.chance import Null, Random
from foreshock.bench.rivals.clusters import KMeans
from foreshock.bench.rivals.ewma import Ewma
from foreshock.bench.rivals.forecast import PredictLinear
from foreshock.bench.rivals.static import StaticThresholds
from foreshock.bench.rivals.trees import HalfSpaceTrees
from foreshock.bench.scoring import Score
from foreshock.bench.suites import Case
from foreshock.bench.world import GPUS

__all__ = ["Evaluation", "Tuned", "all_rivals", "measure", "try_settings", "tune"]

#: False alarms per GPU-day that a setting should stay below: the headline is recall at that rate.
WANTED_RATE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One setting tried on the tuning side."""

    rival: str
    setting: Setting
    recall: float
    false_rate: float


@dataclass(slots=True)
class Tuned:
    """A rival with its choice, and the scores by suite on the side that is reported.

    ``default`` holds the scores with the first setting, ``chosen`` those with the tuned one.
    """

    rival: Rival
    setting: Setting
    default: dict[str, Score] = field(default_factory=dict)
    chosen: dict[str, Score] = field(default_factory=dict)


def all_rivals() -> tuple[Rival, ...]:
    """Return every rival, the two of chance last."""
    return (
        StaticThresholds(),
        Ewma(3.0),
        Ewma(6.0),
        PredictLinear(),
        HalfSpaceTrees(),
        KMeans(),
        Null(),
        Random(),
    )


def tune(
    rivals: Sequence[Rival], parts: Iterable[Sequence[Sequence[Score]]]
) -> tuple[list[Tuned], list[Evaluation]]:
    """Choose a setting for every rival from what :func:`try_settings` found; log all.

    The best recall among settings of at most :data:`WANTED_RATE` false alarms per GPU-day
    wins; where none is that quiet, the best recall less a tenth per tenfold rate above it.
    """
    totals = {(rival.name, number): Score() for rival in rivals for number in _numbers(rival)}
    for part in parts:
        for rival, scores in zip(rivals, part, strict=True):
            for number, score in enumerate(scores):
                totals[rival.name, number].add(score)
    log, tuned = [], []
    for rival in rivals:
        mine = [
            Evaluation(
                rival=rival.name,
                setting=setting,
                recall=_recall(totals[rival.name, number]),
                false_rate=totals[rival.name, number].false_rate,
            )
            for number, setting in enumerate(rival.settings)
        ]
        log += mine
        tuned.append(Tuned(rival, max(mine, key=_merit).setting))
    return tuned, log


def try_settings(rivals: Sequence[Rival], case: Case) -> list[list[Score]]:
    """Score every setting of every rival on one world of the tuning side."""
    out = []
    for rival in rivals:
        prepared = rival.prepare(case.world)
        out.append([_judged(rival, case, prepared, setting) for setting in rival.settings])
    return out


def _numbers(rival: Rival) -> range:
    return range(len(rival.settings))


def _recall(score: Score) -> float:
    return sum(one.credit for one in score.found) / len(score.found) if score.found else 0.0


def _merit(tried: Evaluation) -> tuple[bool, float, float]:
    quiet = tried.false_rate <= WANTED_RATE
    return quiet, tried.recall if quiet else -tried.false_rate, tried.recall


def measure(tuned: Sequence[Tuned], case: Case) -> list[tuple[Score, Score]]:
    """Score one world with the default and with the chosen setting of each rival."""
    out = []
    for one in tuned:
        begin = time.process_time()
        prepared = one.rival.prepare(case.world)
        chosen = _judged(one.rival, case, prepared, one.setting)
        chosen.seconds = time.process_time() - begin
        default = _judged(one.rival, case, prepared, one.rival.settings[0])
        default.seconds = chosen.seconds
        chosen.samples = default.samples = len(_nodes(one.rival, case)) * case.world.ticks * GPUS
        out.append((default, chosen))
    return out


def _nodes(rival: Rival, case: Case) -> range:
    first = case.world.first_node
    return range(first, first + case.world.nodes, rival.stride)


# Any: what prepare made.
def _judged(rival: Rival, case: Case, prepared: Any, setting: Setting) -> Score:
    alarms = rival.alarms(case.world, prepared, setting)
    nodes = _nodes(rival, case)
    watched = replace(case, truths=tuple(t for t in case.truths if t.node in nodes))
    said = [alarm for alarm in alarms if alarm.node in nodes]
    return watched.judged(said, len(nodes) / case.world.nodes)
