"""Ten-second windows: sums of what was read, closed by the node's own time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.engine import Engine
from schemas.codec import decode_window, encode
from schemas.sample import CollectorStatus, GpuInventory, Inventory, JobRef, NodeSample
from schemas.window import WINDOW_MS, WindowBatch

T0 = 1_790_000_000_000  # a multiple of the window


def at(
    second: float,
    metrics: Mapping[str, Sequence[float | None]] | None = None,
    *,
    node: str = "n1",
    gpus: Sequence[str] = ("a", "b"),
    jobs: tuple[JobRef, ...] | None = None,
    seq: int | None = None,
) -> NodeSample:
    values = metrics or {"temperature_celsius": [50.0] * len(gpus)}
    return NodeSample(
        node=node,
        boot_id="boot",
        seq=round(second * 1000) if seq is None else seq,
        ts=(T0 + round(second * 1000),),
        gpu=tuple(gpus),
        m={name: list(column) for name, column in values.items()},
        jobs=jobs,
    )


def engine() -> Engine:
    return Engine([], topic="gpu.samples", partition=5)


def windows(*samples: NodeSample) -> list[WindowBatch]:
    return engine().process(samples).windows


def test_a_window_closes_when_the_nodes_time_passes_its_end() -> None:
    subject = engine()
    assert subject.process([at(0), at(5), at(9.999)]).windows == []
    (closed,) = subject.process([at(10)]).windows
    assert (closed.start, closed.end) == (T0, T0 + WINDOW_MS)
    assert closed.gpu == ("a", "b")
    assert closed.samples == (3, 3)
    assert (closed.cohort, closed.job, closed.node) == ("n1", None, "n1")
    assert closed.source.topic == "gpu.samples"
    assert closed.source.partition == 5
    assert closed.source.watermark == T0 + WINDOW_MS


def test_another_nodes_time_closes_nothing() -> None:
    assert windows(at(0), at(3600, node="n2", gpus=("c",)), at(1)) == []


def test_the_end_of_input_closes_nothing() -> None:
    assert windows(*[at(second) for second in range(10)]) == []


def test_the_watermark_is_the_start_of_the_window_that_is_open_now() -> None:
    """After a gap: windows in between had no samples and are never sent."""
    (closed,) = windows(at(3), at(47))
    assert closed.start == T0
    assert closed.source.watermark == T0 + 4 * WINDOW_MS


def test_summaries_leave_missing_readings_out() -> None:
    (closed,) = windows(
        at(0, {"power_watts": [100.0, None], "fan_ratio": [None, None]}),
        at(1, {"power_watts": [300.0, 50.0]}),
        at(2, {"power_watts": [None, 70.0], "temperature_celsius": [40.0, None]}),
        at(10),
    )
    power = closed.m["power_watts"]
    assert power.mean == [200.0, 60.0]
    assert power.min == [100.0, 50.0]
    assert power.max == [300.0, 70.0]
    assert power.last == [300.0, 70.0]
    heat = closed.m["temperature_celsius"]
    assert heat.mean == [40.0, None]
    assert heat.min == heat.max == heat.last == [40.0, None]
    assert "fan_ratio" not in closed.m, "never read by anyone: not offered"
    assert closed.missing == (1 + 2, 1 + 3)  # of three samples and two metrics offered
    assert decode_window(encode(closed)) == closed


def test_zero_is_a_reading() -> None:
    (closed,) = windows(at(0, {"gpu_utilization_ratio": [0.0, None]}), at(10))
    assert closed.m["gpu_utilization_ratio"].mean == [0.0, None]


def test_reasons_seen_at_any_time_are_combined() -> None:
    (closed,) = windows(
        at(0, {"clock_event_reasons": [4.0, None]}),
        at(1, {"clock_event_reasons": [0x80, 0.0]}),
        at(2, {"clock_event_reasons": [None, None]}),
        at(10),
    )
    assert closed.clock_event_reasons == (0x84, 0)


def test_the_next_window_begins_from_nothing() -> None:
    closed = windows(
        at(0, {"power_watts": [900.0, 900.0], "clock_event_reasons": [8.0, 8.0]}),
        at(10, {"power_watts": [1.0, 2.0]}),
        at(20),
    )
    assert [w.start for w in closed] == [T0, T0 + WINDOW_MS]
    assert closed[1].m["power_watts"].max == [1.0, 2.0]
    assert closed[1].clock_event_reasons == (0, 0)


def test_each_job_of_a_node_has_its_own_window() -> None:
    jobs = (JobRef(gpus=("a", "c"), job="j1"), JobRef(gpus=("b",), job="j2"))
    gpus = ("a", "b", "c", "d")
    closed = windows(at(0, gpus=gpus, jobs=jobs), at(10, gpus=gpus))
    found = {window.cohort: (window.job, window.gpu) for window in closed}
    assert found == {
        "j1": ("j1", ("a", "c")),
        "j2": ("j2", ("b",)),
        "n1": (None, ("d",)),
    }


def test_a_window_belongs_to_the_job_at_its_beginning() -> None:
    old, new = (JobRef(gpus=("a", "b"), job="old"),), (JobRef(gpus=("a", "b"), job="new"),)
    closed = windows(at(0, jobs=old), at(5, jobs=new), at(10), at(15, jobs=()), at(20), at(30))
    assert [(w.start - T0, w.cohort) for w in closed] == [
        (0, "old"),
        (10_000, "new"),
        (20_000, "n1"),
    ]


def test_the_window_of_a_gpu_that_left_closes_with_its_nodes_time() -> None:
    closed = windows(at(0), at(3, gpus=("a",)), at(10, gpus=("a",)), at(20, gpus=("a",)))
    assert [(w.start - T0, w.gpu, w.samples) for w in closed] == [
        (0, ("a", "b"), (2, 1)),
        (10_000, ("a",), (1,)),
    ]


def test_a_gpu_that_comes_back_begins_a_window_of_its_own_time() -> None:
    subject = engine()
    subject.process([at(0), at(12, gpus=("a",)), at(25), at(26)])
    (closed,) = subject.process([at(31)]).windows
    assert (closed.start - T0, closed.gpu, closed.samples) == (20_000, ("a", "b"), (2, 2))


def test_a_blind_collector_closes_windows_without_adding_to_them() -> None:
    blind = replace(at(12, gpus=()), m={}, collector=CollectorStatus(state="blind"))
    subject = engine()
    assert subject.process([at(0), blind]).windows == []  # nothing is known of its GPUs
    (closed,) = subject.process([at(21)]).windows
    assert (closed.start, closed.samples) == (T0, (1, 1))


def test_models_and_labels_of_the_inventory_are_in_the_window() -> None:
    listed = Inventory(gpus=(GpuInventory(gpu="a", index=0, model="H100"),), labels={"rack": "r1"})
    (closed,) = windows(replace(at(0), inventory=listed), at(10))
    assert closed.model == ("H100", None)
    assert closed.labels == {"rack": "r1"}


def test_a_clock_set_back_closes_the_window_and_never_moves_the_watermark_past_it() -> None:
    closed = windows(at(25, seq=0), at(3, seq=1), at(10, seq=2))
    assert [(w.start - T0, w.samples) for w in closed] == [(20_000, (1, 1)), (0, (1, 1))]
    assert closed[1].source.watermark == T0 + WINDOW_MS


readings = st.lists(
    st.tuples(
        st.floats(0.05, 7.0),
        st.lists(st.none() | st.floats(-40, 150), min_size=2, max_size=2),
    ),
    min_size=1,
    max_size=40,
)


@settings(deadline=None)
@given(readings)
def test_windows_equal_the_sums_of_their_samples(
    series: list[tuple[float, list[float | None]]],
) -> None:
    """A loop in plain Python over the same samples."""
    moments = np.cumsum([gap for gap, _ in series])
    samples = [
        at(float(second), {"temperature_celsius": values}, seq=number)
        for number, (second, (_, values)) in enumerate(zip(moments, series, strict=True))
    ]
    closing = at(1000, seq=len(samples))
    expected: dict[int, list[list[float | None]]] = {}
    for sample in samples:
        expected.setdefault(sample.ts[0] // WINDOW_MS * WINDOW_MS, []).append(
            sample.m["temperature_celsius"]
        )
    closed = windows(*samples, closing)
    assert [w.start for w in closed] == sorted(expected)
    for window in closed:
        rows = expected[window.start]
        assert window.samples == (len(rows),) * 2
        for gpu in range(2):
            seen = [row[gpu] for row in rows if row[gpu] is not None]
            if "temperature_celsius" not in window.m:
                assert not seen
                continue
            summary = window.m["temperature_celsius"]
            got = [summary.mean[gpu], summary.min[gpu], summary.max[gpu], summary.last[gpu]]
            if not seen:
                assert got == [None] * 4
                continue
            numbers = [float(v) for v in seen if v is not None]
            mean = math.fsum(numbers) / len(numbers)
            assert got[0] == pytest.approx(mean, abs=1e-9)
            assert got[1:] == [min(numbers), max(numbers), numbers[-1]]


def test_nodes_with_other_metrics_close_together_and_each_encodes_its_own() -> None:
    def sample(node: str, names: list[str], tick: int) -> NodeSample:
        return NodeSample(
            node=node,
            boot_id="b",
            seq=tick,
            ts=(T0 + 10_000 * tick,),
            gpu=(f"GPU-{node}-0", f"GPU-{node}-1"),
            m={name: [1.0 + tick, None if name == "power_watts" else 2.0] for name in names},
        )

    some = ["power_watts", "temperature_celsius"]
    other = ["memory_used_bytes", "temperature_celsius"]
    engine = Engine((), topic="t", partition=0)
    sent = [sample(n, names, tick) for tick in (0, 1) for n, names in (("a", some), ("b", other))]
    closed = {window.node: window for window in engine.process(sent).windows}
    assert set(closed["a"].m) == set(some)
    assert set(closed["b"].m) == set(other)
    for window in closed.values():
        assert decode_window(encode(window)) == window
    assert closed["a"].m["power_watts"].mean == [1.0, None]
