"""Why an alert fired: the same numbers as the detector had, in words that people check."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from bus import BusSettings, open_bus
from detector.pipeline import Pipeline
from detector.tracing import Watch
from foreshock.cli import main
from foreshock.config import Settings
from foreshock.explain import explain_alert, explain_files
from foreshock.explain_words import lines_of
from foreshock.explaining import explain
from schemas.alert import AlertEvent
from schemas.codec import alert_headers, encode, sample_headers
from schemas.errors import ConfigError, SourceError
from schemas.sample import GpuInventory, Inventory, JobRef, NodeSample
from schemas.topics import ALERTS, SAMPLES

T0 = 1_790_000_000_000
GPUS = tuple(f"GPU-{number}" for number in range(5))


def heat(tick: int, hot_until: int) -> float:
    return 75.0 if tick < hot_until else 50.0


def samples(*, hot_until: int = 40, ticks: int = 70, node: str = "n1") -> list[NodeSample]:
    """Five GPUs, a reading every 10 s; the second one is 25 °C hotter for a while."""
    inventory = Inventory(
        gpus=tuple(GpuInventory(gpu=uuid, index=i, model="H100") for i, uuid in enumerate(GPUS)),
        expected_gpus=5,
    )
    return [
        NodeSample(
            node=node,
            boot_id="boot",
            seq=tick,
            ts=(T0 + tick * 10_000,),
            gpu=GPUS,
            m={
                "temperature_celsius": [50.0, heat(tick, hot_until), 50.0, 50.0, 50.0],
                "power_watts": [400.0] * 5,
                "gpu_utilization_ratio": [0.99] * 5,
            },
            inventory=inventory if tick == 0 else None,
            jobs=(JobRef(gpus=GPUS, job="job"),) if tick == 0 else None,
        )
        for tick in range(ticks)
    ]


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def text(target: Console) -> str:
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


# -- the trace ------------------------------------------------------------------------------------


def test_watching_a_detector_changes_nothing_that_it_says() -> None:
    plain = Pipeline().feed(samples())
    watched = Pipeline(watch=Watch).feed(samples())  # type: ignore[arg-type]  # stands in for a detector
    assert watched == plain


def test_the_trace_holds_the_scores_and_the_times_held() -> None:
    (found,) = explain(samples, None)
    assert found.trace is not None
    spec, moments = found.trace.spec, found.trace.moments
    opening = next(m for m in moments if m.phase == 2)
    assert opening.score >= spec.enter
    assert opening.metrics["temperature_celsius"] == 75.0
    before = [m for m in moments if m.ts < opening.ts]
    assert [round(m.held_seconds) for m in before] == [10 * n for n in range(len(before))]
    assert {m.phase for m in before} == {1}
    assert moments[-1].phase == 3, "the trace goes on beyond the end"


def test_each_alert_gets_the_trace_of_its_own_row() -> None:
    def two() -> list[NodeSample]:
        hot = samples(hot_until=70)
        for sample in hot:
            sample.m["temperature_celsius"][3] = 74.0
        return hot

    found = explain(two, None)
    assert len(found) == 2
    seen = {
        one.events[0].subject.gpu_index: one.trace.moments[5].metrics["temperature_celsius"]
        for one in found
        if one.trace is not None
    }
    assert seen == {1: 75.0, 3: 74.0}


# -- the words ------------------------------------------------------------------------------------


def test_the_words_name_rule_steps_evidence_and_what_is_missing() -> None:
    (found,) = explain(samples, None)
    said = "\n".join(lines_of(found))
    for part in (
        "WARNING thermal_fault/peer_outlier",
        "opens at a score of 15 or more for 300 s",
        "held 0 of 300 s, reading 1 of 3",
        "the alert opens",
        "away for 10 of 120 s",
        "the alert ends",
        "more readings, score 25 to 25",
        "excess celsius: 25",
        "temperature_celsius: 75 °C",
        "peers 50",
        "Likely cause:",
        "Not measured, and would have helped: ",
    ):
        assert part in said, part
    assert "nan" not in said.lower().split()


def test_an_open_alert_is_said_to_be_open() -> None:
    (found,) = explain(lambda: samples(hot_until=70), None)
    assert "still open at the end of the samples" in "\n".join(lines_of(found))


# -- files ----------------------------------------------------------------------------------------


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "n1.jsonl"
    path.write_bytes(b"".join(encode(sample) + b"\n" for sample in samples()))
    return path


def test_a_recording_is_explained_alert_by_alert(recording: Path) -> None:
    people = console()
    assert explain_files([recording], console=people) == 0
    assert "thermal_fault/peer_outlier" in text(people)
    assert "the alert opens" in text(people)


def test_a_quiet_recording_is_said_to_be_quiet(tmp_path: Path) -> None:
    path = tmp_path / "n1.jsonl"
    path.write_bytes(b"".join(encode(sample) + b"\n" for sample in samples(hot_until=0)))
    people = console()
    assert explain_files([path], console=people) == 0
    assert "No alerts" in text(people)


def test_a_file_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["explain", "nowhere.csv"])
    assert caught.value.code == 2
    assert "nowhere.csv" in capsys.readouterr().err


# -- alerts on the bus ----------------------------------------------------------------------------

Filled = Callable[..., tuple[Settings, AlertEvent]]


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    """A bus with alerts, and with the samples that led to them, all or from some tick on."""

    def fill(*, since: int = 0) -> tuple[Settings, AlertEvent]:
        settings = Settings(data_dir=tmp_path, bus=BusSettings(transport="sqlite"))
        (tmp_path / "bus").mkdir(exist_ok=True)
        bus = open_bus(BusSettings(transport="sqlite", path=tmp_path / "bus" / settings.bus.path))
        bus.create_topics()
        publisher = bus.publisher(client_id="test")
        alerts = Pipeline().feed(samples())
        for alert in alerts:
            publisher.send(
                ALERTS.name,
                key=alert.fingerprint.encode(),
                value=encode(alert),
                headers=alert_headers(alert),
            )
        for node in ("n0", "n1"):
            for sample in samples(node=node)[since:]:
                publisher.send(
                    SAMPLES.name,
                    key=node.encode(),
                    value=encode(sample),
                    headers=sample_headers(sample),
                )
        assert publisher.close() == 0
        bus.close()
        return settings, alerts[0]

    return fill


def test_an_alert_is_replayed_from_the_samples_on_the_bus(filled: Filled) -> None:
    settings, alert = filled()
    people = console()
    assert explain_alert(alert.alert_id, settings, people) == 0
    said = text(people)
    assert alert.alert_id in said
    assert "the alert opens" in said
    assert "Replayed from 70 messages on the bus." in said


def test_the_first_eight_characters_of_an_id_are_enough(filled: Filled) -> None:
    settings, alert = filled()
    people = console()
    explain_alert(alert.alert_id[:8], settings, people)
    assert alert.alert_id in text(people)


def test_an_alert_whose_samples_are_gone_is_told_as_it_was(filled: Filled) -> None:
    settings, alert = filled(since=69)
    people = console()
    explain_alert(alert.alert_id, settings, people)
    said = text(people)
    assert alert.summary in said
    assert "do not lead to the alert again" in said


def test_with_a_part_of_the_samples_the_other_start_is_said(filled: Filled) -> None:
    settings, alert = filled(since=5)
    people = console()
    explain_alert(alert.alert_id, settings, people)
    assert "the baseline is younger" in text(people)


def test_an_unknown_alert_is_one_sentence(filled: Filled) -> None:
    settings, _ = filled()
    with pytest.raises(SourceError, match="There is no alert 0000"):
        explain_alert("00000000", settings, console())


def test_a_bus_in_memory_has_nothing_to_explain(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, bus=BusSettings(transport="memory"))
    with pytest.raises(ConfigError, match="foreshock explain FILE"):
        explain_alert("00000000", settings, console())
