"""Recognising files, recorded messages, and refusing with a sentence."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path
from typing import Any

import pytest

from collector.replay.samples import iter_samples
from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from collector.source import Source
from schemas.codec import encode
from schemas.errors import SourceError
from schemas.sample import (
    CollectorStatus,
    GpuInventory,
    Inventory,
    JobRef,
    NodeSample,
    SampleEvent,
)

T0 = 1_736_154_000_000
SMI = "timestamp, index, temperature.gpu\n2025/01/06 10:00:00, 0, 40\n"


def open_text(tmp_path: Path, text: str | bytes, **settings: Any) -> ReplaySource:
    path = tmp_path / "file.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return ReplaySource(ReplaySettings(files=(path,), **settings))


def message(seq: int, ts: tuple[int, ...], **changes: Any) -> NodeSample:
    size = len(ts) * 2
    fields: dict[str, Any] = {
        "node": "n1",
        "boot_id": "b1",
        "seq": seq,
        "ts": ts,
        "gpu": ("GPU-a", "GPU-b"),
        "m": {"power_watts": [100.0 + i for i in range(size)]},
    }
    return NodeSample(**{**fields, **changes})


def lines(*samples: NodeSample) -> bytes:
    return b"".join(encode(sample) + b"\n" for sample in samples)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("a,b,c\n1,2,3\n", "the columns a, b, c.*--map"),
        ("hello world\n", "one column, 'hello world'.*--map"),
        ('{"time": 1, "gpu_usage:0": 3}\n', "the columns time, gpu_usage:0.*--map"),
        ("2025/01/06 10:00:00, 0, 40\n", "noheader"),
        ("0, 40, 69.85 W, [N/A]\n", "noheader"),
        ("index, temperature.gpu, power.draw [W]\n0, 40, 60 W\n", "no column timestamp"),
        (b"\x00\x01\x02\xff\xfe" * 100, "is no text but binary data: a recording is"),
        (b"PK\x03\x04\x14\x00\x00\x00\xff" * 9, "is no text but binary data .a zip archive"),
        ("a,b\n1,2\n".encode("utf-16-le"), "is no text but binary data: .*byte order mark"),
        (gzip.compress(bytes(range(256)) * 40, mtime=0), "is no text but binary data"),
        (b"\x1f\x8bnot gzip at all", "Cannot read .*compressed data is damaged"),
        (gzip.compress(SMI.encode() * 99, mtime=0)[:12], "Cannot read .*truncated"),
    ],
)
def test_a_file_that_cannot_be_understood_says_why(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    with pytest.raises(SourceError, match=words):
        open_text(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"Cannot read .*gone\.csv: No such file"):
        ReplaySource(ReplaySettings(files=(tmp_path / "gone.csv",)))


def test_no_file_is_refused() -> None:
    with pytest.raises(SourceError, match="name at least one file"):
        ReplaySource(ReplaySettings())


def test_a_second_file_is_looked_at_before_the_first_is_read(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text(SMI)
    bad.write_text("a,b\n1,2\n")
    with pytest.raises(SourceError, match=r"bad\.csv"):
        ReplaySource(ReplaySettings(files=(good, bad)))


def test_a_wrong_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not in the format jsonl"):
        open_text(tmp_path, SMI, format="jsonl")
    with pytest.raises(SourceError, match="is not in the format nvidia-smi"):
        open_text(tmp_path, lines(message(0, (T0,))), format="nvidia-smi")


@pytest.mark.parametrize("text", ["a,b\n1,2\n", SMI, "", b"\x00\x01\xff" * 99])
def test_csv_without_a_map_says_that_it_needs_one(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(SourceError, match=r"format csv needs a column map: .*--map"):
        open_text(tmp_path, text, format="csv")


def test_a_map_that_is_not_used_is_remarked(tmp_path: Path) -> None:
    column_map = tmp_path / "map.toml"
    column_map.write_text("[roles]\ntime='when'\n[columns]\nt='temperature_celsius'\n")
    for text, words in ((SMI, "CSV of nvidia-smi"), (lines(message(0, (T0,))), "own messages")):
        (remark,) = open_text(tmp_path, text, map=column_map).stats.remarks
        assert "is not used for" in remark
        assert "fits no column" in remark
        assert words in remark
    used = open_text(tmp_path, "when,t\n2025-01-01T00:00:00Z,40\n", map=column_map)
    assert used.stats.remarks == []


def test_values_are_counted_by_column_and_the_first_refused_one_is_kept(tmp_path: Path) -> None:
    """Power and temperature are swapped in the map; GPU 1 is hot enough to tell."""
    column_map = tmp_path / "map.toml"
    column_map.write_text(
        "[roles]\ntime='when'\ngpu_index='i'\n"
        "[columns]\nwatts='temperature_celsius'\ndegrees='power_watts'\n"
    )
    rows = "".join(
        f"2025-01-01T00:00:0{second}Z,{gpu},{power},50\n"
        for second in range(3)
        for gpu, power in ((0, 120), (1, "650 W"), (2, "N/A"))
    )
    source = open_text(tmp_path, "when,i,watts,degrees\n" + rows, map=column_map)
    watts = source.stats.column("watts", "temperature_celsius")
    assert (watts.values, watts.refused, watts.example) == (6, 3, 650.0)
    degrees = source.stats.column("degrees", "power_watts")
    assert (degrees.values, degrees.refused, degrees.example) == (9, 0, None)


def test_columns_of_nvidia_smi_are_counted_under_their_names(tmp_path: Path) -> None:
    text = "timestamp, index, power.draw [W]\n2025/01/06 10:00:00, 0, 350000\n"
    tally = open_text(tmp_path, text).stats.column("power.draw [W]", "power_watts")
    assert (tally.values, tally.refused) == (1, 1)


def test_a_map_that_does_not_fit_is_named(tmp_path: Path) -> None:
    column_map = tmp_path / "map.toml"
    column_map.write_text("[roles]\ntime='when'\n[columns]\nt='temperature_celsius'\n")
    with pytest.raises(SourceError, match=r"time column 'when'.*the columns a, b"):
        open_text(tmp_path, "a,b\n1,2\n", map=column_map)


def test_lines_before_the_header_are_counted_not_fatal(tmp_path: Path) -> None:
    source = open_text(tmp_path, "Warning: persistence mode is off\n" + SMI)
    assert len(source.read(0)) == 1
    assert source.stats.damaged == 1
    assert str(source.stats.complaints[0]).startswith("file.csv, line 1: ")


def test_the_source_is_what_the_agent_expects(tmp_path: Path) -> None:
    source: Source = open_text(tmp_path, SMI)
    assert source.kind == "replay"
    assert not source.exhausted
    source.close()
    assert source.exhausted
    assert source.read(0) == []


def test_recorded_messages_come_back_as_they_were(tmp_path: Path) -> None:
    inventory = Inventory(gpus=(GpuInventory(gpu="GPU-a", index=0, model="M"),))
    jobs = (JobRef(gpus=("GPU-a",), job="j1"),)
    event = SampleEvent(ts=T0 + 1500, kind="xid", gpu="GPU-a", xid=79)
    sent = [
        message(0, (T0, T0 + 1000), inventory=inventory, jobs=jobs),
        message(
            1,
            (T0 + 2000, T0 + 3000),
            events=(event,),
            status={"power_watts": {"3": "error:15"}},
            m={"power_watts": [1.0, 2.0, 3.0, None]},
            collector=CollectorStatus(state="ok"),
        ),
        message(2, (T0 + 4000,), gpu=(), m={}, collector=CollectorStatus(state="no_driver")),
    ]
    source = open_text(tmp_path, lines(*sent))
    readings = [reading for _ in range(5) for reading in source.read(0)]
    assert source.exhausted
    assert [reading.ts for reading in readings] == [T0 + 1000 * tick for tick in range(5)]
    assert readings[3].values == {"power_watts": [3.0, None]}
    assert readings[3].status == {"power_watts": {1: "error:15"}}
    assert readings[2].status == {}
    assert [len(reading.events) for reading in readings] == [0, 0, 1, 0, 0]
    assert all(reading.inventory == inventory for reading in readings)
    assert all(reading.jobs == jobs for reading in readings)
    assert readings[4].gpus == ()
    assert readings[4].state == "no_driver"


def test_repeated_and_damaged_messages_are_counted(tmp_path: Path) -> None:
    first, second = message(0, (T0,)), message(1, (T0 + 1000,))
    body = lines(first, second) + b'{"schema": "gpu.sample/1", "node":\n' + lines(second, first)
    source = open_text(tmp_path, body)
    readings = [reading for _ in range(2) for reading in source.read(0)]
    assert source.exhausted
    assert len(readings) == 2
    assert source.stats.damaged == 1
    assert source.stats.duplicates == 2
    assert source.stats.backwards == 2


def test_messages_of_many_nodes_at_one_time_are_one_batch(tmp_path: Path) -> None:
    body = lines(
        *(message(seq, (T0 + 1000 * seq,), node=f"n{n}") for seq in range(2) for n in range(3))
    )
    source = open_text(tmp_path, body)
    assert [len(source.read(0)), len(source.read(0))] == [3, 3]
    assert source.exhausted


def test_messages_survive_a_second_recording(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(lines(message(0, (T0,)), message(1, (T0 + 1000,)))))
    once = list(iter_samples(ReplaySettings(files=(path,))))
    again = tmp_path / "b.jsonl"
    again.write_bytes(lines(*once))
    assert list(iter_samples(ReplaySettings(files=(again,)))) == once


def test_what_can_be_read_only_once_is_refused_with_a_sentence(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/stdin"), Path("/dev/null"), Path("-")):
        if path.is_file():  # standard input may be a file
            continue
        with pytest.raises(SourceError, match="Save it to a file"):
            ReplaySource(ReplaySettings(files=(path,), node="n"))


@pytest.mark.parametrize("body", ["[" * 1_000_000, " " * 1_000_000 + "x", "a [" * 300_000])
def test_a_foreign_file_with_one_endless_line_is_refused_at_once(body: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.csv"
    path.write_text(body)
    before = time.process_time()
    with pytest.raises(SourceError):
        ReplaySource(ReplaySettings(files=(path,), node="n"))
    assert time.process_time() - before < 20.0  # it took hours


@pytest.mark.parametrize(
    "head", ["==============NVSMI LOG==============", "| NVIDIA-SMI 550 |", SMI]
)
def test_an_endless_line_inside_costs_itself_only(head: str, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text(
        f"{head}\n{' ' * 500_000}!\n{' ' * 500_000}:\n|{' ' * 500_000}|{'[' * 500_000}|\n"
    )
    source = ReplaySource(ReplaySettings(files=(path,), node="n"))
    before = time.process_time()
    while not source.exhausted:
        source.read(0)
    assert time.process_time() - before < 20.0
