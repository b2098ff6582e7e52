"""What a device is asked, learned from its own answers."""

from __future__ import annotations

from typing import Any

from collector.device import Code, NvmlDoor, call
from collector.plan import Plan
from collector.readings import CallRow, FieldRow, Group
from tests.collector.fake_nvml import Err, FakeGpu, FakeNvml

ENERGY = FieldRow(
    metric="energy_joules_total",
    fields=(83,),
    per=1e3,
    otherwise=CallRow(
        metric="energy_joules_total",
        question=call("nvmlDeviceGetTotalEnergyConsumption"),
        per=1e3,
    ),
)
REASONS = CallRow(
    metric="clock_event_reasons",
    question=call("nvmlDeviceGetCurrentClocksEventReasons").or_else(
        "nvmlDeviceGetCurrentClocksThrottleReasons"
    ),
)


def ready(**changes: Any) -> tuple[FakeNvml, NvmlDoor, FakeGpu]:
    gpu = FakeGpu("GPU-A", **changes)
    nvml = FakeNvml(gpu)
    nvml.nvmlInit()
    nvml.counts.clear()
    return nvml, NvmlDoor(nvml), gpu  # type: ignore[arg-type]


def test_a_fall_back_is_asked_at_once_and_alone_from_then_on() -> None:
    nvml, door, gpu = ready(calls={"nvmlDeviceGetTotalEnergyConsumption": 5000})
    plan = Plan([ENERGY])
    for _ in range(3):
        assert plan.read(door, gpu).values == {"energy_joules_total": 5.0}
    assert nvml.counts["nvmlDeviceGetFieldValues"] == 1
    assert nvml.counts["nvmlDeviceGetTotalEnergyConsumption"] == 3


def test_probing_tries_the_newest_way_again() -> None:
    nvml, door, gpu = ready()
    plan = Plan([ENERGY])
    plan.read(door, gpu)
    gpu.fields[83] = 7000  # as after a change of driver
    assert plan.read(door, gpu).values["energy_joules_total"] != 7.0
    plan.probe()
    assert plan.read(door, gpu).values == {"energy_joules_total": 7.0}
    assert nvml.counts["nvmlDeviceGetTotalEnergyConsumption"] == 2


def test_an_older_name_that_worked_is_asked_first() -> None:
    nvml, door, gpu = ready(calls={"nvmlDeviceGetCurrentClocksEventReasons": Err(13)})
    plan = Plan([REASONS])
    for _ in range(3):
        assert plan.read(door, gpu).values == {"clock_event_reasons": 4.0}
    assert nvml.counts["nvmlDeviceGetCurrentClocksEventReasons"] == 1


def test_what_nothing_offers_costs_nothing_and_stays_unsupported() -> None:
    nvml, door, gpu = ready(calls={"nvmlDeviceGetTotalEnergyConsumption": Err(3)})
    plan = Plan([ENERGY])
    for _ in range(3):
        answers = plan.read(door, gpu)
        assert (answers.values, answers.codes) == ({}, {"energy_joules_total": Code.NOT_SUPPORTED})
    assert sum(nvml.counts.values()) == 2


def test_an_error_that_passes_is_no_lack_of_support() -> None:
    nvml, door, gpu = ready(fields={83: Err(999)})
    plan = Plan([ENERGY])
    assert plan.read(door, gpu).codes == {"energy_joules_total": 999}
    gpu.fields[83] = 1000
    assert plan.read(door, gpu).values == {"energy_joules_total": 1.0}
    assert nvml.counts["nvmlDeviceGetTotalEnergyConsumption"] == 0


def test_only_the_groups_asked_for_are_read() -> None:
    limit = CallRow(
        metric="power_limit_watts",
        question=call("nvmlDeviceGetEnforcedPowerLimit"),
        per=1e3,
        group=Group.LIMITS,
    )
    nvml, door, gpu = ready()
    plan = Plan([REASONS, limit])
    assert set(plan.read(door, gpu, frozenset({Group.CORE})).values) == {"clock_event_reasons"}
    assert nvml.counts["nvmlDeviceGetEnforcedPowerLimit"] == 0
    assert set(plan.read(door, gpu).values) == {"clock_event_reasons", "power_limit_watts"}


def test_a_lost_device_ends_the_reading_at_its_first_answer() -> None:
    nvml, door, gpu = ready(calls={"nvmlDeviceGetCurrentClocksEventReasons": Err(15)})
    answers = Plan([REASONS, ENERGY]).read(door, gpu)
    assert answers.lost
    assert nvml.counts["nvmlDeviceGetFieldValues"] == 0
