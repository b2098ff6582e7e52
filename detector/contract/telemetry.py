"""Telemetry to check a detector with: what it may be shown, healthy or rough.

Everything is drawn from a seed, so a rule that is broken is broken the same way every time.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np

from detector.arrays import Field
from detector.base import AnyArray, Detector, Explanation, KindSpec, RowView, Step
from detector.contract.troubles import hot_and_held_back, open_alerts
from detector.engine import Engine
from detector.frame import Frame
from schemas.alert import Scope
from schemas.metrics import CATALOGUE, METRIC_INDEX, Kind
from schemas.sample import CollectorState, GpuInventory, Inventory, JobRef, NodeSample, SampleEvent

__all__ = [
    "Recorder",
    "frames_for",
    "frames_of",
    "healthy",
    "lock",
    "rough",
    "rough_frames",
    "samples_of",
    "take",
    "without",
]

Floats = np.ndarray[Any, np.dtype[np.float64]]
GIB = 2.0**30
T0 = 1_790_000_000_000
_ARRAYS = {"FloatArray", "IntArray", "BoolArray"}
PER_ROW = [
    f.name
    for f in fields(Frame)
    if f.type in {"FloatArray", "IntArray", "BoolArray"}
    and f.name not in {"x", "offered", "blocks"}
]
# What a frame only knows while its rows stand as the engine put them.
_UNTAKEN = {f.name: None for f in fields(Frame) if f.default is None and f.name != "members"}


def healthy(seed: int, *, nodes: int, gpus: int, ticks: int, interval: float) -> dict[str, Floats]:
    """Draw a training job on every node, nothing wrong: (ticks, nodes, gpus) per metric.

    At its power cap, in step with its peers, with the slots' own temperatures, memory on its
    plateau after a loading staircase, counters of harmless things running.
    """
    rng = np.random.default_rng(seed)
    shape = (ticks, nodes, gpus)
    seconds = np.arange(ticks)[:, None, None] * interval
    step_phase = np.sin(seconds / 37.0 + rng.uniform(0, 6, (1, nodes, 1)))
    power = 640.0 + 30.0 * step_phase + rng.normal(0, 8.0, shape)
    slots = rng.uniform(0.0, 9.0, (1, nodes, gpus))
    heat = np.round(55.0 + slots + 1.5 * step_phase + rng.normal(0, 0.6, shape))
    loaded = np.minimum(seconds // 20.0, 6.0) * 10.0 * GIB  # six steps of loading
    used = loaded + 8.0 * GIB + rng.integers(0, 64, shape) * 2.0 * 2**20
    clock = np.round((1700.0 - 20.0 * step_phase + rng.normal(0, 10.0, shape)) / 15) * 15e6
    known: dict[str, Floats | float] = {
        "temperature_celsius": heat,
        "memory_temperature_celsius": heat + 8.0,
        "temperature_margin_celsius": 87.0 - heat,
        "power_watts": power,
        "power_instant_watts": power + rng.normal(0, 30.0, shape),
        "power_limit_watts": 700.0,
        "power_default_limit_watts": 700.0,
        "energy_joules_total": np.cumsum(power, axis=0) * interval,
        "gpu_utilization_ratio": np.clip(0.97 + rng.normal(0, 0.01, shape), 0, 1),
        "memory_utilization_ratio": np.clip(0.55 + rng.normal(0, 0.03, shape), 0, 1),
        "memory_used_bytes": used,
        "memory_free_bytes": 79.0 * GIB - used,
        "memory_total_bytes": 80.0 * GIB,
        "memory_reserved_bytes": 1.0 * GIB,
        "sm_clock_hertz": clock,
        "sm_clock_max_hertz": 1.98e9,
        "memory_clock_hertz": 2.619e9,
        "clock_event_reasons": 4.0,  # software power cap: what a busy GPU does
        "throttle_power_cap_seconds_total": np.broadcast_to(seconds, shape).copy(),
        # a thermal check that fails for microseconds now and then
        "throttle_sw_thermal_seconds_total": 0.0008
        * np.cumsum(rng.random(shape) < 0.02, axis=0).astype(np.float64),
        "fan_ratio": 0.5,
        "pcie_generation": 5.0,
        "pcie_width_lanes": 16.0,
        "pcie_transmit_bytes_total": np.cumsum(rng.uniform(0, 1e9, shape), axis=0),
        "pcie_receive_bytes_total": np.cumsum(rng.uniform(0, 1e9, shape), axis=0),
        "nvlink_active_links": 18.0,
    }
    values = {
        metric.name: np.broadcast_to(np.asarray(known.get(metric.name, 0.0)), shape).copy()
        for metric in CATALOGUE
    }
    for column in values.values():
        column[rng.random(shape) < 0.003] = np.nan
    return values


def rough(seed: int, *, nodes: int, gpus: int, ticks: int) -> dict[str, Floats]:
    """Draw anything within the plausible ranges, a tenth of it missing: scores of every size."""
    rng = np.random.default_rng(seed)
    shape = (ticks, nodes, gpus)
    values = healthy(seed, nodes=nodes, gpus=gpus, ticks=ticks, interval=10.0)
    values["temperature_celsius"] += (rng.random((1, nodes, gpus)) < 0.3) * 30.0
    values["memory_used_bytes"] = np.minimum(
        40 * GIB + np.cumsum(rng.uniform(0, 1.2, shape) * GIB, axis=0), 79.0 * GIB
    )
    values["clock_event_reasons"] = rng.choice([0.0, 4.0, 0x20, 0x40, 0x80, 0xE4], shape)
    for metric in CATALOGUE:
        if metric.kind is Kind.COUNTER:
            grown = np.cumsum(rng.choice([0.0, 0.0, 1.0, 7.0], shape), axis=0)
            grown[ticks // 2 :, :, 0] = 0.0  # a reset
            values[metric.name] = grown
    _imbalance(values)
    _break_hardware(values, np.random.default_rng(seed + 1000))
    hot_and_held_back(values)
    for column in values.values():
        column[rng.random(shape) < 0.1] = np.nan
    # GPUs without counters, and one whose readings fail for a while
    for name in values:
        if name.startswith("throttle_"):
            values[name][:, :, -1] = np.nan
        values[name][5:8, 0, 1] = np.nan
    if nodes > 2 and gpus > 4:
        _badly_used(values)
    return values


def _badly_used(values: dict[str, Floats]) -> None:
    """Let GPUs of the third node toggle, work little, and idle, with their memory taken."""
    busy = values["gpu_utilization_ratio"]
    busy[:, 2, 1] = np.arange(len(busy)) % 2
    values["memory_used_bytes"][:, 2, 1] = 40 * GIB
    values["memory_total_bytes"][:, 2, 1] = 80 * GIB
    busy[:, 2, 2] = 0.1
    busy[:, 2, 3] = 0.0
    values["power_watts"][:, 2, 3] = 75.0
    still = len(busy) // 3  # from then on a photograph
    for column in values.values():
        column[still:, 2, 4] = np.nan_to_num(column[still - 1, 2, 4], nan=1.0)


def _imbalance(values: dict[str, Floats]) -> None:
    """Slow a GPU of the first node; hang a rank of the second, then let everybody wait."""
    power, busy = values["power_watts"], values["gpu_utilization_ratio"]
    half, late = len(power) // 2, 3 * len(power) // 4
    values["sm_clock_hertz"][:, 0, 2] *= 0.5
    power[:, 0, 2] *= 0.8
    power[half:, 1, :], busy[half:, 1, :] = 135.0, 1.0
    values["memory_utilization_ratio"][half:, 1, :] = 0.0
    power[half:late, 1, 3], busy[half:late, 1, 3] = 75.0, 0.0


def _break_hardware(values: dict[str, Floats], rng: np.random.Generator) -> None:
    """Storms of errors, lost links and lanes, repairs that wait or failed, cries for help."""
    shape = values["power_watts"].shape
    for name in ("ecc_corrected_total", "nvlink_errors_total"):
        values[name] *= rng.choice([1.0, 500.0], (1, *shape[1:]))
    values["nvlink_active_links"] = rng.choice([18.0, 12.0, 0.0], shape)
    values["pcie_width_lanes"] = rng.choice([16.0, 8.0, 4.0], shape)
    values["pcie_generation"] = rng.choice([5.0, 1.0], shape)
    values["row_remap_pending"] = rng.choice([0.0, 1.0], shape)
    values["row_remap_failed"] = rng.choice([0.0, 0.0, 1.0], shape)
    values["recovery_action"] = rng.choice(np.arange(10.0), shape)


def samples_of(values: dict[str, Floats], interval: float) -> list[NodeSample]:
    """Put columns into messages of one tick, node by node."""
    ticks, nodes, gpus = next(iter(values.values())).shape
    out = []
    for tick in range(ticks):
        for node in range(nodes):
            ids = tuple(f"GPU-{node}-{gpu}" for gpu in range(gpus))
            out.append(
                NodeSample(
                    node=f"n{node}",
                    boot_id="boot",
                    seq=tick,
                    ts=(T0 + round(tick * interval * 1000),),
                    gpu=ids,
                    m={
                        name: [None if np.isnan(v) else v for v in column[tick, node].tolist()]
                        for name, column in values.items()
                    },
                    jobs=(JobRef(gpus=ids, job=f"job-{node}"),) if tick == 0 else None,
                    inventory=Inventory(
                        gpus=tuple(
                            GpuInventory(gpu=uuid, index=i, model="H100")
                            for i, uuid in enumerate(ids)
                        ),
                        expected_gpus=gpus + node,
                    )
                    if tick == 0
                    else None,
                )
            )
    return out


class Recorder:
    """A detector that says nothing and keeps the frames it is shown."""

    version, family, peers = "1", "telemetry", False
    needs: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    kinds: tuple[KindSpec, ...] = ()

    def __init__(self, scope: Scope) -> None:
        self.name = f"recorder_{scope}"
        self.scope = scope
        self.frames: list[Frame] = []

    def fields(self) -> dict[str, Field]:
        """Declare no state."""
        return {}

    def step(self, frame: Frame, state: Any, firing: Any) -> Step:
        """Keep the frame."""
        del state, firing
        self.frames.append(frame)
        return Step(judgements={}, state={})

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Refuse: a recorder has no kinds. Always KeyError."""
        del row
        raise KeyError(kind)


def frames_of(samples: list[NodeSample]) -> tuple[list[Frame], list[Frame]]:
    """Return the frames of GPUs and those of nodes that the engine makes of messages."""
    gpus, nodes = Recorder(Scope.GPU), Recorder(Scope.NODE)
    Engine([gpus, nodes], topic="gpu.samples", partition=0).process(samples)  # type: ignore[list-item]  # instance variables where the protocol has class variables
    return gpus.frames, nodes.frames


@cache
def rough_frames(seed: int) -> tuple[tuple[Frame, ...], tuple[Frame, ...]]:
    """Return frames of GPUs and of nodes in which everything happens, all of them read-only."""
    gpus, nodes = frames_of(samples_of(rough(seed, nodes=3, gpus=5, ticks=24), 10.0))
    rng = np.random.default_rng(seed)
    for frame in gpus[10:]:
        frame.lost = (rng.random(len(frame)) < 0.1) & ~frame.gone
        gone = rng.random(len(frame)) < 0.1
        frame.gone, frame.absent = gone, gone & (rng.random(len(frame)) < 0.5)
        frame.x[:, gone | frame.lost] = np.nan
    for frame in nodes[5:10]:
        frame.extra["expected_gpus"] = np.full(len(frame), np.nan)
    words = list(CollectorState)
    for word, frame in zip(words[1:], nodes[10:], strict=False):
        frame.extra["collector_state"] = np.full(len(frame), float(words.index(word)))
    for frame in (*gpus[1:], *nodes[1:]):
        frame.events = _some_events(frame, rng)
    for number, frame in enumerate(nodes):
        silent = np.full(len(frame), 100.0 if 4 < number < 12 else 0.0)
        frame.extra |= {"silent_seconds": silent, "arrival_seconds": silent - 40.0}
        frame.extra |= {"silent_nodes": silent, "heard_nodes": np.full(len(frame), 200.0)}
    for frame in gpus:
        frame.extra["implausible_readings"][::3] = 2.0
    for number, frame in enumerate(nodes):
        frame.members_open = open_alerts(frame, seed + number)
    for frame in (*gpus, *nodes):
        lock(frame)
    return tuple(gpus), tuple(nodes)


def _some_events(frame: Frame, rng: np.random.Generator) -> tuple[tuple[int, SampleEvent], ...]:
    """Xids of every class, several on one row, kernel lines, resets."""
    found = []
    for position in np.flatnonzero(rng.random(len(frame)) < 0.3).tolist():
        ts = int(frame.ts[position])
        code = int(rng.choice([13, 31, 45, 63, 74, 79, 94, 119, 145, 154, 99999]))
        found.append((position, SampleEvent(ts=ts, kind="xid", xid=code, count=3)))
        kind = str(rng.choice(["xid", "kernel", "gpu_returned", "driver_changed", "new_kind"]))
        message = "NVRM: GPU 0000:41:00.0: GPU has fallen off the bus."
        found.append((position, SampleEvent(ts=ts, kind=kind, message=message)))
    return tuple(found)


def lock(frame: Frame) -> None:
    """Let a detector that writes into its frame fail on the spot."""
    found = [getattr(frame, f.name) for f in fields(Frame)]
    arrays = [value for value in found if isinstance(value, np.ndarray)]
    for array in (*arrays, *frame.extra.values(), *frame.members_open.values()):
        array.flags.writeable = False
    if frame.members is not None:
        lock(frame.members)


def frames_for(detector: Detector, seed: int = 1) -> tuple[Frame, ...]:
    """Return the rough frames of the detector's scope."""
    gpus, nodes = rough_frames(seed)
    return gpus if detector.scope == Scope.GPU else nodes


def take(frame: Frame, positions: AnyArray | list[int]) -> Frame:
    """Return the frame with only these positions, in this order.

    The rows of a node need not be adjacent.
    """
    order = np.asarray(positions, dtype=np.int64)
    node_of = np.full(len(frame), -1)
    for number, block in enumerate(frame.blocks):
        node_of[block[block >= 0]] = number
    mine = node_of[order]
    groups = [np.flatnonzero(mine == number) for number in dict.fromkeys(mine.tolist())]
    blocks = np.full((len(groups), max(map(len, groups))), -1)
    for number, group in enumerate(groups):
        blocks[number, : len(group)] = group
    columns = {name: getattr(frame, name)[order] for name in PER_ROW}
    extra = {name: column[order] for name, column in frame.extra.items()}
    new_place = {int(old): new for new, old in enumerate(order.tolist())}
    events = tuple((new_place[at], event) for at, event in frame.events if at in new_place)
    changed = replace(
        frame,
        **columns,
        **_UNTAKEN,  # type: ignore[arg-type]  # only fields whose default is None
        x=frame.x[:, order],
        blocks=blocks,
        extra=extra,
        events=events,
    )
    return _with_members(frame, changed, order)


def _with_members(frame: Frame, changed: Frame, order: AnyArray) -> Frame:
    """Give a frame of nodes the GPUs of the nodes that were taken, block by block."""
    if frame.members is None:
        return changed
    inside = [block[block >= 0] for block in frame.members.blocks[order]]
    positions = np.concatenate(inside) if inside else np.zeros(0, dtype=np.int64)
    changed.members = take(frame.members, positions)
    changed.members_open = {k: flags[positions] for k, flags in frame.members_open.items()}
    return changed


def without(frame: Frame, names: tuple[str, ...]) -> Frame:
    """Return the frame with some metrics missing everywhere."""
    x = frame.x.copy()
    for name in names:
        x[METRIC_INDEX[name]] = np.nan
    return replace(frame, x=x)
