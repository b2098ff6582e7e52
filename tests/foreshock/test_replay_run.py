"""The in-process replay: alerts out, summary for people, exit codes."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from rich.console import Console

from collector.replay.samples import iter_samples
from collector.replay.settings import ReplaySettings
from foreshock.replay import EXIT_OK, EXIT_UNUSABLE, run_replay
from foreshock.replay_summary import MAX_SHOWN
from schemas.alert import AlertEvent, DetectorRef, Subject, alert_id_of, fingerprint_of, rfc3339
from schemas.codec import decode_alert, encode
from schemas.sample import NodeSample

ROWS = "timestamp, index, temperature.gpu\n" + "".join(
    f"2025/01/06 10:00:{second:02d}, {gpu}, {40 + gpu}\n" for second in range(5) for gpu in range(2)
)


def alert(
    sample: NodeSample, *, seq: int = 1, state: str = "firing", kind: str = "fan"
) -> AlertEvent:
    gpu = sample.gpu[0] if sample.gpu else None
    subject = Subject(scope="gpu", node=sample.node, gpu_uuid=gpu, gpu_index=0)
    fingerprint = fingerprint_of("thermal_fault", kind, subject)
    return AlertEvent(
        alert_id=alert_id_of(fingerprint, 1_736_157_600_000),
        fingerprint=fingerprint,
        seq=seq,
        state=state,
        family="thermal_fault",
        kind=kind,
        severity="warning",
        subject=subject,
        started_at=rfc3339(1_736_157_600_000),
        observed_at=rfc3339(sample.ts[-1]),
        ended_at=rfc3339(sample.ts[-1]) if state == "resolved" else None,
        score=0.8,
        summary="GPU 0 is 16 °C [above] its peers.",
        evidence=(),
        likely_cause="",
        action="check_cooling",
        next_steps=(),
        detector=DetectorRef(name="fake", version="1"),
    )


@dataclass
class FakeDetector:
    """Speaks at chosen messages and remembers what it was fed."""

    speak: Callable[[int, NodeSample], list[AlertEvent]] = lambda number, sample: []
    fed: list[NodeSample] = field(default_factory=list)
    finished: int = 0

    def feed(self, samples: Sequence[NodeSample]) -> list[AlertEvent]:
        events = []
        for sample in samples:
            self.fed.append(sample)
            events += self.speak(len(self.fed), sample)
        return events

    def finish(self) -> list[AlertEvent]:
        self.finished += 1
        return []


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=160)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def written(tmp_path: Path, text: str = ROWS) -> Path:
    path = tmp_path / "node1.csv"
    path.write_text(text)
    return path


def test_every_tick_is_fed_once_and_the_end_is_announced(tmp_path: Path, console: Console) -> None:
    detector = FakeDetector()
    assert run_replay([written(tmp_path)], console=console, pipeline=detector) == EXIT_OK
    assert [sample.seq for sample in detector.fed] == list(range(5))
    assert detector.finished == 1
    text = said(console)
    assert "No alerts." in text
    assert "10 GPU-samples of 1 node, 2025-01-06T10:00:00.000Z to 2025-01-06T10:00:04.000Z" in text
    assert "wall clock" in text


def test_alerts_are_json_lines_in_the_file_and_a_table_for_people(
    tmp_path: Path, console: Console
) -> None:
    def speak(number: int, sample: NodeSample) -> list[AlertEvent]:
        if number == 2:
            return [alert(sample), alert(sample, kind="near_limit")]
        return [alert(sample, seq=2, state="resolved")] if number == 4 else []

    out = tmp_path / "alerts.jsonl"
    code = run_replay(
        [written(tmp_path)], alerts_out=out, console=console, pipeline=FakeDetector(speak)
    )
    assert code == EXIT_OK
    events = [decode_alert(line) for line in out.read_bytes().splitlines()]
    assert [(event.kind, event.seq, event.state) for event in events] == [
        ("fan", 1, "firing"),
        ("near_limit", 1, "firing"),
        ("fan", 2, "resolved"),
    ]
    text = said(console)
    assert "2 alerts: 2 warning; 1 still open at the end of the recording." in text
    assert "thermal_fault/fan" in text
    assert "[above]" in text  # words of a recording are text, not markup


def test_alerts_go_to_standard_output_for_a_dash(
    tmp_path: Path, console: Console, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    detector = FakeDetector(lambda number, sample: [alert(sample)] if number == 1 else [])
    run_replay([written(tmp_path)], alerts_out=Path("-"), console=console, pipeline=detector)
    assert decode_alert(capfdbinary.readouterr().out).kind == "fan"


def test_no_more_alerts_are_listed_than_can_be_read(tmp_path: Path, console: Console) -> None:
    def speak(number: int, sample: NodeSample) -> list[AlertEvent]:
        return [alert(sample, kind=f"kind{n}") for n in range(MAX_SHOWN + 7)] if number == 1 else []

    run_replay([written(tmp_path)], console=console, pipeline=FakeDetector(speak))
    assert "... and 7 more" in said(console)


def test_damage_is_told_with_line_numbers(tmp_path: Path, console: Console) -> None:
    path = written(tmp_path, ROWS + "2025/01/06 10:00:04, 1, 41\n2025/01/06 10:0")
    assert run_replay([path], console=console, pipeline=FakeDetector()) == EXIT_OK
    text = said(console)
    assert "1 damaged line left out:" in text
    assert "node1.csv, line 13:" in text
    assert "1 row dropped: the GPU already had a row for that time." in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "--map"),
        ("timestamp, index, temperature.gpu\n", "only the names of the columns"),
        ("timestamp, index, temperature.gpu\nx, 0, 40\n", "Damaged lines: 1"),
    ],
)
def test_what_cannot_be_used_is_exit_code_2_with_a_sentence(
    tmp_path: Path, console: Console, text: str, words: str
) -> None:
    detector = FakeDetector()
    path = written(tmp_path, text)
    out = tmp_path / "alerts.jsonl"
    code = run_replay([path], alerts_out=out, console=console, pipeline=detector)
    assert code == EXIT_UNUSABLE
    assert words in said(console).replace("\n", " ")
    assert not out.exists()
    assert detector.fed == []


def mapped(tmp_path: Path, rows: str) -> tuple[Path, Path]:
    column_map = tmp_path / "map.toml"
    column_map.write_text(
        "[roles]\ntime='when'\n"
        "[columns]\nwatts='temperature_celsius'\ndegrees='power_watts'\n"
        "load='gpu_utilization_ratio'\n"
    )
    return written(tmp_path, "when,watts,degrees,load\n" + rows), column_map


def test_refused_values_are_told_by_column_with_what_would_be_possible(
    tmp_path: Path, console: Console
) -> None:
    rows = "".join(
        f"2025-01-06T10:00:0{second}Z,{40 + 300 * (second == 4)},50,0.5\n" for second in range(5)
    )
    path, column_map = mapped(tmp_path, rows)
    code = run_replay([path], map_path=column_map, console=console, pipeline=FakeDetector())
    assert code == EXIT_OK
    text = said(console)
    assert "1 value refused: out of the range that is possible:" in text
    assert (
        "column 'watts', read as temperature_celsius: 1 of 5 values; the first one is 340 °C, "
        "possible are -40 to 150" in text
    )
    assert "WARNING" not in text


def test_a_column_of_which_more_than_half_is_refused_is_warned_of(
    tmp_path: Path, console: Console
) -> None:
    rows = "".join(f"2025-01-06T10:00:0{second}Z,{600 + second},50,87\n" for second in range(5))
    path, column_map = mapped(tmp_path, rows)
    code = run_replay([path], map_path=column_map, console=console, pipeline=FakeDetector())
    assert code == EXIT_OK
    text = " ".join(said(console).split())
    for column in ("watts", "load"):
        assert f"WARNING: 5 of the 5 values of column '{column}' were refused" in text
    assert "Probably columns are swapped or its unit is wrong" in text
    assert "the first one is 87 ratio, possible are 0 to 1" in text
    assert "column 'degrees'" not in text


def test_a_recording_of_which_every_value_is_refused_is_exit_code_2(
    tmp_path: Path, console: Console
) -> None:
    rows = "".join(f"2025-01-06T10:00:0{second}Z,600,-50,87\n" for second in range(5))
    path, column_map = mapped(tmp_path, rows)
    code = run_replay([path], map_path=column_map, console=console, pipeline=FakeDetector())
    assert code == EXIT_UNUSABLE
    text = " ".join(said(console).split())
    assert "every value was refused, so nothing was watched. Probably columns are swapped" in text


def test_a_map_that_is_not_used_is_said(tmp_path: Path, console: Console) -> None:
    _, column_map = mapped(tmp_path, "")
    path = written(tmp_path)
    code = run_replay([path], map_path=column_map, console=console, pipeline=FakeDetector())
    assert code == EXIT_OK
    assert "is not used for" in said(console)


def test_a_wrong_zone_is_exit_code_2(tmp_path: Path, console: Console) -> None:
    path = written(tmp_path)
    assert run_replay([path], timezone="Mars", console=console, pipeline=FakeDetector()) == 2
    assert "no IANA time zone" in said(console)


def test_a_recording_is_never_overwritten_by_its_alerts(tmp_path: Path, console: Console) -> None:
    path = written(tmp_path)
    assert run_replay([path], alerts_out=path, console=console, pipeline=FakeDetector()) == 2
    assert path.read_text() == ROWS
    assert "is one of the recordings" in said(console).replace("\n", " ")


def test_an_alert_file_that_cannot_be_opened_is_exit_code_2(
    tmp_path: Path, console: Console
) -> None:
    out = tmp_path / "gone" / "alerts.jsonl"
    code = run_replay([written(tmp_path)], alerts_out=out, console=console, pipeline=FakeDetector())
    assert code == EXIT_UNUSABLE
    assert "Cannot write the alerts" in said(console)


@pytest.fixture
def long_recording(shared: Path) -> Path:
    return shared / "recordings" / "timeseries" / "hopper_sxm_x8_run_0317_0339.csv.gz"


MAPS = Path(__file__).resolve().parents[2] / "maps"


def test_the_long_recording_gives_the_thermal_outlier_and_nothing_else(
    long_recording: Path, tmp_path: Path, console: Console
) -> None:
    """GPU 1 is the outlier; dips, GPU 0 alone, staggered stop and cool-down are normal."""
    out = tmp_path / "alerts.jsonl"
    code = run_replay(
        [long_recording], map_path=MAPS / "hopper_sxm_x8.toml", alerts_out=out, console=console
    )
    assert code == EXIT_OK
    events = [decode_alert(line) for line in out.read_bytes().splitlines()]
    loud = [event for event in events if event.severity != "info"]
    assert {(event.family, event.kind) for event in loud} == {("thermal_fault", "peer_outlier")}
    assert {event.subject.gpu_index for event in loud} == {1}
    assert {event.severity for event in loud} == {"warning"}


@pytest.mark.parametrize(
    ("file", "column_map"),
    [
        ("hopper_sxm_x8_baseline_0341_0346.csv.gz", "hopper_sxm_x8.toml"),
        ("superbench_monitor_8x16gb.jsonl", "superbench_monitor.toml"),
    ],
)
def test_healthy_recordings_give_nothing_of_warning_or_above(
    shared: Path, tmp_path: Path, console: Console, file: str, column_map: str
) -> None:
    out = tmp_path / "alerts.jsonl"
    path = shared / "recordings" / "timeseries" / file
    assert run_replay([path], map_path=MAPS / column_map, alerts_out=out, console=console) == 0
    events = [decode_alert(line) for line in out.read_bytes().splitlines()]
    assert [event.summary for event in events if event.severity != "info"] == []


@pytest.mark.parametrize("step_seconds", [1, 5, 10])
def test_a_slower_copy_of_the_recording_gives_the_same_alert(
    long_recording: Path, tmp_path: Path, console: Console, step_seconds: int
) -> None:
    """The last tick of each step, as a slower collector would have read it, as JSON lines."""
    settings = ReplaySettings(files=(long_recording,), map=MAPS / "hopper_sxm_x8.toml")
    samples = list(iter_samples(settings))
    kept = {sample.ts[0] // (1000 * step_seconds): sample for sample in samples}
    keyframes = [replace(sample, inventory=samples[0].inventory) for sample in kept.values()]
    slow = tmp_path / "slow.jsonl"
    slow.write_bytes(b"".join(encode(sample) + b"\n" for sample in keyframes))
    outs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for out in outs:
        assert run_replay([slow], alerts_out=out, console=console) == EXIT_OK
    assert outs[0].read_bytes() == outs[1].read_bytes()  # every replay is the same
    events = [decode_alert(line) for line in outs[0].read_bytes().splitlines()]
    loud = {(e.family, e.kind, e.subject.gpu_index) for e in events if e.severity != "info"}
    assert loud == {("thermal_fault", "peer_outlier", 1)}
