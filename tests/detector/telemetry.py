"""Hand-built NodeSamples for detector tests: small, explicit, without a collector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from detector.pipeline import Pipeline
from schemas.alert import AlertEvent
from schemas.metrics import METRICS
from schemas.sample import GpuInventory, Inventory, JobRef, NodeSample

T0 = 1_790_000_000_000
MIB = 2.0**20
Value = float | None | Sequence[Any] | np.ndarray[Any, Any]


def uuids(count: int) -> tuple[str, ...]:
    """UUIDs of the GPUs 0 to count - 1."""
    return tuple(f"GPU-{number}" for number in range(count))


def held(minutes: float, interval: float = 1.0) -> int:
    """Number of samples that hold a constant for so many minutes."""
    return int(minutes * 60 / interval) + 1


def telemetry(
    metrics: Mapping[str, Value],
    *,
    gpus: int,
    ticks: int,
    interval: float = 1.0,
    noise: Mapping[str, float] | None = None,
    models: Sequence[str | None] | None = None,
    jobs: Sequence[str | None] | None = None,
    seed: int = 0,
    node: str = "node",
) -> list[NodeSample]:
    """Build messages of one tick each.

    A metric is a constant, a list per GPU, or an array (ticks, gpus). ``noise`` adds a normal
    error of that size, rounded to the sensor's resolution.
    """
    rng = np.random.default_rng(seed)
    columns = {name: _column(value, ticks, gpus) for name, value in metrics.items()}
    for name, size in (noise or {}).items():
        step = METRICS[name].resolution or 1e-9
        noisy = columns[name] + rng.normal(0.0, size, size=(ticks, gpus))
        columns[name] = np.round(noisy / step) * step
    ids = uuids(gpus)
    inventory = Inventory(
        gpus=tuple(
            GpuInventory(gpu=ids[i], index=i, model=models[i] if models else "H100")
            for i in range(gpus)
        ),
        expected_gpus=gpus,
    )
    return [
        NodeSample(
            node=node,
            boot_id="boot",
            seq=tick,
            ts=(T0 + round(tick * interval * 1000),),
            gpu=ids,
            m={
                name: [None if np.isnan(v) else float(v) for v in column[tick]]
                for name, column in columns.items()
            },
            inventory=inventory if tick == 0 else None,
            jobs=_jobs(ids, jobs) if tick == 0 else None,
        )
        for tick in range(ticks)
    ]


def _column(value: Value, ticks: int, gpus: int) -> np.ndarray[Any, Any]:
    array = np.array(value, dtype=np.float64)
    return np.broadcast_to(array, (ticks, gpus)).copy()


def _jobs(ids: Sequence[str], jobs: Sequence[str | None] | None) -> tuple[JobRef, ...] | None:
    if jobs is None:
        return None
    names = dict.fromkeys(job for job in jobs if job)
    return tuple(
        JobRef(gpus=tuple(u for u, job in zip(ids, jobs, strict=True) if job == name), job=name)
        for name in names
    )


def alerts_of(samples: Iterable[NodeSample]) -> list[AlertEvent]:
    """All alert events of some messages, through both tiers."""
    return Pipeline().feed(list(samples))


def serious(alerts: Iterable[AlertEvent]) -> list[tuple[str, str, str, str | None]]:
    """(family, kind, severity, GPU) of every firing alert of warning or above, each once."""
    found = [
        (a.family, a.kind, str(a.severity), a.subject.gpu_uuid)
        for a in alerts
        if a.state == "firing" and a.severity in {"warning", "critical"}
    ]
    return list(dict.fromkeys(found))
