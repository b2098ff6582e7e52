"""The live screen of the demo on terminals of every size, and its last frame."""

from __future__ import annotations

import io
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from collector.simulated.faults import default_schedule
from collector.simulated.fleet import SimulatedFleet
from collector.simulated.settings import SimulatedSettings
from foreshock.demo.clock import ScaledClock
from foreshock.demo.command import run_demo
from foreshock.demo.progress import Progress
from foreshock.demo.receiver import Delivery
from foreshock.demo.screen import Screen, rows_of
from foreshock.demo.view import event_line, summary
from schemas.alert import AlertEvent, DetectorRef, Subject, alert_id_of, fingerprint_of, rfc3339
from schemas.errors import ConfigError

ORIGIN = 1_790_000_000_000
URL = "http://127.0.0.1:8600/"


def event(number: int) -> AlertEvent:
    subject = Subject(scope="gpu", node="sim-02", gpu_uuid=f"GPU-{number}", gpu_index=number)
    fingerprint = fingerprint_of("throttling", "power_brake", subject)
    moment = ORIGIN + 1000 * number
    return AlertEvent(
        alert_id=alert_id_of(fingerprint, moment),
        fingerprint=fingerprint,
        seq=1,
        state="firing",
        family="throttling",
        kind="power_brake",
        severity="critical",
        subject=subject,
        started_at=rfc3339(moment),
        observed_at=rfc3339(moment),
        score=0.9,
        summary=f"No{number:02d} is slowed by hardware power brake, in all of the last 3 readings.",
        evidence=(),
        likely_cause="",
        action="watch",
        next_steps=(),
        detector=DetectorRef(name="test", version="1"),
    )


def delivery(number: int) -> Delivery:
    return Delivery(
        webhook_id=str(number),
        verified=True,
        type="alert.firing",
        severity="critical",
        summary=f"To{number:02d} is slowed by hardware power brake, in all of the last 3 readings.",
        received=0.0,
    )


@pytest.fixture
def progress() -> Progress:
    fleet = SimulatedFleet(SimulatedSettings(seed=1), faults=default_schedule(1))
    return Progress(
        truths=fleet.truths(ORIGIN),
        gpu_index={},
        events=[event(number) for number in range(40)],
        deliveries=[delivery(number) for number in range(40)],
        samples=1_234_567,
    )


@pytest.fixture
def clock() -> ScaledClock:
    return ScaledClock(10.0, wall=lambda: ORIGIN / 1000 + 1700.0, elapsed=lambda: 0.0)


def frame(screen: Screen, width: int, height: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height, _environ={}).print(screen)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("height", [7, 10, 12, 16, 24, 25, 50, 100])
@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_the_screen_fits_the_terminal(
    progress: Progress, clock: ScaledClock, width: int, height: int
) -> None:
    lines = frame(Screen(progress, clock, lambda: URL), width, height)
    assert len(lines) <= height - 1
    assert max(map(len, lines)) <= width


def test_the_newest_alert_that_fires_says_its_cause_and_the_next_step(
    progress: Progress, clock: ScaledClock
) -> None:
    newest = replace(
        progress.events[-1], likely_cause="The rack is short of power.", next_steps=("Ask.",)
    )
    progress.events[-1] = newest
    text = "\n".join(frame(Screen(progress, clock, lambda: URL), 100, 24))
    assert "Likely cause: The rack is short of power. Next step: Ask." in text
    line = event_line(progress, replace(newest, seq=1, severity="warning"))
    assert line.endswith("Likely cause: The rack is short of power. Next step: Ask.")


def test_80_by_24_shows_all_faults_the_newest_alerts_and_webhooks(
    progress: Progress, clock: ScaledClock
) -> None:
    lines = frame(Screen(progress, clock, lambda: URL), 80, 24)
    text = "\n".join(lines)
    for truth in progress.truths:
        assert truth.decoy or str(truth.fault) in text
    assert URL in text
    assert [n for n in range(40) if f"No{n:02d} is slowed by hardware power brake" in text] == [
        *range(33, 40)
    ]
    assert text.index("No39") < text.index("No38"), "the newest first"
    assert [n for n in range(40) if f"To{n:02d}" in text] == [37, 38, 39]
    assert text.index("To39") < text.index("To38")
    assert "throttling/power_brake" not in text, "the sentence says it"
    assert not set("┏┃━│└") & set(text), "no frames"
    wide = "\n".join(frame(Screen(progress, clock, lambda: URL), 160, 24))
    assert "throttling/power_brake" in wide


def test_where_there_is_no_room_for_all_faults_the_rest_are_counted(
    progress: Progress, clock: ScaledClock
) -> None:
    shown = rows_of(14, 7).faults
    assert 0 < shown < 7
    text = "\n".join(frame(Screen(progress, clock, lambda: URL), 80, 14))
    assert f"and {7 - shown} more faults and 7 decoys" in text


def test_the_last_frame_says_what_was(progress: Progress, clock: ScaledClock) -> None:
    urls = [URL]
    screen = Screen(progress, clock, lambda: urls[-1])
    screen.rate = 160.0
    frame(screen, 80, 24)
    urls.append("")  # the api is gone before the screen is
    screen.end()
    text = "\n".join(frame(screen, 80, 24))
    assert "starting" not in text
    assert f"The demo has ended. Its dashboard was {URL}" in text
    assert "160 GPU samples/s" in text


def test_a_dashboard_that_does_not_listen_yet_is_starting(
    progress: Progress, clock: ScaledClock
) -> None:
    text = "\n".join(frame(Screen(progress, clock, lambda: ""), 80, 24))
    assert "The dashboard is starting." in text


def test_the_summary_counts_in_words(progress: Progress) -> None:
    out = io.StringIO()
    summary(progress, progress.scored(ORIGIN, 1.0), Console(file=out, width=300))
    assert "0 more alerts that follow from a scheduled fault." in out.getvalue()
    assert "explained" not in out.getvalue()
    assert "40 webhooks received, 40 verified." in out.getvalue()


def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path) -> None:
    out = io.StringIO()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"Port {port} .*--port"):
            run_demo(
                seconds=1.0,
                port=port,
                seed=1,
                data_dir=tmp_path / "data",
                console=Console(file=out, width=80),
            )
    assert out.getvalue() == ""
    assert not (tmp_path / "data").exists()
