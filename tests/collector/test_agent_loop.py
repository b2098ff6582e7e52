"""The loop of the collector: beat, contiguity, deadlines, ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.memory import MemoryBus
from bus.protocol import Record
from collector.agent import CollectorService
from collector.clock import ManualClock, SystemClock, Ticker
from collector.nvml import NvmlSource
from collector.reading import DirectReader, ThreadReader
from collector.settings import CollectorSettings
from collector.source import Reading
from schemas.codec import decode_sample
from schemas.errors import SourceError
from schemas.sample import Inventory, NodeSample, SampleEvent
from schemas.topics import SAMPLES
from tests.collector.fake_nvml import Err, FakeGpu, FakeNvml

T0 = 1_790_000_000_000


class ScriptedSource:
    """Two GPUs; ``cost`` says how long the reading of each tick takes, in fake seconds."""

    def __init__(
        self,
        clock: ManualClock,
        cost: Callable[[int], float] = lambda _: 0.0,
        kind: str = "simulated",
        nodes: tuple[str, ...] = ("n1",),
    ) -> None:
        self.kind = kind
        self.clock = clock
        self.cost = cost
        self.nodes = nodes
        self.asked: list[int] = []
        self.closed = False
        self.events: dict[int, SampleEvent] = {}
        self.raises: set[int] = set()

    @property
    def exhausted(self) -> bool:
        return False

    def read(self, ts_ms: int) -> list[Reading]:
        number = len(self.asked)
        self.asked.append(ts_ms)
        self.clock.advance(self.cost(number))
        if number in self.raises:
            raise RuntimeError("a defect")
        event = self.events.get(number)
        return [
            Reading(
                node=node,
                ts=ts_ms,
                gpus=("A", "B"),
                values={"power_watts": [1.0, float(number)]},
                events=() if event is None else (event,),
                inventory=Inventory(expected_gpus=2),
            )
            for node in self.nodes
        ]

    def close(self) -> None:
        self.closed = True


class HangingReader:
    """A reader whose reading begun at tick ``hang`` ends only after ``seconds``, or never."""

    def __init__(
        self, source: ScriptedSource, clock: ManualClock, hang: int, seconds: float | None
    ) -> None:
        self._source, self._clock, self._hang, self._seconds = source, clock, hang, seconds
        self._done_at: float | None = None
        self._ts: int | None = None
        self.begun = 0

    @property
    def busy(self) -> bool:
        return self._ts is not None

    def begin(self, ts_ms: int) -> None:
        assert not self.busy, "a second reading beside one that hangs"
        self._ts = ts_ms
        now = self._clock.monotonic()
        self._done_at = now
        if self.begun == self._hang:
            self._done_at = None if self._seconds is None else now + self._seconds
        self.begun += 1

    def result(self, until: float, stop: threading.Event) -> list[Reading] | None:
        del stop
        if self._done_at is None or self._done_at > until:
            self._clock.advance(max(0.0, until - self._clock.monotonic()))
            return None
        self._clock.advance(max(0.0, self._done_at - self._clock.monotonic()))
        ts, self._ts = self._ts, None
        assert ts is not None
        return self._source.read(ts)


def settings(**changes: object) -> CollectorSettings:
    return CollectorSettings(**{"source": "simulated", "node": "n1", **changes})  # type: ignore[arg-type]


def records(bus: MemoryBus) -> list[Record]:
    reader = bus.subscriber(group="test", topics=[SAMPLES.full_name()])
    found: list[Record] = []
    while batch := reader.poll(1000, 0.0):
        found += batch
    reader.close()
    return found


def samples(bus: MemoryBus, node: str = "n1") -> list[NodeSample]:
    found = [decode_sample(record.value) for record in records(bus)]
    return [sample for sample in found if sample.node == node]


def run(service: CollectorService) -> None:
    service.run(threading.Event())


def value(service: CollectorService, name: str, **labels: str) -> float:
    found = service.registry.get_sample_value(f"foreshock_collector_{name}", labels)
    assert found is not None
    return found


def test_ticks_stand_at_multiples_of_the_interval_whatever_reading_costs() -> None:
    clock = ManualClock(stop_at=99.5)
    source = ScriptedSource(clock, cost=lambda number: 0.1 + 0.07 * (number % 5))
    run(CollectorService(source, MemoryBus(), settings(), clock=clock))
    assert source.asked == [T0 + 1000 * tick for tick in range(100)]
    assert source.closed


def test_a_slow_reading_skips_ticks_counts_them_and_never_piles_up() -> None:
    clock = ManualClock(stop_at=10.5)
    source = ScriptedSource(clock, cost=lambda number: 3.4 if number == 2 else 0.0)
    service = CollectorService(source, MemoryBus(), settings(), clock=clock)
    run(service)
    # The reading of second 2 ends at 5.4; seconds 3, 4 and 5 are gone.
    assert source.asked == [T0 + 1000 * tick for tick in (0, 1, 2, 6, 7, 8, 9, 10)]
    assert value(service, "ticks_missed_total") == 3.0


def test_a_reading_as_long_as_the_interval_loses_no_tick() -> None:
    clock = ManualClock(stop_at=10.5)
    source = ScriptedSource(clock, cost=lambda _: 1.0)
    run(CollectorService(source, MemoryBus(), settings(), clock=clock))
    assert source.asked == [T0 + 1000 * tick for tick in range(11)]


def test_ticker_forgives_rounding() -> None:
    ticker = Ticker(0.1, start=1e6)
    due = [ticker.next(1e6 + tick * 0.1).due for tick in range(1000)]
    assert due == [pytest.approx(1e6 + tick * 0.1) for tick in range(1000)]


def test_seq_is_contiguous_per_node_and_keyframes_come_every_minute() -> None:
    clock = ManualClock(stop_at=125.5)
    bus = MemoryBus()
    source = ScriptedSource(clock, nodes=("n1", "n2"))
    run(CollectorService(source, bus, settings(), clock=clock))
    for node in ("n1", "n2"):
        found = samples(bus, node)
        assert [sample.seq for sample in found] == list(range(127))
        assert len({sample.boot_id for sample in found}) == 1
        keyframes = [sample.seq for sample in found if sample.inventory is not None]
        assert keyframes == [0, 60, 120]
        assert {sample.collector.source for sample in found} == {"simulated"}
    assert all(record.key == decode_sample(record.value).node.encode() for record in records(bus))


def test_two_starts_on_one_boot_never_share_a_boot_id(tmp_path: Path) -> None:
    """Contiguous ``seq`` begins at 0 with each start: shared, they would look like repetitions."""
    ids = set()
    for start in (T0, T0 + 5000):
        clock = ManualClock(start_ms=start, stop_at=1.5)
        bus = MemoryBus()
        run(CollectorService(ScriptedSource(clock), bus, settings(), clock=clock))
        ids |= {sample.boot_id for sample in samples(bus)}
    assert len(ids) == 2


def test_flush_seconds_batch_and_an_event_flushes_at_once() -> None:
    clock = ManualClock(stop_at=20.5)
    bus = MemoryBus()
    source = ScriptedSource(clock)
    source.events[13] = SampleEvent(ts=T0 + 13_000, kind="xid", gpu="A", xid=79)
    run(CollectorService(source, bus, settings(flush_seconds=5.0), clock=clock))
    sizes = [len(sample.ts) for sample in samples(bus)]
    # First at once; 1-5, 6-10, 11-13 by the event, 14-18, rest at the stop, goodbye.
    assert sizes == [1, 5, 5, 3, 5, 2, 1]
    assert [s.events[0].kind for s in samples(bus) if s.events] == ["collector_started", "xid"]


def test_the_last_message_says_stopping_for_every_node() -> None:
    clock = ManualClock(stop_at=3.5)
    bus = MemoryBus()
    service = CollectorService(
        ScriptedSource(clock, nodes=("n1", "n2")), bus, settings(), clock=clock
    )
    run(service)
    for node in ("n1", "n2"):
        *others, last = samples(bus, node)
        assert last.collector.state == "stopping"
        assert last.gpu == ()
        assert last.ts[0] > others[-1].ts[-1]
        assert {sample.collector.state for sample in others} == {"ok"}
    assert service.health()["ok"] is False


def test_impossible_values_are_refused_whatever_the_source() -> None:
    clock = ManualClock(stop_at=0.5)
    bus = MemoryBus()

    class Lying(ScriptedSource):
        def read(self, ts_ms: int) -> list[Reading]:
            column: list[float | None] = [42.0, 4.0]
            return [
                Reading(
                    node="n1", ts=ts_ms, gpus=("A", "B"), values={"gpu_utilization_ratio": column}
                ),
                Reading(node="n1", ts=ts_ms + 1, gpus=("A",), values={"power_watts": [5.0]}),
            ]

    service = CollectorService(Lying(clock), bus, settings(), clock=clock)
    run(service)
    first = samples(bus)[0]
    assert first.m == {"gpu_utilization_ratio": [None, None]}
    assert first.status == {"gpu_utilization_ratio": {"0": "implausible", "1": "implausible"}}
    metric = "gpu_utilization_ratio"
    assert value(service, "implausible_values_total", metric=metric) == 2.0


def test_a_wall_clock_that_is_set_moves_the_time_stamps_once() -> None:
    clock = ManualClock(stop_at=6.5)
    source = ScriptedSource(clock)

    def step(number: int) -> float:
        if number == 2:
            clock.step_wall(60_000)
        return 0.0

    source.cost = step
    run(CollectorService(source, MemoryBus(), settings(), clock=clock))
    assert [ts - T0 for ts in source.asked] == [0, 1000, 2000, 63_000, 64_000, 65_000, 66_000]


def test_a_source_that_breaks_its_promise_does_not_silence_the_node() -> None:
    clock = ManualClock(stop_at=4.5)
    bus = MemoryBus()
    source = ScriptedSource(clock)
    source.raises = {1, 2}
    service = CollectorService(source, bus, settings(), clock=clock)
    run(service)
    states = [sample.collector.state for sample in samples(bus)]
    assert states == ["ok", "blind", "blind", "ok", "ok", "stopping"]
    assert value(service, "read_errors_total") == 2.0


def test_l08_a_call_that_never_returns_is_reported_after_the_deadline() -> None:
    clock = ManualClock(stop_at=20.5)
    bus = MemoryBus()
    source = ScriptedSource(clock, kind="nvml")
    reader = HangingReader(source, clock, hang=2, seconds=None)
    service = CollectorService(
        source, bus, settings(call_deadline_seconds=10.0), clock=clock, reader=reader
    )
    run(service)
    found = samples(bus)
    with_metrics = [sample.ts[0] - T0 for sample in found if sample.m]
    assert with_metrics == [0, 1000]
    beats = [s for s in found if s.collector.state == "unresponsive"]
    # The call begins at 2 s; its deadline ends with the tick of second 11.
    assert [sample.ts[0] - T0 for sample in beats] == [1000 * tick for tick in range(11, 21)]
    assert all(sample.gpu == () and sample.m == {} for sample in beats)
    assert found[-1].collector.state == "stopping"
    assert reader.begun == 3  # no second call beside the one that hangs
    assert not source.closed  # closing would hang in the same driver


def test_l08_the_heartbeat_comes_at_the_deadline_even_between_slow_ticks() -> None:
    clock = ManualClock(stop_at=65.0)
    bus = MemoryBus()
    source = ScriptedSource(clock, kind="nvml")
    reader = HangingReader(source, clock, hang=1, seconds=None)
    service = CollectorService(
        source,
        bus,
        settings(interval_seconds=30.0, call_deadline_seconds=10.0),
        clock=clock,
        reader=reader,
    )
    run(service)
    assert [sample.collector.state for sample in samples(bus)] == [
        "ok",
        "unresponsive",
        "unresponsive",
        "stopping",
    ]


def test_l08_a_late_answer_is_published_behind_the_heartbeats() -> None:
    clock = ManualClock(stop_at=20.5)
    bus = MemoryBus()
    source = ScriptedSource(clock, kind="nvml")
    reader = HangingReader(source, clock, hang=1, seconds=13.5)
    service = CollectorService(source, bus, settings(), clock=clock, reader=reader)
    run(service)
    found = samples(bus)
    assert [s.collector.state for s in found].count("unresponsive") == 5  # seconds 10 to 14
    times = [sample.ts[0] for sample in found]
    assert times == sorted(set(times))
    assert [s.seq for s in found] == list(range(len(found)))
    assert found[-2].collector.state == "ok"


def test_a_slow_answer_within_the_deadline_keeps_its_time_and_brings_no_alarm() -> None:
    clock = ManualClock(stop_at=8.5)
    bus = MemoryBus()
    source = ScriptedSource(clock, kind="nvml")
    reader = HangingReader(source, clock, hang=2, seconds=2.5)
    service = CollectorService(source, bus, settings(), clock=clock, reader=reader)
    run(service)
    found = [sample for sample in samples(bus) if sample.m]
    assert [s.ts[0] - T0 for s in found] == [0, 1000, 2000, 5000, 6000, 7000, 8000]
    assert {s.collector.state for s in found} == {"ok"}
    assert value(service, "ticks_missed_total") == 2.0


def test_the_thread_hands_over_results_and_errors_and_survives_a_hang() -> None:
    gate = threading.Event()

    class Gated(ScriptedSource):
        def read(self, ts_ms: int) -> list[Reading]:
            if ts_ms == 2:
                gate.wait(30)
            if ts_ms == 3:
                raise ValueError("a defect")
            return super().read(ts_ms)

    clock, never = SystemClock(), threading.Event()
    reader = ThreadReader(Gated(ManualClock()), clock)

    def soon() -> float:
        return clock.monotonic() + 10

    reader.begin(1)
    readings = reader.result(soon(), never)
    assert readings is not None
    assert readings[0].ts == 1
    reader.begin(2)
    assert reader.result(clock.monotonic() + 0.05, never) is None
    assert reader.busy
    assert not reader.close(timeout_seconds=0.05)
    gate.set()
    assert reader.result(soon(), never) is not None
    assert not reader.busy


def test_the_thread_hands_over_a_defect_as_an_exception() -> None:
    source = ScriptedSource(ManualClock())
    source.raises = {0}
    reader = ThreadReader(source, SystemClock())
    reader.begin(1)
    with pytest.raises(RuntimeError, match="a defect"):
        reader.result(SystemClock().monotonic() + 10, threading.Event())
    assert reader.close()


def test_a_wait_for_the_thread_ends_soon_after_the_stop() -> None:
    gate, stop = threading.Event(), threading.Event()

    class Gated(ScriptedSource):
        def read(self, ts_ms: int) -> list[Reading]:
            gate.wait(30)
            return super().read(ts_ms)

    clock = SystemClock()
    reader = ThreadReader(Gated(ManualClock()), clock)
    reader.begin(1)
    stop.set()
    started = time.monotonic()
    assert reader.result(clock.monotonic() + 60, stop) is None
    assert time.monotonic() - started < 5
    gate.set()
    assert reader.close(timeout_seconds=10)


def test_the_service_with_nvml_publishes_and_ends_on_real_time() -> None:
    """The whole of it with threads and the system's clock."""
    nvml = FakeNvml(FakeGpu("GPU-A"), FakeGpu("GPU-B"))
    bus = MemoryBus()
    service = CollectorService(
        NvmlSource(nvml, node="n1"),  # type: ignore[arg-type]
        bus,
        settings(source="nvml", interval_seconds=0.05, flush_seconds=0.05),
    )
    stop = threading.Event()
    thread = threading.Thread(target=service.run, args=(stop,))
    thread.start()
    deadline = time.monotonic() + 20
    while value(service, "messages_sent_total") < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    health = service.health()
    nvml.gpus[0].everything = Err(15)
    while time.monotonic() < deadline and not any(
        event.kind == "gpu_lost" for sample in samples(bus) for event in sample.events
    ):
        time.sleep(0.02)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert health["ok"] is True
    assert health["gpus"] == 2
    found = samples(bus)
    assert [sample.seq for sample in found] == list(range(len(found)))
    assert found[-1].collector.state == "stopping"
    assert any(event.gpu == "GPU-A" for sample in found for event in sample.events)
    assert nvml.counts["nvmlShutdown"] == 1


class Recording:
    """Three nodes' worth of old readings in two boots."""

    kind = "replay"
    interval_seconds = 0.5

    def __init__(self, steps: int) -> None:
        self.boot_id = "boot-1"
        self._steps = steps
        self._step = 0
        self.closed = False
        self.fails_at: int | None = None

    @property
    def exhausted(self) -> bool:
        return self._step >= self._steps

    def read(self, ts_ms: int) -> list[Reading]:
        del ts_ms
        step = self._step
        if step == self.fails_at:
            raise SourceError("the file ended in the middle of a line")
        self._step += 1
        if step == self._steps // 2:
            self.boot_id = "boot-2"
        ts = 1_600_000_000_000 + (step % (self._steps // 2)) * 500
        return [
            Reading(node=f"old-{i}", ts=ts, gpus=("A",), values={"power_watts": [float(step)]})
            for i in range(3)
        ]

    def close(self) -> None:
        self.closed = True


def test_a_recording_is_read_to_its_end_in_order_and_ends_the_service() -> None:
    bus = MemoryBus(capacity=5)  # far smaller than the recording: it waits, it loses nothing
    source = Recording(40)
    service = CollectorService(source, bus, settings(source="replay", flush_seconds=2.0))
    run(service)
    assert source.closed
    for node in ("old-0", "old-1", "old-2"):
        found = samples(bus, node)
        power = [watts for sample in found for watts in sample.m["power_watts"]]
        assert power == [float(step) for step in range(40)]
        for boot in ("boot-1", "boot-2"):
            part = [sample for sample in found if sample.boot_id == boot]
            assert [sample.seq for sample in part] == list(range(len(part)))
        assert max(len(sample.ts) for sample in found) == 4
        assert {sample.collector.interval_seconds for sample in found} == {0.5}
        assert not any(sample.events for sample in found)  # no start, no goodbye of our own
        assert "stopping" not in {sample.collector.state for sample in found}


def test_a_recording_that_cannot_be_read_on_ends_with_its_sentence() -> None:
    source = Recording(10)
    source.fails_at = 3
    service = CollectorService(source, MemoryBus(), settings(source="replay"))
    with pytest.raises(SourceError, match="middle of a line"):
        run(service)
    assert source.closed


def test_a_direct_reader_is_free_again_after_a_defect() -> None:
    source = ScriptedSource(ManualClock())
    source.raises = {0}
    reader = DirectReader(source)
    reader.begin(1)
    with pytest.raises(RuntimeError):
        reader.result(0.0, threading.Event())
    assert not reader.busy


def test_health_says_what_to_do_in_each_state() -> None:
    clock = ManualClock(stop_at=2.5)
    nvml = FakeNvml(system={"nvmlInit": Err(12)})
    seen = []

    class Watching(ScriptedSource):
        def __init__(self) -> None:
            super().__init__(clock)
            self.inner = NvmlSource(nvml, node="n1")  # type: ignore[arg-type]

        def read(self, ts_ms: int) -> list[Reading]:
            seen.append(service.health())
            return self.inner.read(ts_ms)

    service = CollectorService(Watching(), MemoryBus(), settings(), clock=clock)
    assert service.health()["ok"] is False
    run(service)
    assert seen[-1]["state"] == "no_library"
    assert seen[-1]["alive"] is True
    assert seen[-1]["ok"] is False
    assert "libnvidia-ml" in str(seen[-1]["detail"])
    assert value(service, "state", state="stopping") == 1.0
    assert value(service, "state", state="ok") == 0.0
