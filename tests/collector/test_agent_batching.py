"""How readings become messages."""

from __future__ import annotations

import pytest

from collector.batching import Batching, NodeBatcher
from collector.source import Reading
from schemas.codec import decode_sample, encode
from schemas.sample import EventKind, GpuInventory, Inventory, JobRef, SampleEvent

T0 = 1_790_000_000_000
FACTS = Inventory(gpus=(GpuInventory(gpu="A", model="H100"),), expected_gpus=8, uptime_seconds=1.0)


def rules(**changes: object) -> Batching:
    given = {
        "interval_seconds": 1.0,
        "flush_seconds": 1.0,
        "keyframe_seconds": 60.0,
        "source": "nvml",
    }
    return Batching(**{**given, **changes})  # type: ignore[arg-type]


def batcher(**changes: object) -> NodeBatcher:
    return NodeBatcher("n1", "boot", rules(**changes))


def reading(tick: float, **changes: object) -> Reading:
    given: dict[str, object] = {
        "node": "n1",
        "ts": T0 + round(tick * 1000),
        "gpus": ("A", "B"),
        "values": {"temperature_celsius": [40.0 + tick, None]},
        "status": {"temperature_celsius": {1: "error:999"}},
        "inventory": FACTS,
    }
    return Reading(**{**given, **changes})  # type: ignore[arg-type]


def test_with_a_flush_of_one_interval_every_reading_is_a_message() -> None:
    node = batcher()
    sizes = [len(sample.ts) for tick in range(5) for sample in node.add(reading(tick))]
    assert sizes == [1] * 5


def test_readings_of_the_flush_interval_travel_together_row_major() -> None:
    node = batcher(flush_seconds=5.0)
    samples = [sample for tick in range(11) for sample in node.add(reading(tick))]
    assert [len(sample.ts) for sample in samples] == [1, 5, 5]  # the first goes at once
    assert [sample.seq for sample in samples] == [0, 1, 2]
    second = samples[1]
    assert second.m["temperature_celsius"] == [41, None, 42, None, 43, None, 44, None, 45, None]
    assert second.status == {
        "temperature_celsius": {str(2 * tick + 1): "error:999" for tick in range(5)}
    }
    assert decode_sample(encode(second)) == second


def test_a_changed_gpu_list_cuts_the_batch_and_goes_at_once() -> None:
    node = batcher(flush_seconds=10.0)
    assert len(node.add(reading(0))) == 1
    assert node.add(reading(1)) == []
    cut = node.add(reading(2, gpus=("A",), values={}, status={}))
    assert [(sample.ts, sample.gpu) for sample in cut] == [
        ((T0 + 1000,), ("A", "B")),
        ((T0 + 2000,), ("A",)),
    ]


@pytest.mark.parametrize("change", [{"state": "blind"}, {"nvml_error": 9}])
def test_a_changed_state_cuts_the_batch_and_goes_at_once(change: dict[str, object]) -> None:
    node = batcher(flush_seconds=10.0)
    node.add(reading(0))
    node.add(reading(1))
    assert [len(sample.ts) for sample in node.add(reading(2, **change))] == [1, 1]
    assert node.add(reading(3, **change)) == []


def test_an_event_takes_what_is_pending_with_it_at_once() -> None:
    node = batcher(flush_seconds=10.0)
    node.add(reading(0))
    node.add(reading(1))
    event = SampleEvent(ts=T0 + 1900, kind=EventKind.XID, gpu="A", xid=79)
    (sample,) = node.add(reading(2, events=(event,)))
    assert sample.ts == (T0 + 1000, T0 + 2000)
    assert sample.events == (event,)


def test_time_that_stands_or_goes_back_begins_a_new_message() -> None:
    node = batcher(flush_seconds=10.0)
    node.add(reading(0))
    node.add(reading(1))
    (cut,) = node.add(reading(0.5))
    assert cut.ts == (T0 + 1000,)
    (rest,) = node.flush()
    assert rest.ts == (T0 + 500,)
    assert node.flush() == []


def test_the_inventory_travels_first_on_change_and_every_minute() -> None:
    node = batcher()
    sent = []
    for tick in range(130):
        facts = FACTS
        if tick >= 70:
            facts = Inventory(gpus=FACTS.gpus, expected_gpus=7)
        facts = Inventory(
            gpus=facts.gpus, expected_gpus=facts.expected_gpus, uptime_seconds=float(tick)
        )
        (sample,) = node.add(reading(tick, inventory=facts))
        if sample.inventory is not None:
            sent.append(tick)
    assert sent == [0, 60, 70, 120]  # a growing uptime is no change


def test_labels_and_expected_gpus_of_the_settings_complete_the_inventory() -> None:
    node = batcher(labels={"rack": "r1", "cluster": "c"}, expected_gpus=4)
    given = Inventory(labels={"rack": "own"}, expected_gpus=8)
    (sample,) = node.add(reading(0, inventory=given))
    assert sample.inventory is not None
    assert sample.inventory.labels == {"rack": "own", "cluster": "c"}
    assert sample.inventory.expected_gpus == 4


def test_a_heartbeat_that_knows_nothing_does_not_erase_the_inventory() -> None:
    node = batcher()
    node.add(reading(0))
    (beat,) = node.add(Reading(node="n1", ts=T0 + 1000, state="unresponsive"))
    assert (beat.gpu, beat.m, beat.inventory) == ((), {}, None)
    assert decode_sample(encode(beat)) == beat


def test_jobs_travel_first_on_change_and_in_keyframes_and_none_means_unchanged() -> None:
    node = batcher()
    one, two = JobRef(gpus=("A",), job="1"), JobRef(gpus=("B",), job="2")
    jobs = [(one,)] * 3 + [(one, two)] * 2 + [()] * 60
    sent = {}
    for tick, given in enumerate(jobs):
        (sample,) = node.add(reading(tick, jobs=given))
        if sample.jobs is not None:
            sent[tick] = len(sample.jobs)
    assert sent == {0: 1, 3: 2, 5: 0, 60: 0}


def test_a_source_that_knows_no_jobs_never_says_none() -> None:
    node = batcher()
    assert all(sample.jobs is None for t in range(61) for sample in node.add(reading(t)))


def test_a_column_that_failed_everywhere_travels_and_an_unsupported_one_does_not() -> None:
    node = batcher()
    (sample,) = node.add(
        reading(
            0,
            values={"power_watts": [None, None], "fan_ratio": [None, None]},
            status={
                "power_watts": {0: "error:999", 1: "error:999"},
                "fan_ratio": {0: "unsupported", 1: "unsupported"},
            },
        )
    )
    assert set(sample.m) == {"power_watts"}
    assert set(sample.status) == {"power_watts"}


def test_a_metric_missing_at_one_tick_is_null_there() -> None:
    node = batcher(flush_seconds=2.0)
    node.add(reading(0))
    node.add(reading(1, values={"power_watts": [1.0, 2.0]}, status={}))
    (sample,) = node.add(reading(2, values={"sm_clock_hertz": [3.0, 4.0]}, status={}))
    assert sample.m == {
        "power_watts": [1.0, 2.0, None, None],
        "sm_clock_hertz": [None, None, 3.0, 4.0],
    }


def test_a_recording_is_cut_by_its_own_distance_between_readings() -> None:
    node = batcher(interval_seconds=None, source="replay")
    ticks = [0.0, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8]
    samples = [sample for tick in ticks for sample in node.add(reading(tick))]
    assert [len(sample.ts) for sample in samples] == [1, 4]
    assert samples[1].collector.interval_seconds == pytest.approx(0.3)
