"""The law of the engine: how messages are cut into batches changes nothing at all."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry import MIB, telemetry

from detector.engine import Engine
from detector.registry import build
from schemas.alert import AlertEvent
from schemas.sample import GpuInventory, Inventory, JobRef, NodeSample
from schemas.window import WindowBatch

# Ten thousand rounds of a few GPUs each, many times over.
pytestmark = pytest.mark.timeout(600)

Result = tuple[list[AlertEvent], list[WindowBatch]]


def node_telemetry(name: str, seed: int, ticks: int = 420) -> list[NodeSample]:
    """One node with an outlier, a brake, a leak, a loss, a job change, gaps and repeats."""
    rng = np.random.default_rng(seed)
    heat = np.full((ticks, 4), 50.0) + rng.normal(0, 0.4, (ticks, 4))
    heat[20:, 1] += 20
    bits = np.zeros((ticks, 4))
    bits[100:140, 2] = 0x80
    used = np.tile(70.0 * 1024 * MIB, (ticks, 4))
    used[:, 3] += np.arange(ticks) * 16 * MIB
    samples = telemetry(
        {
            "temperature_celsius": np.round(heat),
            "power_watts": 400,
            "clock_event_reasons": bits,
            "memory_used_bytes": used,
            "memory_total_bytes": 81559 * MIB,
        },
        gpus=4,
        ticks=ticks,
        node=name,
    )
    prefix = f"{name}-"
    named = [_renamed(sample, prefix) for sample in samples]
    named[200] = replace(named[200], jobs=(JobRef(gpus=named[0].gpu, job=f"job-{name}"),))
    for tick in range(300, 330):
        named[tick] = _without(named[tick], 0)
    del named[50:55]
    named.insert(80, named[79])
    return named


def _renamed(sample: NodeSample, prefix: str) -> NodeSample:
    gpu = tuple(prefix + uuid for uuid in sample.gpu)
    inventory = sample.inventory and Inventory(
        gpus=tuple(GpuInventory(gpu=uuid, index=i, model="H100") for i, uuid in enumerate(gpu)),
        expected_gpus=4,
    )
    return replace(sample, gpu=gpu, inventory=inventory)


def _without(sample: NodeSample, position: int) -> NodeSample:
    keep = [i for i in range(len(sample.gpu)) if i != position]
    return replace(
        sample,
        gpu=tuple(sample.gpu[i] for i in keep),
        m={name: [column[i] for i in keep] for name, column in sample.m.items()},
    )


@cache
def stream() -> tuple[NodeSample, ...]:
    """Three nodes, interleaved as a log would have them."""
    nodes = [node_telemetry(f"n{number}", number) for number in range(3)]
    rng = random.Random(1)
    mixed: list[NodeSample] = []
    positions = [0, 0, 0]
    while any(position < len(node) for position, node in zip(positions, nodes, strict=True)):
        number = rng.choice([i for i in range(3) if positions[i] < len(nodes[i])])
        mixed.append(nodes[number][positions[number]])
        positions[number] += 1
    # A GPU moves to another node at the end: the hardest case for a batch.
    last = mixed[-1]
    other = next(s for s in reversed(mixed) if s.node != last.node)
    moved = replace(
        last,
        seq=last.seq + 1,
        ts=(last.ts[0] + 1000,),
        gpu=(*last.gpu[:3], other.gpu[0]),
        inventory=None,
        jobs=None,
    )
    return (*mixed, moved)


def engine() -> Engine:
    return Engine(build(), topic="gpu.samples", partition=0)


def ordered(alerts: list[AlertEvent], windows: list[WindowBatch]) -> Result:
    """Events of different nodes may come in another order; those of one node may not."""
    return (
        sorted(alerts, key=lambda a: (a.subject.node or "", a.observed_at, a.fingerprint, a.seq)),
        sorted(windows, key=lambda w: (w.node, w.start, w.cohort)),
    )


def run(samples: Sequence[NodeSample], cuts: Sequence[int], subject: Engine) -> Result:
    alerts: list[AlertEvent] = []
    windows: list[WindowBatch] = []
    edges = [0, *sorted(cuts), len(samples)]
    for start, end in itertools.pairwise(edges):
        outcome = subject.process(samples[start:end])
        alerts += outcome.alerts
        windows += outcome.windows
    return ordered(alerts, windows)


@cache
def undisturbed() -> Result:
    return run(stream(), range(1, len(stream())), engine())


def test_the_stream_holds_every_kind_of_alert() -> None:
    kinds = {(alert.kind, alert.state) for alert in undisturbed()[0]}
    assert {"peer_outlier", "power_brake", "leak", "missing"} <= {kind for kind, _ in kinds}
    assert ("power_brake", "resolved") in kinds


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(0, len(stream())), max_size=40))
def test_batches_do_not_change_alerts_or_windows(cuts: list[int]) -> None:
    assert run(stream(), cuts, engine()) == undisturbed()


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(0, len(stream())), max_size=20))
def test_several_ticks_in_one_message_change_nothing(cuts: list[int]) -> None:
    """Neighbouring messages of a node, merged as a collector with a longer flush would."""
    merged = _merge(stream(), set(cuts))
    got = run(merged, cuts[:3], engine())
    want = undisturbed()
    assert [(a.alert_id, a.seq, a.observed_at) for a in got[0]] == [
        (a.alert_id, a.seq, a.observed_at) for a in want[0]
    ]


def _merge(samples: Sequence[NodeSample], splits: set[int]) -> list[NodeSample]:
    out: list[NodeSample] = []
    last_of: dict[str, int] = {}
    for number, sample in enumerate(samples):
        at = last_of.get(sample.node)
        before = out[at] if at is not None else None
        mergeable = (
            before is not None
            and number not in splits
            and len(before.ts) < 5
            and sample.gpu == before.gpu
            and sample.m.keys() == before.m.keys()
            and sample.inventory is None
            and sample.jobs is None
            and sample.ts[0] > before.ts[-1]
        )
        if mergeable and before is not None and at is not None:
            columns = {name: before.m[name] + sample.m[name] for name in sample.m}
            out[at] = replace(before, ts=before.ts + sample.ts, m=columns, seq=sample.seq)
        else:
            last_of[sample.node] = len(out)
            out.append(sample)
    return out


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(1, len(stream()) - 1), min_size=1, max_size=4))
def test_stopping_and_resuming_changes_nothing(stops: list[int]) -> None:
    alerts: list[AlertEvent] = []
    windows: list[WindowBatch] = []
    current = engine()
    edges = [0, *sorted(stops), len(stream())]
    for start, end in itertools.pairwise(edges):
        facts, arrays = current.dump()
        current = engine()
        assert current.load(facts, {name: a.copy() for name, a in arrays.items()}) == []
        outcome = current.process(stream()[start:end])
        alerts += outcome.alerts
        windows += outcome.windows
    assert ordered(alerts, windows) == undisturbed()


def test_repeating_the_whole_stream_changes_nothing() -> None:
    subject = engine()
    first = subject.process(stream())
    again = subject.process(stream())
    assert ordered(first.alerts, first.windows) == undisturbed()
    assert again.alerts == []
