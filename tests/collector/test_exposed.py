"""One agent in place of an exporter: the last reading for Prometheus, and once for a person."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bus.memory import MemoryBus
from collector.agent import CollectorService
from collector.clock import ManualClock
from collector.exposed import GpuExposition, exposed_name
from collector.nodecontext import NodeContext
from collector.once import as_json, as_text, read_once
from collector.settings import CollectorSettings
from collector.simulated.fleet import SimulatedFleet
from collector.simulated.settings import SimulatedSettings
from collector.source import Reading
from schemas.codec import decode_sample
from schemas.metrics import CATALOGUE, Kind
from schemas.sample import GpuInventory, Inventory, JobRef

NOW = 1_790_000_000_000


def full() -> Reading:
    """One value for every metric of the catalogue."""
    return Reading(
        node="n1",
        ts=NOW,
        gpus=("GPU-a", "GPU-b"),
        values={metric.name: [1.0, None] for metric in CATALOGUE},
        inventory=Inventory(
            gpus=(
                GpuInventory(gpu="GPU-a", index=0, model="NVIDIA H100", pci="00000000:41:00.0"),
                GpuInventory(gpu="GPU-b", index=1),
            ),
            driver_version="590.48.01",
        ),
        jobs=(JobRef(gpus=("GPU-a",), job='ml/"a"\nb', project="ml"),),
    )


def shown(*readings: Reading, alive: bool = True) -> str:
    registry = CollectorRegistry()
    context = NodeContext()
    deadline = time.monotonic() + 60
    while "cpu_utilization_ratio" not in context.values():  # two looks, a tick of the kernel apart
        assert time.monotonic() < deadline
    exposition = GpuExposition(lambda: alive, context)
    registry.register(exposition)
    for reading in readings:
        exposition.show(reading)
    return generate_latest(registry).decode()


def series(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("gpu", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_metric_of_the_catalogue_has_its_name_and_its_type() -> None:
    text = shown(full())
    found = series(text)
    for metric in CATALOGUE:
        assert found[exposed_name(metric.name), "GPU-a"] == 1.0
        kind = "counter" if metric.kind == Kind.COUNTER else "gauge"
        assert f"# TYPE {exposed_name(metric.name)} {kind}\n" in text
    assert not [name for name, gpu in found if gpu == "GPU-b" and name != "foreshock_gpu_info"]


def test_what_a_gpu_is_and_whose_it_is_stand_in_labels() -> None:
    families = {family.name: family for family in text_string_to_metric_families(shown(full()))}
    info = families["foreshock_gpu_info"].samples[0].labels
    assert (info["model"], info["driver"], info["index"]) == ("NVIDIA H100", "590.48.01", "0")
    job = families["foreshock_gpu_job_info"].samples[0].labels
    assert (job["gpu"], job["job"], job["project"]) == ("GPU-a", 'ml/"a"\nb', "ml")


def test_the_machine_is_shown_beside_its_gpus() -> None:
    found = series(shown(full()))
    assert 0.0 <= found["foreshock_node_cpu_utilization_ratio", ""] <= 1.0
    assert found["foreshock_node_memory_total_bytes", ""] > 2**20
    assert found["foreshock_node_logical_processors", ""] >= 1.0


@pytest.mark.parametrize("change", ["heartbeat", "dead"])
def test_what_is_not_measured_now_is_not_shown(change: str) -> None:
    heartbeat = Reading(node="n1", ts=NOW + 1000, state="unresponsive")
    text = shown(full(), heartbeat) if change == "heartbeat" else shown(full(), alive=False)
    assert "foreshock_gpu_" not in text
    again = replace(full(), ts=NOW + 2000)
    assert "foreshock_gpu_power_watts" in shown(full(), heartbeat, again)


def test_promtool_has_nothing_to_say(tmp_path: Path) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        if os.environ.get("FORESHOCK_REQUIRE_SERVICES"):
            pytest.fail("promtool is not installed")
        pytest.skip("promtool is not installed")
    chosen = CollectorSettings.model_validate({"source": "simulated", "node": "n1"})
    service = CollectorService(
        SimulatedFleet(SimulatedSettings()),
        MemoryBus(),
        chosen,
        clock=ManualClock(stop_at=2.5),
        node_numbers=NodeContext(),
    )
    service.run(threading.Event())
    own = generate_latest(service.registry)
    assert b"foreshock_collector_samples_total" in own
    for text in (own, shown(full()).encode()):
        found = subprocess.run(
            [tool, "check", "metrics"], input=text, capture_output=True, timeout=60, check=False
        )
        assert found.returncode == 0, found.stdout.decode() + found.stderr.decode()
        assert found.stdout == b""


def test_the_agent_shows_its_last_reading() -> None:
    chosen = CollectorSettings.model_validate({"source": "simulated", "node": "n1"})
    service = CollectorService(
        SimulatedFleet(SimulatedSettings()), MemoryBus(), chosen, clock=ManualClock(stop_at=2.5)
    )
    assert "foreshock_gpu_" not in generate_latest(service.registry).decode()
    service.run(threading.Event())
    text = generate_latest(service.registry).decode()
    assert text.count("foreshock_gpu_power_watts{") >= 8


def test_once_gives_the_messages_that_would_be_published() -> None:
    chosen = CollectorSettings.model_validate(
        {"source": "simulated", "node": "n1", "labels": {"row": "r7"}}
    )
    fleet = SimulatedFleet(SimulatedSettings())
    readings = read_once(fleet, NOW)
    whole = json.loads(as_json(readings, chosen, fleet.kind, {"load1": 0.5}))
    assert whole["node"] == {"load1": 0.5}
    sample = decode_sample(json.dumps(whole["samples"][0]).encode())
    assert sample.gpu == readings[0].gpus
    assert sample.inventory is not None
    assert sample.inventory.labels["row"] == "r7"


def test_once_for_a_person_names_values_gaps_and_what_is_not_offered() -> None:
    reading = replace(
        full(),
        values={"power_watts": [631.95, None], "fan_ratio": [None, None]},
        status={"power_watts": {1: "error:15"}, "fan_ratio": {0: "unsupported", 1: "unsupported"}},
    )
    text = as_text([reading])
    assert "n1: The GPUs are being read." in text
    assert "GPU-a NVIDIA H100" in text
    assert "631.95" in text
    assert "error:15" in text
    assert "temperature_celsius" in text.splitlines()[-1]
    blind = Reading(node="n1", ts=NOW, state="no_library")
    assert "libnvidia-ml.so.1" in as_text([blind])
