"""What a replay found, for people: a table of alerts, and how the recording was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from collector.replay.stats import ColumnTally, ReplayStats
from schemas.alert import AlertEvent, AlertState, Scope, Severity, Subject, rfc3339
from schemas.metrics import METRICS
from schemas.sample import NodeSample

__all__ = ["MAX_SHOWN", "Outcome", "show"]

#: More alerts than this are counted, not listed: all of them stand in the JSON lines.
MAX_SHOWN = 50
# Of so many columns the refused values are told one by one.
_MAX_COLUMNS = 10
_STYLES = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What happened in a replay.

    Parameters
    ----------
    stats
        What the readers counted.
    interval_seconds
        Usual time between two readings, or None.
    messages, gpu_samples
        Messages fed, and GPU-ticks in them.
    first_ts, last_ts
        Event time of the first and the last tick, unix milliseconds.
    nodes
        Names of the nodes.
    alerts
        The last event of each alert, by alert id.
    worst
        The highest severity of each alert.
    stopped_by
        Why the replay ended before the end of the recording, or None.
    """

    stats: ReplayStats
    interval_seconds: float | None = None
    messages: int = 0
    gpu_samples: int = 0
    first_ts: int | None = None
    last_ts: int | None = None
    nodes: set[str] = field(default_factory=set)
    alerts: dict[str, AlertEvent] = field(default_factory=dict)
    worst: dict[str, Severity] = field(default_factory=dict)
    events: int = 0
    elapsed_seconds: float = 0.0
    stopped_by: str | None = None

    @property
    def nothing_usable(self) -> bool:
        """Whether there were values and every one of them was refused."""
        tallies = self.stats.columns.values()
        values = sum(tally.values for tally in tallies)
        return values > 0 and values == sum(tally.refused for tally in tallies)

    def count(self, samples: Sequence[NodeSample]) -> None:
        """Count messages that are fed."""
        self.messages += len(samples)
        for sample in samples:
            self.gpu_samples += len(sample.ts) * len(sample.gpu)
            self.nodes.add(sample.node)
            first, last = sample.ts[0], sample.ts[-1]
            self.first_ts = first if self.first_ts is None else min(first, self.first_ts)
            self.last_ts = last if self.last_ts is None else max(last, self.last_ts)

    def note(self, event: AlertEvent) -> None:
        """Keep the newest event of each alert and its highest severity."""
        self.events += 1
        self.alerts[event.alert_id] = event
        severity = Severity(event.severity)
        before = self.worst.get(event.alert_id, severity)
        self.worst[event.alert_id] = max(before, severity, key=lambda s: s.rank)


def show(outcome: Outcome, console: Console) -> None:
    """Print alerts, counts, damage and speed."""
    alerts = sorted(
        outcome.alerts.values(),
        key=lambda event: (-outcome.worst[event.alert_id].rank, event.started_at, event.alert_id),
    )
    if alerts:
        console.print(_table(outcome, alerts[:MAX_SHOWN]))
    if len(alerts) > MAX_SHOWN:
        console.print(f"... and {len(alerts) - MAX_SHOWN} more", highlight=False)
    for sentence in (*_findings(outcome), *_damage(outcome.stats), _speed(outcome)):
        console.print(Text(sentence))
    for warning in _suspicions(outcome):
        console.print(Text(warning, style="bold red"))
    if outcome.stopped_by is not None:
        console.print(Text(f"Stopped before the end: {outcome.stopped_by}", style="red"))


def _table(outcome: Outcome, alerts: list[AlertEvent]) -> Table:
    table = Table(title="Alerts", title_justify="left")
    for name in ("severity", "alert", "subject", "started (UTC)", "ended (UTC)", "summary"):
        table.add_column(name, overflow="fold", ratio=1 if name == "summary" else None)
    for event in alerts:
        severity = outcome.worst[event.alert_id]
        table.add_row(
            Text(severity.value, style=_STYLES[severity]),
            Text(f"{event.family}/{event.kind}"),
            Text(_who(event.subject)),
            Text(_short(event.started_at)),
            Text(_short(event.ended_at) if event.ended_at else _still(event)),
            Text(event.summary),
        )
    return table


def _who(subject: Subject) -> str:
    if subject.scope == Scope.GPU:
        index = subject.gpu_index
        name = subject.gpu_uuid or "" if index is None else f"GPU {index}"
        return f"{subject.node or ''} {name}".strip()
    return f"{subject.scope} {subject.entity}".strip()


def _short(time: str) -> str:
    return time.replace("T", " ")[:19]


def _still(event: AlertEvent) -> str:
    return "open" if event.state == AlertState.FIRING else ""


def _findings(outcome: Outcome) -> list[str]:
    if not outcome.alerts:
        return ["No alerts."]
    counts = Counter(outcome.worst.values())
    parts = ", ".join(
        f"{counts[severity]} {severity.value}" for severity in sorted(counts, key=lambda s: -s.rank)
    )
    still = sum(event.state == AlertState.FIRING for event in outcome.alerts.values())
    open_part = f"; {still} still open at the end of the recording" if still else ""
    return [f"{_many(len(outcome.alerts), 'alert')}: {parts}{open_part}."]


def _damage(stats: ReplayStats) -> list[str]:
    sentences = []
    if stats.damaged > 0:
        sentences.append(f"{_many(stats.damaged, 'damaged line')} left out:")
        sentences += [f"  {complaint}" for complaint in stats.complaints]
        if stats.damaged > len(stats.complaints):
            sentences.append(f"  ... and {stats.damaged - len(stats.complaints)} more")
    for count, thing, why in (
        (stats.duplicates, "row", "dropped: the GPU already had a row for that time."),
        (stats.backwards, "row", "dropped: the time lies before that of the row above."),
        (stats.unconfirmed, "row", "left out: their GPU was not there before or right after."),
        (stats.implausible, "value", "refused: out of the range that is possible:"),
    ):
        if count > 0:
            sentences.append(f"{_many(count, thing)} {why}")
    refused = sorted(_refused(stats), key=lambda tally: -tally.refused)
    sentences += [f"  {_column(tally)}" for tally in refused[:_MAX_COLUMNS]]
    if len(refused) > _MAX_COLUMNS:
        sentences.append(f"  ... and {_many(len(refused) - _MAX_COLUMNS, 'column')} more")
    if 10 * stats.backwards > stats.rows:
        sentences.append("Most of the recording may be missing here: sort its rows by time.")
    return sentences


def _refused(stats: ReplayStats) -> list[ColumnTally]:
    return [tally for tally in stats.columns.values() if tally.refused > 0]


def _column(tally: ColumnTally) -> str:
    """Say what was refused of a column, with an example and what would have been possible."""
    metric = METRICS[tally.metric]
    unit = tally.metric.rpartition("_")[2] if metric.unit == "%" else metric.unit
    example = "" if tally.example is None else f"; the first one is {tally.example:.6g} {unit}"
    return (
        f"column {tally.column!r}, read as {tally.metric}: {tally.refused} of "
        f"{_many(tally.values, 'value')}{example.rstrip()}, possible are {metric.low:g} to "
        f"{metric.high:g}"
    )


def _suspicions(outcome: Outcome) -> list[str]:
    """Warn of columns that are hardly what they are read as."""
    if outcome.nothing_usable:
        return [
            "WARNING: every value was refused, so nothing was watched. Probably columns are "
            "swapped or units are wrong: look at the columns above and at the column map."
        ]
    doubtful = [t for t in _refused(outcome.stats) if 2 * t.refused > t.values]
    return [
        f"WARNING: {tally.refused} of the {_many(tally.values, 'value')} of column "
        f"{tally.column!r} were refused as {tally.metric}. Probably columns are swapped or its "
        "unit is wrong; what depends on it was not watched."
        for tally in doubtful[:_MAX_COLUMNS]
    ]


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _speed(outcome: Outcome) -> str:
    if outcome.first_ts is None or outcome.last_ts is None:
        return "Nothing was read."
    rate = outcome.gpu_samples / outcome.elapsed_seconds if outcome.elapsed_seconds > 0 else 0.0
    nodes = _many(len(outcome.nodes), "node")
    return (
        f"{outcome.gpu_samples} GPU-samples of {nodes}, {rfc3339(outcome.first_ts)} to "
        f"{rfc3339(outcome.last_ts)}, in {outcome.elapsed_seconds:.1f} s "
        f"({rate:,.0f} GPU-samples/s)."
    )
