"""The agent over the child that reads the driver: let go, take back, change, hear at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bus.memory import MemoryBus
from collector.agent import CollectorService
from collector.batching import Batching, NodeBatcher
from collector.clock import ManualClock
from collector.nvmlparent import NvmlChildSource
from collector.readings import Group
from collector.settings import CollectorSettings
from collector.source import Reading
from schemas.codec import decode_sample
from schemas.sample import NodeSample
from schemas.topics import SAMPLES
from tests.nvml_standin.standin import Standin

Watch = Callable[..., NvmlChildSource]


def settings(**changes: object) -> CollectorSettings:
    base: dict[str, object] = {"source": "nvml", "node": "n1", "kernel": {"use": "off"}}
    return CollectorSettings.model_validate({**base, **changes})


def samples(bus: MemoryBus) -> list[NodeSample]:
    reader = bus.subscriber(group="test", topics=[SAMPLES.full_name()])
    found: list[NodeSample] = []
    while batch := reader.poll(1000, 0.0):
        found += [decode_sample(record.value) for record in batch]
    reader.close()
    return found


class Watcher:
    """Collects what is published while a service runs."""

    def __init__(self, bus: MemoryBus) -> None:
        self._reader = bus.subscriber(group="watcher", topics=[SAMPLES.full_name()])
        self.seen: list[NodeSample] = []

    def until(self, holds: Callable[[NodeSample], bool], seconds: float = 30.0) -> NodeSample:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for record in self._reader.poll(100, 0.05):
                self.seen.append(decode_sample(record.value))
                if holds(self.seen[-1]):
                    return self.seen[-1]
        raise AssertionError("it was not published in time")


@contextmanager
def running(service: CollectorService) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=service.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(15)
    assert not thread.is_alive()


def test_a_release_lets_go_of_the_gpus_says_so_and_takes_them_back(
    standin: Standin, watch: Watch
) -> None:
    bus = MemoryBus()
    service = CollectorService(watch(standin), bus, settings(interval_seconds=0.2))
    watcher = Watcher(bus)
    with running(service):
        watcher.until(lambda sample: len(sample.gpu) == 8)
        service.release()
        released = watcher.until(lambda sample: sample.collector.state == "released")
        assert released.gpu == ()
        assert standin.log()[-1][0] == "shutdown"
        assert "SIGUSR1" in str(service.health()["detail"])
        service.release()
        watcher.until(lambda sample: len(sample.gpu) == 8)
    last = samples(bus)[-1]
    assert last.collector.state == "stopping"
    assert [word for word, _ in standin.log()] == ["init", "shutdown"] * 2


def test_an_xid_is_published_between_two_ticks(standin: Standin, watch: Watch) -> None:
    bus = MemoryBus()
    service = CollectorService(watch(standin), bus, settings(interval_seconds=30, flush_seconds=30))
    watcher = Watcher(bus)
    with running(service):
        watcher.until(lambda sample: len(sample.gpu) == 8)
        until = time.monotonic() + 20
        while standin.listeners() < 8 and time.monotonic() < until:
            time.sleep(0.01)  # what happens before the registration does not arrive
        standin.happen(3, 0x8, 48)
        told = watcher.until(lambda sample: any(event.xid == 48 for event in sample.events), 15)
    (event,) = [event for event in told.events if event.kind == "xid"]
    assert event.gpu == told.gpu[3]


def test_metric_groups_change_while_running(standin: Standin, watch: Watch) -> None:
    bus = MemoryBus()
    service = CollectorService(watch(standin), bus, settings(interval_seconds=0.3))
    watcher = Watcher(bus)
    with running(service):
        full = watcher.until(lambda sample: "sm_activity_ratio" in sample.m)
        assert "fan_ratio" not in full.m  # an H100 has no fan: unsupported on the whole node
        service.change(settings(interval_seconds=0.3, groups=(Group.CORE,)))
        bare = watcher.until(lambda sample: bool(sample.m) and "pcie_generation" not in sample.m)
        assert "power_watts" in bare.m
        assert "sm_activity_ratio" not in bare.m
    assert [word for word, _ in standin.log()] == ["init", "shutdown"]  # by the same child


class Steady:
    """One GPU, read at no cost."""

    kind = "simulated"
    exhausted = False

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.then: dict[int, Callable[[], None]] = {}

    def read(self, ts_ms: int) -> list[Reading]:
        self.asked.append(ts_ms)
        self.then.get(len(self.asked), lambda: None)()
        return [Reading(node="n1", ts=ts_ms, gpus=("A",), values={"power_watts": [1.0]})]

    def close(self) -> None:
        """Nothing is held."""


def test_the_interval_changes_without_losing_a_tick() -> None:
    bus, clock, source = MemoryBus(), ManualClock(stop_at=40.0), Steady()
    service = CollectorService(
        source,
        bus,
        settings(source="simulated", interval_seconds=10, flush_seconds=20),
        clock=clock,
    )
    source.then[3] = lambda: service.change(
        settings(source="simulated", interval_seconds=1, flush_seconds=2)
    )
    service.run(threading.Event())
    start = source.asked[0]
    seconds = [(ts - start) / 1000 for ts in source.asked]
    # Ticks at 0, 10, 20 s; told at 20 s: from then on one per second, none left out.
    assert seconds == [0, 10, 20, *range(21, 40)]
    published = samples(bus)
    ticks = [ts for sample in published for ts in sample.ts]
    assert ticks[: len(seconds)] == source.asked
    assert [sample.seq for sample in published] == list(range(len(published)))
    assert published[-1].collector.interval_seconds == 1
    assert published[-1].collector.flush_seconds == 2
    missed = service.registry.get_sample_value("foreshock_collector_ticks_missed_total")
    assert missed == 0


def test_the_same_interval_told_again_moves_no_tick() -> None:
    bus, clock, source = MemoryBus(), ManualClock(stop_at=8.5), Steady()
    given = settings(source="simulated")
    service = CollectorService(source, bus, given, clock=clock)
    source.then[2] = source.then[5] = lambda: service.change(given)
    service.run(threading.Event())
    assert [ts - source.asked[0] for ts in source.asked] == [1000 * n for n in range(9)]


def test_other_rules_keep_what_is_pending_and_the_sequence() -> None:
    rules = Batching(interval_seconds=1, flush_seconds=60, keyframe_seconds=60, source="nvml")
    batcher = NodeBatcher("n1", "boot", rules)
    first = Reading(node="n1", ts=0, gpus=("A",), values={"power_watts": [1.0]})
    assert len(batcher.add(first)) == 1  # a new node speaks at once
    second = Reading(node="n1", ts=1000, gpus=("A",), values={"power_watts": [2.0]})
    assert batcher.add(second) == []
    fresh = Batching(interval_seconds=1, flush_seconds=1, keyframe_seconds=60, source="nvml")
    (kept,) = batcher.change(fresh)
    assert (kept.seq, kept.ts) == (1, (1000,))
    (next_one,) = batcher.add(Reading(node="n1", ts=2000, gpus=("A",)))
    assert (next_one.seq, next_one.collector.flush_seconds) == (2, 1)


def test_l08_a_driver_that_hangs_is_told_at_every_tick_and_comes_back(
    standin: Standin, watch: Watch
) -> None:
    bus = MemoryBus()
    source = watch(standin, deadline_seconds=1.0)
    service = CollectorService(
        source, bus, settings(interval_seconds=0.25, flush_seconds=0.25, call_deadline_seconds=1.0)
    )
    watcher = Watcher(bus)
    with running(service):
        well = watcher.until(lambda sample: len(sample.gpu) == 8)
        standin.say({"-.nvmlDeviceGetCount": "hang"})
        first = watcher.until(lambda sample: sample.collector.state == "unresponsive")
        for _ in range(3):
            again = watcher.until(lambda sample: sample.collector.state == "unresponsive")
        assert (again.gpu, again.m) == ((), {})
        assert again.ts[0] > first.ts[0]
        standin.say({"-.nvmlDeviceGetCount": 8})
        back = watcher.until(lambda sample: len(sample.gpu) == 8)
        assert back.gpu == well.gpu
        assert not any(event.kind == "gpu_returned" for event in back.events)
    found = samples(bus)
    assert [sample.seq for sample in found] == list(range(len(found)))


def test_l05_one_gpu_that_hangs_is_left_out_of_readings_that_go_on(
    standin: Standin, watch: Watch
) -> None:
    bus = MemoryBus()
    source = watch(standin, device_deadline_seconds=1.5)
    service = CollectorService(source, bus, settings(interval_seconds=1.0))
    watcher = Watcher(bus)
    with running(service):
        watcher.until(lambda sample: len(sample.gpu) == 8)
        standin.say({"6.nvmlDeviceGetUtilizationRates": "hang"})
        rest = [692.0] * 6 + [None, 692.0]
        hung = watcher.until(lambda sample: bool(sample.m) and sample.m["power_watts"] == rest)
        assert hung.collector.state == "ok"
        assert hung.status["power_watts"] == {"6": "error:10"}
        standin.say({"6.nvmlDeviceGetUtilizationRates": "99 60"})
        watcher.until(lambda sample: bool(sample.m) and sample.m["power_watts"][6] == 692.0)
