"""From a line in the kernel log to an alert: at once, for the right GPU, and once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.memory import MemoryBus
from bus.protocol import Record
from collector.agent import CollectorService
from collector.clock import ManualClock, SystemClock
from collector.host import HostFiles
from collector.kernel.log import KernelLog, open_kernel_log
from collector.kernel.settings import KernelLogSettings
from collector.reading import ThreadReader
from collector.settings import CollectorSettings, SourceKind
from collector.source import Reading
from collector.sources import open_events
from detector.pipeline import Pipeline
from schemas.alert import AlertEvent
from schemas.codec import decode_sample
from schemas.sample import CollectorState, GpuInventory, Inventory, NodeSample, SampleEvent
from schemas.topics import SAMPLES

T0 = 1_790_000_000_000
GPUS = ("GPU-0", "GPU-1")
INVENTORY = Inventory(
    gpus=(
        GpuInventory(gpu="GPU-0", index=0, pci="00000000:41:00.0", model="NVIDIA H100"),
        GpuInventory(gpu="GPU-1", index=1, pci="00000000:9B:00.0", model="NVIDIA H100"),
    ),
    expected_gpus=2,
)
XID = "NVRM: Xid (PCI:0000:9b:00): 119, pid=7, name=nvidia-smi, Timeout after 6s\n"


class TwoGpus:
    """Two healthy GPUs; the driver may tell of events and may hang."""

    kind = "simulated"
    exhausted = False

    def __init__(self) -> None:
        self.events: dict[int, SampleEvent] = {}
        self.count = 0
        self.hang: threading.Event | None = None
        self.writes: tuple[int, Path, str] | None = None
        self.written_at = 0.0

    def read(self, ts_ms: int) -> list[Reading]:
        number = self.begin()
        if self.hang is not None and number > 0:
            self.hang.wait(10)
        event = self.events.get(number)
        return [
            Reading(
                node="n1",
                ts=ts_ms,
                gpus=GPUS,
                values={"power_watts": [400.0, 401.0], "temperature_celsius": [50.0, 51.0]},
                events=() if event is None else (event,),
                inventory=INVENTORY,
            )
        ]

    def begin(self) -> int:
        """Count the reading, and write into the log during the one that was asked for."""
        number, self.count = self.count, self.count + 1
        if self.writes is not None and self.writes[0] == number:
            self.writes[1].write_text(self.writes[2])
            self.written_at = time.monotonic()
        return number

    def close(self) -> None:
        """Nothing to let go of."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.touch()
    return path


@pytest.fixture
def kernel(log: Path, tmp_path: Path) -> KernelLog:
    return open_kernel_log(
        KernelLogSettings(path=log), HostFiles(uptime=tmp_path / "no", boot_id=tmp_path / "no")
    )


def settings(**changes: object) -> CollectorSettings:
    return CollectorSettings.model_validate({"source": "simulated", "node": "n1", **changes})


def records(bus: MemoryBus) -> list[Record]:
    reader = bus.subscriber(group="test", topics=[SAMPLES.full_name()])
    found: list[Record] = []
    while batch := reader.poll(1000, 0.0):
        found += batch
    reader.close()
    return found


def samples(bus: MemoryBus) -> list[NodeSample]:
    return [decode_sample(record.value) for record in records(bus)]


def alerts(found: list[NodeSample]) -> list[AlertEvent]:
    pipeline = Pipeline()
    told = [event for sample in found for event in pipeline.feed([sample])]
    return [event for event in told if event.kind == "xid"]


def with_kernel(bus: MemoryBus) -> Iterator[tuple[NodeSample, SampleEvent]]:
    for sample in samples(bus):
        for event in sample.events:
            if event.kind == "xid":
                yield sample, event


def test_a_line_becomes_one_event_of_the_right_gpu_before_the_next_tick(
    log: Path, kernel: KernelLog
) -> None:
    clock = ManualClock(stop_at=95.0)
    source, bus = TwoGpus(), MemoryBus()
    # Written right after the second reading of a GPU that is read every half minute.
    source.writes = (1, log, XID)
    service = CollectorService(
        source,
        bus,
        settings(interval_seconds=30.0, flush_seconds=60.0),
        clock=clock,
        events=kernel,
    )
    service.run(threading.Event())
    ((sample, event),) = with_kernel(bus)
    assert (event.gpu, event.xid, event.pid, event.process) == ("GPU-1", 119, 7, "nvidia-smi")
    assert event.ts - T0 <= 30_250  # the reading of second 30 stood in the way of nothing
    assert sample.gpu == GPUS
    assert sample.collector.state == "ok"
    found = samples(bus)
    assert [message.seq for message in found] == list(range(len(found)))


def test_the_event_is_an_alert_of_the_gpu_and_its_message_disturbs_no_other(
    log: Path, kernel: KernelLog
) -> None:
    clock = ManualClock(stop_at=40.0)
    source, bus = TwoGpus(), MemoryBus()
    source.writes = (20, log, XID * 5)
    service = CollectorService(source, bus, settings(), clock=clock, events=kernel)
    service.run(threading.Event())
    pipeline = Pipeline()
    told = [event for sample in samples(bus) for event in pipeline.feed([sample])]
    (alert,) = {event.alert_id: event for event in told}.values()
    assert (alert.family, alert.kind, alert.severity) == ("hardware_error", "xid", "critical")
    assert alert.subject.gpu_uuid == "GPU-1"
    assert "Xid 119" in alert.summary
    assert "5 times" in alert.summary


def test_what_the_driver_and_the_kernel_both_tell_is_published_once(
    log: Path, kernel: KernelLog
) -> None:
    clock = ManualClock(stop_at=20.0)
    source, bus = TwoGpus(), MemoryBus()
    source.events[6] = SampleEvent(ts=T0 + 6000, kind="xid", gpu="GPU-1", xid=119)
    source.writes = (5, log, XID)
    service = CollectorService(source, bus, settings(), clock=clock, events=kernel)
    service.run(threading.Event())
    assert [event.xid for _, event in with_kernel(bus)] == [119]
    told = service.registry.get_sample_value(
        "foreshock_collector_kernel_events_total", {"kind": "xid"}
    )
    assert told == 1.0


def test_a_driver_that_hangs_does_not_keep_the_kernels_words_back(
    log: Path, kernel: KernelLog
) -> None:
    clock, stop, source, bus = SystemClock(), threading.Event(), TwoGpus(), MemoryBus()
    source.hang = threading.Event()
    source.writes = (1, log, XID)
    service = CollectorService(
        source,
        bus,
        settings(interval_seconds=0.05, flush_seconds=0.05, call_deadline_seconds=60.0),
        clock=clock,
        reader=ThreadReader(source, clock),
        events=kernel,
    )
    thread = threading.Thread(target=service.run, args=(stop,))
    thread.start()
    try:
        deadline = time.monotonic() + 10
        while not list(with_kernel(bus)) and time.monotonic() < deadline:
            time.sleep(0.01)
        heard = time.monotonic()
        ((sample, event),) = with_kernel(bus)
        assert event.gpu == "GPU-1"
        assert sample.gpu == GPUS
        assert heard - source.written_at < 2.0
    finally:
        source.hang.set()
        stop.set()
        thread.join(20)
    assert alerts(samples(bus))[0].subject.gpu_uuid == "GPU-1"


def test_without_any_gpu_the_address_still_comes_as_an_alert_of_the_node(
    log: Path, kernel: KernelLog
) -> None:
    class Blind(TwoGpus):
        def read(self, ts_ms: int) -> list[Reading]:
            self.begin()
            return [Reading(node="n1", ts=ts_ms, state=CollectorState.BLIND, nvml_error=999)]

    source, bus = Blind(), MemoryBus()
    source.writes = (3, log, XID)
    service = CollectorService(
        source, bus, settings(), clock=ManualClock(stop_at=10.0), events=kernel
    )
    service.run(threading.Event())
    ((sample, event),) = with_kernel(bus)
    assert (event.gpu, event.pci, sample.collector.state) == (None, "0000:9b:00", "blind")
    (alert,) = alerts(samples(bus))
    assert alert.subject.scope == "node"


def test_the_state_of_the_log_stands_in_health_and_metrics(log: Path, kernel: KernelLog) -> None:
    log.unlink()
    service = CollectorService(
        TwoGpus(), MemoryBus(), settings(), clock=ManualClock(stop_at=3.0), events=kernel
    )
    service.run(threading.Event())
    told = service.health()["kernel_log"]
    assert isinstance(told, dict)
    assert told["state"] == "missing"
    name = "foreshock_collector_kernel_log_state"
    assert service.registry.get_sample_value(name, {"state": "missing"}) == 1.0
    assert service.registry.get_sample_value(name, {"state": "reading"}) == 0.0


@pytest.mark.parametrize(
    ("source", "use", "opened"),
    [
        (SourceKind.NVML, "auto", True),
        (SourceKind.NVML, "off", False),
        (SourceKind.SIMULATED, "auto", False),
        (SourceKind.SIMULATED, "on", True),
        (SourceKind.REPLAY, "on", False),
    ],
)
def test_the_log_is_read_only_beside_the_gpus_of_this_node(
    source: SourceKind, use: str, opened: bool, log: Path
) -> None:
    chosen = CollectorSettings.model_validate(
        {"source": source, "node": "n1", "kernel": {"use": use, "path": log}}
    )
    events = open_events(chosen)
    assert (events is not None) == opened
    if events is not None:
        events.close()
