"""The door of the engine: every tick of every node counts once, in order, whatever arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.admission import TAKE_OVER_MESSAGES, Admitted, admit
from detector.engine import Engine
from detector.fleet import Fleet
from detector.registry import build
from schemas.sample import NodeSample, SampleEvent

T0 = 1_790_000_000_000


def sample(
    seq: int, seconds: Sequence[float], *, boot: str = "boot-1", node: str = "n1"
) -> NodeSample:
    return NodeSample(
        node=node,
        boot_id=boot,
        seq=seq,
        ts=tuple(T0 + round(1000 * second) for second in seconds),
        gpu=(f"GPU-{node}",),
        m={"temperature_celsius": [50.0] * len(seconds)},
    )


class Door:
    """A fleet, its counts, and the event seconds of the ticks that got in."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.counts: Counter[str] = Counter()
        self.seconds: list[float] = []

    def take(self, one: NodeSample) -> Admitted | None:
        item = admit(self.fleet, one, self.counts)
        if item is not None:
            self.seconds += [(ts - T0) / 1000 for ts in one.ts[item.first_tick :]]
        return item


def test_messages_in_order_are_accepted() -> None:
    door = Door()
    for seq in range(5):
        item = door.take(sample(seq, [seq]))
        assert item is not None
        assert not item.stepped_back
    assert +door.counts == {"accepted": 5}


def test_a_repetition_is_counted_as_duplicate_and_changes_nothing() -> None:
    door = Door()
    door.take(sample(0, [0]))
    assert door.take(sample(0, [0])) is None
    assert door.counts["duplicate"] == 1
    assert door.seconds == [0]


def test_an_older_message_is_late() -> None:
    door = Door()
    for seq in (0, 2, 1):
        door.take(sample(seq, [seq]))
    assert +door.counts == {"accepted": 2, "lost_messages": 1, "late": 1}
    assert door.seconds == [0, 2]


def test_a_gap_in_the_sequence_is_counted_as_lost_messages() -> None:
    door = Door()
    door.take(sample(3, [0]))  # the first may have any number: retention cut the log
    door.take(sample(10, [7]))
    assert door.counts["lost_messages"] == 6
    assert door.counts["accepted"] == 2


def test_a_new_boot_begins_its_sequence_anew() -> None:
    door = Door()
    door.take(sample(100, [0]))
    assert door.take(sample(0, [10], boot="boot-2")) is not None
    assert door.take(sample(1, [11], boot="boot-2")) is not None
    assert +door.counts == {"accepted": 3}


def test_left_overs_of_the_boot_before_are_late() -> None:
    """A spool that is emptied after the reboot, even with times that look new."""
    door = Door()
    door.take(sample(100, [0]))
    door.take(sample(0, [10], boot="boot-2"))
    assert door.take(sample(101, [1])) is None
    assert door.take(sample(102, [20])) is None
    assert door.counts["late"] == 2
    assert door.take(sample(1, [21], boot="boot-2")) is not None


def test_a_left_over_of_an_older_boot_is_known_by_its_time() -> None:
    door = Door()
    for number in range(3):
        door.take(sample(0, [10 * number], boot=f"boot-{number}"))
    assert door.take(sample(9, [5], boot="boot-0")) is None
    assert door.counts["late"] == 1


def test_within_a_boot_a_clock_set_back_does_not_make_the_node_mute() -> None:
    door = Door()
    door.take(sample(0, [3600]))
    item = door.take(sample(1, [0]))
    assert item is not None
    assert item.stepped_back
    following = door.take(sample(2, [1]))
    assert following is not None
    assert not following.stepped_back
    assert door.counts["clock_back"] == 1


def test_ticks_that_another_boot_id_brings_again_are_cut_off() -> None:
    """A replay started anew sends a message that overlaps what was seen."""
    door = Door()
    door.take(sample(0, [0, 1, 2]))
    item = door.take(sample(0, [1, 2, 3, 4], boot="boot-2"))
    assert item is not None
    assert item.first_tick == 2
    assert door.seconds == [0, 1, 2, 3, 4]


def test_another_boot_id_that_brings_nothing_new_is_late() -> None:
    door = Door()
    door.take(sample(0, [0, 1, 2]))
    assert door.take(sample(0, [1, 2], boot="boot-2")) is None
    assert door.take(sample(1, [3])) is not None
    assert +door.counts == {"accepted": 2, "late": 1}


def test_nodes_are_judged_apart() -> None:
    door = Door()
    door.take(sample(5, [100], node="n1"))
    assert door.take(sample(0, [0], node="n2")) is not None
    assert +door.counts == {"accepted": 2}


@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_repetition_and_disorder_never_count_a_tick_twice(chance: Random, messages: int) -> None:
    """At-least-once delivery of messages of several ticks, with losses, swaps and repeats."""
    whole = [sample(seq, [3 * seq, 3 * seq + 1, 3 * seq + 2]) for seq in range(messages)]
    stream = [one for one in whole for _ in range(chance.choice([0, 1, 1, 1, 2, 3]))]
    for _ in range(chance.randrange(3)):
        if len(stream) > 1:
            place = chance.randrange(len(stream) - 1)
            stream[place : place + 2] = reversed(stream[place : place + 2])
    door = Door()
    for one in stream:
        door.take(one)
    assert door.seconds == sorted(set(door.seconds))
    assert sum(door.counts[word] for word in ("accepted", "late", "duplicate")) == len(stream)
    if stream:
        first, last = stream[0].seq, max(one.seq for one in stream)
        span = last - first + 1
        assert door.counts["accepted"] + door.counts["lost_messages"] == span


def test_the_engine_counts_each_tick_of_each_gpu_once() -> None:
    engine = Engine([], topic="gpu.samples", partition=0)
    stream = [sample(0, [0, 1]), sample(0, [0, 1]), sample(2, [4, 5]), sample(1, [2, 3])]
    outcome = engine.process([*stream, sample(0, [5, 6], boot="boot-2")])
    assert outcome.counts["gpu_samples"] == 5
    assert +outcome.counts == {
        "accepted": 3,
        "duplicate": 1,
        "late": 1,
        "lost_messages": 1,
        "gpu_samples": 5,
    }


def test_a_clock_set_back_gives_no_negative_distance() -> None:
    """The engine goes on: what was open stays, and time counts from the new clock."""
    engine = Engine([], topic="gpu.samples", partition=0)
    engine.process([sample(0, [3600]), sample(1, [3601]), sample(2, [0]), sample(3, [1])])
    table = engine.fleet.gpu_table
    assert table["last_ts"][0] == T0 + 1000
    assert table["interval"][0] == 1.0


def test_a_node_that_came_up_with_its_clock_set_back_is_heard_again() -> None:
    """Another boot that goes on alone is the current one, whatever its clock says."""
    door = Door()
    for seq in range(20):
        door.take(sample(seq, [3600 + seq], boot="boot-1"))
    taken = [door.take(sample(seq, [seq], boot="boot-2")) for seq in range(30)]
    first = TAKE_OVER_MESSAGES - 1
    assert [item is not None for item in taken] == [number >= first for number in range(30)]
    begun = taken[first]
    assert begun is not None
    assert begun.stepped_back
    assert door.counts["clock_back"] == 1
    assert door.take(sample(99, [4000], boot="boot-1")) is None


def test_left_overs_between_live_messages_never_take_over() -> None:
    """A spool of two boots ago, drained at five times the live rate."""
    door = Door()
    for number, boot in enumerate(("boot-0", "boot-1", "boot-2")):
        door.take(sample(0, [1000 * number], boot=boot))
    for live in range(1, 40):
        for old in range(5):
            assert door.take(sample(live * 5 + old, [live * 5 + old], boot="boot-0")) is None
        assert door.take(sample(live, [2000 + live], boot="boot-2")) is not None


def test_a_damaged_number_does_not_make_the_node_mute() -> None:
    door = Door()
    door.take(sample(0, [0]))
    door.take(sample(2**62, [1]))
    for seq in range(2, 30):
        door.take(sample(seq, [seq]))
    assert door.seconds[-5:] == [25, 26, 27, 28, 29]
    assert door.counts["late"] == TAKE_OVER_MESSAGES - 1


def test_repeated_numbers_never_begin_anew() -> None:
    door = Door()
    for seq in [*range(40), *range(40)]:
        door.take(sample(seq, [seq]))
    assert door.seconds == list(range(40))


# -- what a message says has happened is news, however late it comes ------------------------------


def with_xid(seq: int, code: int = 79) -> NodeSample:
    event = SampleEvent(ts=T0 + 1000 * seq, kind="xid", gpu="GPU-n1", xid=code)
    return replace(sample(seq, [seq]), events=(event,))


def stream(order: Sequence[int], event_at: int = 40) -> list[NodeSample]:
    return [with_xid(seq) if seq == event_at else sample(seq, [seq]) for seq in order]


def said(engine: Engine, samples: Sequence[NodeSample]) -> list[tuple[str, str | None, str]]:
    alerts = engine.process(samples).alerts
    return [(a.kind, a.subject.gpu_uuid, a.severity) for a in alerts if a.kind == "xid"]


@pytest.mark.parametrize("delay", [1, 3, 19])
@pytest.mark.parametrize("batch", [1, 7, 100])
def test_an_event_of_a_late_message_raises_its_alert_on_its_gpu(delay: int, batch: int) -> None:
    order = [seq for seq in range(60) if seq != 40]
    order.insert(order.index(40 + delay) + 1, 40)
    engine = Engine(build(), topic="t", partition=0)
    samples = stream(order)
    found = []
    for first in range(0, len(samples), batch):
        found += said(engine, samples[first : first + batch])
    assert found == [("xid", "GPU-n1", "critical")]


def test_a_drained_outage_tells_every_event_once_and_a_repetition_none() -> None:
    """Live first, then what was kept: the order in which a collector sends after an outage."""
    kept = stream(range(10, 40), event_at=25)
    live = [*stream(range(10)), *stream(range(40, 43))]
    engine = Engine(build(), topic="t", partition=0)
    assert said(engine, live) == [("xid", "GPU-n1", "critical")]
    outcome = engine.process(kept)
    assert outcome.counts["late_events"] == 1
    assert engine.process(kept).counts["late_events"] == 0
    assert engine.process(kept[::-1]).counts["late"] == 30


def test_late_readings_and_later_times_are_left_as_they_were() -> None:
    straight, bent = (Engine(build(), topic="t", partition=0) for _ in range(2))
    straight.process(stream([0, 1, 3, 4], event_at=99))
    bent.process(stream([0, 1, 3], event_at=99))
    bent.process([with_xid(2, code=13)])
    bent.process(stream([4], event_at=99))
    for engine in (straight, bent):
        node = engine.fleet.nodes[0]
        assert (node.seq, node.last_ts) == (4, T0 + 4000)
    assert (
        straight.windows.dump()[1]["samples"].tolist() == bent.windows.dump()[1]["samples"].tolist()
    )


def test_what_is_missing_is_remembered_over_a_restart() -> None:
    first = Engine(build(), topic="t", partition=0)
    first.process(stream([0, 1, 50], event_at=99))
    second = Engine(build(), topic="t", partition=0)
    second.load(*first.dump())
    assert said(second, [with_xid(20)]) == [("xid", "GPU-n1", "critical")]


def test_a_gpu_that_lives_elsewhere_by_now_is_not_taken_back() -> None:
    engine = Engine(build(), topic="t", partition=0)
    engine.process(stream([0, 2], event_at=99))
    moved = replace(sample(0, [3.0], node="n2"), gpu=("GPU-n1",))
    engine.process([moved])
    engine.process([with_xid(1)])
    assert engine.fleet.gpus[0].node == "n2"
