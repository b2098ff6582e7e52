"""Ten hours without a bus, time compressed: everything waits on disk, and all of it arrives."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from bus.memory import MemoryBus
from collector.agent import CollectorService
from collector.clock import ManualClock
from collector.settings import CollectorSettings
from collector.source import Reading
from schemas.codec import decode_sample
from schemas.metrics import CATALOGUE
from schemas.sample import NodeSample

HOUR = 3600.0
JITTER_SECONDS = 60.0
GPUS = tuple(f"GPU-{number}" for number in range(8))


class Node:
    """A node with eight GPUs and the whole catalogue; takes the bus away between two times."""

    kind = "simulated"
    exhausted = False

    def __init__(self, bus: MemoryBus, clock: ManualClock, away: tuple[float, float]) -> None:
        self._bus, self._clock, self._away = bus, clock, away
        self._columns: dict[str, list[float | None]] = {
            metric.name: [metric.low + 0.5 * number for number in range(8)] for metric in CATALOGUE
        }

    def read(self, ts_ms: int) -> list[Reading]:
        gone = self._away[0] <= self._clock.monotonic() < self._away[1]
        self._bus.outage = "the broker is away" if gone else None
        return [Reading(node="n1", ts=ts_ms, gpus=GPUS, values=self._columns)]

    def close(self) -> None:
        """Nothing is open."""


def run(
    bus: MemoryBus, spool: Path, clock: ManualClock, away: tuple[float, float], interval: float
) -> CollectorService:
    settings = CollectorSettings.model_validate(
        {
            "source": "simulated",
            "node": "n1",
            "interval_seconds": interval,
            "flush_seconds": interval,
            "spool": {"path": spool, "jitter_seconds": JITTER_SECONDS, "max_bytes": 2**30},
        }
    )
    service = CollectorService(Node(bus, clock, away), bus, settings, clock=clock)
    service.run(threading.Event())
    return service


def arrived(bus: MemoryBus) -> list[NodeSample]:
    reader = bus.subscriber(group="t", topics=["gpu.samples"])
    found = []
    while batch := reader.poll(500, 0.0):
        found += [decode_sample(record.value) for record in batch]
    reader.close()
    return found


def check_ten_hours(tmp_path: Path, interval: float) -> None:
    bus, spool = MemoryBus(), tmp_path / "spool.sqlite"
    away = (10.0 * interval, 10.0 * interval + 10.0 * HOUR)
    # Stopped in the middle of the outage, and started again ten seconds later.
    first_clock = ManualClock(stop_at=4.0 * HOUR)
    first = run(bus, spool, first_clock, away, interval)
    assert first.health()["spool_messages"] == pytest.approx(
        (4.0 * HOUR - away[0]) / interval, abs=2.0
    )
    restarted = 4.0 * HOUR + 10.0
    clock = ManualClock(
        start_ms=1_790_000_000_000 + round(1000 * restarted),
        stop_at=away[1] - restarted + 2.5 * HOUR,
    )
    service = run(bus, spool, clock, (0.0, away[1] - restarted), interval)

    assert service.health()["spool_messages"] == 0
    for run_of in (first, service):
        for reason in ("bound", "age", "disk", "too_large"):
            name = "foreshock_collector_messages_dropped_total"
            assert not run_of.registry.get_sample_value(name, {"reason": reason})
    found = arrived(bus)
    by_boot = Counter(sample.boot_id for sample in found)
    assert len(by_boot) == 2
    for boot, count in by_boot.items():
        seqs = sorted(sample.seq for sample in found if sample.boot_id == boot)
        assert seqs == list(range(count)), "lost or doubled"
    back_ms = 1_790_000_000_000 + round(1000 * away[1])
    places = {(sample.boot_id, sample.seq): place for place, sample in enumerate(found)}
    old = [sample for sample in found if sample.ts[-1] < back_ms - 1000 * interval]
    waited = [s for s in old if s.ts[0] > 1_790_000_000_000 + 1000 * away[0]]
    assert len(waited) >= 0.99 * 10.0 * HOUR / interval
    times = [sample.ts[0] for sample in waited]
    assert times == sorted(times), "oldest first"
    live = [sample for sample in found if sample.ts[0] >= back_ms]
    first_old = places[waited[0].boot_id, waited[0].seq]
    before = [s for s in live if places[s.boot_id, s.seq] < first_old]
    assert before, "the first after the outage is a live one"
    assert before[-1].ts[0] - back_ms <= 1000 * (JITTER_SECONDS + 2 * interval)
    live_places = [places[sample.boot_id, sample.seq] for sample in live]
    assert live_places == sorted(live_places), "live messages never waited for old ones"


def test_ten_hours_without_a_bus_lose_no_sample_over_a_restart(tmp_path: Path) -> None:
    check_ten_hours(tmp_path, interval=30.0)


@pytest.mark.slow
def test_ten_hours_of_every_second_lose_no_sample(tmp_path: Path) -> None:
    check_ten_hours(tmp_path, interval=1.0)
