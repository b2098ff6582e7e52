"""A GPU that changes its node: what was open there ends when the message that says so was sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from telemetry import T0

from detector.detectors.lost import Lost
from detector.engine import Engine
from schemas.alert import AlertEvent, AlertState, parse_time
from schemas.sample import NodeSample

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
