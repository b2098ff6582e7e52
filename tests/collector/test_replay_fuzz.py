"""Whatever happens to a recording on its way, the importers count it and never end in an error."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from collector.kernel.lines import MessageReader
from collector.kernel.stamps import Prefixes
from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from schemas.errors import SourceError
from schemas.metrics import METRICS, plausible

Damage = Callable[[bytes, random.Random], bytes]


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def drop_lines(data: bytes, chance: random.Random) -> bytes:
    return b"\n".join(line for line in data.split(b"\n") if chance.random() > 0.05)


def swap_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    for _ in range(20):
        one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        lines[one], lines[other] = lines[other], lines[one]
    return b"\n".join(lines)


def flip_bytes(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(1 + len(data) // 2000):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def interleave(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data))
    return data[:place] + data + data[place:]


def glue_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    return b"".join(line + (b"" if chance.random() < 0.02 else b"\n") for line in lines)


DAMAGES: list[Damage] = [cut, drop_lines, swap_lines, flip_bytes, interleave, glue_lines]
FILES = (
    "smi_xml/real_qx-t4.xml",
    "smi_xml/mock_qx-gb200-lost.xml",
    "smi_captures/linux-x86_64__nvidia-h200__590.48.01.txt",
    "text/azure_bad_nvsmi8_output.txt",
    "text/asus_bifurcation_nvidia-smi.log",
    "kernel/gpud_nvlink_status_a100.txt",
    "scrapes/nvidia_gpu_exporter_linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01__load.prom",
    "nvml_profiles/mock-nvml-config-t4.yaml",
)
DMON = b"# gpu    pwr  gtemp  mtemp     sm\n# Idx      W      C      C      %\n" + (
    b"    0    631     63     57    100\n    1    600     60      -     99\n" * 40
)


def read_all(path: Path) -> None:
    try:
        source = ReplaySource(ReplaySettings(files=(path,)))
    except SourceError as exc:
        assert len(str(exc)) > 20  # a sentence  # noqa: PT017 - either way is right
        return
    last: dict[str, int] = {}
    while not source.exhausted:
        for reading in source.read(0):
            assert reading.ts > last.get(reading.node, 0)
            last[reading.node] = reading.ts
            for metric, column in reading.values.items():
                assert len(column) == len(reading.gpus)
                assert all(v is None or plausible(METRICS[metric], v) for v in column)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", [*FILES, "dmon"])
def test_damaged_recordings_give_fewer_readings_or_a_sentence(
    name: str, damage: Damage, shared: Path, tmp_path: Path
) -> None:
    data = DMON if name == "dmon" else (shared / "recordings" / name).read_bytes()
    for seed in range(3):
        path = tmp_path / f"{seed}.txt"
        path.write_bytes(damage(data, random.Random(f"{name} {damage.__name__} {seed}")))
        read_all(path)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_kernel_lines_are_read_or_passed_over(damage: Damage, shared: Path) -> None:
    for file in sorted((shared / "recordings" / "kernel").glob("*")):
        data = damage(file.read_bytes(), random.Random(f"{file.name} {damage.__name__}"))
        prefixes, reader = Prefixes(), MessageReader()
        for line in data.decode(errors="replace").split("\n"):
            stamped = prefixes.take(line, now_ms=1_790_000_000_000, boot_ms=0)
            if stamped is not None:
                fact = reader.read(stamped.message)
                assert fact is None or len(fact.message) <= 500
