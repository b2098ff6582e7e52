"""A detector on trial is computed, marked and recorded; nobody else is changed by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from telemetry import MIB, telemetry

from bus import Record
from detector.pipeline import Pipeline
from detector.registry import build, trial_of
from detector.settings import DetectorSettings
from detector.worker import SampleWorker
from schemas.alert import AlertEvent
from schemas.codec import decode_alert, encode
from schemas.errors import ConfigError
from schemas.sample import NodeSample


def stream() -> list[NodeSample]:
    """A hot GPU whose clocks are cut for it: an outlier that explains a slowdown."""
    ticks = 60
    heat = np.full((ticks, 5), 50.0)
    heat[:, 1] += 25
    bits = np.zeros((ticks, 5))
    bits[30:, 1] = 0x40
    return telemetry(
        {
            "temperature_celsius": heat,
            "power_watts": 400.0,
            "gpu_utilization_ratio": 1.0,
            "clock_event_reasons": bits,
            "memory_used_bytes": 8000 * MIB,
            "memory_total_bytes": 81559 * MIB,
        },
        gpus=5,
        ticks=ticks,
        interval=10.0,
    )


def settings_for(*names: str) -> DetectorSettings:
    return DetectorSettings(parameters={name: {"shadow": True} for name in names})


def alerts_with(*names: str) -> list[AlertEvent]:
    return Pipeline(settings_for(*names)).feed(stream())


def test_only_the_alerts_of_a_detector_on_trial_are_marked() -> None:
    plain, marked = alerts_with(), alerts_with("peer_outlier")
    assert {alert.kind for alert in plain} >= {"peer_outlier", "hw_thermal"}
    assert not any(alert.shadow for alert in plain)
    for alert in marked:
        assert alert.shadow == (alert.detector.name == "peer_outlier")
    assert [a.alert_id for a in marked] == [a.alert_id for a in plain]


def test_what_nobody_is_told_of_explains_nothing() -> None:
    plain = {alert.kind: alert for alert in alerts_with()}
    assert plain["hw_thermal"].caused_by == plain["peer_outlier"].fingerprint
    marked = {alert.kind: alert for alert in alerts_with("peer_outlier")}
    assert marked["hw_thermal"].caused_by is None


def test_an_alert_on_trial_may_name_a_cause_that_is_not() -> None:
    marked = {alert.kind: alert for alert in alerts_with("throttling")}
    assert marked["hw_thermal"].shadow
    assert marked["hw_thermal"].caused_by == marked["peer_outlier"].fingerprint


def test_the_worker_sends_the_mark_and_a_reader_finds_it() -> None:
    worker = SampleWorker(build(), 0, trial_of(settings_for("peer_outlier")))
    records = [
        Record(
            topic="gpu.samples",
            partition=0,
            offset=number,
            key=b"node",
            value=encode(sample),
            headers=(),
            arrived_ms=sample.ts[0],
        )
        for number, sample in enumerate(stream())
    ]
    output = worker.process(records, caught_up=False)
    sent = [decode_alert(m.value) for m in output.messages if m.topic.name == "gpu.alerts"]
    assert {alert.shadow for alert in sent if alert.kind == "peer_outlier"} == {True}
    assert {alert.shadow for alert in sent if alert.kind != "peer_outlier"} == {False}


def test_an_event_without_the_mark_is_one_of_an_older_version_and_not_on_trial() -> None:
    alert = replace(alerts_with()[0], shadow=True)
    old = encode(alert).replace(b'"shadow":true', b'"novelty_of_tomorrow":1')
    assert decode_alert(old).shadow is False


def test_parameters_beside_the_switch_still_count() -> None:
    both = DetectorSettings(parameters={"peer_outlier": {"shadow": True, "enter_celsius": 200.0}})
    assert all(alert.kind != "peer_outlier" for alert in Pipeline(both).feed(stream()))


def test_a_switch_that_is_no_switch_is_refused() -> None:
    wrong = DetectorSettings(parameters={"peer_outlier": {"shadow": "yes"}})
    with pytest.raises(ConfigError, match="must be true or false, got 'yes'"):
        trial_of(wrong)
    unknown = DetectorSettings(parameters={"peer_outlyer": {"shadow": True}})
    with pytest.raises(ConfigError, match="Did you mean 'peer_outlier'"):
        trial_of(unknown)


def test_detectors_of_both_tiers_can_be_on_trial() -> None:
    trial = trial_of(settings_for("multivariate", "leak"))
    assert trial.names == {"multivariate", "leak"}
