"""The JSON Schemas in the repository are those of the code, and real messages satisfy them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest

from schemas.alert import (
    FAMILIES,
    AlertEvent,
    DetectorRef,
    Evidence,
    Subject,
    alert_id_of,
    fingerprint_of,
    parse_time,
    rfc3339,
)
from schemas.codec import decode_alert, decode_sample, decode_window, encode
from schemas.jsonschema import SCHEMAS, schema_bytes, write_all
from schemas.metrics import CATALOGUE, METRICS, Kind
from schemas.sample import GpuInventory, Inventory, JobRef, NodeSample, SampleEvent
from schemas.topics import ALL_TOPICS
from schemas.window import MetricWindow, WindowBatch, WindowSource

FOLDER = Path(__file__).resolve().parents[2] / "schemas"
T0 = 1_790_000_000_000


def sample() -> NodeSample:
    return NodeSample(
        node="n",
        boot_id="b",
        seq=7,
        ts=(T0, T0 + 1000),
        gpu=("GPU-a", "MIG-b"),
        m={"power_watts": [1.5, None, 2.5, 0.0], "temperature_celsius": [40, 41, 42, 43]},
        status={"power_watts": {"1": "unsupported"}},
        events=(SampleEvent(ts=T0, kind="xid", gpu="GPU-a", xid=79, message="off the bus"),),
        jobs=(JobRef(gpus=("GPU-a",), job="88190", rank=3, pids=(17,)),),
        inventory=Inventory(
            gpus=(GpuInventory(gpu="GPU-a", index=0, model="H100", shutdown_celsius=-8.0),),
            expected_gpus=1,
            labels={"rack": "r12"},
        ),
        parents={"MIG-b": "GPU-a"},
    )


def window() -> WindowBatch:
    part: list[float | None] = [1.0, None]
    return WindowBatch(
        cohort="job",
        node="n",
        job="job",
        start=T0,
        end=T0 + 10_000,
        source=WindowSource(topic="gpu.samples", partition=3, watermark=T0 + 10_000),
        gpu=("GPU-a", "GPU-b"),
        model=("H100", None),
        samples=(10, 9),
        missing=(0, 1),
        clock_event_reasons=(4, 0),
        m={"power_watts": MetricWindow(mean=part, min=part, max=part, last=part)},
    )


def alert() -> AlertEvent:
    subject = Subject(scope="gpu", node="n", gpu_uuid="GPU-a", gpu_index=0)
    fingerprint = fingerprint_of("thermal_fault", "peer_outlier", subject)
    return AlertEvent(
        alert_id=alert_id_of(fingerprint, T0),
        fingerprint=fingerprint,
        seq=1,
        state="firing",
        family="thermal_fault",
        kind="peer_outlier",
        severity="warning",
        subject=subject,
        started_at=rfc3339(T0),
        observed_at=rfc3339(T0 + 300_000),
        score=0.5,
        summary="n GPU 0 runs hot.",
        evidence=(Evidence(metric="temperature_celsius", value=63.0, unit="°C", peers=47.0),),
        likely_cause="cooling",
        action="check_cooling",
        next_steps=("look",),
        detector=DetectorRef(name="peer_outlier", version="1"),
    )


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_file_is_what_the_code_generates(name: str) -> None:
    """Run ``make docs`` after a change of the contract."""
    assert (FOLDER / f"{name}.schema.json").read_bytes() == schema_bytes(name)


def test_writing_all_schemas_gives_the_same_files(tmp_path: Path) -> None:
    write_all(tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {path.name for path in FOLDER.glob("*.schema.json")}


@pytest.mark.parametrize(
    ("name", "message"),
    [("node-sample", sample()), ("window-batch", window()), ("alert-event", alert())],
    ids=["sample", "window", "alert"],
)
def test_an_encoded_message_satisfies_its_schema(name: str, message: Any) -> None:
    schema = orjson.loads(schema_bytes(name))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(orjson.loads(encode(message)))


def test_messages_come_back_as_they_went() -> None:
    assert decode_sample(encode(sample())) == sample()
    assert decode_window(encode(window())) == window()
    assert decode_alert(encode(alert())) == alert()


def test_the_catalogue_names_each_metric_once_with_its_unit() -> None:
    assert len(METRICS) == len(CATALOGUE)
    for metric in CATALOGUE:
        assert metric.low < metric.high, metric.name
        assert metric.label_en, metric.name
        assert metric.label_zh, metric.name
        assert metric.source, metric.name
        if metric.kind is Kind.COUNTER:
            assert metric.name.endswith("_total"), metric.name
    # A suffix alone tells the unit: these are the only ones in use.
    units = ("celsius", "watts", "total", "ratio", "bytes", "hertz", "lanes", "seconds", "second")
    plain = {m.name for m in CATALOGUE if not m.name.endswith(units)}
    assert plain == {
        "performance_state",
        "clock_event_reasons",
        "pcie_generation",
        "nvlink_active_links",
        "row_remap_pending",
        "row_remap_failed",
        "retired_pages_pending",
        "recovery_action",
        "fan_rpm",
        "process_count",
        "row_remap_banks_max",
        "row_remap_banks_high",
        "row_remap_banks_partial",
        "row_remap_banks_low",
        "row_remap_banks_none",
        "sram_threshold_exceeded",
    }


def test_alerts_are_never_compacted_and_state_is() -> None:
    """An episode must not vanish while a reader is away; old state is worthless."""
    compacted = {topic.name for topic in ALL_TOPICS if topic.compacted}
    assert compacted == {"gpu.detector.state"}
    kept = {topic.name: topic.retention_ms for topic in ALL_TOPICS}
    assert kept["gpu.alerts"] == 90 * 86_400_000


def test_the_fingerprint_depends_on_what_identifies_the_subject_and_on_nothing_else() -> None:
    here = Subject(scope="gpu", node="n", gpu_uuid="GPU-a", gpu_index=0, job="1")
    moved = Subject(scope="gpu", node="other", gpu_uuid="GPU-a", gpu_index=5, job="2")
    other = Subject(scope="gpu", node="n", gpu_uuid="GPU-b", gpu_index=0, job="1")
    node = Subject(scope="node", node="n")
    prints = [fingerprint_of("gpu_lost", "missing", s) for s in (here, moved, other, node)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    assert fingerprint_of("gpu_lost", "lost", here) != prints[0]


def test_the_ids_of_an_alert_never_change() -> None:
    """Recorded: an open episode keeps its id when the detector is upgraded."""
    subject = Subject(scope="gpu", node="n", gpu_uuid="GPU-a")
    fingerprint = fingerprint_of("thermal_fault", "peer_outlier", subject)
    assert fingerprint == "6d28bf02-b4d6-5ccb-b3b0-f02436bcb6f0"
    assert alert_id_of(fingerprint, T0) == "ba0f4b41-f369-55f9-a206-c77b4c016fab"


def test_every_family_of_the_contract_is_there() -> None:
    assert set(FAMILIES) == {
        "oom_precursor",
        "throttling",
        "thermal_fault",
        "load_imbalance",
        "hardware_error",
        "gpu_lost",
        "telemetry",
        "inefficiency",
        "novelty",
    }


@pytest.mark.parametrize("moment", [0, 1, 999, T0, 4_102_444_800_000 - 1])
def test_times_come_back_as_they_went(moment: int) -> None:
    assert parse_time(rfc3339(moment)) == moment
