"""What the demo shows: a live screen on a terminal, plain lines elsewhere, a summary at the end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from foreshock.demo.clock import ScaledClock
from foreshock.demo.progress import Progress
from foreshock.demo.receiver import Delivery
from foreshock.demo.scoring import FaultScore, Score, Verdict
from schemas.alert import AlertEvent, AlertState

__all__ = ["Screen", "delivery_line", "event_line", "status_line", "summary"]

_COLOURS = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
_VERDICTS = {Verdict.RIGHT: "green", Verdict.MISSED: "bold red", Verdict.OPEN: "dim"}
_WORDS = {Verdict.RIGHT: "right", Verdict.MISSED: "missed", Verdict.OPEN: "not due yet"}
_LEAST_EVENTS = 3
_SHOWN_DELIVERIES = 5
_FIXED_LINES = 15  # titles, headings and frames
_WIDE = 100


def _clock_text(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def status_line(progress: Progress, clock: ScaledClock, rate: float, url: str) -> str:
    """Say in one line how far the demo is."""
    got, good = progress.delivered()
    return (
        f"simulated {_clock_text(clock.unix_ms())} UTC at x{clock.speed:.0f}, "
        f"{rate:.0f} GPU samples/s, {progress.samples} in all, {len(progress.events)} alert "
        f"events, {got} deliveries ({good} verified), API {url or 'starting'}"
    )


def event_line(progress: Progress, event: AlertEvent) -> str:
    """Say one alert event in one line."""
    return (
        f"alert {event.state} {event.severity} {event.family}/{event.kind} on "
        f"{progress.event_place(event)}: {event.summary}"
    )


def delivery_line(delivery: Delivery) -> str:
    """Say one delivery in one line."""
    verdict = "signature verified" if delivery.verified else "SIGNATURE NOT VERIFIED"
    return f"webhook received {delivery.type or 'unknown'}, {verdict}: {delivery.summary}"


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
        self.rate = 0.0

    def __rich_console__(self, console: Console, _options: ConsoleOptions) -> RenderResult:
        score = self._progress.scored(self._clock.unix_ms(), self._clock.speed)
        yield self._head()
        yield self._faults(score)
        room = console.height - _FIXED_LINES - len(score.faults) - _SHOWN_DELIVERIES
        yield self._alerts(max(_LEAST_EVENTS, room))
        yield self._deliveries()

    def _head(self) -> RenderableType:
        clock = self._clock
        pace = f"x{clock.speed:.0f}" + (" (live)" if clock.speed == 1.0 else "")
        return Text.assemble(
            ("foreshock demo  ", "bold"),
            f"simulated time {_clock_text(clock.unix_ms())} UTC  ",
            (f"speed {pace}", "bold magenta"),
            f"  {self.rate:.0f} GPU samples/s  {self._progress.samples:,} samples\n",
            (f"dashboard {self._url() or 'starting'}   Ctrl-C ends the demo", "dim"),
        )

    def _faults(self, score: Score) -> RenderableType:
        table = Table(title="Scheduled faults", title_justify="left", expand=True)
        for name in ("fault", "where", "starts", "state"):
            table.add_column(name, no_wrap=True)
        now = self._clock.unix_ms()
        for fault in score.faults:
            truth = fault.truth
            table.add_row(
                str(truth.fault),
                self._progress.truth_place(truth),
                _clock_text(truth.start)[11:],
                _state(fault, now),
            )
        decoys = sum(truth.decoy for truth in self._progress.truths)
        wrong = len(score.wrong)
        table.caption = f"and {decoys} decoys that must stay silent; wrong alerts so far: {wrong}"
        table.caption_justify = "left"
        return table

    def _alerts(self, count: int) -> RenderableType:
        table = Table(title="Alerts", title_justify="left", expand=True)
        for name in ("time", "severity", "what", "where", "summary"):
            table.add_column(name, no_wrap=True, ratio=4 if name == "summary" else None)
        for event in self._progress.newest_events(count):
            resolved = event.state == AlertState.RESOLVED
            table.add_row(
                event.observed_at[11:19],
                "resolved" if resolved else event.severity,
                f"{event.family}/{event.kind}",
                self._progress.event_place(event),
                Text(event.summary),
                style="green" if resolved else _COLOURS.get(event.severity, ""),
            )
        return table

    def _deliveries(self) -> RenderableType:
        got, good = self._progress.delivered()
        lines = [
            Text(delivery_line(delivery), no_wrap=True, overflow="ellipsis")
            for delivery in self._progress.deliveries[-_SHOWN_DELIVERIES:]
        ]
        head = Text(f"Webhook receiver: {got} deliveries, {good} with a verified signature", "bold")
        return Group(head, *lines)


def _state(fault: FaultScore, now: int) -> Text:
    if fault.verdict is Verdict.RIGHT:
        return Text(f"alerted after {fault.delay_seconds:.0f} s", "green")
    if fault.verdict is Verdict.MISSED:
        return Text("missed", "bold red")
    return Text("acting" if now >= fault.truth.start else "to come", "dim")


def summary(progress: Progress, score: Score, console: Console) -> None:
    """Print what was injected and what became of it."""
    table = Table(title="Faults injected", title_justify="left")
    wide = console.width >= _WIDE
    alert_column = ("alert due",) if wide else ()
    for name in ("fault", "where", *alert_column, "severity", "delay", "limit", "verdict"):
        table.add_column(name, no_wrap=True)
    for fault in score.faults:
        truth, alert = fault.truth, fault.alert
        late = fault.verdict is Verdict.MISSED and alert is not None
        table.add_row(
            str(truth.fault),
            progress.truth_place(truth),
            *([f"{truth.family}/{truth.kind}"] if wide else []),
            alert.severity if alert else "",
            "" if fault.delay_seconds is None else f"{fault.delay_seconds:.0f} s",
            f"{(truth.deadline - truth.start) / 1000:.0f} s",
            Text("too late" if late else _WORDS[fault.verdict], _VERDICTS[fault.verdict]),
        )
    console.print(table)
    for alert in score.wrong:
        console.print(
            Text(
                f"wrong: {alert.severity} {alert.family}/{alert.kind} on "
                f"{progress.alert_place(alert)}: {alert.summary}",
                "bold red",
            )
        )
    got, good = progress.delivered()
    decoys = sum(truth.decoy for truth in progress.truths)
    console.print(
        f"{len(score.faults)} faults injected beside {decoys} decoys: "
        f"{score.count(Verdict.RIGHT)} right, {score.count(Verdict.MISSED)} missed, "
        f"{score.count(Verdict.OPEN)} not due yet, {len(score.wrong)} wrong alerts "
        f"({len(score.explained)} explained). {got} webhooks received, {good} verified."
    )
