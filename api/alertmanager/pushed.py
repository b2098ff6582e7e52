"""Alerts that other tools push in, as alerts of our own. Pure.

They are of the kind ``telemetry/external``. Their identity is their label set, as in Alertmanager.
Words that the store knows keep its meaning: a label of such a name that says something else is
kept beside it as ``pushed_…``.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from api.matchers import EXTERNAL
from schemas.alert import (
    Action,
    AlertEvent,
    AlertState,
    DetectorRef,
    Severity,
    Subject,
    alert_id_of,
    rfc3339,
)

__all__ = ["PushedAlert", "ended_event", "event_of", "fingerprint_of_labels", "short_fingerprint"]

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "foreshock.pushed")
_SEVERITIES: Mapping[str, Severity] = {
    **dict.fromkeys(("critical", "page", "emergency", "fatal", "disaster"), Severity.CRITICAL),
    **dict.fromkeys(("info", "informational", "none", "notice", "debug", "low"), Severity.INFO),
}
#: Words of the store that labels of the same name never replace.
_OURS = ("family", "kind", "scope", "severity", "detector", "action")
_GPU = ("GPU-", "MIG-")
_MAX_SUMMARY = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedAlert:
    """One alert as a tool pushed it.

    Parameters
    ----------
    labels
        Its identity; empty values are left out.
    annotations
        What it says.
    starts_ms, ends_ms
        Unix milliseconds; None where the sender leaves it to us.
    generator_url
        Where it comes from; may be empty.
    """

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_ms: int | None = None
    ends_ms: int | None = None
    generator_url: str = ""

    @property
    def fingerprint(self) -> str:
        """Identity over episodes."""
        return fingerprint_of_labels(self.labels)

    @property
    def summary(self) -> str:
        """One sentence: the annotation that says most like one, else the alert's name."""
        said = [self.annotations.get(name, "") for name in ("summary", "title", "description")]
        text = next((t for t in said if t.strip()), self.labels.get("alertname", "An alert."))
        return text[:_MAX_SUMMARY]


def fingerprint_of_labels(labels: Mapping[str, str]) -> str:
    """Return the UUID of a label set, whatever its order.

    Examples
    --------
    >>> fingerprint_of_labels({"a": "1", "b": "2"}) == fingerprint_of_labels({"b": "2", "a": "1"})
    True
    """
    parts = "\0".join(f"{name}\1{value}" for name, value in sorted(labels.items()))
    return str(uuid.uuid5(_NAMESPACE, parts))


def short_fingerprint(fingerprint: str) -> str:
    """Return a fingerprint as Alertmanager shows them: 16 hexadecimal digits."""
    return hashlib.sha256(fingerprint.encode()).hexdigest()[:16]


def event_of(pushed: PushedAlert, *, started_ms: int, seq: int, now_ms: int) -> AlertEvent:
    """Return the event that says that it fires.

    Parameters
    ----------
    started_ms
        Beginning of the episode, unix milliseconds.
    seq
        Count of the episode's events.
    """
    subject = _subject(pushed.labels)
    severity = _severity(pushed.labels)
    description = pushed.annotations.get("description", "")
    runbook = pushed.annotations.get("runbook_url", "")
    return AlertEvent(
        alert_id=alert_id_of(pushed.fingerprint, started_ms),
        fingerprint=pushed.fingerprint,
        seq=seq,
        state=AlertState.FIRING.value,
        family="telemetry",
        kind=EXTERNAL,
        severity=severity.value,
        subject=subject,
        started_at=rfc3339(started_ms),
        observed_at=rfc3339(now_ms),
        score=1.0,
        summary=pushed.summary,
        evidence=(),
        likely_cause=description if description != pushed.summary else "",
        action=Action.WATCH.value,
        next_steps=(f"Runbook: {runbook}",) if runbook else (),
        detector=DetectorRef(name="external", version="1"),
        labels=_labels(pushed.labels, subject, severity),
    )


def ended_event(last: AlertEvent, *, ended_ms: int, now_ms: int, reason: str) -> AlertEvent:
    """Return the event that ends an episode.

    Parameters
    ----------
    last
        Its newest event.
    ended_ms, now_ms
        When it ended, and the time now, unix milliseconds.
    reason
        Fixed words: ``resolved by the sender`` or ``not renewed``.
    """
    return replace(
        last,
        seq=last.seq + 1,
        state=AlertState.RESOLVED.value,
        observed_at=rfc3339(now_ms),
        ended_at=rfc3339(ended_ms),
        end_reason=reason,
    )


def _first(labels: Mapping[str, str], *names: str) -> str | None:
    return next((labels[name] for name in names if labels.get(name)), None)


def _subject(labels: Mapping[str, str]) -> Subject:
    """Find node and GPU, also under the names that dcgm-exporter gives them."""
    gpu = _first(labels, "gpu_uuid", "UUID")
    if gpu is None and labels.get("gpu", "").startswith(_GPU):
        gpu = labels["gpu"]
    node = _first(labels, "node", "Hostname", "hostname")
    index = _first(labels, "gpu_index", "gpu") or ""
    scope = "gpu" if gpu else "node" if node else "rack" if labels.get("rack") else "pipeline"
    return Subject(
        scope=scope,
        node=node,
        gpu_uuid=gpu,
        gpu_index=int(index) if gpu and index.isdecimal() and len(index) < 4 else None,
        pci=_first(labels, "pci", "pci_bus_id"),
        model=_first(labels, "model", "modelName"),
        job=labels.get("job"),
        project=labels.get("project"),
        rack=labels.get("rack"),
        pipeline=labels.get("alertname", "external") if scope == "pipeline" else None,
    )


def _severity(labels: Mapping[str, str]) -> Severity:
    return _SEVERITIES.get(labels.get("severity", "").lower(), Severity.WARNING)


def _labels(labels: Mapping[str, str], subject: Subject, severity: Severity) -> dict[str, str]:
    """Return the labels as they are kept: those that would hide a word of ours, under another."""
    said = {"severity": severity.value, "gpu": subject.gpu_uuid, "node": subject.node}
    kept: dict[str, str] = {}
    for name, value in labels.items():
        taken = name in _OURS or (name == "gpu" and subject.gpu_uuid is not None)
        if taken and said.get(name) != value:
            kept[f"pushed_{name}"] = value
        else:
            kept[name] = value
    return kept
