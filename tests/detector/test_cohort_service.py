"""Both tiers as a service: a job whose nodes are in two partitions, stopped and gone on."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from test_cohort_members import node_samples, through_both_tiers
from test_service import publish, running, until

from bus.memory import MemoryBus
from bus.placement import partition_of
from bus.protocol import Record
from detector.consuming import Consuming, Wiring
from detector.metrics import DetectorMetrics
from detector.registry import available
from detector.service import DetectorService
from detector.settings import DetectorSettings
from detector.snapshots import MemorySnapshots
from detector.worker import Output
from schemas.alert import AlertEvent
from schemas.codec import decode_alert
from schemas.sample import NodeSample
from schemas.topics import ALERTS, SAMPLES, WINDOWS

NODES = ("n0", "n1", "n2")


def imbalance(alerts: Sequence[AlertEvent]) -> set[tuple[str, int]]:
    return {(a.alert_id, a.seq) for a in alerts if a.family == "load_imbalance"}


def told(bus: MemoryBus) -> list[AlertEvent]:
    return [decode_alert(record.value) for record in bus.read_all(ALERTS.name)]


def saved(store: MemorySnapshots, topic: str) -> int:
    """Records of a topic that are in the snapshots."""
    snapshots = [store.load(topic, partition) for partition in range(2)]
    return sum(one.next_offset for one in snapshots if one is not None)


def worked_off(bus: MemoryBus, store: MemorySnapshots, samples: int) -> bool:
    """All samples are in the snapshots, and all windows that came of them as well."""
    windows = len(list(bus.read_all(WINDOWS.name)))
    return saved(store, SAMPLES.name) >= samples and saved(store, WINDOWS.name) >= windows


def test_a_slow_node_is_found_over_two_partitions_and_over_a_restart(tmp_path: Path) -> None:
    """The second service goes on from the snapshots of the first; nothing is told twice."""
    assert len({partition_of(node.encode(), 2) for node in NODES}) == 2
    nodes = [node_samples(node, slow_all=node == "n1") for node in NODES]
    want = imbalance(through_both_tiers(nodes))
    assert len(want) == 1
    wanted = {"straggler", "hang", "job_straggler", "job_hang"}
    names = {*available(), "multivariate", "drift"} - wanted
    settings = DetectorSettings(
        checkpoint_seconds=0.1, poll_records=64, disabled=tuple(sorted(names))
    )
    bus, store = MemoryBus(partitions=2), MemorySnapshots()
    whole: list[NodeSample] = [one for tick in zip(*nodes, strict=True) for one in tick]
    stop = 3 * 190  # the node has been slow for twenty seconds, and nobody has said so yet
    for part, so_far in ((whole[:stop], stop), (whole[stop:], len(whole))):
        publish(bus, part)
        service = DetectorService(bus, settings, data_dir=tmp_path, snapshots=store)
        with running(service):
            until(
                lambda count=so_far: worked_off(bus, store, count),  # type: ignore[misc]  # bound at once
                "everything is worked off",
                120.0,
            )
    assert imbalance(told(bus)) == want


class Slow:
    """A worker that waits in the middle of its work until it is let go."""

    def __init__(self) -> None:
        self.working, self.go = threading.Event(), threading.Event()

    def process(self, records: Sequence[Record], *, caught_up: bool) -> Output:
        if records:
            self.working.set()
            self.go.wait(30)
        return Output()

    def silence(self, now_ms: int) -> Output:
        return Output()

    def open_alerts(self) -> int:
        return 0

    def dump(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {}

    def load(self, facts: dict[str, Any], arrays: Mapping[str, Any]) -> list[str]:
        return []


def test_what_is_read_and_not_yet_worked_off_is_not_settled() -> None:
    """Else the cohort tier took a node for silent whose windows are just being made."""
    bus, slow = MemoryBus(partitions=1), Slow()
    publish(bus, node_samples("n0")[:3])
    wiring = Wiring(
        bus=bus,
        source=SAMPLES,
        prefix="",
        group="g",
        make=lambda _: slow,
        snapshots=MemorySnapshots(),
        metrics=DetectorMetrics(CollectorRegistry()),
        checkpoint_seconds=600.0,
        poll_records=16,
    )
    loop = Consuming(wiring)
    with running(loop):
        assert slow.working.wait(30)
        until(lambda: loop.lag == 0, "all is read")
        assert not loop.settled
        slow.go.set()
        until(lambda: loop.settled, "the work is done")
