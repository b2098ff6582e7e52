"""Rules about rows: their order, their neighbours, their coming and going, what they cost."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from detector.arrays import StateTable
from detector.base import Detector
from detector.contract.material import (
    Material,
    fresh,
    healthy_frames,
    quiet,
    require,
    require_same,
    scores,
    steps,
    wide_frame,
)
from detector.contract.telemetry import rough, samples_of, take
from detector.engine import Engine
from detector.episodes import EPISODE_FIELDS, advance, firing_rows
from schemas.alert import Scope, Severity
from schemas.sample import CollectorStatus

__all__ = [
    "check_a_row_depends_on_others_only_as_declared",
    "check_a_row_does_not_depend_on_other_nodes",
    "check_gpus_come_and_go",
    "check_quiet_on_a_healthy_hour",
    "check_reaches_enter",
    "check_the_cost_of_a_row",
    "check_the_order_of_rows_does_not_matter",
    "check_the_state_survives_a_snapshot",
]

#: Far above what any shipped detector costs, so that only a loop over rows is found, s.
_SECONDS_PER_ROW = 100e-6


def check_the_order_of_rows_does_not_matter(detector: Detector, material: Material) -> None:
    """Give rows and nodes in another order the same scores and states."""
    rng = np.random.default_rng(5)
    for frame, state, step in steps(detector, material):
        order = rng.permutation(len(frame))
        moved = detector.step(
            take(frame, order), {k: v[order] for k, v in state.items()}, quiet(detector, len(frame))
        )
        expected = {kind: score[order] for kind, score in scores(step).items()}
        require_same(scores(moved), expected, "Scores depend on the order of rows")
        want = {name: array[order] for name, array in step.state.items()}
        require_same(moved.state, want, "The state depends on the order of rows")


def check_a_row_does_not_depend_on_other_nodes(detector: Detector, material: Material) -> None:
    """Score a node that is alone in a frame as beside others: batching decides nothing."""
    for frame, state, step in steps(detector, material):
        for block in frame.blocks:
            mine = block[block >= 0]
            alone = detector.step(
                take(frame, mine),
                {k: v[mine] for k, v in state.items()},
                quiet(detector, len(mine)),
            )
            expected = {kind: score[mine] for kind, score in scores(step).items()}
            require_same(scores(alone), expected, "Another node changes a score")


def check_a_row_depends_on_others_only_as_declared(detector: Detector, material: Material) -> None:
    """Score a row alone as beside others of its node, unless ``peers`` is declared."""
    if detector.peers:
        require(detector.scope == Scope.GPU, "Only rows that are GPUs have peers on their node.")
        return
    for frame, state, step in steps(detector, material):
        for row in range(0, len(frame), 4):
            alone = detector.step(
                take(frame, [row]), {k: v[[row]] for k, v in state.items()}, quiet(detector, 1)
            )
            expected = {kind: score[[row]] for kind, score in scores(step).items()}
            require_same(scores(alone), expected, "Another row changes a score: declare peers")


def check_gpus_come_and_go(detector: Detector, material: Material) -> None:
    """Bear fewer GPUs, none, a blind collector, others, and all of them again."""
    del material
    engine = Engine([detector], topic="gpu.samples", partition=0)
    samples = samples_of(rough(3, nodes=2, gpus=4, ticks=40), 10.0)
    shown = (4, 2, 0, 3, 4)
    for number, sample in enumerate(samples):
        count = shown[number // 2 * 5 // 40 % 5]
        engine.process(
            [
                replace(
                    sample,
                    gpu=sample.gpu[:count],
                    m={name: values[:count] for name, values in sample.m.items()},
                    collector=CollectorStatus(state=("ok", "blind")[number // 30 % 2]),
                )
            ]
        )
    for name, array in engine.dump()[1].items():
        if array.dtype.kind == "f" and not name.startswith("windows/"):
            require(not np.isinf(array).any(), f"The state {name} is infinite.")


def check_the_state_survives_a_snapshot(detector: Detector, material: Material) -> None:
    """Say the same after being saved and loaded as if never stopped."""
    del material
    samples = samples_of(rough(4, nodes=2, gpus=4, ticks=40), 10.0)
    half = len(samples) // 2
    through = Engine([detector], topic="gpu.samples", partition=0)
    through.process(samples[:half])
    want = through.process(samples[half:]).alerts
    stopped = Engine([detector], topic="gpu.samples", partition=0)
    stopped.process(samples[:half])
    facts, arrays = stopped.dump()
    resumed = Engine([detector], topic="gpu.samples", partition=0)
    dropped = resumed.load(facts, {name: array.copy() for name, array in arrays.items()})
    require(not dropped, f"A snapshot of the same version drops {dropped}.")
    got = resumed.process(samples[half:]).alerts
    require(got == want, "After a snapshot other alerts come than without one.")


def check_quiet_on_a_healthy_hour(detector: Detector, material: Material) -> None:
    """Say nothing of warning or above in an hour of six healthy nodes."""
    del material
    frames = healthy_frames(detector.scope)
    state = fresh(detector, len(frames[0]))
    episodes = {spec.kind: StateTable(EPISODE_FIELDS) for spec in detector.kinds}
    for table in episodes.values():
        table.grow(len(frames[0]))
    for frame in frames:
        firing = {kind: firing_rows(table, frame.rows) for kind, table in episodes.items()}
        step = detector.step(frame, state, firing)
        state = {**state, **step.state}
        for spec in detector.kinds:
            for moved in advance(episodes[spec.kind], spec, frame, step.judgements[spec.kind]):
                require(
                    moved.severity < Severity.WARNING.rank,
                    f"{spec.kind} is raised on row {moved.row} of healthy telemetry.",
                )


def check_reaches_enter(detector: Detector, material: Material) -> None:
    """Find each kind somewhere; else the other rules were tried on rows that never speak."""
    reached = {
        spec.kind
        for seed in (1, 2)
        for _, _, step in steps(detector, material, seed)
        for spec in detector.kinds
        if (step.judgements[spec.kind].score >= spec.enter).any()
    }
    missed = {spec.kind for spec in detector.kinds} - reached
    require(
        not missed,
        f"{sorted(missed)} never reaches its threshold: give frames that show it as 'speaking'.",
    )


def check_the_cost_of_a_row(detector: Detector, material: Material) -> None:
    """Take far less time over hundreds of rows than a loop over them would."""
    del material
    frame = wide_frame(detector.scope)
    state, firing = fresh(detector, len(frame)), quiet(detector, len(frame))
    seconds = []
    for _ in range(3):  # the best of three: a busy machine must not fail a detector
        begin = time.perf_counter()
        detector.step(frame, state, firing)
        seconds.append(time.perf_counter() - begin)
    cost = min(seconds) / len(frame)
    require(
        cost <= _SECONDS_PER_ROW,
        f"A step costs {cost * 1e6:.0f} µs per row: it must not loop over rows.",
    )
