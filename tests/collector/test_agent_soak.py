"""A day of the whole agent in a minute: every second of it, with outages, Xids and rotation."""

from __future__ import annotations

import gc
import re
import threading
from pathlib import Path

import pytest

from bus.memory import MemoryBus
from collector.agent import CollectorService
from collector.clock import ManualClock
from collector.host import HostFiles
from collector.kernel.log import KernelLog, open_kernel_log
from collector.kernel.settings import KernelLogSettings
from collector.settings import CollectorSettings
from collector.source import Reading
from schemas.metrics import CATALOGUE
from schemas.sample import GpuInventory, Inventory

HOUR = 3600
GPUS = tuple(f"GPU-{number}" for number in range(8))
INVENTORY = Inventory(
    gpus=tuple(
        GpuInventory(gpu=gpu, index=index, pci=f"00000000:{index + 1:02X}:00.0")
        for index, gpu in enumerate(GPUS)
    )
)


def state_of_process() -> tuple[int, int, int]:
    """Return resident KiB, open files and threads."""
    gc.collect()
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    files = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return int(found[1]), files, threading.active_count()


class Day:
    """Eight GPUs; once an hour the bus is away, a GPU reports an Xid, and the log is rotated."""

    kind = "simulated"
    exhausted = False

    def __init__(self, bus: MemoryBus, log: Path) -> None:
        self._bus, self._log = bus, log
        self._columns: dict[str, list[float | None]] = {
            metric.name: [metric.low + 0.5 * number for number in range(8)] for metric in CATALOGUE
        }
        self.ticks = 0
        self.states: list[tuple[int, int, int]] = []

    def read(self, ts_ms: int) -> list[Reading]:
        second = self.ticks % HOUR
        if second == 0:
            self._begin_hour()
        self._bus.outage = "the broker is away" if 600 <= second < 900 else None
        if second == 1800:
            with self._log.open("a") as file:
                file.write("NVRM: Xid (PCI:0000:03:00): 31, pid=7, name=python\n")
        self.ticks += 1
        status = {"power_watts": {self.ticks % 8: "stale"}}
        return [
            Reading(
                node="n1",
                ts=ts_ms,
                gpus=GPUS,
                values=self._columns,
                status=status,
                inventory=INVENTORY,
                pids={GPUS[0]: (self.ticks % 50,)},
            )
        ]

    def _begin_hour(self) -> None:
        self.states.append(state_of_process())
        self._log.replace(self._log.with_name(f"{self._log.name}.1"))
        self._log.touch()

    def close(self) -> None:
        """Nothing is open."""


def kernel_log(path: Path) -> KernelLog:
    nowhere = HostFiles(uptime=Path("/nonexistent"), boot_id=Path("/nonexistent"))
    return open_kernel_log(KernelLogSettings(path=path, place=path.with_name("place")), nowhere)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # four minutes on a machine that is fully used
def test_a_day_of_every_second_leaves_memory_files_and_threads_flat(tmp_path: Path) -> None:
    bus, log = MemoryBus(keep_records=100), tmp_path / "kern.log"
    log.touch()
    day = Day(bus, log)
    settings = CollectorSettings.model_validate(
        {
            "source": "simulated",
            "node": "n1",
            "spool": {"path": tmp_path / "spool.sqlite", "jitter_seconds": 30.0},
        }
    )
    service = CollectorService(
        day,
        bus,
        settings,
        clock=ManualClock(stop_at=24.0 * HOUR + 10.0),
        events=kernel_log(log),
        host_numbers=lambda: {"load1": 1.0},
    )
    service.run(threading.Event())

    assert day.ticks >= 24 * HOUR
    told = service.registry.get_sample_value(
        "foreshock_collector_kernel_events_total", {"kind": "xid"}
    )
    assert told == 24, "one an hour, over every rotation"
    for reason in ("bound", "age", "disk", "too_large"):
        name = "foreshock_collector_messages_dropped_total"
        assert not service.registry.get_sample_value(name, {"reason": reason})
    # The first two hours fill caches, and the tables of the spool.
    settled, last = day.states[2], day.states[24]
    assert last[0] - settled[0] < 4096, f"KiB by hour: {[state[0] for state in day.states]}"
    assert last[1] <= settled[1]
    assert last[2] == settled[2]
    assert (tmp_path / "spool.sqlite").stat().st_size < 64 * 2**20
    assert log.with_name("place").stat().st_size < 1024
