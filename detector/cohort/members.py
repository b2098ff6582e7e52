"""The members of a job that are compared across nodes, and who speaks for whom.

*Who speaks.* A GPU whose node holds three or more GPUs of the job is judged on its node, sample
by sample, by the stream tier; its alert is about the GPU. Here such a node is one member, by the
median of its GPUs, and an alert is about the node: all its GPUs are slow together, which nobody on
the node can see. Where a node holds one or two GPUs of the job, nobody there can judge them, so
each of them is a member here and an alert is about the GPU. Hence no GPU is ever judged twice
and no fingerprint has two speakers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detector.arrays import FloatArray
from detector.frame import Frame
from schemas.alert import Scope, Subject
from schemas.metrics import METRIC_INDEX
from schemas.window import WINDOW_MS, WindowBatch

__all__ = ["NODE_GROUP", "Member", "members_frame", "members_of"]

#: GPUs of one job on a node from which on the node's own detectors compare them: ``min_group``
#: of the straggler and hang detectors.
NODE_GROUP = 3
_METRICS = (
    "power_watts",
    "gpu_utilization_ratio",
    "memory_utilization_ratio",
    "sm_clock_hertz",
    "power_limit_watts",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A node with its GPUs of the job, or one GPU.

    Parameters
    ----------
    key
        Names it within its job.
    gpu
        UUID, if the member is one GPU.
    gpus
        How many GPUs it stands for.
    values
        Means of the window, medians over the GPUs, by metric; NaN where missing.
    """

    key: str
    node: str
    gpu: str | None
    model: str | None
    gpus: int
    values: Mapping[str, float]

    def subject(self, job: str | None) -> Subject:
        """Return what an alert about this member is about."""
        scope = Scope.NODE if self.gpu is None else Scope.GPU
        return Subject(scope=scope, node=self.node, gpu_uuid=self.gpu, model=self.model, job=job)


def members_of(batches: Sequence[WindowBatch]) -> list[Member]:
    """Cut the windows of one job and start into members, sorted by key.

    Of a node whose GPUs differ in model or power limit the largest equal part stands for it.
    """
    found: list[Member] = []
    for batch in batches:
        columns = {name: _column(batch, name) for name in _METRICS}
        if len(batch.gpu) < NODE_GROUP:
            found += [_member(batch, columns, [at], gpu=uuid) for at, uuid in enumerate(batch.gpu)]
        else:
            found.append(_member(batch, columns, _largest(batch, columns), gpu=None))
    return sorted(found, key=lambda member: member.key)


def _column(batch: WindowBatch, metric: str) -> FloatArray:
    if metric not in batch.m:
        return np.full(len(batch.gpu), np.nan)
    return np.array(batch.m[metric].mean, dtype=np.float64)


def _largest(batch: WindowBatch, columns: Mapping[str, FloatArray]) -> list[int]:
    """Positions of the most numerous GPUs of one model and power limit."""
    limits = np.rint(np.nan_to_num(columns["power_limit_watts"], nan=-1.0)).tolist()
    groups: dict[tuple[str, float], list[int]] = defaultdict(list)
    for at, (model, limit) in enumerate(zip(batch.model, limits, strict=True)):
        groups[model or "", limit].append(at)
    return max(sorted(groups.items()), key=lambda item: len(item[1]))[1]


def _member(
    batch: WindowBatch, columns: Mapping[str, FloatArray], at: list[int], *, gpu: str | None
) -> Member:
    return Member(
        key=f"node:{batch.node}" if gpu is None else f"gpu:{gpu}",
        node=batch.node,
        gpu=gpu,
        model=batch.model[at[0]],
        gpus=len(at),
        values={name: _median(column[at]) for name, column in columns.items()},
    )


def _median(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def members_frame(
    members: Sequence[Member], rows: Sequence[int], start: int, before: Sequence[int]
) -> Frame:
    """Make a frame in which the members stand side by side, as GPUs of one node do.

    Parameters
    ----------
    rows
        Rows of their state.
    start
        Of the window, unix milliseconds.
    before
        Starts of their windows before this one, 0 where there was none.
    """
    seconds = WINDOW_MS / 1000.0
    frame = Frame.of(
        metrics={name: [member.values[name] for member in members] for name in _METRICS},
        ts=[start + WINDOW_MS] * len(members),
        dt=seconds,
    )
    frame.rows = np.array(rows, dtype=np.int64)
    last = np.array(before, dtype=np.int64)
    frame.dt = np.where((last > 0) & (last < start), (start - last) / 1000.0, np.nan)
    models = {name: code for code, name in enumerate(sorted({m.model or "" for m in members}))}
    frame.model = np.array([models[member.model or ""] for member in members], dtype=np.int64)
    frame.job = np.zeros(len(members), dtype=np.int64)
    frame.extra["member_gpus"] = np.array([float(member.gpus) for member in members])
    frame.extra["member_count"] = np.full(len(members), float(len(members)))
    frame.offered = np.array(sorted(METRIC_INDEX[name] for name in _METRICS), dtype=np.int64)
    return frame
