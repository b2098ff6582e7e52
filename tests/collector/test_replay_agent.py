"""A recording sent by the collector is what the in-process replay feeds on."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

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


def test_a_recording_that_was_sent_is_summed_up_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"2025/01/06 10:00:0{n}, 0, {40 + n}" for n in range(5)]
    path.write_text("\n".join(["timestamp, index, temperature.gpu", *rows, "#", ""]))
    settings = CollectorSettings(source="replay", replay=ReplaySettings(files=(path,), node="n"))
    bus = MemoryBus()
    bus.create_topics()
    with structlog.testing.capture_logs() as said:
        CollectorService(open_source(settings), bus, settings).run(threading.Event())
    (summed,) = [one for one in said if one["event"] == "recording_read"]
    assert (summed["log_level"], summed["rows"], summed["damaged_lines"]) == ("warning", 5, 1)
