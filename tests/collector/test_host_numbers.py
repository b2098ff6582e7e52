"""Numbers of the machine travel with the samples of the GPUs that are in it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bus.memory import MemoryBus
from collector.agent import CollectorService
from collector.clock import ManualClock
from collector.nodecontext import NodeContext
from collector.settings import CollectorSettings
from collector.source import Reading
from collector.sources import open_host
from schemas.codec import decode_sample
from schemas.sample import HOST_NUMBERS, NodeSample
from schemas.topics import SAMPLES


class OneGpu:
    """A source of one GPU in this node and one in another."""

    kind = "simulated"
    exhausted = False

    def read(self, ts_ms: int) -> list[Reading]:
        return [
            Reading(node=node, ts=ts_ms, gpus=(f"GPU-{node}",), values={"power_watts": [1.0]})
            for node in ("n1", "n2")
        ]

    def close(self) -> None:
        """Nothing is open."""


def published(body: str) -> list[NodeSample]:
    bus, asked = MemoryBus(), iter(range(100))
    chosen = CollectorSettings.model_validate(
        {"source": "simulated", "node": "n1", "body": body, "slow_seconds": 10.0}
    )
    service = CollectorService(
        OneGpu(),
        bus,
        chosen,
        clock=ManualClock(stop_at=24.5),
        host_numbers=lambda: {"load1": float(next(asked))},
    )
    service.run(threading.Event())
    reader = bus.subscriber(group="t", topics=[SAMPLES.full_name()])
    found = []
    while batch := reader.poll(1000, 0.0):
        found += [decode_sample(r.value, dict(r.headers)["content-type"]) for r in batch]
    reader.close()
    return found


@pytest.mark.parametrize("body", ["json", "binary"])
def test_they_travel_every_slow_seconds_and_only_with_their_own_node(body: str) -> None:
    samples = published(body)
    told = [sample for sample in samples if sample.host is not None]
    assert [sample.host for sample in told] == [{"load1": 0.0}, {"load1": 1.0}, {"load1": 2.0}]
    assert {sample.node for sample in told} == {"n1"}
    first, second, third = (sample.ts[0] for sample in told)
    assert (second - first, third - second) == (10_000, 10_000)


def test_the_names_are_those_of_the_contract() -> None:
    context = NodeContext()
    context.values()
    found = context.values()
    assert set(found) <= set(HOST_NUMBERS)
    assert set(HOST_NUMBERS) - set(found) <= {"cpu_utilization_ratio"}  # two looks in one tick
    assert 0 < found["memory_available_bytes"] <= found["memory_total_bytes"]


def test_a_share_of_processor_time_is_that_since_ones_own_last_look() -> None:
    def times(user: float, idle: float) -> Any:
        return Times(user=user, idle=idle, iowait=10.0, guest=5.0)

    class Times(SimpleNamespace):
        def __iter__(self) -> Any:
            return iter(self.__dict__.values())

    context = NodeContext()
    assert context._cpu(times(100.0, 500.0)) is None
    assert context._cpu(times(100.0, 500.0)) is None, "no time has passed"
    assert context._cpu(times(130.0, 570.0)) == pytest.approx(0.3)


def test_a_machine_that_hides_its_numbers_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    context = NodeContext()
    context.values()
    monkeypatch.setattr("psutil.PROCFS_PATH", str(Path("/nonexistent")))
    assert context.values() == {}
    assert dict(context()) == {}


def test_they_are_looked_for_only_where_the_gpus_are_in_this_machine() -> None:
    for source, wanted in (("nvml", True), ("amdsmi", True), ("dcgm", False), ("replay", False)):
        chosen = CollectorSettings.model_validate({"source": source, "node": "n1"})
        assert (open_host(chosen) is not None) == wanted
    off = CollectorSettings.model_validate({"node": "n1", "host_numbers": False})
    assert open_host(off) is None
