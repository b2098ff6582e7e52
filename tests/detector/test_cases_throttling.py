"""Throttling beyond heat: stuck clocks, bare slowdown bits, low limits, braked nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from telemetry import alerts_of, held, serious, telemetry

from schemas.alert import AlertEvent

STUCK = ("throttling", "clock_stuck_low", "warning", "GPU-0")
BUSY: dict[str, Any] = {
    "gpu_utilization_ratio": 0.99,
    "sm_clock_hertz": 1.935e9,
    "sm_clock_max_hertz": 1.98e9,
    "power_watts": 690.0,
    "power_limit_watts": 700.0,
    "power_default_limit_watts": 700.0,
    "clock_event_reasons": 4.0,
}


@pytest.fixture(scope="module")
def t12(shared: Path) -> dict[str, Any]:
    cases = orjson.loads((shared / "cases" / "firing.json").read_bytes())
    given: dict[str, Any] = next(case for case in cases if case["id"] == "T12")["input"]
    return given


def node_of_t12(given: dict[str, Any], **changed: Any) -> list[AlertEvent]:
    """GPU 0 as the case says, three peers at their usual clock and power."""
    ticks = len(given["power_watts"])

    def beside(own: Any, peers: float) -> np.ndarray[Any, Any]:
        column = np.full((ticks, 4), peers)
        column[:, 0] = own
        return column

    own = {
        "gpu_utilization_ratio": np.array(given["gpu_utilization_percent"]) / 100,
        "sm_clock_hertz": np.array(given["sm_clock_mhz"]) * 1e6,
        "power_watts": np.array(given["power_watts"], dtype=np.float64),
        "clock_event_reasons": given["clock_event_reasons"],
        **changed,
    }
    columns: dict[str, Any] = {
        "gpu_utilization_ratio": beside(own["gpu_utilization_ratio"], 0.99),
        "sm_clock_hertz": beside(own["sm_clock_hertz"], given["peer_sm_clock_mhz"] * 1e6),
        "sm_clock_max_hertz": given["sm_clock_max_mhz"] * 1e6,
        "power_watts": beside(own["power_watts"], 690.0),
        "power_limit_watts": given["power_limit_watts"],
        "clock_event_reasons": beside(own["clock_event_reasons"], 4.0),
    }
    return alerts_of(telemetry(columns, gpus=4, ticks=ticks, interval=given["interval_seconds"]))


def own_kinds(alerts: list[AlertEvent]) -> list[tuple[str, str, str, str | None]]:
    """Serious alerts of this family: others may speak of the same GPU for their own reasons."""
    return [found for found in serious(alerts) if found[0] == "throttling"]


def test_t12_a_clock_stuck_low_at_full_load_is_a_warning_after_two_minutes(
    t12: dict[str, Any],
) -> None:
    alerts = node_of_t12(t12)
    assert own_kinds(alerts) == [STUCK]
    stuck = next(a for a in alerts if a.kind == "clock_stuck_low")
    assert stuck.observed_at > stuck.started_at
    assert "300 MHz instead of 1980 MHz possible and 1935 MHz of its peers" in stuck.summary
    assert "139 of 700 W" in stuck.summary or "140 of 700 W" in stuck.summary


@pytest.mark.parametrize(
    "changed",
    [
        {"clock_event_reasons": 2.0},
        {"clock_event_reasons": 2.0 + 4.0},
        {"power_watts": np.full(4, 690.0)},
        {"gpu_utilization_ratio": np.zeros(4)},
        {"sm_clock_hertz": np.full(4, 1.4e9)},
    ],
    ids=["set_by_operator", "operator_and_cap", "power_at_limit", "idle", "clock_usual"],
)
def test_t12_contrast_a_low_clock_with_a_reason_is_no_alert(
    t12: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert own_kinds(node_of_t12(t12, **changed)) == []


def test_clocks_low_on_all_gpus_alike_are_a_note() -> None:
    """Somebody locked them: nvidia-smi -lgc is not always told as a reason."""
    alerts = alerts_of(
        telemetry(
            BUSY | {"sm_clock_hertz": 9e8, "power_watts": 300.0, "clock_event_reasons": 0.0},
            gpus=4,
            ticks=held(5),
        )
    )
    assert own_kinds(alerts) == []
    assert {a.kind for a in alerts if a.severity == "info"} >= {"clock_stuck_low"}


@pytest.mark.parametrize("interval", [1.0, 10.0])
def test_the_slowdown_bit_alone_needs_three_readings(interval: float) -> None:
    bits = np.zeros((100, 2))
    bits[10:12, 0] = 0x8  # two readings: a clock change
    bits[50:53, 1] = 0x8
    found = alerts_of(
        telemetry(BUSY | {"clock_event_reasons": bits}, gpus=2, ticks=100, interval=interval)
    )
    assert own_kinds(found) == [("throttling", "hw_slowdown", "warning", "GPU-1")]


@pytest.mark.parametrize("named", [0x48, 0x88])
def test_a_slowdown_with_its_reason_is_left_to_that_kind(named: int) -> None:
    bits = np.zeros((60, 1))
    bits[10:40] = named
    alerts = alerts_of(telemetry(BUSY | {"clock_event_reasons": bits}, gpus=1, ticks=60))
    assert "hw_slowdown" not in {a.kind for a in alerts}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([700, 700, 500, 700], [("throttling", "power_limit_low", "warning", "GPU-2")]),
        ([500, 500, 500, 500], []),  # all alike: on purpose
        ([700, 700, 700, 700], []),
    ],
)
def test_a_power_limit_below_that_of_the_peers_is_a_warning(
    limits: list[int], expected: list[Any]
) -> None:
    power = np.array(limits, dtype=np.float64) - 10
    alerts = alerts_of(
        telemetry(BUSY | {"power_limit_watts": limits, "power_watts": power}, gpus=4, ticks=held(4))
    )
    assert [found for found in serious(alerts) if found[1] == "power_limit_low"] == expected


def test_a_limit_lowered_for_all_is_a_note() -> None:
    alerts = alerts_of(
        telemetry(BUSY | {"power_limit_watts": 500, "power_watts": 490}, gpus=4, ticks=held(4))
    )
    low = [a for a in alerts if a.kind == "power_limit_low"]
    assert {a.severity for a in low} == {"info"}
    assert low[0].summary == (
        "node GPU 0 may draw only 500 W where its peers have 500 W and the default is 700 W."
    )


def braked(gpus: list[int], of: int = 8) -> list[AlertEvent]:
    bits = np.full((60, of), 4.0)
    bits[20:50, gpus] = 0x88
    return alerts_of(telemetry(BUSY | {"clock_event_reasons": bits}, gpus=of, ticks=60))


def test_a_braked_node_is_one_alert_of_the_node_and_the_cause_of_those_of_its_gpus() -> None:
    alerts = braked([0, 1, 2, 3, 5])
    firing = [a for a in alerts if a.kind == "power_brake" and a.state == "firing"]
    nodes = [a for a in firing if a.subject.scope == "node"]
    gpus = [a for a in firing if a.subject.scope == "gpu"]
    assert [(a.severity, a.subject.node) for a in nodes] == [("critical", "node")]
    assert nodes[0].summary == "node has 5 of 8 GPUs under the hardware power brake."
    assert len(gpus) == 5
    assert {a.caused_by for a in gpus} == {nodes[0].fingerprint}
    assert nodes[0].caused_by is None
    # Fault to alert within 5 s, as for one GPU.
    assert nodes[0].observed_at == gpus[0].observed_at
    ended = [a for a in alerts if a.subject.scope == "node" and a.state == "resolved"]
    assert not ended or ended[0].alert_id == nodes[0].alert_id


@pytest.mark.parametrize("gpus", [[3], [0, 1, 2]])
def test_fewer_than_half_are_alerts_of_their_gpus_alone(gpus: list[int]) -> None:
    alerts = [a for a in braked(gpus) if a.kind == "power_brake"]
    assert {a.subject.gpu_uuid for a in alerts} == {f"GPU-{gpu}" for gpu in gpus}
    assert {a.caused_by for a in alerts} == {None}


def test_the_only_gpu_of_a_node_is_no_node_wide_brake() -> None:
    alerts = braked([0], of=1)
    assert {a.subject.scope for a in alerts if a.kind == "power_brake"} == {"gpu"}
