"""What may come first, and what changes between two messages of one batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from telemetry import T0

from detector.detectors.lost import Lost
from detector.engine import Engine, Outcome
from detector.registry import build
from schemas.codec import decode_window, encode
from schemas.sample import JobRef, NodeSample

GPUS = ("GPU-1", "GPU-2", "GPU-3")


def sample(seq: int, **changes: object) -> NodeSample:
    plain = NodeSample(
        node="n", boot_id="boot", seq=seq, ts=(T0 + seq * 1000,), gpu=GPUS, m={}, status={}
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # fields of a sample


def test_gpus_that_answer_nothing_have_windows_without_metrics() -> None:
    engine = Engine(build(), topic="t", partition=0)
    outcome = Outcome()
    for seq in range(25):
        outcome.windows += engine.process([sample(seq)]).windows
    assert [window.gpu for window in outcome.windows] == [GPUS, GPUS]
    assert all(decode_window(encode(window)).samples == (10,) * 3 for window in outcome.windows)


def test_gpus_that_are_lost_in_the_first_message_of_all_are_told() -> None:
    codes = {"power_watts": {str(place): "error:15" for place in range(3)}}
    engine = Engine(build(), topic="t", partition=0)
    alerts = [a for seq in range(20) for a in engine.process([sample(seq, status=codes)]).alerts]
    lost = {a.subject.gpu_uuid for a in alerts if (a.family, a.kind) == ("gpu_lost", "lost")}
    assert lost == set(GPUS)


@pytest.mark.parametrize("at_once", [True, False])
def test_an_alert_names_the_project_that_its_job_had_then(at_once: bool) -> None:
    codes = {"power_watts": {"0": "error:15"}}
    watts = {"power_watts": [None, 400.0, 400.0]}

    def job(project: str) -> tuple[JobRef, ...]:
        return (JobRef(gpus=GPUS, job="j", project=project),)

    stream = [
        sample(0, m={"power_watts": [400.0] * 3}, jobs=job("old")),
        *(sample(seq, m=watts, status=codes) for seq in range(1, 20)),
        sample(20, m=watts, status=codes, jobs=job("new")),
    ]
    engine = Engine([Lost()], topic="t", partition=0)
    batches = [stream] if at_once else [[one] for one in stream]
    alerts = [alert for batch in batches for alert in engine.process(batch).alerts]
    assert {alert.subject.project for alert in alerts} == {"old"}
