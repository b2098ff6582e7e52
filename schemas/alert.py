"""AlertEvent: what the detector says. The message on ``gpu.alerts``.

One open alert per fingerprint. Every change of state, severity or evidence is a new ``seq`` of
the same ``alert_id``; a replay of the same telemetry gives the same ids.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

__all__ = [
    "ALERT_SCHEMA",
    "FAMILIES",
    "Action",
    "AlertEvent",
    "AlertState",
    "DetectorRef",
    "Evidence",
    "Scope",
    "Series",
    "Severity",
    "Subject",
    "alert_id_of",
    "fingerprint_of",
    "parse_time",
    "rfc3339",
]

ALERT_SCHEMA = "gpu.alert/1"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "foreshock.alert")


class AlertState(StrEnum):
    """Whether the condition holds."""

    FIRING = "firing"
    RESOLVED = "resolved"


class Severity(StrEnum):
    """Severity follows the action.

    critical: somebody must act now. warning: it costs, or breaks within the hour. info:
    inefficiency and curiosities.
    """

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """1 for info, 2 for warning, 3 for critical."""
        return _RANK[self]


_RANK = {Severity.INFO: 1, Severity.WARNING: 2, Severity.CRITICAL: 3}


class Scope(StrEnum):
    """What the alert is about."""

    GPU = "gpu"
    NODE = "node"
    JOB = "job"
    RACK = "rack"
    PIPELINE = "pipeline"


class Action(StrEnum):
    """What to do, in the classes of NVIDIA's Xid catalogue where it has one."""

    NONE = "none"
    WATCH = "watch"
    RESTART_APP = "restart_app"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    DRAIN_NODE = "drain_node"
    CHECK_COOLING = "check_cooling"
    CHECK_POWER = "check_power"
    REPLACE = "replace"


#: Families and their kinds: fixed words. New kinds may be added, none is ever reused.
FAMILIES: dict[str, tuple[str, ...]] = {
    "oom_precursor": ("leak", "fast_growth", "at_limit"),
    "throttling": (
        "hw_thermal",
        "sw_thermal",
        "power_brake",
        "hw_slowdown",
        "clock_stuck_low",
        "power_limit_low",
    ),
    "thermal_fault": (
        "peer_outlier",
        "degraded_cooling",
        "runaway",
        "memory_hot",
        "near_limit",
        "fan",
        "sensor_stuck",
        "node_airflow",
    ),
    "load_imbalance": ("straggler", "idle_member", "hang", "collective_hang"),
    "hardware_error": (
        "xid",
        "ecc_uncorrected",
        "ecc_corrected_storm",
        "row_remap",
        "pcie_degraded",
        "nvlink",
        "needs_reset",
    ),
    "gpu_lost": ("lost", "missing"),
    "telemetry": (
        "node_silent",
        "collector_blind",
        "driver_unresponsive",
        "stale_values",
        "clock_skew",
        "bad_data",
        "delivery_failing",
        "heartbeat_missing",
        "external",
    ),
    "inefficiency": ("idle_allocated", "data_starvation", "low_utilization"),
    "novelty": ("multivariate", "drift"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Which thing the alert is about; ``scope`` says which of the fields identifies it."""

    scope: str
    node: str | None = None
    gpu_uuid: str | None = None
    gpu_index: int | None = None
    pci: str | None = None
    model: str | None = None
    job: str | None = None
    project: str | None = None
    rack: str | None = None
    pipeline: str | None = None

    @property
    def entity(self) -> str:
        """The identifying value of the scope; of a pipeline the topic and partition."""
        chosen = {
            Scope.GPU: self.gpu_uuid,
            Scope.NODE: self.node,
            Scope.JOB: self.job,
            Scope.RACK: self.rack,
            Scope.PIPELINE: self.pipeline,
        }.get(Scope(self.scope))
        return chosen or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One number behind the alert.

    Parameters
    ----------
    metric
        Metric of the catalogue, or a derived quantity with a unit suffix of its own.
    value, unit
        What was seen; None if it could not be read.
    expected_low, expected_high
        Range in which it would have been unremarkable.
    baseline, peers
        Own history, and the peers' median at the same time.
    window_seconds
        Over how long it was seen.
    """

    metric: str
    value: float | None
    unit: str
    expected_low: float | None = None
    expected_high: float | None = None
    baseline: float | None = None
    peers: float | None = None
    window_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The last minutes of one metric: unix milliseconds and values of equal length."""

    metric: str
    ts: list[int]
    values: list[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorRef:
    """Which detector spoke."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertEvent:
    """One change of one alert. Times are RFC 3339, UTC, milliseconds, event time.

    Parameters
    ----------
    alert_id
        UUIDv5 of (fingerprint, episode start): see :func:`alert_id_of`.
    fingerprint
        UUIDv5 of (family, kind, scope, entity): see :func:`fingerprint_of`.
    seq
        Grows by one with every event of the same alert, from 1.
    score
        0 to 1; 0.5 is the enter threshold.
    summary
        One sentence with numbers and units.
    unmeasured
        Metrics that would have helped and were not there.
    caused_by
        Fingerprint of the root alert, if one is known.
    flapping
        Whether the condition comes and goes: three episodes within half an hour. The alert
        then stays open until it has been quiet for a quarter of an hour.
    shadow
        Whether the detector is on trial: the alert is stored, and nobody is told.
    """

    alert_id: str
    fingerprint: str
    seq: int
    state: str
    family: str
    kind: str
    severity: str
    subject: Subject
    started_at: str
    observed_at: str
    score: float
    summary: str
    evidence: tuple[Evidence, ...]
    likely_cause: str
    action: str
    next_steps: tuple[str, ...]
    detector: DetectorRef
    ended_at: str | None = None
    end_reason: str | None = None
    series: tuple[Series, ...] = ()
    unmeasured: tuple[str, ...] = ()
    caused_by: str | None = None
    labels: dict[str, str] | None = None
    flapping: bool = False
    shadow: bool = False
    schema: str = ALERT_SCHEMA


def rfc3339(unix_ms: int) -> str:
    """Format unix milliseconds as RFC 3339 in UTC with milliseconds.

    Examples
    --------
    >>> rfc3339(1758684003007)
    '2025-09-24T03:20:03.007Z'
    """
    moment = datetime.fromtimestamp(unix_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{unix_ms % 1000:03d}Z"


def parse_time(text: str) -> int:
    """Parse RFC 3339 to unix milliseconds; the inverse of :func:`rfc3339`.

    Raises
    ------
    ValueError
        If the text is no date-time, or has no zone.

    Examples
    --------
    >>> parse_time("2025-09-24T03:20:03.007Z")
    1758684003007
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"a time needs a zone, got {text!r}")
    return round(moment.timestamp() * 1000)


def fingerprint_of(family: str, kind: str, subject: Subject) -> str:
    """Identity of an alert over time: UUIDv5 of family, kind, scope and entity.

    Measured values, names of jobs on a GPU alert and indices take no part, so the fingerprint
    is stable over restarts, upgrades and reboots.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{family}/{kind}/{subject.scope}/{subject.entity}"))


def alert_id_of(fingerprint: str, started_ms: int) -> str:
    """Identity of one episode: UUIDv5 of the fingerprint and its start in event time (ms)."""
    return str(uuid.uuid5(uuid.UUID(fingerprint), str(started_ms)))
