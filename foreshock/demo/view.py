"""What the demo says in lines, and its summary at the end; the live screen is beside it."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from foreshock.demo.clock import ScaledClock
from foreshock.demo.progress import Progress
from foreshock.demo.receiver import Delivery
from foreshock.demo.scoring import Score, Verdict
from schemas.alert import AlertEvent, Severity

__all__ = [
    "advice",
    "clock_text",
    "delivery_line",
    "event_line",
    "many",
    "signature_words",
    "status_line",
    "summary",
]

_VERDICTS = {Verdict.RIGHT: "green", Verdict.MISSED: "bold red", Verdict.OPEN: "dim"}
_WORDS = {Verdict.RIGHT: "right", Verdict.MISSED: "missed", Verdict.OPEN: "not due yet"}
_WIDE = 100


def clock_text(ms: int) -> str:
    """Write unix milliseconds as date and time to the second, UTC."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def status_line(progress: Progress, clock: ScaledClock, rate: float, url: str) -> str:
    """Say in one line how far the demo is."""
    got, good = progress.delivered()
    return (
        f"simulated {clock_text(clock.unix_ms())} UTC at x{clock.speed:.0f}, "
        f"{rate:.0f} GPU samples/s, {progress.samples} in all, {len(progress.events)} alert "
        f"events, {got} deliveries ({good} verified), API {url or 'starting'}"
    )


def event_line(progress: Progress, event: AlertEvent) -> str:
    """Say one alert event in one line; a new alert that costs something with cause and step."""
    told = (
        f"alert {event.state} {event.severity} {event.family}/{event.kind} on "
        f"{progress.event_place(event)}: {event.summary}"
    )
    return f"{told} {advice(event)}" if event.seq == 1 and event.severity != Severity.INFO else told


def advice(event: AlertEvent) -> str:
    """Say the likely cause of an alert and the first step to take."""
    step = f" Next step: {event.next_steps[0]}" if event.next_steps else ""
    return f"Likely cause: {event.likely_cause}{step}"


def delivery_line(delivery: Delivery) -> str:
    """Say one delivery in one line."""
    kind = delivery.type or "unknown"
    return f"webhook received {kind}, {signature_words(delivery)}: {delivery.summary}"


def signature_words(delivery: Delivery) -> str:
    """Say whether the signature of a delivery held."""
    return "signature verified" if delivery.verified else "SIGNATURE NOT VERIFIED"


def many(count: int, thing: str) -> str:
    """Count things.

    Examples
    --------
    >>> many(1, "webhook"), many(0, "decoy"), many(2, "delivery")
    ('1 webhook', '0 decoys', '2 deliveries')
    """
    if count == 1:
        return f"1 {thing}"
    plural = f"{thing[:-1]}ies" if thing.endswith("ry") else f"{thing}s"
    return f"{count} {plural}"


def summary(progress: Progress, score: Score, console: Console) -> None:
    """Print what was injected and what became of it."""
    table = Table(title="Scheduled faults, in simulated seconds", title_justify="left")
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
    due = {fault.alert.alert_id for fault in score.faults if fault.alert is not None}
    more = sum(alert.alert_id not in due for alert in score.explained)
    follow = "follows" if more == 1 else "follow"
    console.print(
        f"{many(len(score.faults), 'scheduled fault')} beside {many(decoys, 'decoy')}: "
        f"{score.count(Verdict.RIGHT)} right, {score.count(Verdict.MISSED)} missed, "
        f"{score.count(Verdict.OPEN)} not due yet. {many(len(score.wrong), 'wrong alert')}; "
        f"{many(more, 'more alert')} that {follow} from a scheduled fault. "
        f"{many(got, 'webhook')} received, {good} verified."
    )
