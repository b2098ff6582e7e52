"""GPUs that come back one by one after the node could not be read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from telemetry import T0, uuids

from detector.detectors.lost import Lost
from detector.engine import Engine
from schemas.alert import AlertEvent, parse_time
from schemas.sample import CollectorState, CollectorStatus, GpuInventory, Inventory, NodeSample

GPUS = 8
IDS = uuids(GPUS)
GONE = 300.0


def node(
    listed: Callable[[float], int | None], *, seconds: float, interval: float
) -> list[NodeSample]:
    """``listed`` says how many GPUs a node lists at a second; None if it cannot be read."""
    inventory = Inventory(
        gpus=tuple(GpuInventory(gpu=uuid, index=i) for i, uuid in enumerate(IDS)),
        expected_gpus=GPUS,
    )
    made = []
    for number in range(int(seconds / interval)):
        second = number * interval
        count = listed(second)
        state = CollectorState.NO_DRIVER if count is None else CollectorState.OK
        made.append(
            NodeSample(
                node="node",
                boot_id="boot",
                seq=number,
                ts=(T0 + round(1000 * second),),
                gpu=IDS[: count or 0],
                m={"temperature_celsius": [40.0] * count} if count else {},
                collector=CollectorStatus(
                    state=state,
                    nvml_error=9 if count is None else None,
                    interval_seconds=interval,
                    flush_seconds=interval,
                ),
                inventory=inventory if number == 0 else None,
            )
        )
    return made


def missing(samples: list[NodeSample]) -> list[AlertEvent]:
    engine = Engine([Lost()], topic="gpu.samples", partition=0)
    return [a for a in engine.process(samples).alerts if a.kind == "missing"]


def reload(per_gpu: float, blind: float = 40.0, last: int = GPUS) -> Callable[[float], int | None]:
    """The driver is away for so long; then so many GPUs return, some seconds each."""

    def listed(second: float) -> int | None:
        if second < GONE:
            return GPUS
        if second < GONE + blind:
            return None
        return min(last, 1 + int((second - GONE - blind) / per_gpu))

    return listed


@pytest.mark.parametrize("interval", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("blind", [3.0, 40.0, 600.0])
@pytest.mark.parametrize("per_gpu", [0.6, 3.0])
def test_gpus_that_return_one_by_one_are_not_missing(
    interval: float, blind: float, per_gpu: float
) -> None:
    samples = node(reload(per_gpu, blind), seconds=GONE + blind + 120.0, interval=interval)
    assert [a.summary for a in missing(samples)] == []


@pytest.mark.parametrize("interval", [1.0, 5.0])
def test_a_gpu_that_does_not_return_is_missing(interval: float) -> None:
    samples = node(reload(0.6, last=7), seconds=GONE + 160.0, interval=interval)
    (alert,) = missing(samples)
    assert (alert.subject.gpu_uuid, alert.severity) == (IDS[7], "critical")
    began = (parse_time(alert.started_at) - T0) / 1000.0
    seen = (parse_time(alert.observed_at) - T0) / 1000.0
    assert GONE + 40.0 + 25.0 <= began <= seen <= GONE + 40.0 + 45.0 + 2 * interval


def test_a_gpu_that_leaves_a_node_that_is_read_is_missing_after_five_seconds() -> None:
    samples = node(lambda second: 7 if second >= GONE else 8, seconds=GONE + 60.0, interval=1.0)
    (alert,) = missing(samples)
    assert (parse_time(alert.observed_at) - T0) / 1000.0 - GONE <= 5.0


def test_a_missing_gpu_stays_one_alert_over_a_gap() -> None:
    """What was open before is neither ended nor opened again by a time without readings."""

    def listed(second: float) -> int | None:
        if second < GONE:
            return GPUS
        return None if GONE + 60.0 <= second < GONE + 100.0 else 7

    alerts = missing(node(listed, seconds=GONE + 300.0, interval=1.0))
    assert [str(a.state) for a in alerts] == ["firing"]
