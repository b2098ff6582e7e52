"""Alerts in a terminal: a table that fits it, one alert in full, events as lines.

What comes from the api is text of others: it is shown as text, never read as markup or as
commands of the terminal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import IO, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.readings import evidence_rows
from schemas.alert import parse_time

__all__ = [
    "alert_lines",
    "alert_table",
    "console_of",
    "endpoint_table",
    "event_line",
    "plain",
    "show_alert",
    "where",
]

_COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
_SHORT_ID = 8
#: Of tables that go to a file or another program: nobody's window is to cut them.
_PIPED_WIDTH = 200
_ELAPSED_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
Alert = Mapping[str, Any]  # decoded JSON of an alert


def console_of(stream: IO[str]) -> Console:
    """Return the console of a stream: as wide as its terminal, wide for a file or a program."""
    width = None if stream.isatty() else _PIPED_WIDTH
    return Console(file=stream, width=width, highlight=False)


def plain(text: object) -> str:
    r"""Return text without control and direction characters.

    Examples
    --------
    >>> plain("a\x1b[31mb\u202ec")
    'a[31mbc'
    """
    return "".join(c for c in str(text) if unicodedata.category(c) not in {"Cc", "Cf", "Cs"})


def where(subject: Mapping[str, Any]) -> str:
    """Return the place of an alert in few words.

    Examples
    --------
    >>> where({"scope": "gpu", "node": "n1", "gpu_index": 3, "job": None})
    'n1 GPU 3'
    >>> where({"scope": "job", "job": "88213"})
    'job 88213'
    """
    parts = []
    if subject.get("node"):
        parts.append(plain(subject["node"]))
    if subject.get("gpu_index") is not None:
        parts.append(f"GPU {plain(subject['gpu_index'])}")
    elif subject.get("gpu_uuid"):
        parts.append(plain(subject["gpu_uuid"]))
    if subject.get("scope") == "job" and subject.get("job"):
        parts.append(f"job {plain(subject['job'])}")
    parts += [
        plain(subject[name])
        for name in ("rack", "pipeline")
        if subject.get("scope") == name and subject.get(name)
    ]
    return " ".join(parts) or plain(subject.get("scope", ""))


def alert_table(alerts: Sequence[Alert], now_ms: int) -> Table:
    """Return alerts as a table: what does not fit is cut in the summary first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column("Id", no_wrap=True, width=_SHORT_ID)
    table.add_column("Severity", no_wrap=True, width=8)
    table.add_column("State", no_wrap=True, width=12)
    table.add_column("For", no_wrap=True, justify="right", width=6)
    table.add_column("Where", no_wrap=True, overflow="ellipsis", ratio=2, min_width=10)
    table.add_column("Kind", no_wrap=True, overflow="ellipsis", ratio=2, min_width=8)
    table.add_column("Summary", no_wrap=True, overflow="ellipsis", ratio=5)
    for one in alerts:
        severity = plain(one["severity"])
        table.add_row(
            plain(one["alert_id"])[:_SHORT_ID],
            Text(severity, style=_COLOURS.get(severity, "")),
            plain(one["state"]),
            _age(one, now_ms),
            Text(where(one["subject"])),
            Text(plain(one["kind"])),
            Text(plain(one["summary"])),
        )
    return table


def endpoint_table(endpoints: Sequence[Mapping[str, Any]]) -> Table:
    """Return receivers as a table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("Name", "Type", "Where", "From", "State"):
        table.add_column(name, overflow="ellipsis")
    for name in ("Done", "Waiting", "Dead"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in endpoints:
        numbers = one["deliveries"]
        cells = (
            one["name"],
            one["type"],
            one["url"],
            one["severity_min"],
            _endpoint_state(one),
            numbers["done"],
            numbers["pending"] + numbers["leased"],
            numbers["dead"],
        )
        table.add_row(*(Text(plain(cell)) for cell in cells))
    return table


def _endpoint_state(one: Mapping[str, Any]) -> str:
    if one["problem"]:
        return str(one["problem"])
    if not one["enabled"]:
        return "off"
    said = f"failing since {one['failing_since']}" if one["failing_since"] else "on"
    return f"{said}, read-only" if one["read_only"] else said


def show_alert(
    console: Console, one: Alert, timeline: Sequence[Mapping[str, Any]], told: Sequence[Alert]
) -> None:
    """Print one alert in full.

    Parameters
    ----------
    console
        Where to.
    one
        The alert.
    timeline
        Its events, oldest first.
    told
        Its notifications, newest first.
    """
    severity = plain(one["severity"])
    title = Text(f"{severity.upper()} ", style=_COLOURS.get(severity, ""))
    title.append(f"{where(one['subject'])}: {plain(one['kind'])}", style="bold")
    console.print(title)
    for line in alert_lines(one):
        console.print(Text(line))
    rows = evidence_rows(one.get("evidence") or ())
    if rows:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("Evidence", "Value", "Expected", "Own baseline", "Peers", "Over"):
            table.add_column(name, justify="left" if name == "Evidence" else "right")
        for row in rows:
            cells = ("label", "value", "expected", "baseline", "peers", "window")
            table.add_row(*(Text(plain(row[cell])) for cell in cells))
        console.print(table)
    for number, step in enumerate(one.get("next_steps") or (), start=1):
        console.print(Text(f"  {number}. {plain(step)}"))
    if timeline:
        console.print(Text("Timeline", style="bold"))
    for entry in timeline:
        console.print(Text(f"  {event_line(entry, short=True)}"))
    for delivery in told:
        because = delivery.get("note") or delivery.get("last_error")
        said = f"  told {plain(delivery['endpoint'])} ({plain(delivery['kind'])}): "
        said += plain(delivery["state"]) + (f", {plain(because)}" if because else "")
        console.print(Text(said))


def alert_lines(one: Alert) -> list[str]:
    """Return what stands above the evidence of an alert."""
    lines = [plain(one["summary"]), f"Since {plain(one['started_at'])}, {plain(one['state'])}"]
    if one.get("ended_at"):
        lines[-1] += f" at {plain(one['ended_at'])} ({plain(one.get('end_reason'))})"
    acked = one.get("acknowledged")
    if acked:
        until = f" until {plain(acked['until'])}" if acked.get("until") else ""
        lines.append(f"Acknowledged by {plain(acked['by'])}{until}")
    lines += [
        f"{words}: {plain(one[name])}"
        for name, words in (
            ("assignee", "Assigned to"),
            ("feedback", "Judged as"),
            ("snoozed_until", "Snoozed until"),
            ("silenced_by", "Silenced by"),
            ("inhibited_by", "Explained by"),
            ("likely_cause", "Likely cause"),
            ("alert_id", "Id"),
        )
        if one.get(name)
    ]
    return lines


def event_line(entry: Mapping[str, Any], *, short: bool = False) -> str:
    """Say one entry of the event log in a line.

    Parameters
    ----------
    entry
        As ``/v1/events`` gives it.
    short
        Without place and summary: within one alert.
    """
    said = f"{plain(entry['received_at'])} {plain(entry['type'])} by {plain(entry['actor'])}"
    comment = (entry.get("detail") or {}).get("comment")
    if short:
        return said + (f": {plain(comment)}" if comment else "")
    event = entry.get("event")
    if event is None:
        said += f" {plain(entry['alert_id'])[:_SHORT_ID]} {plain(entry['state'])}"
        return said + (f": {plain(comment)}" if comment else "")
    return (
        f"{plain(entry['received_at'])} {plain(entry['severity']):8} {plain(entry['type']):12} "
        f"{plain(entry['alert_id'])[:_SHORT_ID]} {where(event['subject'])}: "
        f"{plain(event['summary'])}"
    )


def _age(one: Alert, now_ms: int) -> str:
    ended = parse_time(one["ended_at"]) if one.get("ended_at") else now_ms
    seconds = max(0, ended - parse_time(one["started_at"])) // 1000
    size, unit = next(pair for pair in _ELAPSED_UNITS if seconds >= 2 * pair[0] or pair[0] == 1)
    return f"{seconds // size} {unit}"
