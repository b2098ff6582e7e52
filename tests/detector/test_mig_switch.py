"""A GPU that is switched to MIG on a running node: what then cannot be read is no fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from telemetry import MIB, serious, telemetry, uuids

from detector.pipeline import Pipeline
from schemas.sample import GpuInventory, Inventory, NodeSample

GPUS, SPLIT = 8, 4
IDS = uuids(GPUS)
PARTS = {f"MIG-{gpu}-{part}": IDS[gpu] for gpu in range(SPLIT) for part in range(2)}
SWITCHED, TOLD = 120.0, 170.0
Column = list[float | None]


def healthy(interval: float, seconds: float) -> list[NodeSample]:
    """GPUs 0 to 3 idle, as they must be to be switched; 4 to 7 train."""
    busy = np.arange(GPUS) >= SPLIT
    return telemetry(
        {
            "gpu_utilization_ratio": np.where(busy, 1.0, 0.0),
            "memory_utilization_ratio": np.where(busy, 0.5, 0.0),
            "power_watts": np.where(busy, 650.0, 75.0),
            "power_limit_watts": 700.0,
            "temperature_celsius": np.where(busy, 60.0, 32.0),
            "sm_clock_hertz": np.where(busy, 1.755e9, 345e6),
            "sm_clock_max_hertz": 1.98e9,
            "clock_event_reasons": np.where(busy, 4.0, 1.0),
            "memory_used_bytes": np.where(busy, 60_000.0, 600.0) * MIB,
            "memory_total_bytes": 81_559.0 * MIB,
            "nvlink_active_links": 18.0,
            "pcie_width_lanes": 16.0,
            "pcie_generation": np.where(busy, 5.0, 1.0),
            "row_remap_pending": 0.0,
            "row_remap_failed": 0.0,
        },
        gpus=GPUS,
        ticks=int(seconds / interval),
        interval=interval,
        noise={"power_watts": 2.0, "temperature_celsius": 0.5},
        models=["NVIDIA H100 80GB HBM3"] * GPUS,
    )


def switched(
    samples: list[NodeSample],
    *,
    interval: float,
    parts: bool,
    hidden: float | None,
    told: float,
) -> list[NodeSample]:
    """From ``SWITCHED`` on the first four GPUs are in MIG mode.

    ``parts``: their instances are listed at once. ``hidden``: what stands for a utilisation that
    cannot be read. ``told``: when the inventory says so.
    """
    given = []
    for number, sample in enumerate(samples):
        second = number * interval
        if second < SWITCHED:
            given.append(sample)
            continue
        values = {name: list(column) for name, column in sample.m.items()}
        for name in ("gpu_utilization_ratio", "memory_utilization_ratio"):
            values[name][:SPLIT] = [hidden] * SPLIT
        for name in ("row_remap_pending", "row_remap_failed"):
            values[name][:SPLIT] = [None] * SPLIT
        values["nvlink_active_links"][:SPLIT] = [0.0] * SPLIT
        # The instances fill up; of the parent's memory that is a growing part.
        used = min(35_000.0, 20.0 * (second - SWITCHED))
        values["memory_used_bytes"][:SPLIT] = [(600.0 + 2.0 * used) * MIB] * SPLIT
        watts = 300.0 + 100.0 * float(np.sin(second / 40.0))
        values["power_watts"][:SPLIT] = [watts] * SPLIT
        values["temperature_celsius"][:SPLIT] = [45.0 + float(number % 2)] * SPLIT
        gpus = (*sample.gpu, *PARTS) if parts else sample.gpu
        if parts:
            of_parts: dict[str, Column] = {
                "memory_used_bytes": [used * MIB] * len(PARTS),
                "memory_total_bytes": [39_936.0 * MIB] * len(PARTS),
            }
            nothing: Column = [None] * len(PARTS)
            values = {name: column + of_parts.get(name, nothing) for name, column in values.items()}
        given.append(
            replace(
                sample,
                gpu=gpus,
                m=values,
                parents=PARTS if parts else {},
                inventory=inventory(parts) if told <= second < told + 60.0 else None,
            )
        )
    return given


def inventory(parts: bool) -> Inventory:
    whole = tuple(
        GpuInventory(gpu=uuid, index=i, model="NVIDIA H100 80GB HBM3", mig_mode=i < SPLIT)
        for i, uuid in enumerate(IDS)
    )
    split = tuple(GpuInventory(gpu=uuid, parent=parent) for uuid, parent in PARTS.items())
    return Inventory(gpus=whole + (split if parts else ()), expected_gpus=GPUS)


def said(samples: Sequence[NodeSample]) -> list[tuple[str, str]]:
    """Everything that is said of a GPU in MIG mode, notes included."""
    split = {*IDS[:SPLIT], *PARTS}
    alerts = Pipeline().feed(list(samples))
    assert [found for found in serious(alerts) if found[3] not in split] == []
    return [(a.kind, str(a.subject.gpu_uuid)) for a in alerts if a.subject.gpu_uuid in split]


@pytest.mark.parametrize(("interval", "seconds"), [(1.0, 200.0), (10.0, 1300.0), (60.0, 1300.0)])
@pytest.mark.parametrize(
    ("parts", "hidden", "told"),
    [
        (True, None, SWITCHED),
        (True, 0.0, SWITCHED),  # an exporter that writes 0 for what it cannot read
        (True, None, TOLD),
        (True, 0.0, TOLD),
        (False, None, TOLD),  # no instance made yet: only the readings tell at first
        (False, None, SWITCHED),
    ],
)
def test_a_gpu_switched_to_mig_is_no_fault(
    interval: float, seconds: float, parts: bool, hidden: float | None, told: float
) -> None:
    samples = switched(
        healthy(interval, seconds), interval=interval, parts=parts, hidden=hidden, told=told
    )
    assert said(samples) == []


@pytest.mark.parametrize("interval", [1.0, 10.0])
def test_a_gpu_that_loses_its_links_and_is_not_in_mig_mode_is_one(interval: float) -> None:
    """The contrast: the same links, but its utilisation is read as before."""
    samples = healthy(interval, 270.0)
    for number, sample in enumerate(samples):
        if number * interval >= SWITCHED:
            sample.m["nvlink_active_links"][2] = 0.0
    assert said(samples) == [("nvlink", "GPU-2")]


def test_a_whole_gpu_is_judged_again_when_the_mode_ends() -> None:
    samples = healthy(1.0, 300.0)
    given = switched(samples[:190], interval=1.0, parts=True, hidden=None, told=SWITCHED)
    back = Inventory(
        gpus=tuple(GpuInventory(gpu=u, index=i, mig_mode=False) for i, u in enumerate(IDS)),
        expected_gpus=GPUS,
    )
    later = samples[190:]
    later[0] = replace(later[0], inventory=back)
    for sample in later[70:]:
        sample.m["nvlink_active_links"][1] = 0.0
    assert said([*given, *later]) == [("nvlink", "GPU-1")]
