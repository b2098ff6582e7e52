"""Groups of open alerts: by a common cause, a rack, a job, a node. Pure.

What spans a whole rack or the fleet is seen only here, where every alert arrives: nine nodes that
brake within two minutes are one event of a power feed, not nine.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from api.inhibition import AlertFacts

__all__ = ["GROUP_WORDS", "MANY_NODES", "Group", "group_alerts", "group_key_of"]

#: Words by which notices can be grouped.
GROUP_WORDS = ("alert", "node", "job", "rack", "cause")
#: So many nodes with the same fault at once are a fault of what they share.
WIDE_NODES = 3
#: Where nobody says how many nodes there are, so many are a fault of the fleet.
MANY_NODES = 10
#: Beginnings within this time count as one event.
WIDE_MS = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Open alerts that belong together.

    Parameters
    ----------
    id
        Stable while the group lasts.
    by
        cause, fleet, rack, job, node or alert: what they share.
    key
        Its name.
    root_id
        The alert to look at first.
    alert_ids
        All of them, the root first.
    """

    id: str
    by: str
    key: str
    root_id: str
    alert_ids: tuple[str, ...]
    rank: int
    started_ms: int
    nodes: tuple[str, ...]
    counts: Mapping[str, int]


def group_key_of(word: str, labels: Mapping[str, str]) -> str:
    """Return the key by which notices of an alert are kept in order; empty for its own.

    Examples
    --------
    >>> group_key_of("node", {"node": "n1", "family": "throttling"})
    'node:n1'
    >>> group_key_of("alert", {"node": "n1"})
    ''
    """
    if word == "cause":
        for candidate in ("job", "rack", "node"):
            if labels.get(candidate):
                return f"{candidate}:{labels[candidate]}"
        return ""
    value = labels.get(word)
    return f"{word}:{value}" if word != "alert" and value else ""


def group_alerts(alerts: Iterable[AlertFacts], known_nodes: int = 0) -> list[Group]:
    """Put open alerts into groups; each alert is in exactly one.

    Parameters
    ----------
    alerts
        The open alerts.
    known_nodes
        Nodes of the fleet, for "a tenth of the nodes"; 0 if unknown: ten nodes then.
    """
    open_alerts = sorted(alerts, key=lambda a: (a.started_ms, a.alert_id))
    wide = _wide(open_alerts, known_nodes)
    roots = {a.fingerprint: a for a in open_alerts}
    members: dict[tuple[str, str], list[AlertFacts]] = defaultdict(list)
    for one in open_alerts:
        members[_place(_root(one, roots), wide)].append(one)
    return sorted(
        (_group(by, key, found) for (by, key), found in members.items()),
        key=lambda g: (-g.rank, -g.started_ms, g.id),
    )


def _root(one: AlertFacts, roots: Mapping[str, AlertFacts]) -> AlertFacts:
    """Follow ``caused_by`` to its end; a ring ends where it began."""
    seen = {one.fingerprint}
    while one.caused_by is not None and one.caused_by in roots and one.caused_by not in seen:
        one = roots[one.caused_by]
        seen.add(one.fingerprint)
    return one


def _place(root: AlertFacts, wide: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    if root.alert_id in wide:
        return wide[root.alert_id]
    if root.scope == "rack" and root.rack:
        return "rack", root.rack
    if root.family == "load_imbalance" and root.job:
        return "job", root.job
    if root.node:
        return "node", root.node
    if root.job:
        return "job", root.job
    return "alert", root.alert_id


def _wide(alerts: Sequence[AlertFacts], known_nodes: int) -> dict[str, tuple[str, str]]:
    """Return the alerts that belong to an event of a rack or of the fleet."""
    found: dict[str, tuple[str, str]] = {}
    by_kind: dict[tuple[str, str], list[AlertFacts]] = defaultdict(list)
    for one in alerts:
        if one.node:
            by_kind[one.family, one.kind].append(one)
    for (family, kind), same in by_kind.items():
        name = f"{family}/{kind}"
        racks: dict[tuple[str, str], list[AlertFacts]] = defaultdict(list)
        for one in same:
            if one.rack:
                racks[one.cluster or "", one.rack].append(one)
        for (cluster, rack), here in racks.items():
            place = "/".join(part for part in (cluster, rack) if part)
            for one in _burst(here, WIDE_NODES):
                found[one.alert_id] = ("rack", f"{place} {name}")
        tenth = max(WIDE_NODES, -(-known_nodes // 10)) if known_nodes else MANY_NODES
        spread = _burst(same, tenth)
        if len({one.rack for one in spread}) > 1:
            found |= {one.alert_id: ("fleet", name) for one in spread}
    return found


def _burst(alerts: Sequence[AlertFacts], nodes: int) -> list[AlertFacts]:
    """Return the alerts that began together on at least so many nodes; sorted by their start."""
    best, first = (0, 0), 0
    here: Counter[str | None] = Counter()
    for last, one in enumerate(alerts):
        here[one.node] += 1
        while one.started_ms - alerts[first].started_ms > WIDE_MS:
            gone = alerts[first].node
            here[gone] -= 1
            if not here[gone]:
                del here[gone]
            first += 1
        if last + 1 - first > best[1] - best[0] and len(here) >= nodes:
            best = (first, last + 1)
    return list(alerts[best[0] : best[1]])


def _group(by: str, key: str, members: Sequence[AlertFacts]) -> Group:
    ordered = sorted(members, key=lambda a: (a.caused_by is not None, -a.rank, a.started_ms))
    return Group(
        id=hashlib.sha256(f"{by}\0{key}".encode()).hexdigest()[:16],
        by=by,
        key=key,
        root_id=ordered[0].alert_id,
        alert_ids=tuple(one.alert_id for one in ordered),
        rank=max(one.rank for one in members),
        started_ms=min(one.started_ms for one in members),
        nodes=tuple(sorted({one.node for one in members if one.node})),
        counts=dict(Counter(f"{one.family}/{one.kind}" for one in members)),
    )
