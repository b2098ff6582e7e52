"""One function per stage. Each returns how many GPU-samples it did in how many seconds.

The best of several repetitions counts: other work on the machine only ever adds time.
"""

from __future__ import annotations

import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from river import anomaly  # noqa: TID251 - the rival that is measured beside

from benchmarks.fleet import GPUS, METRICS, T0, messages
from bus import open_bus
from bus.protocol import Record
from bus.settings import BusSettings, KafkaSettings
from detector.engine import Engine
from detector.registry import build
from detector.service import DetectorService
from detector.settings import DetectorSettings
from detector.snapshot import Snapshot, pack
from detector.snapshots import FileSnapshots
from detector.worker import SampleWorker
from schemas.binary import BINARY_CONTENT_TYPE, encode_binary
from schemas.codec import (
    CONTENT_TYPE_HEADER,
    JSON_CONTENT_TYPE,
    decode_sample,
    sample_headers,
)
from schemas.topics import SAMPLES

__all__ = [
    "Measured",
    "decode",
    "engine",
    "kafka_to_alerts",
    "records",
    "river_per_sample",
    "snapshot",
]

_DEADLINE_SECONDS = 300.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One row of the result."""

    stage: str
    samples: int
    seconds: float
    note: str = ""

    @property
    def rate(self) -> float:
        """GPU-samples per second."""
        return self.samples / self.seconds


def _best(repeat: int, work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def decode(bodies: Sequence[bytes], *, binary: bool = False) -> Measured:
    """Bytes to checked NodeSamples, their numbers packed for the engine."""
    kind = BINARY_CONTENT_TYPE if binary else JSON_CONTENT_TYPE
    seconds = _best(5, lambda: [decode_sample(body, kind) for body in bodies])
    name = "decode (binary)" if binary else "decode (JSON)"
    return Measured(stage=name, samples=len(bodies) * GPUS, seconds=seconds)


def engine(nodes: int, ticks: int, batch: int = 512) -> Measured:
    """Run decoded messages through all stream detectors, windows included.

    The first two ticks are not counted: a fleet is met once. Messages are made and decoded in
    between, so that a fleet of any size fits into memory.
    """
    subject = Engine(build(), topic=SAMPLES.name, partition=0)
    seconds, alerts, done = 0.0, 0, 0
    for chunk in _chunks((body for _, body in messages(nodes, ticks + 2)), batch):
        samples = [decode_sample(body) for body in chunk]
        start = time.perf_counter()
        alerts += len(subject.process(samples).alerts)
        taken = time.perf_counter() - start
        counted = sum(sample.seq >= 2 for sample in samples)
        seconds += taken * counted / len(samples)
        done += counted
    return Measured(
        stage=f"engine, {nodes * GPUS:,} GPUs",
        samples=done * GPUS,
        seconds=seconds,
        note=f"{alerts} alerts",
    )


def records(nodes: int, ticks: int, *, binary: bool) -> Measured:
    """Run records as they lie in the log up to the messages that are sent: all but the bus.

    Decoding, all stream detectors, windows, and encoding what is said; steady state, best of 3.
    """
    kind = BINARY_CONTENT_TYPE if binary else JSON_CONTENT_TYPE
    log = [
        Record(
            topic=SAMPLES.name,
            partition=0,
            offset=offset,
            arrived_ms=T0 + offset,
            key=key,
            value=encode_binary(decode_sample(body)) if binary else body,
            headers=((CONTENT_TYPE_HEADER, kind),),
        )
        for offset, (key, body) in enumerate(messages(nodes, ticks + 2))
    ]
    best = float("inf")
    for _ in range(3):
        worker, first = SampleWorker(build(), 0, series_minutes=10.0), 2 * nodes
        for chunk in _chunks(log[:first], 512):
            worker.process(chunk, caught_up=False)
        start = time.perf_counter()
        for chunk in _chunks(log[first:], 512):
            worker.process(chunk, caught_up=False)
        best = min(best, time.perf_counter() - start)
    return Measured(
        stage=f"records to messages ({'binary' if binary else 'JSON'}), {nodes * GPUS:,} GPUs",
        samples=nodes * ticks * GPUS,
        seconds=best,
    )


def _chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk


def river_per_sample(count: int = 3000) -> Measured:
    """One river HalfSpaceTrees (defaults) on the same metrics, score then learn, per sample."""
    rng = np.random.default_rng(1)
    rows = [
        dict(zip(METRICS, map(float, row), strict=True))
        for row in rng.uniform(0.3, 0.7, size=(count, len(METRICS)))
    ]
    model = anomaly.HalfSpaceTrees(seed=1)

    def work() -> None:
        for row in rows:
            model.score_one(row)
            model.learn_one(row)

    return Measured(stage="river HalfSpaceTrees per sample", samples=count, seconds=_best(3, work))


def snapshot(gpus: int) -> tuple[Measured, int]:
    """Dump, encode and durably write the state of one partition; also its size in bytes."""
    subject = Engine(build(), topic=SAMPLES.name, partition=0)
    subject.process([decode_sample(body) for _, body in messages(gpus // GPUS, 2)])

    def taken(offset: int) -> Snapshot:
        facts, arrays = subject.dump()
        return Snapshot(
            topic=SAMPLES.name,
            partition=0,
            next_offset=offset,
            facts=facts,
            arrays=arrays,
            code_version="bench",
        )

    best = float("inf")
    with tempfile.TemporaryDirectory() as folder:
        store = FileSnapshots(Path(folder))
        for offset in range(5):
            start = time.perf_counter()
            store.save(taken(offset))
            best = min(best, time.perf_counter() - start)
    measured = Measured(stage=f"snapshot of {gpus} GPUs", samples=gpus, seconds=best)
    return measured, len(pack(taken(9)))


def kafka_to_alerts(bootstrap: str, nodes: int, ticks: int, *, binary: bool) -> Measured:
    """Read a backlog on real Kafka with the detector service, until there is no lag.

    Time runs from the first assignment on; joining the group is not throughput.
    """
    prefix = f"bench{time.time_ns()}."
    bus = open_bus(
        BusSettings(
            transport="kafka",
            prefix=prefix,
            kafka=KafkaSettings(bootstrap=bootstrap, partitions=4, replication_factor=1),
        )
    )
    bus.create_topics()
    total = _fill(bus, prefix, nodes, ticks, binary=binary)
    with tempfile.TemporaryDirectory() as folder:
        service = DetectorService(bus, DetectorSettings(), prefix=prefix, data_dir=Path(folder))
        stop = threading.Event()
        thread = threading.Thread(target=service.run, args=(stop,))
        used = resource.getrusage(resource.RUSAGE_SELF)
        thread.start()
        try:
            seconds = _until_read(service, total)
        finally:
            stop.set()
            thread.join()
        now = resource.getrusage(resource.RUSAGE_SELF)
    bus.close()
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return Measured(
        stage=f"Kafka to alerts ({'binary' if binary else 'JSON'}), {nodes * GPUS:,} GPUs",
        samples=total * GPUS,
        seconds=seconds,
        note=f"{cpu:.1f} s of CPU for both tiers and all client threads",
    )


def _fill(bus: object, prefix: str, nodes: int, ticks: int, *, binary: bool) -> int:
    publisher = bus.publisher(client_id="bench")  # type: ignore[attr-defined]  # any transport
    count = 0
    headers = None
    for key, body in messages(nodes, ticks):
        sample = decode_sample(body) if binary or headers is None else None
        if sample is not None:
            headers = headers or sample_headers(sample, binary=binary)
            body = encode_binary(sample) if binary else body  # noqa: PLW2901 - another form of it
        while True:
            try:
                publisher.send(SAMPLES.full_name(prefix), key=key, value=body, headers=headers)
                break
            except Exception:  # noqa: BLE001 - full: wait for the broker
                publisher.flush(1.0)
        count += 1
        if count % 500 == 0:
            publisher.poll()
    publisher.flush(60.0)
    publisher.close()
    return count


def _until_read(service: DetectorService, total: int) -> float:
    def read() -> float:
        value = service.registry.get_sample_value(
            "foreshock_detector_records_total", {"topic": SAMPLES.name}
        )
        return value or 0.0

    end = time.monotonic() + _DEADLINE_SECONDS
    while read() == 0.0 and time.monotonic() < end:
        time.sleep(0.005)
    first, start = read(), time.perf_counter()
    while read() < total and time.monotonic() < end:
        time.sleep(0.005)
    done = read() - first
    # Scaled to all messages: those of the first batch were read before the clock started.
    return (time.perf_counter() - start) * total / max(done, 1.0)
