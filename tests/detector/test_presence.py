"""Which GPUs of a node are missed, and that impossible values harm nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from telemetry import T0, alerts_of, serious, telemetry

from schemas.sample import GpuInventory, Inventory, NodeSample

NODE = tuple(f"GPU-{number}" for number in range(8))
NEW = ("GPU-new", *NODE[1:])


def listing(
    gpus: Sequence[str], first: int, *, expected: int = 8, count: int = 60
) -> list[NodeSample]:
    """A node that lists these GPUs for a minute."""
    inventory = Inventory(
        gpus=tuple(GpuInventory(gpu=uuid, model="H100") for uuid in gpus), expected_gpus=expected
    )
    return [
        NodeSample(
            node="node",
            boot_id="boot",
            seq=first + number,
            ts=(T0 + (first + number) * 1000,),
            gpu=tuple(gpus),
            m={"temperature_celsius": [50.0] * len(gpus)},
            inventory=inventory,
        )
        for number in range(count)
    ]


def missing(messages: Sequence[NodeSample]) -> list[str | None]:
    return [uuid for family, _, _, uuid in serious(alerts_of(messages)) if family == "gpu_lost"]


def test_a_gpu_that_was_replaced_is_not_missed_when_another_goes() -> None:
    later = [uuid for uuid in NEW if uuid != "GPU-5"]
    messages = [*listing(NODE, 0), *listing(NEW, 60), *listing(later, 120)]
    assert missing(messages) == ["GPU-5"]


def test_a_gpu_that_was_taken_out_is_not_missed_when_another_goes() -> None:
    messages = [
        *listing(NODE, 0),
        *listing(NODE[:7], 60, expected=7),
        *listing(NODE[:6], 120, expected=7),
    ]
    assert missing(messages) == ["GPU-6"]


def test_gpus_that_go_one_after_the_other_are_all_missed() -> None:
    messages = [*listing(NODE, 0), *listing(NODE[:7], 60), *listing(NODE[:6], 120)]
    assert missing(messages) == ["GPU-7", "GPU-6"]


def test_a_retired_gpu_that_comes_back_is_missed_again() -> None:
    messages = [
        *listing(NODE, 0),
        *listing(NEW, 60),
        *listing(NODE, 120),
        *listing(NODE[1:], 180),
    ]
    assert missing(messages) == ["GPU-0"]


def test_an_impossible_value_is_a_gap_and_no_outlier() -> None:
    messages = telemetry(
        {"temperature_celsius": 50.0, "power_watts": 400.0, "clock_event_reasons": 4.0},
        gpus=8,
        ticks=900,
        noise={"temperature_celsius": 0.5, "power_watts": 3.0},
    )
    for number, value in ((300, 1e9), (310, 1e308), (320, -1e308)):
        heat = list(messages[number].m["temperature_celsius"])
        heat[4] = value
        bits: list[float | None] = [2.0**70] * 8
        values = {**messages[number].m, "temperature_celsius": heat, "clock_event_reasons": bits}
        messages[number] = replace(messages[number], m=values)
    with np.errstate(all="raise"):
        assert serious(alerts_of(messages)) == []
