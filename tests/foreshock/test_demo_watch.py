"""The demo's watcher: what it reads, what it says, and when it stops everything."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from bus.memory import MemoryBus
from collector.simulated.faults import FaultKind, Truth, default_schedule
from collector.simulated.fleet import SimulatedFleet
from collector.simulated.settings import SimulatedSettings
from foreshock.demo.clock import ScaledClock
from foreshock.demo.progress import Progress
from foreshock.demo.receiver import Delivery, WebhookReceiver
from foreshock.demo.scoring import Verdict
from foreshock.demo.screen import Screen
from foreshock.demo.stack import CountedSource, demo_settings, opened_stack
from foreshock.demo.view import summary
from foreshock.demo.watch import DemoWatch
from schemas.alert import (
    AlertEvent,
    DetectorRef,
    Subject,
    alert_id_of,
    fingerprint_of,
    rfc3339,
)
from schemas.codec import alert_headers, encode
from schemas.errors import DataDirError
from schemas.topics import ALERTS

ORIGIN = 1_790_000_000_000


def progress_of(seed: int = 1) -> Progress:
    fleet = SimulatedFleet(SimulatedSettings(seed=seed), faults=default_schedule(seed))
    uuids = [reading.gpus for reading in fleet.read(ORIGIN)]
    index = {uuid: i for gpus in uuids for i, uuid in enumerate(gpus)}
    return Progress(truths=fleet.truths(ORIGIN), gpu_index=index)


def answer(truth: Truth, *, after: float = 20.0, severity: str = "critical") -> AlertEvent:
    """The alert that a detector owes for a truth."""
    subject = Subject(scope="gpu", node=truth.node, gpu_uuid=truth.gpu_uuids[0])
    fingerprint = fingerprint_of(truth.family, truth.kind, subject)
    moment = truth.start + round(after * 1000)
    return AlertEvent(
        alert_id=alert_id_of(fingerprint, moment),
        fingerprint=fingerprint,
        seq=1,
        state="firing",
        family=truth.family,
        kind=truth.kind,
        severity=severity,
        subject=subject,
        started_at=rfc3339(moment),
        observed_at=rfc3339(moment),
        score=0.9,
        summary=f"It is {truth.kind}.",
        evidence=(),
        likely_cause="",
        action="watch",
        next_steps=(),
        detector=DetectorRef(name="test", version="1"),
    )


def owed(progress: Progress) -> list[Truth]:
    return [truth for truth in progress.truths if not truth.decoy]


def test_answers_in_time_to_every_fault_make_a_clean_score() -> None:
    progress = progress_of()
    progress.events += [answer(truth) for truth in owed(progress)]
    score = progress.scored(ORIGIN + 1_800_000, 10.0)
    assert score.clean
    assert score.count(Verdict.RIGHT) == 7


def test_an_alert_may_be_on_its_way_for_some_wall_seconds() -> None:
    progress = progress_of()
    first = owed(progress)[0]
    just_after = first.deadline + 5_000
    assert progress.scored(just_after, 10.0).faults[0].verdict is Verdict.OPEN
    assert progress.scored(just_after, 1.0).faults[0].verdict is Verdict.MISSED


def test_the_summary_names_faults_places_delays_and_counts() -> None:
    progress = progress_of()
    told = owed(progress)[:-1]
    progress.events += [answer(truth) for truth in told]
    wrong = answer(next(t for t in owed(progress) if t.fault is FaultKind.LEAK), after=-100.0)
    progress.events.append(wrong)
    progress.deliveries.append(
        Delivery(
            webhook_id="1",
            verified=True,
            type="alert.firing",
            severity="critical",
            summary="",
            received=0.0,
        )
    )
    out = io.StringIO()
    console = Console(file=out, width=300)
    summary(progress, progress.scored(ORIGIN + 1_800_000, 10.0), console)
    text = out.getvalue()
    assert "7 scheduled faults beside 7 decoys: 6 right, 1 missed, 0 not due yet." in text
    assert "1 wrong alert; 0 more alerts that follow from a scheduled fault." in text
    assert "wrong: critical oom_precursor/leak on sim-01 GPU 7" in text
    assert "1 webhook received, 1 verified" in text
    assert "gpu_missing" in text


def test_the_screen_shows_speed_faults_alerts_and_deliveries() -> None:
    progress = progress_of()
    progress.events.append(answer(owed(progress)[1]))
    progress.deliveries.append(
        Delivery(
            webhook_id="1",
            verified=False,
            type="alert.firing",
            severity="critical",
            summary="x",
            received=0.0,
        )
    )
    clock = ScaledClock(10.0)
    clock.start()
    out = io.StringIO()
    Console(file=out, width=160, force_terminal=True).print(Screen(progress, clock, lambda: ""))
    text = out.getvalue()
    for word in ("x10", "hw_thermal", "sim-01 GPU 6", "alerted after 20 s", "7 decoys"):
        assert word in text
    assert "SIGNATURE NOT VERIFIED" in text


def test_the_watch_reads_alerts_and_deliveries_and_stops_after_its_time() -> None:
    progress = progress_of()
    bus = MemoryBus(prefix="")
    bus.create_topics()
    publisher = bus.publisher(client_id="test")
    topic = ALERTS.full_name("")
    event = answer(owed(progress)[0])
    publisher.send(topic, key=b"k", value=encode(event), headers=alert_headers(event))
    publisher.send(topic, key=b"k", value=b"no alert")
    assert publisher.flush(5.0) == 0
    source = CountedSource(SimulatedFleet(SimulatedSettings()))
    source.read(ORIGIN)
    out = io.StringIO()
    clock = ScaledClock(10.0)
    clock.start()
    stop = threading.Event()
    with WebhookReceiver() as receiver:
        receiver.accept({}, b"{}")
        watch = DemoWatch(
            bus,
            prefix="",
            receiver=receiver,
            source=source,
            progress=progress,
            clock=clock,
            console=Console(file=out, width=200),
            url=lambda: "http://127.0.0.1:1/",
            seconds=0.5,
        )
        before = time.monotonic()
        watch.run(stop)
    publisher.close()
    bus.close()
    assert stop.is_set()
    assert time.monotonic() - before < 60.0
    assert progress.events == [event]
    assert progress.samples == 16
    assert len(progress.deliveries) == 1
    text = out.getvalue()
    assert "alert firing critical throttling/power_brake on sim-02" in text
    assert "SIGNATURE NOT VERIFIED" in text
    assert "could not be read" in text


def test_an_earlier_run_in_the_data_directory_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "bus").mkdir()
    (tmp_path / "bus" / "bus.sqlite").touch()
    with WebhookReceiver() as receiver:
        settings = demo_settings(data_dir=tmp_path, port=0, receiver=receiver)
        fleet = SimulatedFleet(SimulatedSettings())
        with (
            pytest.raises(DataDirError, match="earlier run"),
            opened_stack(settings, fleet, ScaledClock(10.0)),
        ):
            raise AssertionError("nothing may be built")
