"""The live screen of the demo: as many rows as the terminal has, the newest first, no frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from foreshock.demo.clock import ScaledClock
from foreshock.demo.progress import Progress
from foreshock.demo.receiver import Delivery
from foreshock.demo.scoring import FaultScore, Score, Verdict
from foreshock.demo.view import advice, clock_text, many, signature_words
from schemas.alert import AlertEvent, AlertState

__all__ = ["Rows", "Screen", "rows_of"]

_COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
# Two lines at the top, headings of three parts, the line below the faults, and the cursor's.
_FIXED_LINES = 7
_MOST_DELIVERIES = 5
_LEAST_ALERTS = 3
# From here on there is room for columns that repeat what the sentence says.
_WIDE = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """How many lines each part of the screen gets."""

    faults: int
    alerts: int
    deliveries: int


def rows_of(height: int, faults: int) -> Rows:
    """Share the lines of a terminal between the parts.

    Parameters
    ----------
    height
        Lines of the terminal.
    faults
        Scheduled faults; they give way first where the terminal is low.

    Examples
    --------
    >>> rows_of(24, 7)
    Rows(faults=7, alerts=7, deliveries=3)
    >>> rows_of(12, 7)
    Rows(faults=1, alerts=3, deliveries=1)
    """
    free = max(0, height - _FIXED_LINES)
    deliveries = min(_MOST_DELIVERIES, free, max(1, free // 5))
    shown = max(0, min(faults, free - deliveries - _LEAST_ALERTS))
    return Rows(faults=shown, alerts=free - deliveries - shown, deliveries=deliveries)


class Screen:
    """The live screen, drawn anew from the state several times a second.

    Parameters
    ----------
    progress, clock
        What to show.
    url
        Returns where the dashboard is, empty while nothing listens.
    """

    def __init__(self, progress: Progress, clock: ScaledClock, url: Callable[[], str]) -> None:
        self._progress = progress
        self._clock = clock
        self._url = url
        self._last_url = ""
        self._ended_ms: int | None = None
        self.rate = 0.0

    def end(self) -> None:
        """Keep time and rate as they are: what runs down afterwards is no news."""
        self._ended_ms = self._clock.unix_ms()

    @property
    def ended(self) -> bool:
        """Whether the demo is over."""
        return self._ended_ms is not None

    def url(self) -> str:
        """Where the dashboard is, or was; empty while nothing has listened yet."""
        self._last_url = self._url() or self._last_url
        return self._last_url

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = self._clock.unix_ms() if self._ended_ms is None else self._ended_ms
        score = self._progress.scored(now, self._clock.speed)
        rows = rows_of(options.height or console.height, len(score.faults))
        wide = options.max_width >= _WIDE
        yield self._pace(now, wide=wide)
        yield self._whereabouts()
        yield self._faults(score, now, rows.faults)
        yield self._decoys(score, hidden=len(score.faults) - rows.faults)
        said = self._advice() if rows.alerts > _LEAST_ALERTS else []
        yield self._alerts(rows.alerts - len(said), wide=wide)
        yield from said
        yield from self._deliveries(rows.deliveries)

    def _pace(self, now: int, *, wide: bool) -> Text:
        speed = self._clock.speed
        pace = f"x{speed:.0f}" + (" (live)" if speed == 1.0 else "")
        moment = clock_text(now) if wide else clock_text(now)[11:]
        return _line(
            ("foreshock demo  ", "bold"),
            f"simulated time {moment} UTC  ",
            (f"speed {pace}", "bold magenta"),
            f"  {self.rate:.0f} GPU samples/s" + (f"  {self._progress.samples:,} in all" * wide),
        )

    def _whereabouts(self) -> Text:
        url = self.url()
        if self.ended:
            text = "The demo has ended." + (f" Its dashboard was {url}" if url else "")
        elif url:
            text = f"dashboard {url}   Ctrl-C ends the demo"
        else:
            text = "The dashboard is starting.   Ctrl-C ends the demo"
        return _line((text, "dim"))

    def _faults(self, score: Score, now: int, count: int) -> Table:
        table = _table("scheduled fault", "where", "starts", "state", wide="state")
        for fault in _shown(score.faults, now, count):
            truth = fault.truth
            table.add_row(
                str(truth.fault),
                self._progress.truth_place(truth),
                clock_text(truth.start)[11:],
                _state(fault, now),
            )
        return table

    def _decoys(self, score: Score, hidden: int) -> Text:
        decoys = sum(truth.decoy for truth in self._progress.truths)
        more = f"{many(hidden, 'more fault')} and " if hidden else ""
        return _line(
            (
                f"and {more}{decoys} decoys that must stay silent; "
                f"wrong alerts so far: {len(score.wrong)}",
                "dim",
            )
        )

    def _alerts(self, count: int, *, wide: bool) -> Table:
        names = ("time", "severity", *(("what", "where") if wide else ()), "alert, newest first")
        table = _table(*names, wide=names[-1])
        newest = self._progress.newest_events(count) if count > 0 else ()
        for event in reversed(newest):
            table.add_row(*self._cells(event, wide=wide), style=_style(event))
        return table

    def _advice(self) -> list[Text]:
        """Say of the newest alert that still fires what its message tells to do."""
        newest = reversed(self._progress.events)
        event = next((one for one in newest if one.state == AlertState.FIRING), None)
        if event is None or not event.likely_cause:
            return []
        return [_line((advice(event), "italic"))]

    def _cells(self, event: AlertEvent, *, wide: bool) -> list[str | Text]:
        resolved = event.state == AlertState.RESOLVED
        told = [f"{event.family}/{event.kind}", self._progress.event_place(event)] if wide else []
        severity = "resolved" if resolved else event.severity
        return [event.observed_at[11:19], severity, *told, Text(event.summary)]

    def _deliveries(self, count: int) -> list[Text]:
        got, good = self._progress.delivered()
        head = f"webhook receiver: {many(got, 'delivery')}, {good} with a verified signature"
        newest = self._progress.deliveries[-count:] if count > 0 else []
        return [_line((head, "bold")), *(_delivery(delivery) for delivery in reversed(newest))]


def _line(*parts: str | tuple[str, str]) -> Text:
    """Make a line that is cut, not folded, where the terminal is narrow."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _table(*names: str, wide: str) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        cut: Literal["ellipsis"] = "ellipsis"
        table.add_column(name, no_wrap=True, overflow=cut, ratio=1 if name == wide else None)
    return table


def _delivery(delivery: Delivery) -> Text:
    style = "" if delivery.verified else "bold red"
    kind = delivery.type.removeprefix("alert.") or "unknown"
    return _line((f"{kind}, {signature_words(delivery)}: {delivery.summary}", style))


def _shown(faults: tuple[FaultScore, ...], now: int, count: int) -> tuple[FaultScore, ...]:
    """Choose the faults to list where there is no room for all: the newest and the next one."""
    begun = sum(fault.truth.start <= now for fault in faults)
    last = min(len(faults), max(count, begun + 1))
    return faults[last - count : last] if count > 0 else ()


def _style(event: AlertEvent) -> str:
    if event.state == AlertState.RESOLVED:
        return "green"
    return _COLOURS.get(event.severity, "")


def _state(fault: FaultScore, now: int) -> Text:
    if fault.verdict is Verdict.RIGHT:
        return Text(f"alerted after {fault.delay_seconds:.0f} s", "green")
    if fault.verdict is Verdict.MISSED:
        return Text("missed", "bold red")
    return Text("acting" if now >= fault.truth.start else "to come", "dim")
