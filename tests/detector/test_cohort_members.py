"""Members of one job on several nodes: who is slow, who stopped, who speaks, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry import telemetry

from detector.cohort.tier import CohortTier
from detector.engine import Engine
from detector.registry import build
from schemas.alert import AlertEvent
from schemas.codec import decode_window, encode
from schemas.sample import GpuInventory, Inventory, JobRef, NodeSample
from schemas.window import WINDOW_MS, MetricWindow, WindowBatch, WindowSource

T0 = 1_790_000_000_000 // 3_600_000 * 3_600_000
Load = Callable[[str, int], dict[str, float]]
NODES = ("n0", "n1", "n2", "n3")


def steady(node: str, number: int) -> dict[str, float]:
    return {"power": 600.0, "clock": 1.7e9, "use": 1.0}


def batch(
    node: str,
    number: int,
    load: Load = steady,
    *,
    gpus: int = 8,
    job: str | None = "job",
    partition: int | None = None,
) -> WindowBatch:
    """Window ``number`` of a node; noise depends on node and number alone."""
    start = T0 + number * WINDOW_MS
    rng = np.random.default_rng([number, *node.encode()])
    here = load(node, number)

    def summary(value: float, noise: float) -> MetricWindow:
        values = (value * (1.0 + noise * rng.standard_normal(gpus))).tolist()
        return MetricWindow(mean=values, min=values, max=values, last=values)

    return WindowBatch(
        cohort=job or node,
        job=job,
        node=node,
        start=start,
        end=start + WINDOW_MS,
        source=WindowSource(
            topic="gpu.samples",
            partition=int(node[1:]) % 2 if partition is None else partition,
            watermark=start + WINDOW_MS,
        ),
        gpu=tuple(f"{node}-{gpu}" for gpu in range(gpus)),
        model=("H100",) * gpus,
        samples=(10,) * gpus,
        missing=(0,) * gpus,
        clock_event_reasons=(0,) * gpus,
        m={
            "power_watts": summary(here["power"], 0.01),
            "power_limit_watts": summary(700.0, 0.0),
            "sm_clock_hertz": summary(here["clock"], 0.004),
            "gpu_utilization_ratio": summary(here["use"], 0.0),
            "memory_utilization_ratio": summary(here.get("bus", 0.5), 0.0),
        },
    )


def slow(node: str, number: int) -> dict[str, float]:
    """The third node loses a tenth of its clock after ten minutes, for ten minutes."""
    if node == "n2" and 60 <= number < 120:
        return {"power": 540.0, "clock": 1.53e9, "use": 1.0}
    return steady(node, number)


def windows(
    count: int, load: Load = steady, nodes: Sequence[str] = NODES, gpus: int = 8
) -> list[WindowBatch]:
    return [batch(node, number, load, gpus=gpus) for number in range(count) for node in nodes]


def said(alerts: Iterable[AlertEvent]) -> list[tuple[str, str, str, str | None, str | None]]:
    return [
        (
            alert.kind,
            str(alert.state),
            alert.subject.scope,
            alert.subject.node,
            alert.subject.gpu_uuid,
        )
        for alert in alerts
    ]


def ids(alerts: Iterable[AlertEvent]) -> set[tuple[str, int, str]]:
    return {(alert.alert_id, alert.seq, str(alert.state)) for alert in alerts}


def resumed(tier: CohortTier) -> CohortTier:
    """The tier that a snapshot of this one makes, through bytes."""
    facts, arrays = tier.dump()
    new = CohortTier()
    copies = {name: array.copy() for name, array in arrays.items()}
    saved = orjson.loads(orjson.dumps(facts))
    assert new.load(saved, copies, lambda one: decode_window(orjson.dumps(one))) == []
    return new


# -- what is found --------------------------------------------------------------------------------


def test_a_slow_node_is_found_within_two_minutes_and_named_once() -> None:
    alerts = CohortTier().process(windows(160, slow), caught_up=False)
    assert said(alerts) == [
        ("straggler", "firing", "node", "n2", None),
        ("straggler", "resolved", "node", "n2", None),
    ]
    alert = alerts[0]
    assert (alert.severity, alert.subject.job) == ("warning", "job")
    assert "median of its 8 GPUs" in alert.summary
    assert "4 members of the job" in alert.summary
    observed = (np.datetime64(alert.observed_at[:-1]).astype("datetime64[ms]")).astype(int)
    assert (observed - T0) / 1000 - 600 <= 120


def test_of_nodes_with_one_or_two_gpus_the_gpu_is_named() -> None:
    def load(node: str, number: int) -> dict[str, float]:
        return slow("n2", number) if node == "n2" else steady(node, number)

    alerts = CohortTier().process(windows(110, load, gpus=1), caught_up=False)
    assert said(alerts) == [("straggler", "firing", "gpu", "n2", "n2-0")]


def test_stages_of_a_pipeline_and_the_node_of_rank_0_are_no_imbalance() -> None:
    def roles(node: str, number: int) -> dict[str, float]:
        power = {"n0": 540.0 * 0.89, "n3": 540.0 * 1.25}.get(node, 540.0)
        return {"power": power, "clock": 1.7e9, "use": 1.0}

    assert CohortTier().process(windows(200, roles), caught_up=False) == []


def test_two_nodes_accuse_nobody() -> None:
    alerts = CohortTier().process(windows(160, slow, ("n1", "n2")), caught_up=False)
    assert [alert for alert in alerts if alert.family == "load_imbalance"] == []


def test_replicas_that_do_not_run_in_step_accuse_nobody() -> None:
    def load(node: str, number: int) -> dict[str, float]:
        rng = np.random.default_rng([number, 9, *node.encode()])
        return {"power": float(rng.uniform(250, 650)), "clock": 1.7e9, "use": 1.0}

    alerts = CohortTier().process(windows(200, load), caught_up=False)
    assert [alert for alert in alerts if alert.family == "load_imbalance"] == []


def test_a_node_that_stopped_while_the_others_spin_is_a_hang() -> None:
    def load(node: str, number: int) -> dict[str, float]:
        if number < 60:
            return steady(node, number)
        power, use = (80.0, 0.0) if node == "n1" else (140.0, 1.0)
        return {"power": power, "clock": 1.9e9, "use": use, "bus": 0.0}

    alerts = CohortTier().process(windows(80, load), caught_up=False)
    found = [alert for alert in alerts if alert.family == "load_imbalance"]
    assert said(found)[0] == ("hang", "firing", "node", "n1", None)
    assert {alert.subject.node for alert in found} == {"n1"}
    assert found[-1].severity == "critical"


def test_a_node_left_out_of_the_work_is_an_idle_member() -> None:
    def load(node: str, number: int) -> dict[str, float]:
        if node == "n3":
            return {"power": 75.0, "clock": 0.3e9, "use": 0.0, "bus": 0.0}
        return steady(node, number)

    alerts = CohortTier().process(windows(90, load), caught_up=False)
    assert said(alerts) == [("idle_member", "firing", "node", "n3", None)]
    assert alerts[0].severity == "info"


def test_without_a_job_nodes_are_not_compared() -> None:
    alone = [batch(node, number, slow, job=None) for number in range(160) for node in NODES]
    alerts = CohortTier().process(alone, caught_up=False)
    assert [alert for alert in alerts if alert.family == "load_imbalance"] == []


# -- partitions, lag, stops -----------------------------------------------------------------------


def by_partition(stream: Sequence[WindowBatch], partition: int) -> list[WindowBatch]:
    return [one for one in stream if one.source.partition == partition]


def known(partition: int) -> WindowBatch:
    """Another job's first window: it tells the tier that a partition exists."""
    return batch(f"n{8 + partition}", 0, job="other")


@pytest.mark.parametrize("first", [0, 1])
def test_a_partition_that_lags_by_all_of_the_stream_changes_nothing(first: int) -> None:
    stream = windows(160, slow)
    want = ids(CohortTier().process(stream, caught_up=False))
    tier = CohortTier()
    tier.process([known(0), known(1)], caught_up=False)
    early = tier.process(by_partition(stream, first), caught_up=False)
    assert early == [], "nobody may be accused before its partners were heard"
    late = tier.process(by_partition(stream, 1 - first), caught_up=False)
    # What came first is held back for an hour of windows, and this stream is shorter.
    assert ids(late) == want


def test_a_job_whose_nodes_are_known_waits_for_the_slower_partition_however_long() -> None:
    stream = windows(500, slow)
    want = ids(CohortTier().process(stream, caught_up=False))
    tier = CohortTier()
    got = tier.process(stream[:8], caught_up=False)
    rest = stream[8:]
    got += tier.process(by_partition(rest, 0), caught_up=False)
    assert got == []
    got += tier.process(by_partition(rest, 1), caught_up=False)
    assert ids(got) == want


def test_a_partition_that_is_behind_delays_no_job_for_ever() -> None:
    tier = CohortTier()
    tier.process([known(0), known(1)], caught_up=False)
    alone = [batch(node, n, slow, partition=0) for n in range(600) for node in NODES]
    alerts = tier.process(alone, caught_up=False)
    assert ("straggler", "firing", "node", "n2", None) in said(alerts)


def test_a_node_that_left_the_job_is_not_waited_for() -> None:
    """Its own windows of another cohort tell that it went on without the job."""
    tier = CohortTier()
    tier.process(windows(30), caught_up=False)
    stream = [
        one
        for number in range(30, 160)
        for one in (
            *(batch(node, number, slow) for node in ("n0", "n1", "n2")),
            batch("n3", number, job=None),
        )
    ]
    alerts = tier.process(stream, caught_up=False)
    assert ("straggler", "firing", "node", "n2", None) in said(alerts)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 4 * 130), max_size=3))
def test_any_pace_of_partitions_any_batching_and_any_stop_give_the_same_alerts(
    seed: int, stops: list[int]
) -> None:
    stream = windows(130, slow)
    want = ids(CohortTier().process(stream, caught_up=False))
    assert want
    chance, queues = Random(seed), [by_partition(stream, 0), by_partition(stream, 1)]
    tier, got, done = CohortTier(), [], 0
    tier.process([known(0), known(1)], caught_up=False)
    while any(queues):
        queue = chance.choice([q for q in queues if q])
        size = chance.randrange(1, 40)
        got += tier.process(queue[:size], caught_up=False)
        del queue[:size]
        if any(done < stop <= done + size for stop in stops):
            tier = resumed(tier)
        done += size
    assert ids(got) == want


def test_killed_between_two_windows_of_one_moment_and_read_again_tells_the_same() -> None:
    """From the last snapshot on everything comes again: the same ids, and none besides."""
    stream = windows(160, slow)
    want = ids(CohortTier().process(stream, caught_up=False))
    for killed_at in (251, 266, 270, 281, 490):
        saved_at = killed_at - 30  # inside a moment: two of four nodes are in the snapshot
        first = CohortTier()
        got = first.process(stream[:saved_at], caught_up=False)
        second = resumed(first)
        got += first.process(stream[saved_at:killed_at], caught_up=False)
        got += second.process(stream[saved_at:], caught_up=False)
        assert ids(got) == want


def test_an_alert_of_a_job_that_ended_is_closed_once_nothing_lags() -> None:
    tier = CohortTier()
    tier.process(windows(100, slow), caught_up=False)
    others = [batch(node, n, job=f"next-{node}") for n in range(100, 200) for node in NODES]
    assert tier.process(others, caught_up=False) == []
    closed = tier.process([], caught_up=True)
    assert [(a.kind, a.state, a.end_reason) for a in closed] == [
        ("straggler", "resolved", "job_ended")
    ]
    assert tier.open_count() == 0


def test_a_node_that_gets_a_third_gpu_of_the_job_is_left_to_its_own_detectors() -> None:
    def two(number: int) -> list[WindowBatch]:
        return [batch(node, number, slow, gpus=2) for node in NODES]

    tier = CohortTier()
    opened = tier.process([one for n in range(100) for one in two(n)], caught_up=False)
    assert {alert.subject.gpu_uuid for alert in opened} == {"n2-0", "n2-1"}
    more = [batch(node, 100, slow, gpus=3) for node in NODES]
    closed = tier.process(more, caught_up=False)
    assert {(a.state, a.end_reason) for a in closed} == {("resolved", "compared_on_its_node")}
    assert {alert.alert_id for alert in closed} == {alert.alert_id for alert in opened}


# -- both tiers -----------------------------------------------------------------------------------


def node_samples(
    node: str, *, slow_gpu: int | None = None, slow_all: bool = False
) -> list[NodeSample]:
    """Twelve minutes of a node of eight; from the sixth on some of it lose 12 % of their clock."""
    ticks = 360
    power, clock = np.full((ticks, 8), 600.0), np.full((ticks, 8), 1.7e9)
    which = slice(None) if slow_all else slice(slow_gpu, None if slow_gpu is None else slow_gpu + 1)
    if slow_all or slow_gpu is not None:
        power[180:, which] *= 0.93
        clock[180:, which] *= 0.88
    plain = telemetry(
        {
            "power_watts": power,
            "sm_clock_hertz": clock,
            "gpu_utilization_ratio": 1.0,
            "power_limit_watts": 700.0,
        },
        gpus=8,
        ticks=ticks,
        interval=2.0,
        node=node,
        noise={"power_watts": 4.0},
        seed=int(node[1:]),
    )
    ids = tuple(f"{node}-{gpu}" for gpu in range(8))
    first = Inventory(
        gpus=tuple(GpuInventory(gpu=uuid, index=i, model="H100") for i, uuid in enumerate(ids)),
        expected_gpus=8,
    )
    return [
        NodeSample(
            node=node,
            boot_id="boot",
            seq=sample.seq,
            ts=sample.ts,
            gpu=ids,
            m=sample.m,
            inventory=first if sample.seq == 0 else None,
            jobs=(JobRef(gpus=ids, job="job"),) if sample.seq == 0 else None,
        )
        for sample in plain
    ]


def through_both_tiers(nodes: Sequence[Sequence[NodeSample]]) -> list[AlertEvent]:
    """Each node in a partition and an engine of its own; their windows meet, bytes between."""
    tier, alerts = CohortTier(), []
    local = [d for d in build() if d.family == "load_imbalance"]
    engines = [Engine(local, topic="gpu.samples", partition=i) for i in range(len(nodes))]
    for step in range(0, len(nodes[0]), 30):
        for engine, samples in zip(engines, nodes, strict=True):
            outcome = engine.process(samples[step : step + 30])
            alerts += outcome.alerts
            moved = [decode_window(encode(window)) for window in outcome.windows]
            alerts += tier.process(moved, caught_up=False)
    return [alert for alert in alerts if alert.family == "load_imbalance"]


def test_one_slow_gpu_is_named_by_its_node_and_by_nobody_else() -> None:
    alerts = through_both_tiers(
        [node_samples("n0"), node_samples("n1", slow_gpu=5), node_samples("n2")]
    )
    assert said(alerts) == [("straggler", "firing", "gpu", "n1", "n1-5")]
    assert alerts[0].detector.name == "straggler"


def test_a_node_that_is_slow_as_a_whole_is_named_across_partitions_and_detectors() -> None:
    alerts = through_both_tiers(
        [node_samples("n0"), node_samples("n1", slow_all=True), node_samples("n2")]
    )
    assert said(alerts) == [("straggler", "firing", "node", "n1", None)]
    assert alerts[0].detector.name == "job_straggler"
