"""Field cases of the family hardware_error, and the rules that they stand for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from telemetry import T0, alerts_of, held, serious, telemetry

from collector.batching import Batching, NodeBatcher
from collector.simulated.faults import Fault, FaultKind, default_schedule
from collector.simulated.fleet import SimulatedFleet
from collector.simulated.settings import SimulatedSettings
from detector.base import Detector
from detector.detectors.ecc import Ecc
from detector.engine import Engine
from detector.registry import build
from schemas.alert import AlertEvent, rfc3339
from schemas.sample import GpuInventory, Inventory, NodeSample, SampleEvent

XID_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:]+)[^)]*\): (\d+)"
)  # enough for the recordings


@pytest.fixture(scope="module")
def cases(shared: Path) -> dict[str, Any]:
    """Id to case, over all files."""
    found: dict[str, Any] = {}
    for path in sorted((shared / "cases").glob("*.json")):
        found |= {case["id"]: case for case in orjson.loads(path.read_bytes())}
    return found


def column(values: Sequence[float]) -> Any:
    return np.array(values, dtype=np.float64)[:, None]


def xid(gpu: int, code: int, count: int = 1, message: str | None = None) -> SampleEvent:
    return SampleEvent(ts=T0, kind="xid", gpu=f"GPU-{gpu}", xid=code, count=count, message=message)


def with_events(
    samples: Sequence[NodeSample], events: dict[int, Sequence[SampleEvent]]
) -> list[NodeSample]:
    """Put events, dated to their sample, into the samples of these numbers."""
    return [
        dataclasses.replace(
            sample,
            events=tuple(dataclasses.replace(e, ts=sample.ts[0]) for e in events.get(tick, ())),
        )
        for tick, sample in enumerate(samples)
    ]


def well(gpus: int = 2, ticks: int = 60, interval: float = 1.0, **metrics: Any) -> list[NodeSample]:
    return telemetry(
        {"temperature_celsius": 40, "power_watts": 70, **metrics},
        gpus=gpus,
        ticks=ticks,
        interval=interval,
    )


def alone(samples: Sequence[NodeSample], *detectors: Detector) -> list[AlertEvent]:
    """What some detectors say to a long series, without the work of all the others."""
    return Engine(detectors, topic="gpu.samples", partition=0).process(list(samples)).alerts


def of_kind(alerts: Sequence[AlertEvent], kind: str) -> list[AlertEvent]:
    return [alert for alert in alerts if alert.kind == kind]


def notes(alerts: Sequence[AlertEvent]) -> list[tuple[str, str | None]]:
    return [
        (a.kind, a.subject.gpu_uuid) for a in alerts if a.state == "firing" and a.severity == "info"
    ]


def with_facts(
    samples: Sequence[NodeSample], *, uptime: float | None = 86_400.0, **facts: Any
) -> list[NodeSample]:
    """Add facts of the inventory to all GPUs."""
    out = []
    for sample in samples:
        if sample.inventory is None:
            out.append(sample)
            continue
        gpus = tuple(dataclasses.replace(gpu, **facts) for gpu in sample.inventory.gpus)
        inventory = dataclasses.replace(sample.inventory, gpus=gpus, uptime_seconds=uptime)
        out.append(dataclasses.replace(sample, inventory=inventory))
    return out


# -- xid -------------------------------------------------------------------------------------------


def test_x01_the_codes_of_the_case_are_graded_by_what_they_demand(cases: dict[str, Any]) -> None:
    given = cases["X01"]
    found = {}
    codes = given["expect"]["collector"]["codes"]
    for line, code in zip(given["input"]["lines"], codes, strict=True):
        samples = with_events(well(1, 5), {2: [xid(0, code, message=line)]})
        found[code] = [a.severity for a in of_kind(alerts_of(samples), "xid")]
    assert found[79] == ["critical"]
    assert found[94] == ["warning"]
    assert {code for code, grades in found.items() if grades == ["info"]} == {
        31, 69, 13, 145, 154, 43,
    }  # fmt: skip


def test_x01_every_recorded_line_gives_an_alert_or_a_note_of_the_right_gpu(shared: Path) -> None:
    text = (shared / "recordings" / "kernel" / "xid_line_variants.txt").read_text()
    lines = [match for line in text.splitlines() if (match := XID_LINE.search(line))]
    assert len(lines) == 85
    for match in lines:
        event = SampleEvent(
            ts=T0, kind="xid", pci=match[1], xid=int(match[2]), message=match.string
        )
        samples = with_facts(with_events(well(1, 4), {2: [event]}), pci=f"0000{match[1]}.0")
        alerts = of_kind(alerts_of(samples), "xid")
        assert [a.subject.gpu_uuid for a in alerts] == ["GPU-0"], match.string
        if int(match[2]) == 99999:
            assert alerts[0].severity == "info"


@pytest.mark.parametrize("message", range(2))
def test_x01_falling_off_the_bus_counts_without_a_number(
    cases: dict[str, Any], message: int
) -> None:
    line = cases["X01"]["input"]["lines_without_a_number"][message]
    event = SampleEvent(ts=T0, kind="kernel", gpu="GPU-1", message=line.replace("\nNVRM:", ""))
    assert serious(alerts_of(with_events(well(), {5: [event]}))) == [
        ("hardware_error", "xid", "critical", "GPU-1")
    ]


@pytest.mark.parametrize("count", [1, 11_760])
def test_x03_application_codes_are_notes_whatever_their_number(
    cases: dict[str, Any], count: int
) -> None:
    for code in cases["X03"]["input"]["application_codes"]:
        alerts = alerts_of(with_events(well(ticks=20), {5: [xid(0, code, count)]}))
        assert serious(alerts) == []
        assert notes(alerts) == [("xid", "GPU-0")]
        assert f"Xid {code}" in alerts[0].summary


def test_x03_a_burst_is_one_note_with_its_count(cases: dict[str, Any]) -> None:
    given = cases["X03"]["input"]
    events = [xid(n, e["xid"], e["count"]) for n, e in enumerate(given["events"])]
    samples = well(ticks=held(30, 10), interval=10.0)
    spread = {5: events, **{20 + n: [xid(0, 45, 7)] for n in range(30)}}
    alerts = alerts_of(with_events(samples, spread))
    assert serious(alerts) == []
    assert notes(alerts) == [("xid", "GPU-0"), ("xid", "GPU-1")]
    assert "11760 times" in alerts[0].summary
    ended = [a for a in alerts if a.state == "resolved"]
    assert {a.end_reason for a in ended} == {"quiet"}
    assert all("nothing new was reported" in a.summary for a in ended)
    counts = {a.subject.gpu_uuid: a.evidence[1].value for a in ended}
    assert counts == {"GPU-0": 11_760 + 210, "GPU-1": 11_984}


def test_x09_five_lines_are_one_critical_incident(cases: dict[str, Any], shared: Path) -> None:
    text = (shared / "recordings" / "kernel" / "gpud_dmesg_xid119_h100.log").read_text()
    codes = [int(match[2]) for match in XID_LINE.finditer(text)]
    assert codes == [119] * 5
    # From 16:24:18 to 16:30:13, all on GPU 4.
    lines = {1 + 7 * n: [xid(4, code)] for n, code in enumerate(codes)}
    alerts = alerts_of(with_events(well(8, held(30, 10), 10.0), lines))
    assert serious(alerts) == [("hardware_error", "xid", "critical", "GPU-4")]
    assert len(alerts) == 1, "it stands until the GPU is reset"
    assert alerts[0].observed_at == rfc3339(T0 + 10_000), "at once"
    assert alerts[0].action == "reset_gpu"
    assert "nvidia-smi," not in alerts[0].summary
    assert cases["X09"]["input"]["line"].split("name=")[1].split(",")[0] not in alerts[0].summary


def test_x11_chatter_of_other_modules_is_nothing(cases: dict[str, Any]) -> None:
    event = SampleEvent(ts=T0, kind="kernel", gpu="GPU-0", message=cases["X11"]["input"]["line"])
    assert alerts_of(with_events(well(), {3: [event]})) == []


def test_a_sympathetic_code_never_takes_the_place_of_its_cause() -> None:
    samples = well(1, 30)
    for order in ([45, 119], [119, 45], [45, 13, 79]):
        events = {5 + n: [xid(0, code)] for n, code in enumerate(order)}
        firing = alerts_of(with_events(samples, events))
        worst = max(c for c in order if c in {79, 119})
        assert f"Xid {worst}" in firing[-1].summary
        assert firing[-1].severity == "critical"
        assert len({a.alert_id for a in firing}) == 1


def test_an_xid_ends_with_the_reset_and_says_so() -> None:
    energy = np.concatenate([5e6 + np.arange(30) * 70.0, np.arange(30) * 70.0])
    samples = well(1, 60, energy_joules_total=column(energy))
    alerts = alerts_of(with_events(samples, {10: [xid(0, 119, 3)]}))
    assert [(a.state, a.end_reason) for a in alerts] == [
        ("firing", None),
        ("resolved", "gpu_reset"),
    ]
    assert alerts[1].ended_at == rfc3339(T0 + 30_000)
    assert "the GPU was reset or its driver reloaded" in alerts[1].summary


@pytest.mark.parametrize("kind", ["gpu_returned", "counter_reset"])
def test_an_xid_ends_when_the_collector_says_that_the_gpu_came_back(kind: str) -> None:
    back = SampleEvent(ts=T0, kind=kind, gpu="GPU-0")
    alerts = alerts_of(with_events(well(1, 60), {10: [xid(0, 79)], 40: [back]}))
    assert [a.end_reason for a in alerts] == [None, "gpu_reset"]


def test_an_old_line_read_late_is_a_note() -> None:
    samples = well(1, 10)
    old = dataclasses.replace(xid(0, 119), ts=T0 - 2 * 3_600_000)
    samples[4] = dataclasses.replace(samples[4], events=(old,))
    alerts = alerts_of(samples)
    assert [a.severity for a in alerts] == ["info"]
    assert "long before it was read" in alerts[0].summary


def test_an_xid_of_a_gpu_that_was_never_listed_is_one_of_its_node() -> None:
    event = SampleEvent(ts=T0, kind="xid", pci="0000:c1:00", xid=79)
    alerts = alerts_of(with_events(well(), {5: [event]}))
    assert serious(alerts) == [("hardware_error", "xid", "critical", None)]
    assert alerts[0].subject.scope == "node"
    assert "0000:c1:00" in alerts[0].summary


# -- memory errors ---------------------------------------------------------------------------------


def hold(values: Sequence[float], ticks: int = 60) -> Any:
    return column([*values, *[values[-1]] * ticks])


def test_x06a_a_handful_of_corrected_errors_is_nothing(cases: dict[str, Any]) -> None:
    given = cases["X06"]["input"]["a"]
    counter = hold(given["ecc_corrected_total"])
    samples = well(1, len(counter), given["interval_seconds"], ecc_corrected_total=counter)
    assert alerts_of(samples) == []


def test_x06b_a_storm_is_one_gpu_and_a_warning(cases: dict[str, Any]) -> None:
    given = cases["X06"]["input"]["b"]
    ticks = len(given["ecc_corrected_total"])
    bad, good = given["ecc_corrected_total"], given["peers_ecc_corrected_total"]
    samples = well(
        4,
        ticks,
        given["interval_seconds"],
        ecc_corrected_total=np.array([bad, good, good, good]).T,
        ecc_uncorrected_total=column(given["ecc_uncorrected_total"]),
    )
    alerts = alerts_of(samples)
    assert serious(alerts) == [("hardware_error", "ecc_corrected_storm", "warning", "GPU-0")]
    assert alerts[0].observed_at == rfc3339(T0 + 10_000)
    rate = alerts[0].evidence[0].value
    expected = cases["X06"]["expect"]["detector"]["b"]["rate_per_second"]
    assert rate == pytest.approx(expected, rel=0.02)
    assert "17,6" in alerts[0].summary


@pytest.mark.parametrize("interval", [0.3, 1.0, 5.0, 10.0])
def test_a_storm_of_thousands_a_second_is_found_within_ten_seconds(interval: float) -> None:
    """From the first reading that shows it: at 10 s that is the first after the onset."""
    ticks = int(60 / interval) + 20
    start = ticks // 2
    errors = np.maximum(np.arange(ticks) - start, 0) * interval * 4647.0
    alerts = alerts_of(well(1, ticks, interval, ecc_corrected_total=column(errors)))
    assert [a.kind for a in alerts] == ["ecc_corrected_storm"]
    first = T0 + round((start + 1) * interval * 1000)
    assert alerts[0].observed_at <= rfc3339(first + 10_000)


@pytest.mark.parametrize("per_hour", [1, 60, 1000])
@pytest.mark.parametrize("interval", [1.0, 60.0])
def test_a_slow_background_is_never_a_storm(per_hour: int, interval: float) -> None:
    rng = np.random.default_rng(3)
    ticks = 1800 if interval == 1.0 else 240
    errors = np.cumsum(rng.poisson(per_hour * interval / 3600.0, ticks))
    assert alone(well(1, ticks, interval, ecc_corrected_total=column(errors)), Ecc()) == []


def test_a_bunch_read_once_is_no_storm() -> None:
    for bunch in (12, 300):
        errors = np.where(np.arange(120) < 60, 0.0, bunch)
        assert alerts_of(well(1, 120, ecc_corrected_total=column(errors))) == []


def test_a_reset_counter_is_a_new_base() -> None:
    errors = np.where(np.arange(120) < 60, 1e6, 3.0)
    samples = well(1, 120, ecc_corrected_total=column(errors), ecc_uncorrected_total=column(errors))
    assert alerts_of(samples) == []


def test_an_uncorrected_error_is_critical_at_once_and_stands_until_the_reset() -> None:
    errors = np.where(np.arange(90) < 30, 2.0, np.where(np.arange(90) < 60, 5.0, 0.0))
    alerts = alerts_of(well(2, 90, ecc_uncorrected_total=np.array([errors, np.zeros(90)]).T))
    assert serious(alerts) == [("hardware_error", "ecc_uncorrected", "critical", "GPU-0")]
    assert [(a.state, a.end_reason) for a in alerts] == [
        ("firing", None),
        ("resolved", "gpu_reset"),
    ]
    assert alerts[0].observed_at == rfc3339(T0 + 30_000)
    assert "3 new uncorrected memory errors (5 in all" in alerts[0].summary
    assert alerts[1].ended_at == rfc3339(T0 + 60_000)


def test_a_history_of_uncorrected_errors_is_no_event() -> None:
    """Lifetime counters at the first reading, and their first reading after volatile ones."""
    samples = well(1, 120, ecc_uncorrected_total=0.0, ecc_uncorrected_aggregate_total=8.0)
    for sample in samples[50:60]:
        sample.m["ecc_uncorrected_total"] = [None]
    assert alerts_of(samples) == []


def test_lifetime_counters_serve_where_there_are_no_others() -> None:
    errors = np.where(np.arange(60) < 30, 8.0, 9.0)
    alerts = alerts_of(well(1, 60, ecc_uncorrected_aggregate_total=column(errors)))
    assert serious(alerts) == [("hardware_error", "ecc_uncorrected", "critical", "GPU-0")]


# -- repairs ---------------------------------------------------------------------------------------


def retired(single: float, double: float, *, pending: bool) -> dict[str, Any]:
    return {
        "retired_pages_single_bit_total": single,
        "retired_pages_double_bit_total": double,
        "retired_pages_pending": float(pending),
    }


def test_x06c_sixty_retired_pages_are_critical(cases: dict[str, Any]) -> None:
    given = cases["X06"]["input"]["c"]
    pages = retired(
        given["retired_pages_single_bit"],
        given["retired_pages_double_bit"],
        pending=given["retired_pages_pending"],
    )
    alerts = alerts_of(well(1, 5, **pages))
    assert serious(alerts) == [("hardware_error", "row_remap", "critical", "GPU-0")]
    assert alerts[0].action == "replace"
    assert "65 pages" in alerts[0].summary


@pytest.mark.parametrize("name", ["bad", "orig"])
def test_x06_the_recorded_pages_name_five_of_eight_gpus(shared: Path, name: str) -> None:
    text = (shared / "recordings" / "text" / f"azure_{name}_nvsmi8_output.txt").read_text()
    single, double = (
        [float(n) for n in re.findall(rf"{kind} Bit ECC +: (\d+)", text)]
        for kind in ("Single", "Double")
    )
    pending = [float(word == "Yes") for word in re.findall(r"Blacklist +: (\w+)", text)]
    samples = well(
        8,
        held(10, 10),
        10.0,
        retired_pages_single_bit_total=single,
        retired_pages_double_bit_total=double,
        retired_pages_pending=pending,
    )
    found = {(gpu, severity) for _, _, severity, gpu in serious(alerts_of(samples))}
    expected = {
        ("GPU-0", "critical"),
        ("GPU-1", "critical"),
        ("GPU-3", "warning"),
        ("GPU-5", "critical"),
        ("GPU-7", "critical"),
    }
    assert found == (expected if name == "bad" else set())


def test_l05_a_failed_remap_is_a_fault_of_its_own_beside_the_lost_gpu(shared: Path) -> None:
    """GPU 0 of the recorded file has the failed remap, GPU 1 is lost."""
    text = (shared / "recordings" / "smi_xml" / "mock_qx-gb200-lost.xml").read_text()
    first = text.split("</gpu>")[0]
    failed = re.findall(r"<remapped_row_failure>(\w+)<", first) == ["Yes"]
    pending = re.findall(r"<remapped_row_pending>(\w+)<", first) == ["Yes"]
    samples = [
        dataclasses.replace(sample, status={"temperature_celsius": {"1": "error:15"}})
        for sample in telemetry(
            {
                "temperature_celsius": [63, None],
                "row_remap_failed": [float(failed), None],
                "row_remap_pending": [float(pending), None],
                "remapped_rows_uncorrectable_total": [1, None],
                "ecc_uncorrected_total": [5, None],
                "ecc_uncorrected_aggregate_total": [8, None],
            },
            gpus=2,
            ticks=10,
        )
    ]
    assert set(serious(alerts_of(samples))) == {
        ("hardware_error", "row_remap", "critical", "GPU-0"),
        ("gpu_lost", "lost", "critical", "GPU-1"),
    }


def test_a_pending_remap_is_a_warning_until_its_reset_and_gaps_end_nothing() -> None:
    ticks = 180
    pending = np.where(np.arange(ticks) < 120, 1.0, 0.0)
    failed = np.where((np.arange(ticks) > 20) & (np.arange(ticks) < 100), np.nan, 0.0)
    gap = np.where(np.isnan(failed), np.nan, pending)
    samples = well(1, ticks, row_remap_pending=column(gap), row_remap_failed=column(failed))
    alerts = alerts_of(samples)
    assert [(a.severity, a.state, a.action) for a in alerts] == [
        ("warning", "firing", "reset_gpu"),
        ("warning", "resolved", "reset_gpu"),
    ]
    assert alerts[1].ended_at == rfc3339(T0 + 120_000)


# -- recovery --------------------------------------------------------------------------------------


def test_v05_the_gpu_for_which_the_driver_asks_a_reset_is_critical(cases: dict[str, Any]) -> None:
    gpus = cases["V05"]["input"]["gpus"]
    words = {"None": 0.0, "Reset": 1.0}
    samples = telemetry(
        {
            "fan_ratio": [0.30, None],
            "temperature_celsius": [gpu["temperature_celsius"] for gpu in gpus.values()],
            "power_watts": [gpu["power_watts"] for gpu in gpus.values()],
            "power_limit_watts": [gpu["power_limit_watts"] for gpu in gpus.values()],
            "gpu_utilization_ratio": [g["gpu_utilization_percent"] / 100 for g in gpus.values()],
            "recovery_action": [words[gpu["recovery_action"]] for gpu in gpus.values()],
        },
        gpus=2,
        ticks=held(1),
    )
    alerts = of_kind(alerts_of(samples), "needs_reset")
    assert serious(alerts) == [("hardware_error", "needs_reset", "critical", "GPU-1")]
    assert alerts[0].observed_at == rfc3339(T0)
    assert alerts[0].action == "reset_gpu"


@pytest.mark.parametrize(
    ("value", "severity"), [(2, "critical"), (3, "warning"), (8, "critical"), (200, "critical")]
)
def test_an_unknown_recovery_means_act(value: float, severity: str) -> None:
    found = serious(alerts_of(well(1, 3, recovery_action=value)))
    assert found == [("hardware_error", "needs_reset", severity, "GPU-0")]


# -- links -----------------------------------------------------------------------------------------


def nvlink(
    given: dict[str, Any], active: Sequence[float], *, ticks: int, total: int | None
) -> list[AlertEvent]:
    samples = telemetry(
        {"nvlink_active_links": active, "temperature_celsius": 40},
        gpus=len(active),
        ticks=ticks,
        interval=5.0,
        models=[given["model"]] * len(active),
    )
    return alerts_of(with_facts(samples, uptime=given["uptime_seconds"], nvlink_links=total))


def test_x08a_a_pcie_card_without_a_bridge_is_nothing(cases: dict[str, Any]) -> None:
    given = cases["X08"]["input"]["a"]
    active = [given["links_active"], *[given["peers_links_active"]] * 3]
    assert nvlink(given, active, ticks=120, total=given["links_total"]) == []


def test_x08b_fewer_links_than_the_peers_are_a_warning(cases: dict[str, Any]) -> None:
    given = cases["X08"]["input"]["b"]
    active = [given["peers_links_active"]] * 8
    active[3] = given["links_active"]
    alerts = nvlink(given, active, ticks=given["polls"], total=given["links_total"])
    assert serious(alerts) == [("hardware_error", "nvlink", "warning", "GPU-3")]
    assert "4 of 6 NVLink links" in alerts[0].summary


def test_x08c_links_may_train_in_the_first_minutes(cases: dict[str, Any]) -> None:
    given = cases["X08"]["input"]["c"]
    assert nvlink(given, [given["links_active"]] * 4, ticks=10, total=18) == []
    grown_up = {**given, "uptime_seconds": 86_400}
    assert nvlink(grown_up, [0] * 4, ticks=given["polls_down"], total=18) == []
    assert serious(nvlink(grown_up, [0] * 4, ticks=10, total=18))


def test_x08_the_recorded_board_without_links_alerts_and_the_good_ones_do_not(
    shared: Path,
) -> None:
    folder = shared / "recordings"
    for name, alerting in (
        ("text/azure_bad_nvlink_status.txt", True),
        ("text/azure_good_nvlink_status.txt", False),
        ("kernel/gpud_nvlink_status_a100.txt", False),
    ):
        text = (folder / name).read_text()
        parts = re.split(r"^GPU \d+: ", text, flags=re.MULTILINE)[1:]
        active = [len(re.findall(r"Link \d+: [\d.]+ GB/s", part)) for part in parts]
        given = {"model": parts[0].split(" (")[0], "uptime_seconds": None}
        found = serious(nvlink(given, active, ticks=120, total=12))
        assert bool(found) is alerting, name


def test_links_that_were_up_and_went_are_critical_when_none_is_left() -> None:
    active = np.where(np.arange(40)[:, None] < 20, 12.0, [0.0, 12.0])
    samples = telemetry({"nvlink_active_links": active}, gpus=2, ticks=40, models=["A100 PCIe"] * 2)
    alerts = alerts_of(samples)
    assert serious(alerts) == [("hardware_error", "nvlink", "critical", "GPU-0")]
    assert alerts[0].observed_at <= rfc3339(T0 + 25_000)


def test_cards_bridged_in_pairs_are_nothing() -> None:
    samples = telemetry(
        {"nvlink_active_links": [12, 12, 12, 12, 0]}, gpus=5, ticks=60, models=["A100 PCIe"] * 5
    )
    assert alerts_of(with_facts(samples, nvlink_links=12)) == []


def test_a_link_that_fails_all_the_time_is_found_by_its_errors() -> None:
    rng = np.random.default_rng(1)
    bad = np.cumsum(np.where(np.arange(300) < 200, 0, rng.poisson(50.0, 300)))
    samples = well(2, 300, nvlink_errors_total=np.array([bad, bad * 0]).T, nvlink_active_links=18.0)
    alerts = alerts_of(samples)
    assert serious(alerts) == [("hardware_error", "nvlink", "warning", "GPU-0")]
    assert "NVLink errors a second" in alerts[0].summary


def pcie(lanes: Any, *, busy: float = 0.95, generation: Any = 5.0, gpus: int = 8) -> Any:
    samples = telemetry(
        {
            "pcie_width_lanes": lanes,
            "pcie_generation": generation,
            "gpu_utilization_ratio": busy,
            "power_watts": 300,
        },
        gpus=gpus,
        ticks=60,
    )
    return with_facts(samples, pcie_width_max=16, pcie_generation_max=5)


@pytest.mark.parametrize(("lanes", "severity"), [(8, "warning"), (4, "critical")])
def test_fewer_lanes_than_the_peers_under_load(lanes: int, severity: str) -> None:
    alerts = of_kind(alerts_of(pcie([lanes, *[16] * 7])), "pcie_degraded")
    assert serious(alerts) == [("hardware_error", "pcie_degraded", severity, "GPU-0")]
    assert f"{lanes} of 16 PCIe lanes" in alerts[0].summary


def test_fewer_lanes_at_idle_say_nothing() -> None:
    assert of_kind(alerts_of(pcie([8, *[16] * 7], busy=0.0)), "pcie_degraded") == []


def test_a_slot_with_half_the_lanes_is_a_note() -> None:
    alerts = of_kind(alerts_of(pcie([8, 16], gpus=2)), "pcie_degraded")
    assert serious(alerts) == []
    assert notes(alerts) == [("pcie_degraded", "GPU-0")]


def test_lanes_lost_while_at_work_are_a_warning_without_peers() -> None:
    lanes = np.where(np.arange(60)[:, None] < 30, 16.0, 8.0)
    found = serious(of_kind(alerts_of(pcie(lanes, gpus=1)), "pcie_degraded"))
    assert found == [("hardware_error", "pcie_degraded", "warning", "GPU-0")]


def test_a_low_generation_counts_under_load_only() -> None:
    low = [1.0, *[5.0] * 7]
    quiet = of_kind(alerts_of(pcie(16, generation=low, busy=0.1)), "pcie_degraded")
    assert quiet == []
    found = serious(of_kind(alerts_of(pcie(16, generation=low)), "pcie_degraded"))
    assert found == [("hardware_error", "pcie_degraded", "warning", "GPU-0")]


def test_a_gpu_taken_out_takes_its_standing_alerts_with_it() -> None:
    first = with_events(well(2, 20), {10: [xid(1, 119)]})
    rest = well(1, 40)
    inventory = Inventory(gpus=(GpuInventory(gpu="GPU-0", index=0),), expected_gpus=1)
    later = [
        dataclasses.replace(
            sample,
            seq=20 + n,
            ts=(T0 + (20 + n) * 1000,),
            inventory=inventory if n == 0 else None,
        )
        for n, sample in enumerate(rest)
    ]
    alerts = of_kind(alerts_of([*first, *later]), "xid")
    assert [(a.state, a.end_reason) for a in alerts] == [
        ("firing", None),
        ("resolved", "gpu_removed"),
    ]


def test_what_follows_from_a_lost_gpu_or_a_memory_error_names_it() -> None:
    samples = [
        dataclasses.replace(s, status={"temperature_celsius": {"1": "error:15"}})
        for s in well(2, 30, temperature_celsius=[40.0, np.nan], power_watts=[70.0, np.nan])
    ]
    alerts = alerts_of(with_events(samples, {10: [xid(1, 79)]}))
    lost, report = of_kind(alerts, "lost"), of_kind(alerts, "xid")
    assert report[0].caused_by == lost[0].fingerprint

    errors = np.where(np.arange(60) < 30, 0.0, 1.0)
    flag = column(np.where(np.arange(60) < 30, 0.0, 1.0))
    samples = well(1, 60, ecc_uncorrected_total=column(errors), row_remap_pending=flag)
    alerts = alerts_of(with_events(samples, {30: [xid(0, 94)]}))
    root = of_kind(alerts, "ecc_uncorrected")[0].fingerprint
    assert {a.kind: a.caused_by for a in alerts} == {
        "ecc_uncorrected": None,
        "xid": root,
        "row_remap": root,
    }


# -- the simulated fleet ---------------------------------------------------------------------------


def simulated(faults: Sequence[Fault], seconds: int, interval: int = 1) -> list[AlertEvent]:
    """What the whole family says about a simulated fleet."""
    fleet = SimulatedFleet(SimulatedSettings(), faults=faults)
    rules = Batching(
        interval_seconds=float(interval),
        flush_seconds=float(interval),
        keyframe_seconds=60.0,
        source="simulated",
    )
    batchers: dict[str, NodeBatcher] = {}
    messages: list[NodeSample] = []
    for second in range(0, seconds, interval):
        for reading in fleet.read(T0 + 1000 * second):
            batcher = batchers.setdefault(reading.node, NodeBatcher(reading.node, "boot", rules))
            messages += batcher.add(reading)
    return alone(messages, *(d for d in build() if d.family == "hardware_error"))


def test_a_storm_of_the_simulated_fleet_is_found_in_ten_seconds_and_a_handful_is_not() -> None:
    storm = Fault(
        kind=FaultKind.ECC_STORM, node=0, gpu=5, start_seconds=60.0, duration_seconds=30.0
    )
    few = Fault(
        kind=FaultKind.CORRECTED_ECC, node=1, gpu=2, start_seconds=30.0, duration_seconds=60.0
    )
    alerts = simulated([storm, few], seconds=120)
    assert [a.kind for a in alerts] == ["ecc_corrected_storm"]
    assert alerts[0].subject.gpu_index == 5
    assert alerts[0].observed_at <= rfc3339(T0 + 70_000)


@pytest.mark.parametrize("interval", [5])
def test_the_other_faults_and_decoys_of_the_simulated_fleet_are_not_of_this_family(
    interval: int,
) -> None:
    schedule = [f for f in default_schedule() if f.kind is not FaultKind.ECC_STORM]
    assert serious(simulated(schedule, seconds=1900, interval=interval)) == []
