"""Ends of alerts: they keep the words of their beginning, and one event ends once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from telemetry import T0, alerts_of, telemetry, uuids

from detector.detectors.node_brake import NodeBrake
from detector.detectors.straggler import Straggler
from detector.detectors.throttling import Throttling
from detector.engine import Engine
from detector.remembered import Remembered
from schemas.alert import AlertEvent, AlertState, parse_time
from schemas.sample import NodeSample

GPUS = 8
SLOW = slice(150, 240)


def slow_chip(seconds: int = 400) -> list[NodeSample]:
    """GPU 3 runs at three quarters of its clock for a minute and a half; then all is well."""
    watts, clock = np.full((seconds, GPUS), 600.0), np.full((seconds, GPUS), 1.8e9)
    watts[SLOW], watts[SLOW, 3], clock[SLOW, 3] = 480.0, 420.0, 1.35e9
    return telemetry(
        {
            "power_watts": watts,
            "power_limit_watts": 700.0,
            "gpu_utilization_ratio": 1.0,
            "sm_clock_hertz": clock,
        },
        gpus=GPUS,
        ticks=seconds,
        noise={"power_watts": 3.0},
        jobs=["J"] * GPUS,
    )


def engine(*detectors: object) -> Engine:
    return Engine(detectors, topic="gpu.samples", partition=0)  # type: ignore[arg-type]


def words(alert: AlertEvent) -> tuple[str, str, tuple[str, ...]]:
    return alert.likely_cause, str(alert.action), alert.next_steps


@pytest.mark.parametrize("stopped", [None, 200, 250])
def test_the_end_of_a_straggler_names_the_cause_that_its_alert_had(stopped: int | None) -> None:
    """Also if the detector was stopped between the beginning and the end."""
    samples, running = slow_chip(), engine(Straggler())
    cut = len(samples) if stopped is None else stopped
    alerts = running.process(samples[:cut]).alerts
    if stopped is not None:
        facts, arrays = running.dump()
        resumed = engine(Straggler())
        assert resumed.load(facts, {name: array.copy() for name, array in arrays.items()}) == []
        alerts += resumed.process(samples[cut:]).alerts
    began, ended = alerts
    assert (began.state, ended.state) == (AlertState.FIRING, AlertState.RESOLVED)
    assert began.likely_cause.startswith("The chip itself")
    assert words(ended) == words(began)


def test_a_snapshot_without_words_is_taken_and_its_ends_are_worded_from_what_is_read() -> None:
    samples, running = slow_chip(), engine(Straggler())
    running.process(samples[:200])
    facts, arrays = running.dump()
    older = {name: array for name, array in arrays.items() if not name.endswith("/words")}
    assert len(older) < len(arrays)
    resumed = engine(Straggler())
    assert resumed.load(facts, older) == []
    (ended,) = resumed.process(samples[200:]).alerts
    assert ended.state == AlertState.RESOLVED
    assert ended.likely_cause


@pytest.mark.parametrize("saved", [b"", b"{", b"[]", b'{"texts": [[1]], "open": {"a": [3, null]}}'])
def test_words_that_cannot_be_read_are_done_without(saved: bytes) -> None:
    said = Remembered()
    said.load(np.frombuffer(saved, dtype=np.uint8))
    assert len(said) == 0


def test_only_open_alerts_are_remembered() -> None:
    said = Remembered()
    began, ended = engine(Straggler()).process(slow_chip()).alerts
    said.kept(began)
    said.explained_by(began.alert_id, "cause")
    again = Remembered()
    again.load(said.dump())
    assert again.dump().tobytes() == said.dump().tobytes()
    end = again.kept(ended)
    assert (end.caused_by, len(again)) == ("cause", 0)
    assert again.dump().tobytes() == b""


def test_a_slowdown_in_software_after_one_in_hardware_is_the_last_of_it() -> None:
    bits = np.full((300, 2), 4.0)
    bits[60:120, 0] = 0x48
    bits[122:126, 0] = 0x20
    bits[200:210, 1] = 0x20  # on its own: nothing explains it
    alerts = alerts_of(
        telemetry(
            {"clock_event_reasons": bits, "gpu_utilization_ratio": 1.0, "power_watts": 600.0},
            gpus=2,
            ticks=300,
            noise={"power_watts": 3.0},
        )
    )
    hardware = next(a for a in alerts if a.kind == "hw_thermal")
    software = [a for a in alerts if a.kind == "sw_thermal" and a.state == "firing"]
    assert [(a.subject.gpu_uuid, a.caused_by) for a in software] == [
        ("GPU-0", hardware.fingerprint),
        ("GPU-1", None),
    ]


@pytest.mark.parametrize("counters", [True, False], ids=["counters", "bits"])
def test_the_node_and_its_gpus_say_one_duration_of_a_brake(counters: bool) -> None:
    seconds = np.zeros((400, GPUS), dtype=bool)
    seconds[100:145] = True
    metrics = {"clock_event_reasons": np.where(seconds, 0x88, 4.0)}
    if counters:
        metrics["throttle_power_brake_seconds_total"] = np.cumsum(seconds.astype(float), axis=0)
    samples = telemetry(metrics, gpus=GPUS, ticks=400)
    alerts = engine(Throttling(), NodeBrake()).process(samples).alerts
    ended = [a for a in alerts if a.state == "resolved"]
    assert {a.subject.gpu_uuid for a in ended} == {None, *uuids(GPUS)}
    assert len(set(times(ended))) == 1
    began, end = next(iter(times(ended)))
    assert end - began == pytest.approx(45.0, abs=3.0)
    # The GPUs' ends still say what explained them, though the node's own alert ends with them.
    node = next(a for a in ended if a.subject.gpu_uuid is None)
    assert {a.caused_by for a in ended if a.subject.gpu_uuid} == {node.fingerprint}


def times(alerts: Iterable[AlertEvent]) -> list[tuple[float, float]]:
    return [
        ((parse_time(a.started_at) - T0) / 1000.0, (parse_time(a.ended_at or "") - T0) / 1000.0)
        for a in alerts
    ]


def test_bursts_of_one_cause_are_one_alert_of_the_node() -> None:
    seconds = np.repeat((np.arange(600) % 60 < 5)[:, None], GPUS, axis=1)
    samples = telemetry({"clock_event_reasons": np.where(seconds, 0x88, 4.0)}, gpus=GPUS, ticks=600)
    alerts = engine(Throttling(), NodeBrake()).process(samples).alerts
    assert [str(a.state) for a in alerts if a.subject.scope == "node"] == ["firing"]
