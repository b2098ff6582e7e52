"""Compares what was alerted with what was scheduled. Pure: alerts and truths in, a score out.

Rules
-----
* An alert counts from severity warning on; a fault is *right* if an alert of its family and kind
  names its entity, begins within the fault's time and was observed by its deadline.
* A fault is *missed* if its deadline has passed without such an alert, *open* if not yet.
* An alert is *wrong* if no scheduled fault explains it: neither by family, kind and entity nor
  as a companion that the fault causes by physics (:data:`COMPANIONS`).
* Decoys explain nothing. An alert on one is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from collector.simulated.faults import FaultKind, Truth
from schemas.alert import AlertEvent, AlertState, Scope, Severity, parse_time

__all__ = [
    "COMPANIONS",
    "FaultScore",
    "Score",
    "SeenAlert",
    "Verdict",
    "explains",
    "score",
    "seen_alerts",
]

#: An episode may be dated to the window in which it began, a little before the fault itself.
EARLY_MS = 15_000
#: What a fault leaves behind (heat, a restarting job) may still cause companions for so long.
AFTERMATH_MS = 120_000

_ANY = "*"
_HOT = {
    ("thermal_fault", _ANY),
    ("throttling", "hw_thermal"),
    ("throttling", "sw_thermal"),
    ("throttling", "hw_slowdown"),
    ("throttling", "clock_stuck_low"),
    ("load_imbalance", "straggler"),
}
_GONE = {
    ("gpu_lost", _ANY),
    ("hardware_error", "xid"),
    ("hardware_error", "needs_reset"),
    ("load_imbalance", "hang"),
    ("load_imbalance", "idle_member"),
    ("load_imbalance", "collective_hang"),
    ("telemetry", "stale_values"),
}
#: What a fault may cause besides its own alert, as (family, kind). A hot GPU throttles and then
#: holds its job back; a lost one hangs it; a leak ends at the limit.
COMPANIONS: Mapping[FaultKind, frozenset[tuple[str, str]]] = MappingProxyType(
    {
        FaultKind.THERMAL: frozenset(_HOT),
        FaultKind.HW_THERMAL: frozenset(_HOT),
        FaultKind.SW_THERMAL: frozenset(_HOT),
        FaultKind.POWER_BRAKE: frozenset(
            {
                ("throttling", "hw_slowdown"),
                ("throttling", "clock_stuck_low"),
                ("load_imbalance", "straggler"),
            }
        ),
        FaultKind.LEAK: frozenset({("oom_precursor", _ANY)}),
        FaultKind.GPU_LOST: frozenset(_GONE),
        FaultKind.GPU_MISSING: frozenset(_GONE),
        FaultKind.STRAGGLER: frozenset({("throttling", "clock_stuck_low")}),
        FaultKind.HANG: frozenset(
            {("load_imbalance", "idle_member"), ("load_imbalance", "collective_hang")}
        ),
        FaultKind.ECC_STORM: frozenset(),
    }
)


class Verdict(StrEnum):
    """What became of a fault."""

    RIGHT = "right"
    MISSED = "missed"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenAlert:
    """One alert episode, from all its events.

    Parameters
    ----------
    alert_id, family, kind
        Of the alert.
    severity
        The highest it had.
    scope, node, gpu_uuid
        Entity.
    started, observed
        Start of the episode and the first event of severity warning or above (of any severity
        if there is none), unix milliseconds of event time.
    summary
        Of its last event.
    """

    alert_id: str
    family: str
    kind: str
    severity: str
    scope: str
    node: str | None
    gpu_uuid: str | None
    started: int
    observed: int
    summary: str

    @property
    def counts(self) -> bool:
        """Whether people are told: severity warning or above."""
        return Severity(self.severity).rank >= Severity.WARNING.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultScore:
    """One scheduled fault and what was said about it.

    Parameters
    ----------
    delay_seconds
        Simulated seconds from the start of the fault to the alert; None without one.
    """

    truth: Truth
    verdict: Verdict
    alert: SeenAlert | None = None
    delay_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The whole comparison.

    Parameters
    ----------
    faults
        One entry per scheduled fault that is no decoy.
    wrong
        Alerts that no fault explains.
    explained
        Alerts of severity warning or above that a fault explains.
    """

    faults: tuple[FaultScore, ...]
    wrong: tuple[SeenAlert, ...]
    explained: tuple[SeenAlert, ...]

    def count(self, verdict: Verdict) -> int:
        """Count the faults with this verdict."""
        return sum(fault.verdict is verdict for fault in self.faults)

    @property
    def clean(self) -> bool:
        """Whether nothing was wrong and nothing missed."""
        return not self.wrong and self.count(Verdict.MISSED) == 0


def seen_alerts(events: Iterable[AlertEvent]) -> tuple[SeenAlert, ...]:
    """Put the events of each alert together, in the order of their first events.

    An event that arrives twice changes nothing. An alert without a firing event is left out.
    """
    grouped: dict[str, dict[int, AlertEvent]] = {}
    for event in events:
        grouped.setdefault(event.alert_id, {})[event.seq] = event
    return tuple(
        _seen([by_seq[seq] for seq in sorted(by_seq)])
        for by_seq in grouped.values()
        if any(event.state == AlertState.FIRING for event in by_seq.values())
    )


def _seen(events: Sequence[AlertEvent]) -> SeenAlert:
    firing = [event for event in events if event.state == AlertState.FIRING]
    told = [e for e in firing if Severity(e.severity).rank >= Severity.WARNING.rank]
    worst = max(firing, key=lambda event: Severity(event.severity).rank)
    last = events[-1]
    return SeenAlert(
        alert_id=last.alert_id,
        family=last.family,
        kind=last.kind,
        severity=worst.severity,
        scope=last.subject.scope,
        node=last.subject.node,
        gpu_uuid=last.subject.gpu_uuid,
        started=parse_time(last.started_at),
        observed=parse_time((told or firing)[0].observed_at),
        summary=firing[-1].summary,
    )


def score(truths: Sequence[Truth], alerts: Sequence[SeenAlert], now: int) -> Score:
    """Compare alerts with truths.

    Parameters
    ----------
    truths
        The schedule, decoys included.
    alerts
        Every alert seen.
    now
        Simulated time up to which the pipeline has answered, unix milliseconds.
    """
    owed = [truth for truth in truths if not truth.decoy]
    told = [alert for alert in alerts if alert.counts]
    wrong = [a for a in told if not any(explains(truth, a) for truth in owed)]
    return Score(
        faults=tuple(_judge(truth, told, now) for truth in owed),
        wrong=tuple(wrong),
        explained=tuple(a for a in told if a not in wrong),
    )


def _judge(truth: Truth, alerts: Sequence[SeenAlert], now: int) -> FaultScore:
    matching = [a for a in alerts if _is_due(truth, a)]
    first = min(matching, key=lambda alert: alert.observed, default=None)
    if first is None:
        verdict = Verdict.MISSED if now > truth.deadline else Verdict.OPEN
        return FaultScore(truth=truth, verdict=verdict)
    return FaultScore(
        truth=truth,
        verdict=Verdict.RIGHT if first.observed <= truth.deadline else Verdict.MISSED,
        alert=first,
        delay_seconds=(first.observed - truth.start) / 1000.0,
    )


def _is_due(truth: Truth, alert: SeenAlert) -> bool:
    same = alert.family == truth.family and alert.kind == truth.kind
    return same and _names(truth, alert) and _within(truth, alert)


def explains(truth: Truth, alert: SeenAlert) -> bool:
    """Tell whether a fault explains an alert: as its own, or as a companion of it."""
    if truth.decoy:
        return False
    if _is_due(truth, alert):
        return True
    companions = COMPANIONS[truth.fault]
    known = (alert.family, alert.kind) in companions or (alert.family, _ANY) in companions
    return known and _concerns(truth, alert) and _within(truth, alert)


def _within(truth: Truth, alert: SeenAlert) -> bool:
    return truth.start - EARLY_MS <= alert.started <= truth.end + AFTERMATH_MS


def _names(truth: Truth, alert: SeenAlert) -> bool:
    """Whether the alert is about the very GPU, or the very node where the whole node is hit."""
    if alert.scope == Scope.GPU:
        return alert.gpu_uuid in truth.gpu_uuids
    whole = len(truth.gpu_uuids) > 1 or truth.fault is FaultKind.GPU_MISSING
    # A missing GPU may be reported as a node that counts seven of eight.
    return whole and alert.scope == Scope.NODE and alert.node == truth.node


def _concerns(truth: Truth, alert: SeenAlert) -> bool:
    """Whether a companion is about the same GPU, or the job that runs on its node."""
    return _names(truth, alert) or (alert.scope == Scope.JOB and alert.node in (truth.node, None))
