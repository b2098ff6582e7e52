"""Which open alert explains another, so that people are told of the cause alone.

Two sources: what the detector itself says (``caused_by``), and the shape of a cluster. The alert
stays in the list; only its notices wait while its cause is open.

A graver alert is never held back for a milder one, and nothing is held back for an alert that is
itself held back by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson
import sqlalchemy as sa

from api.matchers import labels_of
from api.tables import IS_OPEN, alert

__all__ = ["AlertFacts", "Inhibition", "explains"]

#: Detectors that speak because something is absent: lost telemetry makes them speak too.
_ABSENCE = frozenset(
    {
        ("telemetry", "node_silent"),
        ("telemetry", "collector_blind"),
        ("telemetry", "driver_unresponsive"),
        ("telemetry", "stale_values"),
        ("telemetry", "clock_skew"),
        ("telemetry", "bad_data"),
        ("gpu_lost", "missing"),
        ("load_imbalance", "idle_member"),
        ("load_imbalance", "hang"),
        ("load_imbalance", "collective_hang"),
        ("inefficiency", "idle_allocated"),
        ("inefficiency", "low_utilization"),
    }
)
_WASTE = frozenset({"inefficiency"})
#: Roots by which a whole GPU is explained.
_GPU_ROOTS = frozenset({("gpu_lost", "lost")})
_MAX_ROOTS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFacts:
    """What the rules of notices know of an alert.

    Parameters
    ----------
    rank
        Severity, 1 to 3.
    received_ms
        When the store first saw it.
    labels
        Words that matchers and routes compare, see :func:`api.matchers.labels_of`.
    """

    alert_id: str
    fingerprint: str
    state: str
    rank: int
    family: str
    kind: str
    scope: str
    node: str | None = None
    gpu_uuid: str | None = None
    job: str | None = None
    rack: str | None = None
    cluster: str | None = None
    caused_by: str | None = None
    acked_by: str | None = None
    snoozed_until_ms: int | None = None
    started_ms: int = 0
    ended_ms: int | None = None
    received_ms: int = 0
    labels: Mapping[str, str] | None = None

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> Self:  # Any: a row mapping is untyped
        """Take them from a row of the table ``alert``."""
        return cls(
            alert_id=row["alert_id"],
            fingerprint=row["fingerprint"],
            state=row["state"],
            rank=row["severity_rank"],
            family=row["family"],
            kind=row["kind"],
            scope=row["scope"],
            node=row["node"],
            gpu_uuid=row["gpu_uuid"],
            job=row["job"],
            rack=row["rack"],
            cluster=row["cluster"],
            caused_by=row["caused_by"],
            acked_by=row["acked_by"],
            snoozed_until_ms=row["snoozed_until_ms"],
            started_ms=row["started_ms"],
            ended_ms=row["ended_ms"],
            received_ms=row["received_ms"],
            labels=labels_of(orjson.loads(row["payload"])),
        )


def explains(root: AlertFacts, symptom: AlertFacts) -> bool:
    """Tell whether ``root`` explains ``symptom``, so that only the root is told.

    Examples
    --------
    >>> lost = AlertFacts(alert_id="a", fingerprint="f", state="firing", rank=3, scope="gpu",
    ...                   family="gpu_lost", kind="lost", node="n", gpu_uuid="G")
    >>> hot = AlertFacts(alert_id="b", fingerprint="g", state="firing", rank=2, scope="gpu",
    ...                  family="thermal_fault", kind="peer_outlier", node="n", gpu_uuid="G")
    >>> explains(lost, hot), explains(hot, lost)
    (True, False)
    """
    if root.fingerprint == symptom.fingerprint or root.rank < symptom.rank:
        return False
    if symptom.caused_by == root.fingerprint:
        return True
    if root.caused_by == symptom.fingerprint:
        return False
    return any(rule(root, symptom) for rule in _TOPOLOGY)


def _gpu_gone(root: AlertFacts, symptom: AlertFacts) -> bool:
    gone = (root.family, root.kind) in _GPU_ROOTS
    return gone and root.gpu_uuid is not None and root.gpu_uuid == symptom.gpu_uuid


def _telemetry_lost(root: AlertFacts, symptom: AlertFacts) -> bool:
    """Lost telemetry explains only what is said because something is absent."""
    lost = root.family == "telemetry" and root.scope == "node"
    grave = root.kind in {"node_silent", "collector_blind", "driver_unresponsive"}
    absent = (symptom.family, symptom.kind) in _ABSENCE
    if symptom.family == "telemetry" and symptom.scope == "node":
        # One for the node, never one for each detector: the silence of the node comes first.
        absent = absent and root.kind == "node_silent"
    return lost and grave and absent and _same(root.node, symptom.node)


def _node_wide(root: AlertFacts, symptom: AlertFacts) -> bool:
    """Explain the fault of each GPU by the same of the whole node, or by its cooling."""
    if root.scope != "node" or symptom.scope != "gpu" or not _same(root.node, symptom.node):
        return False
    if (root.family, root.kind) == ("thermal_fault", "node_airflow"):
        return symptom.family in {"thermal_fault", "throttling"}
    return (root.family, root.kind) == (symptom.family, symptom.kind)


def _rack_wide(root: AlertFacts, symptom: AlertFacts) -> bool:
    same = (root.family, root.kind) == (symptom.family, symptom.kind)
    wider = root.scope == "rack" and symptom.scope in {"node", "gpu"}
    return same and wider and _same(root.rack, symptom.rack)


def _job_wide(root: AlertFacts, symptom: AlertFacts) -> bool:
    """Members of a job that waits for one of them are idle for that reason."""
    waiting = root.family == "load_imbalance" and symptom.family in _WASTE
    return waiting and _same(root.job, symptom.job)


_TOPOLOGY = (_gpu_gone, _telemetry_lost, _node_wide, _rack_wide, _job_wide)


def _same(one: str | None, other: str | None) -> bool:
    return one is not None and one == other


def _on_trial(row: Mapping[Any, Any]) -> bool:  # Any: a row mapping is untyped
    """Tell whether nobody is told of an alert: then it explains nothing to anybody."""
    return bool(orjson.loads(row["payload"]).get("shadow"))


class Inhibition:
    """The open alerts that may explain others.

    Parameters
    ----------
    roots
        Open alerts near the ones that are asked about.
    """

    def __init__(self, roots: Iterable[AlertFacts]) -> None:
        # The gravest first, then the oldest: who asks twice gets the same answer.
        ordered = sorted(roots, key=lambda r: (-r.rank, r.started_ms, r.alert_id))
        # By what they could share with a symptom: in a storm each would else be held against all.
        self._near: dict[tuple[str, str], list[tuple[int, AlertFacts]]] = {}
        for place, root in enumerate(ordered):
            keys = _keys(root, root.fingerprint)
            for key in keys if _spreads(root) else keys[:1]:
                self._near.setdefault(key, []).append((place, root))

    @classmethod
    def read(cls, connection: sa.Connection, symptoms: Sequence[AlertFacts]) -> Self:
        """Read the open alerts that share a node, a job or a named cause with these."""
        return cls._read(connection, symptoms, IS_OPEN)

    @classmethod
    def read_ended(cls, connection: sa.Connection, symptoms: Sequence[AlertFacts]) -> Self:
        """Read the alerts that have ended, and were still open when one of these began."""
        if not symptoms:
            return cls(())
        begun = min(one.started_ms for one in symptoms)
        return cls._read(connection, symptoms, sa.and_(~IS_OPEN, alert.c.ended_ms >= begun))

    @classmethod
    def _read(
        cls,
        connection: sa.Connection,
        symptoms: Sequence[AlertFacts],
        which: sa.ColumnElement[bool],
    ) -> Self:
        causes = {one.caused_by for one in symptoms if one.caused_by}
        nodes = {one.node for one in symptoms if one.node}
        jobs = {one.job for one in symptoms if one.job}
        racks = {one.rack for one in symptoms if one.rack}
        near: list[sa.ColumnElement[bool]] = [
            column.in_(sorted(values))
            for column, values in (
                (alert.c.fingerprint, causes),
                (alert.c.node, nodes),
                (alert.c.job, jobs),
            )
            if values
        ]
        if racks:
            near.append(sa.and_(alert.c.scope == "rack", alert.c.rack.in_(sorted(racks))))
        if not near:
            return cls(())
        rows = connection.execute(
            sa.select(alert)
            .where(which, sa.or_(*near))
            .order_by(alert.c.severity_rank.desc(), alert.c.started_ms)
            .limit(_MAX_ROOTS)
        ).mappings()
        return cls(AlertFacts.of(row) for row in rows if not _on_trial(row))

    def root_of(self, symptom: AlertFacts) -> str | None:
        """Return the id of the alert that explains this one, or None."""
        found: dict[int, AlertFacts] = {}
        for key in _keys(symptom, symptom.caused_by):
            found.update(self._near.get(key, ()))
        for _, root in sorted(found.items(), key=lambda item: item[0]):
            other = root.alert_id != symptom.alert_id and _together(root, symptom)
            if other and explains(root, symptom):
                return root.alert_id
        return None


def _together(root: AlertFacts, symptom: AlertFacts) -> bool:
    """Tell whether both were open at one time; what is open still has no end."""
    if root.ended_ms is None:
        return True
    return symptom.started_ms <= root.ended_ms and (
        symptom.ended_ms is None or root.started_ms <= symptom.ended_ms
    )


def _spreads(root: AlertFacts) -> bool:
    """Tell whether it may explain others by the shape of a cluster, and not only where named."""
    wide = root.scope in {"node", "rack"} or root.family == "load_imbalance"
    return wide or (root.family, root.kind) in _GPU_ROOTS


def _keys(facts: AlertFacts, fingerprint: str | None) -> list[tuple[str, str]]:
    """Return what an alert may share with one that explains it, the fingerprint first."""
    found = {
        "cause": fingerprint,
        "gpu": facts.gpu_uuid,
        "node": facts.node,
        "job": facts.job,
        "rack": facts.rack,
    }
    return [(name, value) for name, value in found.items() if value]
