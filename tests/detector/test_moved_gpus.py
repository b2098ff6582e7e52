"""A GPU that changes its node: what was open there ends when the message that says so was sent."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from telemetry import T0

from detector.detectors.lost import Lost
from detector.engine import Engine
from schemas.alert import AlertEvent, AlertState, parse_time
from schemas.sample import GpuInventory, Inventory, NodeSample

HOUR_MS = 3_600_000
LOST = {"power_watts": {"0": "error:15"}}


def sample(node: str, seq: int, ts: int, *gpus: str, lost: bool = False) -> NodeSample:
    watts = [None if lost and gpu == "GPU-1" else 400.0 for gpu in gpus]
    return NodeSample(
        node=node,
        boot_id="boot",
        seq=seq,
        ts=(ts,),
        gpu=gpus,
        m={"power_watts": watts},
        status=LOST if lost else {},
    )


def ends(tail: list[NodeSample], at_once: bool) -> list[AlertEvent]:
    """Lose GPU-1 on node b, then feed the tail; return what ended."""
    engine = Engine([Lost()], topic="t", partition=0)
    engine.process([sample("a", 0, T0 - HOUR_MS, "GPU-a"), sample("b", 0, T0, "GPU-1", "GPU-2")])
    engine.process(
        [sample("b", n, T0 + n * 1000, "GPU-1", "GPU-2", lost=True) for n in range(1, 40)]
    )
    said = []
    for batch in [tail] if at_once else [[one] for one in tail]:
        said += engine.process(batch).alerts
    return [alert for alert in said if alert.state == AlertState.RESOLVED]


@pytest.mark.parametrize("first", ["a", "c"])
def test_the_end_has_the_time_of_the_message_that_moved_the_gpu_however_batched(first: str) -> None:
    # Node a lives an hour behind; its time is nobody else's.
    tail = [sample("c", 0, T0 + 40_000, "GPU-1"), sample("a", 1, T0 - HOUR_MS + 1000, "GPU-a")]
    tail.sort(key=lambda one: one.node != first)
    apart, together = ends(tail, at_once=False), ends(tail, at_once=True)
    assert apart == together
    assert [one.end_reason for one in apart] == ["gpu_moved"]
    assert parse_time(str(apart[0].ended_at)) == T0 + 40_000


def test_nothing_ends_before_it_began_though_the_new_node_lives_behind() -> None:
    (end,) = ends([sample("c", 0, T0 - HOUR_MS, "GPU-1")], at_once=True)
    assert parse_time(str(end.ended_at)) >= parse_time(end.started_at)


@pytest.mark.parametrize("key", ["9" * 5000, "²", "-1", "99999999", ""])
def test_a_status_of_a_cell_that_is_not_there_changes_nothing(key: str) -> None:
    engine = Engine([Lost()], topic="t", partition=0)
    for number in range(60):
        plain = sample("n", number, T0 + number * 1000, "GPU-1", "GPU-2")
        codes = {key: "error:15"}
        said = engine.process([replace(plain, status={"power_watts": codes})]).alerts
        assert said == []


# -- who owns a GPU: the node that lists it --------------------------------------------------------


def inventory(*gpus: str) -> Inventory:
    return Inventory(
        gpus=tuple(GpuInventory(gpu=gpu, index=i, model="H100") for i, gpu in enumerate(gpus))
    )


def told(stream: list[NodeSample], cuts: list[int], restart: int | None = None) -> list[Any]:
    """Feed the stream cut into batches, after a restart before one message; say what came of it."""
    engine, said, windows = Engine([Lost()], topic="t", partition=0), [], []
    for start, end in itertools.pairwise([0, *cuts, len(stream)]):
        if start == restart:
            facts, arrays = engine.dump()
            engine = Engine([Lost()], topic="t", partition=0)
            assert engine.load(facts, {name: array.copy() for name, array in arrays.items()}) == []
        outcome = engine.process(stream[start:end])
        said += outcome.alerts
        windows += [(w.node, w.start, w.gpu, w.samples) for w in outcome.windows]
    return [sorted(said, key=lambda a: (a.observed_at, a.seq)), sorted(windows)]


def and_back() -> list[NodeSample]:
    """GPU-1 goes from a to b, is lost there, and a lists it again with the inventory it had."""
    return [
        replace(sample("a", 0, T0, "GPU-a", "GPU-1"), inventory=inventory("GPU-a", "GPU-1")),
        replace(sample("b", 0, T0, "GPU-b"), inventory=inventory("GPU-b")),
        sample("b", 1, T0 + 1000, "GPU-1", "GPU-b"),
        sample("b", 2, T0 + 2000, "GPU-1", "GPU-b", lost=True),
        replace(sample("a", 1, T0 + 3000, "GPU-a", "GPU-1"), inventory=inventory("GPU-a", "GPU-1")),
        sample("b", 3, T0 + 12_000, "GPU-b"),
        sample("a", 2, T0 + 13_000, "GPU-a", "GPU-1"),
    ]


def named_elsewhere() -> list[NodeSample]:
    """A new node c names GPU-1 of node a, and does not list it."""
    return [
        replace(sample("a", 0, T0, "GPU-1", "GPU-a"), inventory=inventory("GPU-1", "GPU-a")),
        sample("a", 1, T0 + 1000, "GPU-1", "GPU-a", lost=True),
        replace(sample("c", 0, T0 + 2000, "GPU-c"), inventory=inventory("GPU-c", "GPU-1")),
        sample("a", 2, T0 + 12_000, "GPU-1", "GPU-a", lost=True),
        sample("c", 1, T0 + 13_000, "GPU-c"),
    ]


def old_keyframe() -> list[NodeSample]:
    """Node a goes on naming GPU-1, which b lists and loses."""
    return [
        replace(sample("a", 0, T0, "GPU-a", "GPU-1"), inventory=inventory("GPU-a", "GPU-1")),
        replace(sample("b", 0, T0, "GPU-b"), inventory=inventory("GPU-b")),
        sample("b", 1, T0 + 1000, "GPU-1", "GPU-b"),
        sample("b", 2, T0 + 2000, "GPU-1", "GPU-b", lost=True),
        replace(sample("a", 1, T0 + 3000, "GPU-a"), inventory=inventory("GPU-a", "GPU-1")),
        sample("b", 3, T0 + 4000, "GPU-1", "GPU-b", lost=True),
        sample("b", 4, T0 + 13_000, "GPU-1", "GPU-b", lost=True),
    ]


@pytest.mark.parametrize(
    ("made", "owner", "states"),
    [
        (and_back, "b", ["firing", "resolved"]),
        (named_elsewhere, "a", ["firing"]),
        (old_keyframe, "b", ["firing"]),
    ],
)
def test_a_gpu_belongs_to_the_node_that_lists_it_however_batched_or_restarted(
    made: Callable[[], list[NodeSample]], owner: str, states: list[str]
) -> None:
    stream = made()
    singly = list(range(1, len(stream)))
    plain = told(stream, singly)
    assert [(a.subject.node, a.state) for a in plain[0]] == [(owner, state) for state in states]
    for first in range(1, len(stream)):
        for second in range(first, len(stream)):
            assert told(stream, [first, second]) == plain
    for restart in singly:
        assert told(stream, singly, restart) == plain


def test_a_gpu_that_comes_back_is_known_again_by_its_unchanged_inventory() -> None:
    engine = Engine([Lost()], topic="t", partition=0)
    engine.process(and_back())
    row = engine.fleet.find("GPU-1", engine.fleet.node_of("a"), None)
    assert row is not None
    assert engine.fleet.gpu_table["model"][row] >= 0
