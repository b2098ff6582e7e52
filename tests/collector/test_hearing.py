"""Who tells between two readings is waited for, and only who cannot call is asked."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bus.memory import MemoryBus
from collector.agent import CollectorService
from collector.clock import SystemClock
from collector.hearing import Hearing
from collector.kernel.feed import FeedState
from collector.kernel.kmsg import KmsgFeed
from collector.kernel.log import KernelLog
from collector.metrics import CollectorMetrics
from collector.settings import CollectorSettings
from collector.source import Reading
from collector.sources import open_events
from schemas.codec import decode_sample
from schemas.topics import SAMPLES


class Pipe:
    """Stands for /dev/kmsg: one record per write, and a descriptor that says when there is one."""

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe2(os.O_NONBLOCK)

    def say(self, text: str, seq: int) -> None:
        up = round(float(Path("/proc/uptime").read_text().split()[0]) * 1e6)
        os.write(self._write_end, f"4,{seq},{up},-;{text}\n".encode())

    def close(self) -> None:
        os.close(self._write_end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


class Quiet:
    """A source that is told of nothing by itself."""

    kind = "simulated"
    exhausted = False

    def read(self, ts_ms: int) -> list[Reading]:
        return [Reading(node="n1", ts=ts_ms, gpus=("GPU-a",), values={"power_watts": [1.0]})]

    def close(self) -> None:
        """Nothing is open."""


class Calling(Quiet):
    """One that has a descriptor."""

    def heard(self) -> tuple[()]:
        return ()

    def ears(self) -> tuple[int, ...]:
        return (7,)


class Asked(Quiet):
    """One that can only be asked."""

    def heard(self) -> tuple[()]:
        return ()


def kmsg(fd: int) -> KernelLog:
    return KernelLog(KmsgFeed(Path("/dev/kmsg"), boot_id="b", open_log=lambda: fd))


def metrics() -> CollectorMetrics:
    return CollectorMetrics(CollectorRegistry())


def test_a_log_calls_once_it_is_open_and_a_plain_file_never(pipe: Pipe, tmp_path: Path) -> None:
    log = kmsg(pipe.read_end)
    assert log.ears() is None, "not open yet"
    log.poll(0)
    assert log.ears() == (pipe.read_end,)
    log.close()
    plain = tmp_path / "file"
    plain.touch()
    other = kmsg(os.open(plain, os.O_RDONLY))
    other.poll(0)
    assert other.ears() is None
    assert other.health()["state"] == FeedState.READING
    other.close()


def test_a_text_log_and_a_refused_one_are_asked(tmp_path: Path) -> None:
    (tmp_path / "kern.log").touch()
    chosen = CollectorSettings.model_validate(
        {"node": "n", "kernel": {"path": tmp_path / "kern.log"}}
    )
    log = open_events(chosen)
    assert log is not None
    log.poll(0)
    assert Hearing(Quiet(), log, metrics()).ears() is None
    log.close()


def test_one_that_can_only_be_asked_makes_all_be_asked(pipe: Pipe) -> None:
    log = kmsg(pipe.read_end)
    log.poll(0)
    assert Hearing(Quiet(), None, metrics()).ears() == ()
    assert Hearing(Calling(), log, metrics()).ears() == (7, pipe.read_end)
    assert Hearing(Asked(), log, metrics()).ears() is None
    log.close()


class CountingClock(SystemClock):
    """The clock of the machine, which counts how often the loop looked."""

    def __init__(self) -> None:
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return super().monotonic()


def test_the_loop_sleeps_until_it_is_called_and_then_tells_at_once(pipe: Pipe) -> None:
    clock, bus, stop = CountingClock(), MemoryBus(), threading.Event()
    chosen = CollectorSettings.model_validate(
        {"source": "simulated", "node": "n1", "interval_seconds": 30.0}
    )
    log = kmsg(pipe.read_end)
    service = CollectorService(Quiet(), bus, chosen, clock=clock, events=log)
    thread = threading.Thread(target=service.run, args=(stop,))
    thread.start()
    reader = bus.subscriber(group="t", topics=[SAMPLES.full_name()])
    try:
        found: list[int | None] = []
        said = False
        deadline = time.monotonic() + 20  # before the next tick
        while 79 not in found and time.monotonic() < deadline:
            for record in reader.poll(100, 0.05):
                sample = decode_sample(record.value)
                found += [event.xid for event in sample.events]
            if found and not said:
                pipe.say("NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.", 1)
                said = True
        assert 79 in found
    finally:
        stop.set()
        thread.join(60)
        reader.close()
    # A few looks for the tick, the record and each second of the wait; a loop that spins on a
    # descriptor that stays readable would make many thousands.
    assert clock.looks < 1000
