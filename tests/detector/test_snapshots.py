"""Snapshots: never a wrong state, whatever happened to the bytes or to the code."""

from __future__ import annotations

import dataclasses
import resource
import subprocess
import sys
import textwrap
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from telemetry import MIB, telemetry

from detector.engine import Engine
from detector.registry import build
from detector.snapshot import Snapshot, pack, unpack
from detector.snapshots import FileSnapshots, MemorySnapshots, Snapshots
from schemas.alert import AlertEvent
from schemas.errors import SnapshotError
from schemas.sample import NodeSample
from schemas.window import WindowBatch

Array = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


def snapshot(next_offset: int = 7, *, partition: int = 3, **arrays: Array) -> Snapshot:
    return Snapshot(
        topic="gpu.samples",
        partition=partition,
        next_offset=next_offset,
        facts={"nodes": ["n1", "机架"], "newest": 2**53, "none": None},
        arrays=arrays or {"level": np.arange(5.0), "phase": np.ones((2, 3), dtype=np.int8)},
        code_version="1.2.3",
    )


def same(a: Snapshot, b: Snapshot) -> bool:
    plain = [f.name for f in dataclasses.fields(Snapshot) if f.name != "arrays"]
    return (
        all(getattr(a, name) == getattr(b, name) for name in plain)
        and list(a.arrays) == list(b.arrays)
        and all(
            a.arrays[name].dtype == b.arrays[name].dtype
            and a.arrays[name].shape == b.arrays[name].shape
            and a.arrays[name].tobytes() == b.arrays[name].tobytes()
            for name in a.arrays
        )
    )


dtypes = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes()
    | hnp.unsigned_integer_dtypes()
    | hnp.floating_dtypes(sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(sizes=(64, 128))
)
arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    )
)


@given(st.dictionaries(st.text(max_size=8), arrays, max_size=4))
@settings(deadline=None)
def test_unpack_gives_back_what_was_packed(state: dict[str, Array]) -> None:
    whole = dataclasses.replace(snapshot(), arrays=state)
    assert same(unpack(pack(whole)), whole)


def test_arrays_that_are_no_block_of_memory_are_packed_by_value() -> None:
    strided = np.arange(20.0).reshape(4, 5)[::2, ::-1]
    assert unpack(pack(snapshot(x=strided))).arrays["x"].tolist() == strided.tolist()
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert unpack(pack(snapshot(x=fortran))).arrays["x"].tolist() == fortran.tolist()


def test_unpacked_arrays_may_be_changed() -> None:
    unpack(pack(snapshot())).arrays["level"][0] = 9.0


def test_a_snapshot_cut_anywhere_is_refused() -> None:
    data = pack(snapshot())
    for end in range(len(data)):
        with pytest.raises(SnapshotError):
            unpack(data[:end])


def test_a_snapshot_with_any_byte_flipped_is_refused() -> None:
    data = pack(snapshot())
    chance = Random(1)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << chance.randrange(8)
        with pytest.raises(SnapshotError):
            unpack(bytes(damaged))


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    for foreign in (data, b"FSHK" + data):
        with pytest.raises(SnapshotError):
            unpack(foreign)


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Snapshots:
    return MemorySnapshots() if request.param == "memory" else FileSnapshots(tmp_path / "s")


def test_a_store_gives_back_the_newest_of_each_partition(store: Snapshots) -> None:
    store.save(snapshot(5, partition=1))
    store.save(snapshot(9, partition=1))
    store.save(snapshot(4, partition=11))
    kept = {number: store.load("gpu.samples", number) for number in (0, 1, 11)}
    assert kept[0] is None
    assert kept[1] is not None
    assert kept[11] is not None
    assert (kept[1].next_offset, kept[11].next_offset) == (9, 4)
    assert store.load("gpu.windows", 1) is None


def test_a_store_does_not_go_back_until_it_is_told_to_forget(store: Snapshots) -> None:
    store.save(snapshot(9))
    store.save(snapshot(8))
    kept = store.load("gpu.samples", 3)
    assert kept is not None
    assert kept.next_offset == 9
    store.forget("gpu.samples", 3)
    assert store.load("gpu.samples", 3) is None
    store.save(snapshot(1))
    assert store.load("gpu.samples", 3) is not None


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_only_the_newest_files_are_kept(tmp_path: Path) -> None:
    store = FileSnapshots(tmp_path, keep=2)
    for offset in (1, 20, 3, 100):
        store.save(snapshot(offset))
    assert [name.split("-")[-1] for name in files(tmp_path)] == [
        f"{20:020d}.snapshot",
        f"{100:020d}.snapshot",
    ]


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "gone"])
def test_a_damaged_newest_file_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    store = FileSnapshots(tmp_path)
    store.save(snapshot(1))
    store.save(snapshot(2))
    newest = tmp_path / files(tmp_path)[-1]
    data = newest.read_bytes()
    flipped = bytes([*data[:40], data[40] ^ 1, *data[41:]])
    newest.write_bytes({"cut": data[:-3], "empty": b"", "flipped": flipped, "gone": data}[damage])
    if damage == "gone":
        newest.unlink()
    kept = store.load("gpu.samples", 3)
    assert kept is not None
    assert kept.next_offset == 1


def test_a_file_half_written_when_the_machine_died_is_ignored(tmp_path: Path) -> None:
    store = FileSnapshots(tmp_path)
    store.save(snapshot(1))
    name = files(tmp_path)[0].replace(f"{1:020d}.snapshot", f"{2:020d}.writing")
    (tmp_path / name).write_bytes(b"FSHK half")
    kept = store.load("gpu.samples", 3)
    assert kept is not None
    assert kept.next_offset == 1
    store.save(snapshot(2))
    kept = store.load("gpu.samples", 3)
    assert kept is not None
    assert kept.next_offset == 2
    assert not any(one.endswith(".writing") for one in files(tmp_path))


def test_nobody_else_can_read_snapshots(tmp_path: Path) -> None:
    folder = tmp_path / "detector" / "snapshots"
    FileSnapshots(folder).save(snapshot())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from detector.snapshot import Snapshot
from detector.snapshots import FileSnapshots
from schemas.errors import DataDirError

def snapshot(offset, size):
    return Snapshot(topic="t", partition=0, next_offset=offset, facts={}, code_version="1",
                    arrays={"x": np.zeros(size)})

folder = Path(sys.argv[1])
store = FileSnapshots(folder)
store.save(snapshot(1, 10))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    store.save(snapshot(2, 10_000))
except DataDirError as exc:
    print(exc)
print(store.load("t", 0).next_offset, len(list(folder.iterdir())))
"""


def test_a_full_disk_is_named_and_leaves_the_older_snapshot(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    words, kept = done.stdout.splitlines()
    assert str(tmp_path) in words
    assert "data_dir" in words
    assert kept == "1 1"


# -- the engine's state ----------------------------------------------------------------------------


@cache
def stream() -> tuple[NodeSample, ...]:
    """Two nodes side by side, 400 s: an outlier, a brake, a leak, a GPU that leaves."""
    ticks = 400
    heat = np.full((ticks, 4), 50.0)
    heat[:, 1] += 20
    bits = np.zeros((ticks, 4))
    bits[100:140, 2] = 0x80
    used = np.tile(70.0 * 1024 * MIB, (ticks, 4))
    used[:, 3] += np.arange(ticks) * 16 * MIB
    metrics = {
        "temperature_celsius": heat,
        "power_watts": 400.0,
        "clock_event_reasons": bits,
        "memory_used_bytes": used,
        "memory_total_bytes": 81559 * MIB,
    }
    nodes = [
        telemetry(metrics, gpus=4, ticks=ticks, seed=seed, node=name, noise={"power_watts": 3.0})
        for seed, name in enumerate(("n1", "n2"))
    ]
    apart = [[_named(sample) for sample in node] for node in nodes]
    for tick in range(200, 300):
        apart[1][tick] = _without_first(apart[1][tick])
    return tuple(sample for pair in zip(*apart, strict=True) for sample in pair)


def _named(sample: NodeSample) -> NodeSample:
    """GPU ids are unique in a fleet; the builder's are unique on a node."""
    own = tuple(f"{sample.node}-{uuid}" for uuid in sample.gpu)
    listed = sample.inventory and dataclasses.replace(
        sample.inventory,
        gpus=tuple(
            dataclasses.replace(item, gpu=f"{sample.node}-{item.gpu}")
            for item in sample.inventory.gpus
        ),
    )
    return dataclasses.replace(sample, gpu=own, inventory=listed)


def _without_first(sample: NodeSample) -> NodeSample:
    return dataclasses.replace(
        sample, gpu=sample.gpu[1:], m={name: values[1:] for name, values in sample.m.items()}
    )


def engine() -> Engine:
    return Engine(build(), topic="gpu.samples", partition=0)


def outcome(
    subject: Engine, samples: tuple[NodeSample, ...]
) -> tuple[list[AlertEvent], list[WindowBatch]]:
    result = subject.process(samples)
    return result.alerts, result.windows


def resumed(subject: Engine) -> Engine:
    """A fresh engine with the state of another, by way of bytes."""
    facts, state = subject.dump()
    saved = unpack(pack(dataclasses.replace(snapshot(), facts=facts, arrays=state)))
    fresh = engine()
    assert fresh.load(saved.facts, saved.arrays) == []
    return fresh


@cache
def undisturbed() -> tuple[list[AlertEvent], list[WindowBatch]]:
    return outcome(engine(), stream())


def test_the_stream_holds_alerts_of_every_stream_detector() -> None:
    kinds = {(alert.kind, alert.state) for alert in undisturbed()[0]}
    spoken = {"peer_outlier", "power_brake", "leak", "fast_growth", "missing"}
    assert {kind for kind, _ in kinds} == spoken
    assert {("power_brake", "resolved"), ("missing", "resolved")} <= kinds


def _by_entity(
    result: tuple[list[AlertEvent], list[WindowBatch]],
) -> tuple[list[AlertEvent], list[WindowBatch]]:
    """Cuts move events of different nodes against each other, never those of one node."""
    alerts = sorted(result[0], key=lambda a: (a.observed_at, a.fingerprint, a.seq))
    return alerts, sorted(result[1], key=lambda w: (w.node, w.start, w.cohort))


@settings(max_examples=4, deadline=None)
@given(st.sets(st.integers(0, len(stream())), max_size=3))
def test_a_resumed_engine_goes_on_as_if_it_never_stopped(cuts: set[int]) -> None:
    subject, alerts, windows = engine(), list[AlertEvent](), list[WindowBatch]()
    edges = [0, *sorted(cuts), len(stream())]
    for start, end in pairwise(edges):
        subject = resumed(subject)
        more = outcome(subject, stream()[start:end])
        alerts += more[0]
        windows += more[1]
    assert _by_entity((alerts, windows)) == _by_entity(undisturbed())


def test_dumping_changes_nothing_and_saves_the_same_bytes_again() -> None:
    subject = engine()
    subject.process(stream()[:300])
    first, second = subject.dump(), resumed(subject).dump()
    assert first[0] == second[0]
    assert list(first[1]) == list(second[1])
    for name, array in first[1].items():
        np.testing.assert_array_equal(array, second[1][name], err_msg=name)


def test_state_of_a_version_with_fewer_arrays_is_kept_where_it_fits() -> None:
    """The rest starts fresh and is named; nothing is guessed."""
    subject = engine()
    subject.process(stream()[:300])
    facts, state = subject.dump()
    left_out = [name for name in state if name.startswith("gpu/state/peer_outlier/")]
    kept = {name: array for name, array in state.items() if name not in left_out}
    narrower = "gpu/state/throttling/power_brake_duty"
    kept[narrower] = kept[narrower].astype(np.float64)
    fresh = engine()
    dropped = fresh.load(facts, kept)
    assert sorted(f"gpu/{name}" for name in dropped) == sorted([*left_out, narrower])
    assert np.isnan(fresh.dump()[1][left_out[0]]).all()
    after = fresh.dump()[1]
    for name in set(state) - {*left_out, narrower}:
        np.testing.assert_array_equal(after[name], state[name], err_msg=name)
    assert fresh.process(stream()[300:]).counts["accepted"] == len(stream()) - 300


def test_state_of_a_version_with_more_arrays_and_facts_is_taken_without_them() -> None:
    subject = engine()
    subject.process(stream()[:300])
    facts, state = subject.dump()
    facts["gpus"] = [gpu | {"firmware": "new"} for gpu in facts["gpus"]]
    facts["nodes"] = [node | {"shelf": 3} for node in facts["nodes"]]
    facts["racks"] = []
    fresh = engine()
    assert fresh.load(facts, state | {"gpu/state/later/level": np.zeros(8)}) == []
    assert _by_entity(outcome(fresh, stream()[300:])) == _by_entity(
        outcome(resumed(subject), stream()[300:])
    )


def test_state_of_one_gpu_stays_small() -> None:
    """Reported by part; without the windows at most 1 KiB (design, numbers to reach)."""
    sizes = engine().bytes_per_gpu()
    assert sizes["detectors"] + sizes["fleet"] <= 1024
