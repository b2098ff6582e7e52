"""Finds out why an alert fired, by running the detector once more with somebody looking on.

Twice, in fact: the first run finds the alerts and the rows that they are about, the second keeps
every score of those rows around their episodes. Both see the same samples, so both say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from detector.base import Detector
from detector.pipeline import Pipeline
from detector.settings import DetectorSettings
from detector.tracing import Trace, Wanted, Watch
from schemas.alert import AlertEvent, parse_time
from schemas.sample import NodeSample

__all__ = ["Explained", "explain"]

_BATCH = 128
#: Readings this long before and after an episode are shown beside it, ms.
_AROUND_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One alert with all that is known of it.

    Parameters
    ----------
    events
        Its events, oldest first; at least one.
    trace
        Scores around the episode; None for an alert that no score explains (a clock says it,
        or its subject ceased to be).
    """

    events: tuple[AlertEvent, ...]
    trace: Trace | None


def explain(
    samples: Callable[[], Iterable[NodeSample]],
    settings: DetectorSettings | None,
    select: Callable[[AlertEvent], bool] = lambda _: True,
) -> list[Explained]:
    """Replay samples and explain the alerts that they lead to, in the order of their start.

    Parameters
    ----------
    samples
        Gives the same samples at each call.
    settings
        Of the detector; the defaults if None.
    select
        Which alerts are wanted.
    """
    watches, events = _run(samples(), settings, {})
    alerts: dict[str, list[AlertEvent]] = {}
    for event in filter(select, events):
        alerts.setdefault(event.alert_id, []).append(event)
    wanted = {
        alert_id: row
        for alert_id, some in alerts.items()
        if (row := _wanted(watches.get(some[0].detector.name), some)) is not None
    }
    plan: dict[str, list[Wanted]] = {}
    for alert_id, one in wanted.items():
        plan.setdefault(alerts[alert_id][0].detector.name, []).append(one)
    traces = _run(samples(), settings, plan)[0] if plan else {}
    explained = [
        Explained(
            events=tuple(some),
            trace=traces[some[0].detector.name].trace(wanted[alert_id])
            if alert_id in wanted
            else None,
        )
        for alert_id, some in alerts.items()
    ]
    return sorted(explained, key=lambda one: (one.events[0].started_at, one.events[0].alert_id))


def _run(
    samples: Iterable[NodeSample],
    settings: DetectorSettings | None,
    plan: dict[str, list[Wanted]],
) -> tuple[dict[str, Watch], list[AlertEvent]]:
    watches: dict[str, Watch] = {}

    def watch(detector: Detector) -> Detector:
        watches[detector.name] = Watch(detector, tuple(plan.get(detector.name, ())))
        # It answers for everything that a detector has, by asking the one it stands for.
        return cast("Detector", watches[detector.name])

    pipeline = Pipeline(settings, watch)
    events: list[AlertEvent] = []
    stream = iter(samples)
    while batch := list(islice(stream, _BATCH)):
        events += pipeline.feed(batch)
    return watches, events


def _wanted(watch: Watch | None, events: Sequence[AlertEvent]) -> Wanted | None:
    """Find the row of an alert and the time around its episode."""
    if watch is None:
        return None
    rows = next((rows for event in events if (rows := watch.rows_of(event))), None)
    if not rows:
        return None
    # Alerts of one kind that open at one moment come in the order of their rows.
    row = rows[0] if len(rows) == 1 else rows.pop(0)
    spec = next(spec for spec in watch.inner.kinds if spec.kind == events[0].kind)
    before = round(spec.enter_seconds * 1000) + _AROUND_MS
    return Wanted(
        kind=spec.kind,
        row=row,
        first_ms=parse_time(events[0].started_at) - before,
        last_ms=parse_time(events[-1].observed_at) + _AROUND_MS,
    )
