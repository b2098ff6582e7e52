"""A recording sent by the collector is what the in-process replay feeds on."""

from __future__ import annotations

import threading
from pathlib import Path

from bus.memory import MemoryBus
from collector.agent import CollectorService
from collector.replay.samples import iter_samples
from collector.replay.settings import ReplaySettings
from collector.settings import CollectorSettings
from collector.sources import open_source
from schemas.codec import decode_sample
from schemas.topics import SAMPLES

MAPS = Path(__file__).resolve().parents[2] / "maps"


def test_the_collector_sends_the_messages_of_the_in_process_replay(shared: Path) -> None:
    series = shared / "recordings" / "timeseries"
    replay = ReplaySettings(
        files=(series / "hopper_sxm_x8_baseline_0341_0346.csv.gz",),
        map=MAPS / "hopper_sxm_x8.toml",
    )
    settings = CollectorSettings(source="replay", replay=replay)
    bus = MemoryBus()
    bus.create_topics()
    CollectorService(open_source(settings), bus, settings).run(threading.Event())
    subscriber = bus.subscriber(group="test", topics=[SAMPLES.full_name()])
    sent = []
    while records := subscriber.poll(1000, 0.2):
        sent += [decode_sample(record.value) for record in records]
    subscriber.close()
    expected = list(iter_samples(replay, flush_seconds=settings.flush_seconds))
    assert sent == expected
    assert sum(len(sample.ts) for sample in sent) == 780
