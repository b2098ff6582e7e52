"""The service over each kind of source that the settings can name."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bus.memory import MemoryBus
from collector.agent import CollectorService
from collector.clock import ManualClock
from collector.nvml import NvmlSource
from collector.replay.settings import ReplaySettings
from collector.settings import CollectorSettings, SourceKind
from collector.simulated.settings import SimulatedSettings
from collector.sources import open_source
from schemas.codec import decode_sample
from schemas.errors import SourceError
from schemas.sample import NodeSample
from tests.collector.fake_nvml import FakeGpu, FakeNvml


def samples(bus: MemoryBus) -> list[NodeSample]:
    reader = bus.subscriber(group="test", topics=["gpu.samples"])
    found = []
    while batch := reader.poll(1000, 0.0):
        found += [decode_sample(record.value) for record in batch]
    reader.close()
    return found


def test_the_simulated_fleet_is_published_by_node_as_any_other_source() -> None:
    settings = CollectorSettings(
        source=SourceKind.SIMULATED, simulated=SimulatedSettings(nodes=3, gpus=4, seed=7)
    )
    bus, clock = MemoryBus(), ManualClock(stop_at=10.5)
    service = CollectorService(open_source(settings), bus, settings, clock=clock)
    service.run(threading.Event())
    found = samples(bus)
    nodes = {sample.node for sample in found}
    assert len(nodes) == 3
    for node in nodes:
        own = [sample for sample in found if sample.node == node]
        assert [sample.seq for sample in own] == list(range(12))
        assert all(len(sample.gpu) == 4 for sample in own[:-1])
        assert own[0].inventory is not None
        assert own[-1].collector.state == "stopping"
    text = "foreshock_collector_implausible_values_total"
    refused = [
        sample.value
        for family in service.registry.collect()
        for sample in family.samples
        if sample.name == text
    ]
    assert refused == []


def test_a_replay_without_files_is_refused_with_a_sentence() -> None:
    settings = CollectorSettings(source=SourceKind.REPLAY, replay=ReplaySettings())
    with pytest.raises(SourceError, match="at least one file"):
        open_source(settings)


def test_nvml_opens_on_any_machine_and_the_service_says_its_state() -> None:
    # A minute between ticks: so long the child may take to come up on a machine that is fully used.
    settings = CollectorSettings(
        source=SourceKind.NVML, node="n1", interval_seconds=60.0, call_deadline_seconds=60.0
    )
    bus, clock = MemoryBus(), ManualClock(stop_at=330.0)
    CollectorService(open_source(settings), bus, settings, clock=clock).run(threading.Event())
    found = samples(bus)
    assert [sample.seq for sample in found] == list(range(len(found)))
    if found[0].gpu or Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    assert [s.collector.state for s in found] == ["no_library"] * 6 + ["stopping"]
    assert {sample.collector.nvml_error for sample in found[:-1]} == {12}
    assert all(sample.gpu == () and sample.m == {} for sample in found)


def test_l08_a_hung_driver_is_reported_and_does_not_hold_up_the_stop() -> None:
    gate = threading.Event()
    gpu = FakeGpu("GPU-A")
    nvml: Any = FakeNvml(gpu)
    settings = CollectorSettings(
        node="n1", interval_seconds=0.05, flush_seconds=0.05, call_deadline_seconds=0.2
    )
    bus, stop = MemoryBus(), threading.Event()
    service = CollectorService(NvmlSource(nvml, node="n1"), bus, settings)
    thread = threading.Thread(target=service.run, args=(stop,))
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not samples(bus) and time.monotonic() < deadline:
            time.sleep(0.01)
        gpu.calls["nvmlDeviceGetPowerUsage"] = lambda: gate.wait(60)
        states: set[str] = set()
        while "unresponsive" not in states and time.monotonic() < deadline:
            states = {str(service.health()["state"])}
            time.sleep(0.01)
        asked = nvml.counts["nvmlDeviceGetPowerUsage"]
        time.sleep(0.2)
        assert nvml.counts["nvmlDeviceGetPowerUsage"] == asked  # none beside the one that hangs
        health = service.health()
        stop.set()
        started = time.monotonic()
        thread.join(10)
        assert not thread.is_alive()
        assert time.monotonic() - started < 10
    finally:
        stop.set()
        gate.set()
    assert health["ok"] is False
    assert "does not answer" in str(health["detail"])
    last = samples(bus)[-1]
    assert last.collector.state == "stopping"
    assert nvml.counts["nvmlShutdown"] == 0  # it would hang in the same driver
