"""The open alerts as Alertmanager's API shows them: labels, receivers, what holds notices back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from api.alertmanager.pushed import short_fingerprint
from api.grouping import group_alerts
from api.inhibition import AlertFacts, Inhibition
from api.matchers import Matcher, matches
from api.routing import Routing
from api.security.redaction import HIDDEN, is_sensitive
from api.silences import Silences
from api.tables import IS_OPEN, alert, pushed
from schemas.alert import rfc3339

__all__ = ["NOBODY", "Board", "Shown", "View"]

#: Receiver of alerts that no route takes: a client of Alertmanager expects each to have one.
NOBODY = "nobody"
#: Most alerts that are shown, the gravest first: one answer must not hold up the others.
MOST = 10_000
#: Ends lie so far ahead while an alert fires, as with Alertmanager.
_AHEAD_MS = 5 * 60_000

Json = dict[str, Any]  # decoded JSON, any value


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Which alerts are wanted: the parameters of ``/api/v2/alerts``.

    Parameters
    ----------
    matchers
        All must hold.
    receiver
        Must match the name of one of its receivers, or None.
    active, silenced, inhibited
        Whether alerts of these states are wanted.
    """

    matchers: tuple[Matcher, ...] = ()
    receiver: Matcher | None = None
    active: bool = True
    silenced: bool = True
    inhibited: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One alert and how it stands."""

    facts: AlertFacts
    receivers: tuple[str, ...]
    silenced_by: tuple[str, ...]
    inhibited_by: str | None
    json: Json

    def is_in(self, view: View) -> bool:
        """Tell whether it is wanted as it stands; its matchers were compared before."""
        quiet = bool(self.silenced_by or self.inhibited_by)
        if not view.active and not quiet:
            return False
        if not view.silenced and self.silenced_by:
            return False
        if not view.inhibited and self.inhibited_by:
            return False
        wanted = view.receiver
        return wanted is None or any(wanted.holds({"name": n}) for n in self.receivers)


class Board:
    """The open alerts at one moment.

    Parameters
    ----------
    routing
        Who is told.
    silences
        Where silences come from.
    link
        Address of this service as people reach it, or None.
    sensitive
        Whether labels that name people or hold command lines are shown.
    """

    def __init__(
        self, routing: Routing, silences: Silences, *, link: str | None, sensitive: bool
    ) -> None:
        self._routing = routing
        self._silences = silences
        self._link = link
        self._sensitive = sensitive

    def alerts(self, connection: sa.Connection, view: View, now_ms: int) -> list[Shown]:
        """Return the open alerts that are wanted, gravest first, then newest."""
        rows = connection.execute(_OPEN).mappings().all()
        rows = [row for row in rows if not orjson.loads(row["payload"]).get("shadow")]
        facts = {row["alert_id"]: AlertFacts.of(row) for row in rows}
        roots = Inhibition(facts.values())
        active = [
            one
            for one in self._silences.all(connection, ending_after_ms=now_ms)
            if one.in_force(now_ms)
        ]
        found = []
        for row in rows:
            one = facts[row["alert_id"]]
            labels = one.labels or {}
            if not matches(view.matchers, labels):
                continue
            names = [r.endpoint for r in self._routing.of(labels, one.rank)]
            root = roots.root_of(one)
            shown = Shown(
                facts=one,
                receivers=tuple(sorted(names)) or (NOBODY,),
                silenced_by=tuple(s.id for s in active if matches(s.matchers, labels)),
                inhibited_by=None if root is None else facts[root].fingerprint,
                json={},
            )
            if shown.is_in(view):
                shown.json.update(self._json(row, shown, now_ms))
                found.append(shown)
        return found

    def groups(self, shown: Sequence[Shown], known_nodes: int) -> list[Json]:
        """Return alerts by group and receiver."""
        by_id = {one.facts.alert_id: one for one in shown}
        found = []
        for group in group_alerts([one.facts for one in shown], known_nodes):
            members = [by_id[alert_id] for alert_id in group.alert_ids]
            for name in sorted({name for one in members for name in one.receivers}):
                told = [one.json for one in members if name in one.receivers]
                labels = {group.by: group.key}
                found.append({"labels": labels, "receiver": {"name": name}, "alerts": told})
        return found

    def _json(self, row: Mapping[Any, Any], shown: Shown, now_ms: int) -> Json:
        labels = dict(shown.facts.labels or {})
        if not self._sensitive:
            labels = {k: HIDDEN if is_sensitive(k) else v for k, v in labels.items()}
        kept = orjson.loads(row["body"]) if row["body"] else None
        event = orjson.loads(row["payload"])
        quiet = bool(shown.silenced_by or shown.inhibited_by)
        link = "" if self._link is None else f"{self._link}/alerts/{row['alert_id']}"
        return {
            "labels": labels,
            "annotations": _annotations(event, row, kept),
            "startsAt": rfc3339(row["started_ms"]),
            "updatedAt": rfc3339(row["updated_ms"] or row["received_ms"]),
            "endsAt": rfc3339(row["ends_ms"] or now_ms + _AHEAD_MS),
            "fingerprint": short_fingerprint(row["fingerprint"]),
            "receivers": [{"name": name} for name in shown.receivers],
            "generatorURL": (kept or {}).get("generatorURL") or link,
            "status": {
                "state": "suppressed" if quiet else "active",
                "silencedBy": list(shown.silenced_by),
                "inhibitedBy": []
                if shown.inhibited_by is None
                else [short_fingerprint(shown.inhibited_by)],
                "mutedBy": [],
            },
        }


# Any: a row mapping is untyped.
def _annotations(event: Json, row: Mapping[Any, Any], kept: Json | None) -> dict[str, str]:
    said: dict[str, str] = {} if kept is None else dict(kept["annotations"])
    own = {
        "summary": str(event["summary"]),
        "likely_cause": str(event.get("likely_cause") or ""),
        "next_steps": "\n".join(event.get("next_steps") or ()),
    }
    if kept is None:
        said = {name: text for name, text in own.items() if text}
    if row["state"] != "firing":
        said["foreshock_state"] = row["state"]
    if row["acked_by"]:
        said["acknowledged_by"] = row["acked_by"]
    return said


_OPEN = (
    sa.select(alert, pushed.c.ends_ms, pushed.c.updated_ms, pushed.c.body)
    .join(pushed, pushed.c.alert_id == alert.c.alert_id, isouter=True)
    .where(IS_OPEN)
    .order_by(alert.c.severity_rank.desc(), alert.c.started_ms.desc())
    .limit(MOST)
)
