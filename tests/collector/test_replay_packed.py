"""Damaged gzip: everything before the damage is read, nothing after it is made up."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.replay.lines import read_lines
from collector.replay.packed import Unpacked
from collector.replay.stats import ReplayStats

TEXT = "".join(f"{number},{number * 7919 % 1000}.25,GPU\n" for number in range(5000)).encode()


def unpacked(data: bytes) -> tuple[bytes, str | None]:
    reader = Unpacked(io.BytesIO(data))
    return io.BufferedReader(reader).read(), reader.fault


def recoverable(data: bytes) -> bytes:
    """Whatever zlib gives when it is fed single bytes."""
    unpacker, out = zlib.decompressobj(31), b""
    for at in range(len(data)):
        try:
            out += unpacker.decompress(data[at : at + 1])
        except zlib.error:
            break
    return out


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(TEXT, mtime=0),
        gzip.compress(TEXT[:9], mtime=0) + gzip.compress(TEXT[9:], mtime=0),
        gzip.compress(TEXT, mtime=0) + b"\0" * 20_000,
        gzip.compress(TEXT[:50], mtime=0) + b"\0" * 9 + gzip.compress(TEXT[50:], mtime=0),
        gzip.compress(b"", mtime=0) + gzip.compress(TEXT, mtime=0),
    ],
    ids=["one", "two members", "padded", "padded between", "empty first"],
)
def test_what_is_whole_is_read_whole(data: bytes) -> None:
    assert unpacked(data) == (TEXT, None)


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(3, len(gzip.compress(TEXT, mtime=0)) - 1))
def test_a_cut_file_gives_all_that_can_be_had(cut: int) -> None:
    data = gzip.compress(TEXT, mtime=0)[:cut]
    found, fault = unpacked(data)
    assert found == recoverable(data)
    assert "truncated" in str(fault)


@settings(max_examples=40, deadline=None)
@given(at=st.integers(10, len(gzip.compress(TEXT, mtime=0)) - 1), flip=st.integers(1, 255))
def test_a_changed_byte_costs_nothing_that_stands_before_it(at: int, flip: int) -> None:
    data = bytearray(gzip.compress(TEXT, mtime=0))
    data[at] ^= flip
    found, fault = unpacked(bytes(data))
    assert found == recoverable(bytes(data))
    assert "damaged" in str(fault) or "truncated" in str(fault)


def test_what_stands_behind_the_data_is_told_and_costs_no_line(tmp_path: Path) -> None:
    path = tmp_path / "r.csv.gz"
    path.write_bytes(gzip.compress(TEXT, mtime=0) + b"garbage")
    stats = ReplayStats()
    lines = list(read_lines(path, stats))
    assert [line.text for line in lines] == TEXT.decode().splitlines()
    assert stats.damaged == 1


def test_the_last_line_of_a_cut_file_is_not_taken_for_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.csv.gz"
    data = gzip.compress(TEXT, mtime=0)
    path.write_bytes(data[: len(data) // 2])
    lines = list(read_lines(path, ReplayStats()))
    whole = TEXT.decode().splitlines()
    assert [line.text for line in lines] == whole[: len(lines)]
    assert len(lines) == recoverable(data[: len(data) // 2]).count(b"\n")
