"""What counts as right, wrong, missed and not yet due."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collector.simulated.faults import SPECS, FaultKind, Truth
from foreshock.demo.scoring import (
    COMPANIONS,
    Score,
    SeenAlert,
    Verdict,
    explains,
    score,
    seen_alerts,
)
from schemas.alert import (
    FAMILIES,
    AlertEvent,
    DetectorRef,
    Subject,
    alert_id_of,
    fingerprint_of,
    rfc3339,
)

T0 = 1_790_000_000_000
GPU = "GPU-hit"
PEERS = tuple(f"GPU-{i}" for i in range(7))


def truth(kind: FaultKind, *, whole_node: bool = False, start: float = 100.0) -> Truth:
    spec = SPECS[kind]
    begin = T0 + round(start * 1000)
    return Truth(
        fault=kind,
        family=spec.family,
        kind=spec.kind,
        node="sim-01",
        gpu_uuids=(GPU, *PEERS) if whole_node else (GPU,),
        start=begin,
        end=begin + 300_000,
        deadline=begin + round(spec.deadline_seconds * 1000),
    )


def alert(what: str, *, after: float = 20.0, **changes: object) -> SeenAlert:
    family, _, kind = what.partition("/")
    moment = T0 + round((100.0 + after) * 1000)
    base = SeenAlert(
        alert_id=f"{what}@{after}",
        family=family,
        kind=kind,
        severity="warning",
        scope="gpu",
        node="sim-01",
        gpu_uuid=GPU,
        started=moment,
        observed=moment,
        summary="",
    )
    return replace(base, **changes)


def judge(truths: list[Truth], alerts: list[SeenAlert], *, after: float = 1000.0) -> Score:
    return score(truths, alerts, T0 + round((100.0 + after) * 1000))


def test_an_alert_in_time_on_the_right_gpu_is_right_with_its_delay() -> None:
    result = judge([truth(FaultKind.HW_THERMAL)], [alert("throttling/hw_thermal", after=12.5)])
    assert result.faults[0].verdict is Verdict.RIGHT
    assert result.faults[0].delay_seconds == 12.5
    assert result.clean


def test_an_alert_after_the_deadline_is_missed_but_not_wrong() -> None:
    result = judge([truth(FaultKind.HW_THERMAL)], [alert("throttling/hw_thermal", after=91.0)])
    assert result.faults[0].verdict is Verdict.MISSED
    assert result.wrong == ()
    assert not result.clean


def test_the_first_matching_alert_counts() -> None:
    alerts = [alert("throttling/hw_thermal", after=after) for after in (70.0, 30.0, 200.0)]
    result = judge([truth(FaultKind.HW_THERMAL)], alerts)
    assert result.faults[0].delay_seconds == 30.0


@pytest.mark.parametrize(
    ("after", "verdict"), [(89.0, Verdict.OPEN), (90.0, Verdict.OPEN), (91.0, Verdict.MISSED)]
)
def test_without_an_alert_a_fault_is_open_until_its_deadline(
    after: float, verdict: Verdict
) -> None:
    result = judge([truth(FaultKind.HW_THERMAL)], [], after=after)
    assert result.faults[0].verdict is verdict
    assert result.clean is (verdict is Verdict.OPEN)


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu_uuid": PEERS[0]},
        {"family": "hardware_error", "kind": "xid"},
        {"scope": "node"},
        {"started": T0 + 80_000},
        {"started": T0 + 100_000 + 300_000 + 121_000},
    ],
    ids=["wrong gpu", "wrong kind", "wrong scope", "too early", "too late"],
)
def test_an_alert_that_no_fault_explains_is_wrong(changes: dict[str, object]) -> None:
    result = judge(
        [truth(FaultKind.HW_THERMAL)], [alert("throttling/hw_thermal", **changes)], after=10.0
    )
    assert len(result.wrong) == 1
    assert not result.clean


def test_an_info_alert_is_neither_right_nor_wrong() -> None:
    alerts = [
        alert("throttling/hw_thermal", severity="info"),
        alert("novelty/drift", severity="info", gpu_uuid=PEERS[0]),
    ]
    result = judge([truth(FaultKind.HW_THERMAL)], alerts)
    assert result.faults[0].verdict is Verdict.MISSED
    assert result.wrong == ()


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if SPECS[kind].decoy])
def test_an_alert_on_a_decoy_is_wrong(kind: FaultKind) -> None:
    result = judge([truth(kind)], [alert("oom_precursor/at_limit")])
    assert result.faults == ()
    assert len(result.wrong) == 1


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (FaultKind.THERMAL, "throttling/sw_thermal"),
        (FaultKind.HW_THERMAL, "thermal_fault/near_limit"),
        (FaultKind.SW_THERMAL, "load_imbalance/straggler"),
        (FaultKind.LEAK, "oom_precursor/at_limit"),
        (FaultKind.GPU_LOST, "hardware_error/xid"),
    ],
)
def test_a_companion_of_a_fault_is_explained_on_the_same_gpu_only(
    kind: FaultKind, what: str
) -> None:
    assert explains(truth(kind), alert(what))
    assert not explains(truth(kind), alert(what, gpu_uuid=PEERS[0]))
    assert not explains(truth(kind), alert(what, node="sim-02", scope="node"))


def test_a_companion_does_not_stand_in_for_the_alert_that_is_due() -> None:
    result = judge([truth(FaultKind.SW_THERMAL)], [alert("throttling/hw_thermal")])
    assert result.faults[0].verdict is Verdict.MISSED
    assert result.wrong == ()


def test_a_lost_gpu_explains_that_its_job_hangs() -> None:
    hang = alert("load_imbalance/collective_hang", scope="job", gpu_uuid=None)
    assert explains(truth(FaultKind.GPU_LOST), hang)
    assert not explains(truth(FaultKind.LEAK), hang)


def test_a_node_wide_fault_is_right_for_the_node_or_any_of_its_gpus() -> None:
    brake = truth(FaultKind.POWER_BRAKE, whole_node=True)
    one = alert("throttling/power_brake", gpu_uuid=PEERS[3])
    node = alert("throttling/power_brake", scope="node", gpu_uuid=None)
    other = alert("throttling/power_brake", scope="node", node="sim-02", gpu_uuid=None)
    assert judge([brake], [one]).clean
    assert judge([brake], [node]).clean
    assert not judge([brake], [other]).clean


def test_a_missing_gpu_may_be_reported_by_its_node() -> None:
    gone = truth(FaultKind.GPU_MISSING)
    node = alert("gpu_lost/missing", scope="node", gpu_uuid=None)
    assert judge([gone], [node]).clean


def test_many_alerts_of_one_fault_are_all_explained() -> None:
    brake = truth(FaultKind.POWER_BRAKE, whole_node=True)
    alerts = [alert("throttling/power_brake", gpu_uuid=uuid, after=5) for uuid in (GPU, *PEERS)]
    result = judge([brake], alerts)
    assert len(result.explained) == 8
    assert result.count(Verdict.RIGHT) == 1


def test_every_fault_has_its_companions_and_all_are_words_of_the_contract() -> None:
    assert set(COMPANIONS) == {kind for kind in FaultKind if not SPECS[kind].decoy}
    for pairs in COMPANIONS.values():
        for family, kind in pairs:
            assert kind == "*" or kind in FAMILIES[family]


def event(seq: int, state: str, severity: str, after: float) -> AlertEvent:
    subject = Subject(scope="gpu", node="sim-01", gpu_uuid=GPU)
    fingerprint = fingerprint_of("throttling", "hw_thermal", subject)
    return AlertEvent(
        alert_id=alert_id_of(fingerprint, T0),
        fingerprint=fingerprint,
        seq=seq,
        state=state,
        family="throttling",
        kind="hw_thermal",
        severity=severity,
        subject=subject,
        started_at=rfc3339(T0),
        observed_at=rfc3339(T0 + round(after * 1000)),
        score=0.9,
        summary=f"event {seq}",
        evidence=(),
        likely_cause="",
        action="watch",
        next_steps=(),
        detector=DetectorRef(name="throttle", version="1"),
    )


def test_the_events_of_one_alert_are_one_with_its_worst_severity() -> None:
    events = [
        event(1, "firing", "info", 10),
        event(2, "firing", "warning", 20),
        event(2, "firing", "warning", 20),
        event(3, "firing", "critical", 30),
        event(4, "resolved", "critical", 90),
    ]
    (seen,) = seen_alerts(events)
    assert seen.severity == "critical"
    assert seen.started == T0
    # People are told from warning on: that is when it was found.
    assert seen.observed == T0 + 20_000
    assert seen.summary == "event 3"


def test_a_resolution_alone_is_no_alert() -> None:
    assert seen_alerts([event(4, "resolved", "critical", 90)]) == ()


def test_events_out_of_order_give_the_same() -> None:
    events = [event(1, "firing", "warning", 10), event(2, "firing", "critical", 20)]
    assert seen_alerts(events) == seen_alerts(reversed(events))
