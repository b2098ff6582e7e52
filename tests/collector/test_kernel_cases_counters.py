"""The cases of kernel.json about counters and links: published as read, recordings understood."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bus.memory import MemoryBus
from collector.agent import CollectorService
from collector.clock import ManualClock
from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from collector.settings import CollectorSettings
from collector.source import Reading
from schemas.codec import decode_sample
from schemas.sample import GpuInventory, Inventory, NodeSample

Case = dict[str, Any]  # a case is free-form JSON


@pytest.fixture
def cases(shared: Path) -> dict[str, Case]:
    found = json.loads((shared / "cases" / "kernel.json").read_text())
    return {case["id"]: case for case in found}


class Scripted:
    """One reading after the other."""

    kind = "simulated"

    def __init__(self, readings: Sequence[dict[str, Any]], inventory: Inventory) -> None:
        self._left = list(readings)
        self._inventory = inventory

    @property
    def exhausted(self) -> bool:
        return not self._left

    def read(self, ts_ms: int) -> list[Reading]:
        values = {name: [value] for name, value in self._left.pop(0).items()}
        return [Reading(node="n1", ts=ts_ms, gpus=("A",), values=values, inventory=self._inventory)]

    def close(self) -> None:
        """Nothing is open."""


def published(
    readings: Sequence[dict[str, Any]], inventory: Inventory, interval: float = 5.0
) -> list[NodeSample]:
    settings = CollectorSettings.model_validate(
        {"source": "simulated", "node": "n1", "interval_seconds": interval}
    )
    bus = MemoryBus()
    service = CollectorService(Scripted(readings, inventory), bus, settings, clock=ManualClock())
    service.run(threading.Event())
    reader = bus.subscriber(group="t", topics=["gpu.samples"])
    found = [decode_sample(record.value) for record in reader.poll(1000, 0.0)]
    reader.close()
    return [sample for sample in found if sample.gpu]


def imported(path: Path) -> Reading:
    (reading,) = ReplaySource(ReplaySettings(files=(path,))).read(0)
    return reading


def test_x06_counters_are_published_as_read_and_a_reset_is_no_negative_rate(
    cases: dict[str, Case],
) -> None:
    given = cases["X06"]["input"]
    for part in ("a", "b"):
        series = given[part]["ecc_corrected_total"]
        # A reset after it, and a count that only 64 bits hold.
        whole = [*series, 0, 2**52 + 1]
        samples = published(
            [{"ecc_corrected_total": value} for value in whole],
            Inventory(gpus=(GpuInventory(gpu="A"),)),
            given[part]["interval_seconds"],
        )
        column = [value for sample in samples for value in sample.m["ecc_corrected_total"]]
        assert column == [float(value) for value in whole]
        assert [sample.status for sample in samples] == [{}] * len(samples)


def test_x06_the_recorded_retirements_are_understood(cases: dict[str, Case], shared: Path) -> None:
    bad, good = (imported(shared / "cases" / name) for name in cases["X06"]["input"]["recordings"])
    names = ("single_bit_total", "double_bit_total", "pending")
    columns = [bad.values[f"retired_pages_{name}"] for name in names]
    by_domain = {
        int((gpu.pci or "").partition(":")[0], 16): [column[n] for column in columns]
        for n, gpu in enumerate(bad.inventory.gpus)
    }
    assert by_domain[1] == [60, 5, 0]
    assert by_domain[2] == [2, 61, 1]
    assert by_domain[6] == [20, 45, 1]
    assert [by_domain[n] for n in (3, 5, 7)] == [[0, 0, 0]] * 3
    assert all(value == 0.0 for column in good.values.values() for value in column)


@pytest.mark.parametrize("part", ["a", "b", "c"])
def test_x08_active_links_total_links_and_uptime_are_published(
    cases: dict[str, Case], part: str
) -> None:
    given = cases["X08"]["input"][part]
    facts = GpuInventory(gpu="A", model=given["model"], nvlink_links=given.get("links_total"))
    inventory = Inventory(gpus=(facts,), uptime_seconds=given["uptime_seconds"])
    polls = given.get("polls", given.get("polls_down", 1))
    samples = published([{"nvlink_active_links": given["links_active"]}] * polls, inventory)
    assert [sample.m["nvlink_active_links"] for sample in samples] == [
        [given["links_active"]]
    ] * polls
    first = samples[0].inventory
    assert first is not None
    assert first.gpus[0].nvlink_links == given.get("links_total")
    assert first.uptime_seconds == given["uptime_seconds"]


def test_x08_the_recorded_lists_of_links_are_counted(cases: dict[str, Case], shared: Path) -> None:
    bad, good, eight = (
        imported(shared / "cases" / name) for name in cases["X08"]["input"]["recordings"]
    )
    assert bad.values["nvlink_active_links"] == [0.0]
    assert good.values["nvlink_active_links"] == [12.0]
    assert eight.values["nvlink_active_links"] == [12.0] * 8
