"""Why an alert fired, in words and numbers that an operator can check."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from detector.base import KindSpec
from detector.tracing import Moment, Trace
from foreshock.explaining import Explained
from schemas.alert import AlertEvent, Evidence, parse_time, rfc3339

__all__ = ["lines_of"]

#: Readings shown on either side of a change; the others are summed up in one line.
_BESIDE = 3
_METRICS_SHOWN = 3
_IDLE, _PENDING, _FIRING = 0, 1, 2


def lines_of(explained: Explained) -> list[str]:
    """Say what was found, the rule, the readings step by step, the evidence, what to do.

    Parameters
    ----------
    explained
        One alert.
    """
    first, last = explained.events[0], explained.events[-1]
    lines = [
        f"{first.severity.upper()} {first.family}/{first.kind}, alert {first.alert_id}",
        first.summary,
        _times(explained.events),
    ]
    if explained.trace is not None:
        lines += ["", *_rule(explained.trace), "", *_steps(explained.trace)]
        lines += _numbers(explained.trace)
    lines += ["", "Evidence:", *[f"  {_evidence(item)}" for item in first.evidence]]
    lines += ["", f"Likely cause: {first.likely_cause}", f"Action: {first.action}"]
    lines += [f"  - {step}" for step in first.next_steps]
    missing = ", ".join(first.unmeasured)
    lines.append(
        f"Not measured, and would have helped: {missing}." if missing else "All was measured."
    )
    if first.caused_by:
        lines.append(f"Explained by the open alert with fingerprint {first.caused_by}.")
    if any(event.flapping for event in explained.events):
        lines.append("It came and went so often that one alert was kept open instead of many.")
    if last.shadow:
        lines.append("The detector is on trial (shadow): nobody was told.")
    return lines


def _times(events: Sequence[AlertEvent]) -> str:
    first, last = events[0], events[-1]
    waited = (parse_time(first.observed_at) - parse_time(first.started_at)) / 1000
    opened = f"The condition began {first.started_at}; the alert opened {waited:.0f} s later"
    raised = [event for event in events[1:] if event.state == "firing"]
    if raised:
        opened += f"; severity rose to {raised[-1].severity} at {raised[-1].observed_at}"
    if last.state != "resolved":
        return f"{opened}; it is still open at the end of the samples."
    return f"{opened}; it ended {last.ended_at} ({(last.end_reason or '').replace('_', ' ')})."


def _rule(trace: Trace) -> list[str]:
    spec, detector = trace.spec, trace.detector
    what = (type(detector).__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
    times = f"{spec.enter_seconds:g} s" if spec.enter_seconds else "one reading"
    readings = f" and {spec.enter_samples} readings" if spec.enter_samples > 1 else ""
    end = (
        "it never ends by itself"
        if spec.latched
        else f"it ends below {spec.exit:g} for {spec.exit_seconds:g} s"
    )
    return [
        f"Detector {detector.name}, version {detector.version}: {' '.join(what.split())}",
        f"Rule: the alert opens at a score of {spec.enter:g} or more for {times}{readings}; {end}.",
    ]


# -- step by step ------------------------------------------------------------------------------


def _steps(trace: Trace) -> list[str]:
    """One line per reading around every change; long stretches in between are summed up."""
    moments, spec = trace.moments, trace.spec
    if not moments:
        return ["The samples hold no reading around it."]
    names = _shown_metrics(trace)
    shown = _near_changes(moments)
    head = ["time (UTC)".ljust(24), "score".rjust(9), *[name.rjust(len(name)) for name in names]]
    lines = ["  ".join([*head, "what it means"])]
    skipped: list[Moment] = []
    before: Moment | None = None
    for number, moment in enumerate(moments):
        if number not in shown:
            skipped.append(moment)
            continue
        lines += _summed(skipped)
        skipped = []
        lines.append(_line(moment, before if before is not None else moment, spec, names))
        before = moment
    return lines + _summed(skipped)


def _shown_metrics(trace: Trace) -> list[str]:
    used = (*trace.detector.needs, *trace.detector.helps)
    seen = [n for n in used if any(math.isfinite(m.metrics[n]) for m in trace.moments)]
    return seen[:_METRICS_SHOWN]


def _near_changes(moments: Sequence[Moment]) -> set[int]:
    """Numbers of the readings near a change: of the phase, or of whether it is ending."""
    states = [(moment.phase, moment.clear_seconds > 0.0) for moment in moments]
    changes = [n for n in range(1, len(states)) if states[n] != states[n - 1]]
    edges = [0, len(states) - 1, *changes]
    return {n for edge in edges for n in range(edge - _BESIDE, edge + _BESIDE + 1)}


def _summed(moments: Sequence[Moment]) -> list[str]:
    if not moments:
        return []
    known = [moment.score for moment in moments if math.isfinite(moment.score)]
    spread = f", score {min(known):.3g} to {max(known):.3g}" if known else ", no score"
    return [f"  … {len(moments)} more readings{spread}"]


def _line(moment: Moment, before: Moment, spec: KindSpec, names: Iterable[str]) -> str:
    values = [_value(moment.metrics[name]).rjust(len(name)) for name in names]
    score = _value(moment.score).rjust(9)
    return "  ".join([rfc3339(moment.ts), score, *values, _meaning(moment, before, spec)])


def _value(number: float) -> str:
    return f"{number:.5g}" if math.isfinite(number) else "-"


def _meaning(moment: Moment, before: Moment, spec: KindSpec) -> str:
    if moment.phase == _FIRING and before.phase != _FIRING:
        return "the alert opens"
    if moment.phase != _FIRING and before.phase == _FIRING:
        return "the alert ends"
    if math.isnan(moment.score):
        return "nothing can be said: a reading is missing or nobody is there to compare with"
    if moment.phase == _PENDING:
        few = moment.held_samples < spec.enter_samples
        reading = f", reading {moment.held_samples} of {spec.enter_samples}" if few else ""
        return f"held {moment.held_seconds:.0f} of {spec.enter_seconds:g} s{reading}"
    if moment.phase != _FIRING:
        return "below the threshold"
    away = f"; away for {moment.clear_seconds:.0f} of {spec.exit_seconds:g} s"
    return f"open{away if moment.clear_seconds > 0.0 else ''}"


def _numbers(trace: Trace) -> list[str]:
    """Say the quantities that the detector derived when the alert opened."""
    opening = next((moment for moment in trace.moments if moment.phase == _FIRING), None)
    if opening is None or not opening.columns:
        return []
    known = {k: v for k, v in opening.columns.items() if math.isfinite(v)}
    said = [f"  {name.replace('_', ' ')}: {value:.5g}" for name, value in known.items()]
    return ["", "What the detector derived when it opened:", *said] if said else []


def _evidence(item: Evidence) -> str:
    value = "not measured" if item.value is None else f"{item.value:.5g} {item.unit}".rstrip()
    parts = [f"{item.metric}: {value}"]
    for label, number in (
        ("at least", item.expected_low),
        ("at most", item.expected_high),
        ("usual", item.baseline),
        ("peers", item.peers),
    ):
        if number is not None:
            parts.append(f"{label} {number:.5g}")
    if item.window_seconds is not None:
        parts.append(f"over {item.window_seconds:g} s")
    return ", ".join(parts)
