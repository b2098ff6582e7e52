"""The results as data: what goes into the JSON, and from which the page is written."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from foreshock.bench.compare import Evaluation, Tuned
from foreshock.bench.recordings import RecordingResult
from foreshock.bench.scoring import Found, Score, poisson_interval, wilson_interval

__all__ = ["Results", "class_rows", "oom_rows", "percentile", "score_summary"]

_LEADS = (60.0, 300.0, 900.0, 1800.0)


@dataclass(slots=True, kw_only=True)
class Results:
    """Everything one run measured.

    Parameters
    ----------
    seed, trials, gpu_days, side
        What was asked for.
    scores
        Foreshock by suite.
    rivals, evaluations
        The others, and every evaluation of their tuning.
    recordings
        The real telemetry.
    seconds
        Wall-clock time of the whole run.
    """

    seed: int
    trials: int
    gpu_days: float
    side: str
    scores: dict[str, Score] = field(default_factory=dict)
    rivals: list[Tuned] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    recordings: list[RecordingResult] = field(default_factory=list)
    seconds: float = 0.0

    # Any: a tree of JSON values.
    def as_json(self) -> dict[str, Any]:
        """Return plain values; infinite and missing numbers are null."""
        every = [one for score in self.scores.values() for one in score.found]
        return {
            "schema": "foreshock.bench.detection/1",
            "seed": self.seed,
            "trials": self.trials,
            "soak_gpu_days": self.gpu_days,
            "side": self.side,
            "seconds": round(self.seconds, 1),
            "suites": {name: score_summary(score) for name, score in self.scores.items()},
            "classes": class_rows(one for one in every if not one.truth.group),
            "oom": oom_rows(one for one in every if one.truth.group),
            "rivals": [_rival(one) for one in self.rivals],
            "evaluations": [
                {
                    "rival": one.rival,
                    "setting": one.setting,
                    "recall": round(one.recall, 4),
                    "false_alarms_per_gpu_day": round(one.false_rate, 4),
                }
                for one in self.evaluations
            ],
            "recordings": [
                {
                    "name": one.name,
                    "gpu_days": round(one.gpu_days, 4),
                    "owed": one.owed,
                    "found": one.found,
                    "false_alarms": list(one.false_alarms),
                }
                for one in self.recordings
            ],
        }


def _rival(one: Tuned) -> dict[str, Any]:
    return {
        "name": one.rival.name,
        "settings_tried": len(one.rival.settings),
        "default_setting": one.rival.settings[0],
        "tuned_setting": one.setting,
        "default": {name: score_summary(score) for name, score in one.default.items()},
        "tuned": {name: score_summary(score) for name, score in one.chosen.items()},
    }


def score_summary(score: Score) -> dict[str, Any]:
    """Sum up one detector on one suite."""
    low, high = poisson_interval(len(score.false_alarms), score.gpu_days)
    hits = sum(one.credit for one in score.found)
    return {
        "gpu_days": round(score.gpu_days, 2),
        "faults": len(score.found),
        "recall": _number(hits / len(score.found) if score.found else math.nan),
        "recall_interval": [_number(v) for v in wilson_interval(hits, len(score.found))],
        "false_alarms": len(score.false_alarms),
        "false_alarms_per_gpu_day": _number(score.false_rate),
        "false_alarms_interval": [_number(low), _number(high)],
        "microseconds_per_sample": _number(
            1e6 * score.seconds / score.samples if score.samples else math.nan
        ),
        "false_alarms_by": [
            {"family": family, "kind": kind, "while": where, "count": count}
            for (family, kind, where), count in score.false_by().most_common()
        ],
    }


def class_rows(found: Iterable[Found]) -> list[dict[str, Any]]:
    """One row per class and magnitude."""
    groups: dict[tuple[str, float], list[Found]] = defaultdict(list)
    for one in found:
        groups[one.truth.name, one.truth.magnitude].append(one)
    return [
        _class_row(name, magnitude, groups[name, magnitude]) for name, magnitude in sorted(groups)
    ]


def _class_row(name: str, magnitude: float, found: Sequence[Found]) -> dict[str, Any]:
    spec = found[0].truth.spec
    right = [one for one in found if one.credit == 1.0]
    delays = sorted(one.delay for one in right)
    target = spec.target_seconds if spec else None
    in_time = sum(target is not None and delay <= target for delay in delays)
    tops = [one.top for one in found if one.top is not None]
    return {
        "class": name,
        "magnitude": magnitude,
        "unit": spec.unit if spec else "",
        "trials": len(found),
        "right": len(right),
        "half": sum(one.credit == 0.5 for one in found),
        "recall_interval": [_number(v) for v in wilson_interval(len(right), len(found))],
        "delay_p50": _number(percentile(delays, 0.5)),
        "delay_p95": _number(percentile(delays, 0.95)),
        "target_seconds": target,
        "in_time": in_time if target is not None else None,
        "top1": _number(sum(map(bool, tops)) / len(tops) if tops else math.nan),
        "alerts_per_incident": _number(sum(one.alarms for one in found) / len(found)),
    }


def oom_rows(found: Iterable[Found]) -> list[dict[str, Any]]:
    """One row per kind of memory and rate of the leak."""
    groups: dict[tuple[str, float], list[Found]] = defaultdict(list)
    for one in found:
        groups[one.truth.group, one.truth.magnitude].append(one)
    rows = []
    for (group, rate), some in sorted(groups.items()):
        leads = sorted(one.lead if math.isfinite(one.delay) else 0.0 for one in some)
        warned = {f"lead_{int(s)}s": sum(lead >= s for lead in leads) for s in _LEADS}
        rows.append(
            {
                "memory": group,
                "gib_per_hour": rate,
                "trials": len(some),
                **warned,
                "interval_1800s": [
                    _number(v) for v in wilson_interval(warned["lead_1800s"], len(some))
                ],
                "lead_p50": _number(percentile(leads, 0.5)),
                "time_to_full_p50": _number(
                    percentile(sorted(one.truth.terminal - one.truth.start for one in some), 0.5)
                ),
            }
        )
    return rows


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of them do not exceed; NaN of nothing.

    Examples
    --------
    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.0
    """
    if not values:
        return math.nan
    return values[max(math.ceil(share * len(values)) - 1, 0)]


def _number(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
