"""Silence and wrong clocks: the two things that are judged by the time of arrival."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from telemetry import T0

from bus.memory import MemoryBus
from detector.consuming import Consuming, Wiring
from detector.engine import Engine
from detector.metrics import DetectorMetrics
from detector.registry import build
from detector.snapshots import MemorySnapshots
from detector.worker import SampleWorker
from schemas.alert import AlertEvent, Scope, parse_time, rfc3339
from schemas.codec import decode_alert, encode
from schemas.sample import CollectorState, CollectorStatus, NodeSample
from schemas.topics import ALERTS, SAMPLES

#: The wall clock, apart from the event time by a constant that nothing may depend on.
APART = 250


def engine() -> Engine:
    return Engine(build(), topic="gpu.samples", partition=4)


def message(
    node: str, second: float, *, interval: float = 1.0, source: str = "nvml", **status: str
) -> NodeSample:
    return NodeSample(
        node=node,
        boot_id="boot",
        seq=round(second / interval),
        ts=(T0 + round(second * 1000),),
        gpu=(f"{node}-gpu",),
        m={"temperature_celsius": [40.0 + second % 3]},
        collector=CollectorStatus(
            interval_seconds=interval, flush_seconds=interval, source=source, **status
        ),
    )


def wall(second: float) -> int:
    return T0 + round(second * 1000) + APART


def speak(subject: Engine, nodes: list[str], seconds: range, **how: object) -> list[AlertEvent]:
    """Let every node send one message a second, and look for silence as the service does."""
    said = []
    for second in seconds:
        samples = [message(node, second, **how) for node in nodes]  # type: ignore[arg-type]  # passed on
        said += subject.process(samples, [wall(second)] * len(samples)).alerts
        said += subject.silence(wall(second))
    return said


def listen(subject: Engine, seconds: range) -> list[AlertEvent]:
    return [alert for second in seconds for alert in subject.silence(wall(second))]


def told(alerts: list[AlertEvent]) -> list[tuple[str, str, str | None]]:
    return [(alert.kind, alert.state, alert.subject.node) for alert in alerts]


# -- one node --------------------------------------------------------------------------------------


def test_a_node_that_falls_silent_is_a_warning_within_40_s_and_ends_with_its_next_message() -> None:
    subject = engine()
    assert speak(subject, ["n1", "n2"], range(60)) == []
    said = speak(subject, ["n2"], range(60, 120))
    assert told(said) == [("node_silent", "firing", "n1")]
    assert said[0].severity == "warning"
    assert said[0].started_at == rfc3339(T0 + 59_000)
    assert 30 < (parse_time(said[0].observed_at) - T0) / 1000 - 59 <= 40
    assert "it used to send every 1 s" in said[0].summary
    back = speak(subject, ["n1", "n2"], range(120, 140))
    assert told(back) == [("node_silent", "resolved", "n1")]
    assert back[0].alert_id == said[0].alert_id


@pytest.mark.parametrize(("interval", "allowed"), [(0.5, 30), (10.0, 30), (60.0, 180)])
def test_a_slow_node_may_be_silent_for_three_of_its_intervals(
    interval: float, allowed: float
) -> None:
    subject = engine()
    for number in range(5):
        second = number * interval
        subject.process([message("n1", second, interval=interval)], [wall(second)])
    last = 4 * interval
    assert listen(subject, range(int(last), int(last + allowed))) == []
    assert len(listen(subject, range(int(last + allowed), int(last + allowed) + 10))) == 1


def test_the_id_does_not_depend_on_when_the_silence_was_noticed() -> None:
    ids = set()
    for noticed in (45, 47, 4000):
        subject = engine()
        speak(subject, ["n1"], range(10))
        ids.add(subject.silence(wall(noticed))[0].alert_id)
    assert len(ids) == 1


def test_silence_is_said_once() -> None:
    subject = engine()
    speak(subject, ["n1"], range(10))
    assert len(listen(subject, range(10, 4000, 7))) == 1


def test_a_node_that_said_it_stops_is_not_silent() -> None:
    subject = engine()
    speak(subject, ["n1"], range(10))
    goodbye = message("n1", 10, state=str(CollectorState.STOPPING))
    subject.process([goodbye], [wall(10)])
    assert listen(subject, range(10, 600)) == []
    # When it starts again, it is listened for again.
    again = replace(message("n1", 700), boot_id="boot-2", seq=0)
    subject.process([again], [wall(700)])
    assert told(listen(subject, range(700, 800))) == [("node_silent", "firing", "n1")]


@pytest.mark.parametrize("source", ["replay", "simulated"])
def test_sources_with_a_time_of_their_own_are_not_listened_for(source: str) -> None:
    subject = engine()
    speak(subject, ["n1"], range(10), source=source)
    assert listen(subject, range(10, 600)) == []


def test_a_replay_without_arrivals_is_never_silent() -> None:
    subject = engine()
    subject.process([message("n1", 0)])
    assert subject.silence(wall(1e6)) == []


def test_an_engine_without_nodes_or_without_the_detector_says_nothing() -> None:
    assert engine().silence(wall(0)) == []
    subject = Engine(build(disabled=["node_silent"]), topic="t", partition=0)
    speak(subject, ["n1"], range(3))
    assert listen(subject, range(3, 300)) == []


def test_silence_survives_a_restart() -> None:
    """Noticed before, it ends after; not noticed before, it is noticed after with the same id."""
    subject = engine()
    speak(subject, ["n1", "n2"], range(10))
    early = resumed(subject)
    late = resumed(subject)
    first = early.silence(wall(60))
    assert told(first) == [("node_silent", "firing", "n1"), ("node_silent", "firing", "n2")]
    assert {a.alert_id for a in late.silence(wall(90))} == {a.alert_id for a in first}
    again = resumed(early)
    assert again.silence(wall(95)) == []
    assert told(speak(again, ["n1"], range(100, 101))) == [("node_silent", "resolved", "n1")]


def resumed(subject: Engine) -> Engine:
    facts, arrays = subject.dump()
    fresh = engine()
    assert fresh.load(facts, {name: array.copy() for name, array in arrays.items()}) == []
    return fresh


# -- many nodes ------------------------------------------------------------------------------------

FLEET = [f"n{number:02d}" for number in range(40)]


def test_many_nodes_at_once_are_one_alert_of_the_pipeline() -> None:
    subject = engine()
    speak(subject, FLEET, range(30))
    said = speak(subject, FLEET[8:], range(30, 120))
    assert told(said) == [("node_silent", "firing", None)]
    assert said[0].subject.scope == Scope.PIPELINE
    assert said[0].subject.pipeline == "gpu.samples/4"
    assert "8 of 40 nodes (20%)" in said[0].summary
    assert said[0].severity == "warning"
    back = speak(resumed(subject), FLEET, range(120, 130))
    assert told(back) == [("node_silent", "resolved", None)]
    assert back[0].alert_id == said[0].alert_id


def test_a_whole_partition_that_falls_silent_is_one_critical_alert() -> None:
    subject = engine()
    speak(subject, FLEET, range(30))
    said = listen(subject, range(30, 300))
    assert [(a.subject.scope, a.severity) for a in said] == [("pipeline", "critical")]


def test_few_nodes_of_a_large_fleet_are_reported_one_by_one() -> None:
    subject = engine()
    speak(subject, FLEET, range(30))
    said = speak(subject, FLEET[2:], range(30, 120))
    assert told(said) == [("node_silent", "firing", "n00"), ("node_silent", "firing", "n01")]


def test_a_node_that_stays_away_after_an_outage_gets_its_own_alert() -> None:
    subject = engine()
    speak(subject, FLEET, range(30))
    speak(subject, FLEET[20:], range(30, 120))
    said = speak(subject, FLEET[1:], range(120, 200))
    assert told(said) == [("node_silent", "resolved", None), ("node_silent", "firing", "n00")]
    assert said[1].started_at == rfc3339(T0 + 29_000)


# -- the service -----------------------------------------------------------------------------------


def test_the_service_says_who_is_silent_once_all_is_read_and_not_before() -> None:
    """The broker's records first; then the clock goes on and nothing more comes."""
    bus, now = MemoryBus(), [time.time_ns() // 1_000_000]
    wiring = Wiring(
        bus=bus,
        source=SAMPLES,
        prefix="",
        group="g",
        make=lambda partition: SampleWorker(build(), partition),
        snapshots=MemorySnapshots(),
        metrics=DetectorMetrics(CollectorRegistry()),
        checkpoint_seconds=30.0,
        poll_records=16,
    )
    loop = Consuming(wiring, unix_ms=lambda: now[0], settled_seconds=0.1)
    publisher = bus.publisher(client_id="test")
    for second in range(5):
        publisher.send(SAMPLES.name, key=b"n1", value=encode(message("n1", second)))
    publisher.close()
    reader = bus.subscriber(group="r", topics=[ALERTS.name])
    stop, said = threading.Event(), list[AlertEvent]()
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while loop.lag != 0 and time.monotonic() < deadline:
            reader.poll(1, 0.05)
        now[0] += 60_000
        while not said and time.monotonic() < deadline:
            said += [decode_alert(record.value) for record in reader.poll(10, 0.1)]
    finally:
        stop.set()
        thread.join()
        reader.close()
    assert told(said) == [("node_silent", "firing", "n1")]


# -- clock_skew ------------------------------------------------------------------------------------


def skewed(seconds: list[float], source: str = "nvml") -> list[AlertEvent]:
    """Alerts of a node whose messages arrive so many seconds after their event time."""
    subject = engine()
    samples = [message("n1", second, source=source) for second in range(len(seconds))]
    arrived = [T0 + 1000 * n + round(1000 * late) for n, late in enumerate(seconds)]
    return subject.process(samples, arrived).alerts


@pytest.mark.parametrize(("late", "words"), [(-30.0, "30 s ahead"), (600.0, "600 s behind")])
def test_a_wrong_clock_is_a_warning_with_its_size(late: float, words: str) -> None:
    alerts = skewed([late] * 120)
    assert [(a.kind, a.severity, a.subject.node) for a in alerts] == [
        ("clock_skew", "warning", "n1")
    ]
    assert words in alerts[0].summary


@pytest.mark.parametrize(
    "late",
    [
        pytest.param([0.2] * 300, id="healthy"),
        pytest.param([-1.0] * 300, id="a second ahead"),
        pytest.param([12.0] * 300, id="slow transport"),
        pytest.param([*[0.2] * 60, *[600.0, 600.0, 600.0, 600.0, 0.5] * 60], id="a spool drains"),
        pytest.param([*[0.2] * 60, -40.0, *[0.2] * 200], id="one odd message"),
        pytest.param([5e6] * 300, id="old telemetry brought in later"),
    ],
)
def test_delays_are_no_wrong_clock(late: list[float]) -> None:
    assert skewed(late) == []


@pytest.mark.parametrize("source", ["replay", "simulated"])
def test_sources_with_a_time_of_their_own_have_no_wrong_clock(source: str) -> None:
    assert skewed([1e6] * 120, source) == []


def test_a_clock_that_is_set_right_ends_the_alert() -> None:
    alerts = skewed([*[-30.0] * 120, *[0.3] * 120])
    assert [alert.state for alert in alerts] == ["firing", "resolved"]
