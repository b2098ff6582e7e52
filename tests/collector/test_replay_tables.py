"""Recordings through column maps: the two long ones, permuted, resampled, packed, joined."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collector.replay.samples import iter_samples
from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from collector.source import Reading
from schemas.codec import decode_sample, encode
from schemas.errors import SourceError

MAPS = Path(__file__).resolve().parents[2] / "maps"
HOPPER = MAPS / "hopper_sxm_x8.toml"


def readings_of(*files: Path, **settings: Any) -> list[Reading]:
    return list(each_reading(ReplaySource(ReplaySettings(files=files, **settings))))


def each_reading(source: ReplaySource) -> Iterator[Reading]:
    while not source.exhausted:
        yield from source.read(0)


def permuted(text: str, seed: int) -> str:
    """Put the columns of a CSV into another order."""
    rows = [line.split(",") for line in text.splitlines()]
    order = list(range(len(rows[0])))
    random.Random(seed).shuffle(order)
    return "\n".join(",".join(row[i] for i in order) for row in rows) + "\n"


def resampled(text: str, step_seconds: int) -> str:
    """Keep of a recording the last tick of each step, as a slower collector would read it."""
    header, *rows = text.splitlines()
    ticks: dict[str, list[str]] = {}
    for row in rows:
        ticks.setdefault(row.split(",")[0], []).append(row)
    last: dict[int, str] = {}
    for time in ticks:
        hours, minutes, seconds = time[11:23].split(":")
        second = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        last[int(second // step_seconds)] = time
    return "\n".join([header, *(row for time in last.values() for row in ticks[time])]) + "\n"


@pytest.fixture
def run_file(shared: Path) -> Path:
    return shared / "recordings" / "timeseries" / "hopper_sxm_x8_run_0317_0339.csv.gz"


@pytest.fixture
def baseline_file(shared: Path) -> Path:
    return shared / "recordings" / "timeseries" / "hopper_sxm_x8_baseline_0341_0346.csv.gz"


@pytest.fixture
def baseline_text(baseline_file: Path) -> str:
    return gzip.decompress(baseline_file.read_bytes()).decode()


def test_the_long_recording_gives_all_its_rows(run_file: Path) -> None:
    source = ReplaySource(ReplaySettings(files=(run_file,), map=HOPPER))
    readings = list(each_reading(source))
    assert source.stats.rows == 36_112
    assert len(readings) == 4_514
    assert {len(reading.gpus) for reading in readings} == {8}
    assert source.stats.damaged == source.stats.duplicates == source.stats.backwards == 0
    assert source.stats.bytes_read == source.stats.total_bytes == run_file.stat().st_size
    assert source.interval_seconds == pytest.approx(0.297, abs=0.01)
    first = readings[0]
    assert first.node == "hopper-sxm-x8"
    assert first.ts == 1_758_683_824_490
    assert first.values["temperature_celsius"] == [48, 63, 41, 46, 49, 40, 47, 40]
    assert first.values["gpu_utilization_ratio"] == [1.0] * 8
    assert first.values["power_watts"][:2] == [397.30, 419.75]
    assert {gpu.model for gpu in first.inventory.gpus} == {"SXM 700 W class"}
    assert readings[-1].ts == 1_758_685_172_123


def test_two_files_continue_one_node(run_file: Path, baseline_file: Path) -> None:
    samples = list(iter_samples(ReplaySettings(files=(run_file, baseline_file), map=HOPPER)))
    assert len(samples) == 4_514 + 780
    assert len({sample.boot_id for sample in samples}) == 1
    assert [sample.seq for sample in samples] == list(range(len(samples)))


def test_a_file_that_goes_back_in_time_begins_a_new_boot(
    run_file: Path, baseline_file: Path
) -> None:
    files = (baseline_file, run_file, baseline_file)
    samples = list(iter_samples(ReplaySettings(files=files, map=HOPPER)))
    boots = list(dict.fromkeys(sample.boot_id for sample in samples))
    assert [sum(s.boot_id == boot for s in samples) for boot in boots] == [780, 4_514 + 780]
    assert [sample.seq for sample in samples[:780]] == list(range(780))
    assert samples[780].seq == 0


def test_the_same_recording_gives_the_same_messages(baseline_file: Path) -> None:
    settings = ReplaySettings(files=(baseline_file,), map=HOPPER)
    assert [encode(s) for s in iter_samples(settings)] == [
        encode(s) for s in iter_samples(settings)
    ]


def test_messages_satisfy_the_contract(baseline_file: Path) -> None:
    settings = ReplaySettings(files=(baseline_file,), map=HOPPER)
    ticks = 0
    for sample in iter_samples(settings, flush_seconds=5.0):
        assert decode_sample(encode(sample)) == sample
        ticks += len(sample.ts)
    assert ticks == 780


@pytest.mark.parametrize("seed", range(4))
def test_permuted_columns_give_the_same_readings(
    baseline_file: Path, baseline_text: str, tmp_path: Path, seed: int
) -> None:
    copy = tmp_path / "permuted.csv"
    copy.write_text(permuted(baseline_text, seed))
    assert readings_of(copy, map=HOPPER) == readings_of(baseline_file, map=HOPPER)


@pytest.mark.parametrize("step_seconds", [1, 5, 10])
def test_a_slower_copy_gives_a_subset_of_the_readings(
    baseline_file: Path, baseline_text: str, tmp_path: Path, step_seconds: int
) -> None:
    copy = tmp_path / "slow.csv"
    copy.write_text(resampled(baseline_text, step_seconds))
    slow = readings_of(copy, map=HOPPER)
    by_time = {reading.ts: reading for reading in readings_of(baseline_file, map=HOPPER)}
    assert len(slow) == pytest.approx(266 / step_seconds, rel=0.1)
    assert all(by_time[reading.ts] == reading for reading in slow)


def test_gzip_is_recognised_by_its_first_bytes(
    baseline_file: Path, baseline_text: str, tmp_path: Path
) -> None:
    plain, packed = tmp_path / "plain.csv.gz", tmp_path / "packed.csv"
    plain.write_text(baseline_text)
    packed.write_bytes(baseline_file.read_bytes())
    assert readings_of(plain, map=HOPPER) == readings_of(packed, map=HOPPER)


def test_a_cut_gzip_gives_what_was_before_the_cut(baseline_file: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(baseline_file.read_bytes()[:20_000])
    source = ReplaySource(ReplaySettings(files=(cut,), map=HOPPER))
    readings = list(each_reading(source))
    whole = readings_of(baseline_file, map=HOPPER)
    assert 300 < len(readings) < 780
    assert readings[:-1] == whole[: len(readings) - 1]
    assert "compressed data is truncated" in str(source.stats.complaints[-1])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks_are_understood(
    baseline_file: Path, baseline_text: str, tmp_path: Path, encoding: str
) -> None:
    """PowerShell writes UTF-16 when the output of nvidia-smi is redirected."""
    copy = tmp_path / "windows.csv"
    copy.write_bytes(baseline_text.replace("\n", "\r\n").encode(encoding))
    assert readings_of(copy, map=HOPPER) == readings_of(baseline_file, map=HOPPER)


def test_v21_wide_json_lines_keep_the_single_jump(shared: Path) -> None:
    file = shared / "recordings" / "timeseries" / "superbench_monitor_8x16gb.jsonl"
    readings = readings_of(file, map=MAPS / "superbench_monitor.toml")
    assert [reading.values["temperature_celsius"][0] for reading in readings] == [
        26, 27, 50, 27, 27,
    ]  # fmt: skip
    assert {len(reading.gpus) for reading in readings} == {8}
    assert readings[0].ts == 1_638_764_375_000
    assert readings[-1].values["ecc_corrected_total"] == [12.0] + [0.0] * 7
    assert readings[0].values["memory_total_bytes"] == [17_071_734_784.0] * 8
    assert readings[0].values["power_limit_watts"] == [250.0] * 8


MAP = """
delimiter = ";"
timezone = "Europe/Berlin"
time_format = "%d.%m.%Y %H:%M:%S"
slowdown_celsius = 90
{extra}
[roles]
time = "Zeit"
node = "Rechner"
gpu_uuid = "Karte"
model = "Modell"
job = "Auftrag"
[columns]
"Temp" = "temperature_celsius"
"mW" = {{ metric = "power_watts", unit = "mW" }}
"Takt" = {{ metric = "sm_clock_hertz", factor = 1e6 }}
[constants]
power_limit_watts = 300
"""
ROWS = (
    "Zeit;Rechner;Karte;Modell;Auftrag;Temp;mW;Takt\n"
    "06.01.2025 10:00:00;n1;card-a;M1;j1;40;150000;1500\n"
    "06.01.2025 10:00:00;n2;card-b;M1;j2;41;160000;1400\n"
    "06.01.2025 10:00:00;n1;card-c;M1;j1;42;N/A;1500\n"
    "06.01.2025 10:00:01;n2;card-b;M1;j2;41;160000;1400\n"
)


def test_a_map_names_roles_units_zone_and_constants(tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text(MAP.format(extra=""))
    (tmp_path / "log.csv").write_text(ROWS)
    source = ReplaySource(ReplaySettings(files=(tmp_path / "log.csv",), map=tmp_path / "map.toml"))
    batch = source.read(0)
    by_node = {reading.node: reading for reading in batch}
    first = by_node["n1"]
    assert first.ts == 1_736_154_000_000
    assert first.gpus == ("card-a", "card-c")
    assert first.values["power_watts"] == [150.0, None]
    assert first.status["power_watts"] == {1: "unsupported"}
    assert first.values["sm_clock_hertz"] == [1.5e9, 1.5e9]
    assert first.values["power_limit_watts"] == [300.0, 300.0]
    assert first.values["temperature_margin_celsius"] == [50.0, 48.0]
    assert first.jobs is not None
    assert [(job.job, job.gpus) for job in first.jobs] == [("j1", ("card-a", "card-c"))]


def test_columns_of_the_map_that_the_file_lacks_are_named(tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text(MAP.format(extra=""))
    (tmp_path / "log.csv").write_text(
        "\n".join(line.rpartition(";")[0] for line in ROWS.splitlines())
    )
    source = ReplaySource(ReplaySettings(files=(tmp_path / "log.csv",), map=tmp_path / "map.toml"))
    source.read(0)
    (said,) = source.stats.remarks
    assert "lacks 1 of the 3 columns that the map names: Takt" in said


def test_the_flag_for_the_zone_wins_over_the_map(tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text(MAP.format(extra=""))
    (tmp_path / "log.csv").write_text(ROWS)
    (first, *_) = readings_of(tmp_path / "log.csv", map=tmp_path / "map.toml", timezone="UTC")
    assert first.ts == 1_736_157_600_000


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("[roles", "no valid TOML"),
        ("[roles]\n[columns]\n", "roles.time"),
        ("[roles]\ntime='t'\n[columns]\nx='no_such_metric'\n", "no_such_metric"),
        ("[roles]\ntime='t'\n[columns]\nx={metric='power_watts',unit='hp'}\n", "hp"),
        ("[roles]\ntime='t'\n[columns]\n[constants]\nspeed=1\n", "speed"),
        ("[roles]\ntime='t'\n[columns]\nx='power_watt'\n", "Did you mean 'power_watts'"),
        ("[roles]\ntime='t'\n[columns]\nx='Temperature'\n", "mean 'temperature_celsius'"),
        (
            "[roles]\ntime='t'\n[columns]\n[constants]\npower_limit=1\n",
            "Did you mean 'power_limit_watts'",
        ),
        ("colour='red'\n[roles]\ntime='t'\n[columns]\n", "colour"),
    ],
)
def test_a_wrong_map_is_refused_with_the_key(tmp_path: Path, broken: str, words: str) -> None:
    (tmp_path / "map.toml").write_text(broken)
    (tmp_path / "log.csv").write_text("t,x\n2025-01-01,1\n")
    with pytest.raises(SourceError, match=words):
        readings_of(tmp_path / "log.csv", map=tmp_path / "map.toml")


def test_every_map_of_the_project_is_valid() -> None:
    from collector.replay.columnmap import load_map

    files = sorted(MAPS.glob("*.toml"))
    assert files
    assert all(load_map(file).columns for file in files)


def test_the_example_of_the_manual_is_a_valid_map(tmp_path: Path) -> None:
    from collector.replay.columnmap import load_map

    manual = (MAPS.parent / "docs" / "replay.md").read_text()
    example = tmp_path / "example.toml"
    example.write_text(manual.split("```toml\n")[1].split("```")[0])
    assert load_map(example).gpus == {0: "GPU-11111111-2222-4333-8444-555555555555"}
