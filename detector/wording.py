"""From a transition to the AlertEvent that people and tools read."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from detector.base import Detector, Explanation, RowView
from detector.episodes import FLAP_MS, QUIET_SECONDS, Change, Transition
from schemas.alert import (
    Action,
    AlertEvent,
    AlertState,
    DetectorRef,
    Scope,
    Severity,
    Subject,
    alert_id_of,
    fingerprint_of,
    rfc3339,
)

__all__ = ["Spoken", "alert_event", "closing_event", "kind_words", "subject_words"]

#: What the kinds are called in sentences; a kind that is not here is its own words.
_KIND_WORDS = {
    "hw_thermal": "hardware thermal slowdown",
    "sw_thermal": "software thermal slowdown",
    "power_brake": "power brake",
    "leak": "memory growth",
    "peer_outlier": "temperature above its peers",
    "lost": "loss of the GPU",
    "missing": "absence",
    "multivariate": "unusual behaviour",
    "xid": "Xid report",
    "ecc_uncorrected": "uncorrected memory errors",
    "ecc_corrected_storm": "storm of corrected memory errors",
    "row_remap": "memory repair",
    "pcie_degraded": "narrow or slow PCIe link",
    "nvlink": "NVLink trouble",
    "needs_reset": "request for recovery",
}
_SEVERITIES = {severity.rank: severity for severity in Severity}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """Everything needed to word one transition."""

    detector: Detector
    kind: str
    transition: Transition
    row: RowView
    subject: Subject
    caused_by: str | None = None
    labels: dict[str, str] | None = None


def subject_words(subject: Subject) -> str:
    """Name the subject for the start of a sentence.

    Examples
    --------
    >>> subject_words(Subject(scope="gpu", node="n1", gpu_uuid="GPU-1", gpu_index=3))
    'n1 GPU 3'
    >>> subject_words(Subject(scope="job", job="88190"))
    'job 88190'
    """
    if subject.scope == Scope.GPU:
        which = subject.gpu_uuid if subject.gpu_index is None else str(subject.gpu_index)
        return f"{subject.node} GPU {which}"
    if subject.scope == Scope.JOB:
        return f"job {subject.job}"
    if subject.scope == Scope.PIPELINE:
        return f"the reader of {subject.pipeline}"
    return str(subject.node)


def kind_words(kind: str) -> str:
    """Name a kind within a sentence.

    Examples
    --------
    >>> kind_words("sw_thermal"), kind_words("clock_stuck_low")
    ('software thermal slowdown', 'clock stuck low')
    """
    return _KIND_WORDS.get(kind, kind.replace("_", " "))


def alert_event(spoken: Spoken) -> AlertEvent:
    """Build the event of one transition."""
    moved, detector = spoken.transition, spoken.detector
    resolved = moved.change is Change.RESOLVED
    said = detector.explain(spoken.kind, spoken.row)
    fingerprint = fingerprint_of(detector.family, spoken.kind, spoken.subject)
    event = AlertEvent(
        alert_id=alert_id_of(fingerprint, moved.started_ms),
        fingerprint=fingerprint,
        seq=moved.seq,
        state=AlertState.FIRING,
        family=detector.family,
        kind=spoken.kind,
        severity=_SEVERITIES[moved.severity],
        subject=spoken.subject,
        started_at=rfc3339(moved.started_ms),
        observed_at=rfc3339(moved.observed_ms),
        score=moved.score,
        summary=f"{subject_words(spoken.subject)} {said.summary}{_flapping(moved)}.",
        evidence=said.evidence,
        likely_cause=said.likely_cause,
        action=said.action,
        next_steps=said.next_steps,
        unmeasured=_unmeasured(spoken, said),
        caused_by=spoken.caused_by,
        labels=spoken.labels,
        detector=DetectorRef(name=detector.name, version=detector.version),
        flapping=moved.flaps > 0,
    )
    return _resolved(event, spoken, said) if resolved else event


def closing_event(
    detector: Detector,
    kind: str,
    subject: Subject,
    *,
    started_ms: int,
    ended_ms: int,
    seq: int,
    severity: int,
    reason: str,
) -> AlertEvent:
    """Build the last event of an alert whose subject ceased to be, without new evidence."""
    fingerprint = fingerprint_of(detector.family, kind, subject)
    lasted = _lasted((ended_ms - started_ms) / 1000.0)
    words = f"{kind_words(kind)} is closed after {lasted}: {reason.replace('_', ' ')}"
    return AlertEvent(
        alert_id=alert_id_of(fingerprint, started_ms),
        fingerprint=fingerprint,
        seq=seq,
        state=AlertState.RESOLVED,
        family=detector.family,
        kind=kind,
        severity=_SEVERITIES[severity],
        subject=subject,
        started_at=rfc3339(started_ms),
        observed_at=rfc3339(ended_ms),
        ended_at=rfc3339(ended_ms),
        end_reason=reason,
        score=0.0,
        summary=f"{subject_words(subject)}: {words}.",
        evidence=(),
        likely_cause="",
        action=Action.NONE,
        next_steps=(),
        detector=DetectorRef(name=detector.name, version=detector.version),
    )


def _resolved(event: AlertEvent, spoken: Spoken, said: Explanation) -> AlertEvent:
    moved = spoken.transition
    ended = moved.ended_ms if moved.ended_ms is not None else moved.observed_ms
    words = kind_words(spoken.kind)
    lasted = _lasted((ended - moved.started_ms) / 1000.0)
    why = f": {said.end_words}" if said.end_words else ""
    if moved.flaps:
        why = f"; it came and went {moved.flaps} times{why}"
    return replace(
        event,
        state=AlertState.RESOLVED,
        ended_at=rfc3339(ended),
        end_reason=said.end_reason,
        summary=f"{subject_words(spoken.subject)}: {words} has ended after {lasted}{why}.",
    )


def _flapping(moved: Transition) -> str:
    """Say that the condition comes and goes, and what that means for the alert."""
    if not moved.flaps:
        return ""
    return (
        f"; it comes and goes, {moved.flaps} times within {FLAP_MS / 60_000:.0f} min, so the alert "
        f"stays open until {QUIET_SECONDS / 60:.0f} min are quiet"
    )


def _lasted(seconds: float) -> str:
    """Say a duration.

    Examples
    --------
    >>> _lasted(42.0), _lasted(600.0), _lasted(7500.0)
    ('42 s', '10 min', '2 h 05 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _unmeasured(spoken: Spoken, said: Explanation) -> tuple[str, ...]:
    """List metrics that would have helped and are missing in this row, each once."""
    frame, position = spoken.row.frame, spoken.row.position
    absent = [name for name in spoken.detector.helps if np.isnan(frame[name][position])]
    return tuple(dict.fromkeys([*said.unmeasured, *absent]))
