"""A small fixed part of the detection benchmark: what was found once must go on being found."""

from __future__ import annotations

from collections import defaultdict

import pytest

from foreshock.bench.results import Results, class_rows, oom_rows
from foreshock.bench.run import Size, run_detection
from foreshock.bench.scoring import Score

#: Class and magnitude to the longest delay, in seconds. Not to be loosened: a detector that
#: needs longer, or misses one, has become worse on these very readings.
DELAYS = {
    ("ecc_storm", 2.0): 150.0,
    ("ecc_storm", 50.0): 10.0,
    ("ecc_storm", 17_700.0): 3.0,
    ("ecc_uncorrected", 1.0): 1.0,
    ("gpu_lost", 1.0): 1.0,
    ("hang", 1.0): 15.0,
    ("hw_thermal", 0.1): 20.0,
    ("hw_thermal", 0.5): 5.0,
    ("pcie_width", 8.0): 5.0,
    ("pcie_width", 4.0): 5.0,
    ("power_brake", 0.1): 20.0,
    ("power_brake", 1.0): 3.0,
    ("straggler", 0.10): 60.0,
    ("straggler", 0.20): 45.0,
    ("xid_fatal", 48.0): 1.0,
    ("xid_fatal", 79.0): 1.0,
    ("xid_fatal", 119.0): 1.0,
}
#: Leak in GiB/h on quiet memory to the least warning ahead, in minutes.
LEADS = {6.0: 30.0, 20.0: 30.0}
SIZE = Size(
    trials=1,
    tuning_trials=0,
    leak_trials=1,
    gpu_days=0.0,
    memory_interval=60.0,
    names=tuple(dict.fromkeys(name for name, _ in DELAYS)),
    rates=tuple(LEADS),
)


@pytest.fixture(scope="module")
def results() -> Results:
    return run_detection(SIZE, seed=7)


@pytest.fixture(scope="module")
def faults(results: Results) -> Score:
    return results.scores["faults"]


@pytest.fixture(scope="module")
def memory(results: Results) -> Score:
    return results.scores["memory"]


def test_every_fault_is_found_in_its_time(faults: Score) -> None:
    rows = {(row["class"], row["magnitude"]): row for row in class_rows(faults.found)}
    assert set(rows) == set(DELAYS)
    late = {
        key: row["delay_p50"]
        for key, row in rows.items()
        if row["right"] != 1 or row["delay_p50"] > DELAYS[key]
    }
    assert late == {}


def test_the_first_alarm_names_the_right_entity(faults: Score) -> None:
    assert [one.truth.name for one in faults.found if one.top is False] == []


def test_lookalikes_and_healthy_gpus_are_left_alone(faults: Score) -> None:
    assert [
        (alarm.family, alarm.kind, where)
        for alarm, where in faults.false_alarms
        if alarm.family != "oom_precursor"
    ] == []


def test_leaks_on_quiet_memory_are_told_early(memory: Score) -> None:
    rows = {
        row["gib_per_hour"]: row["lead_p50"] / 60.0
        for row in oom_rows(memory.found)
        if row["memory"] == "quiet" and row["gib_per_hour"] in LEADS
    }
    assert {rate: lead for rate, lead in rows.items() if lead < LEADS[rate]} == {}


def test_flat_memory_is_never_an_alarm(memory: Score) -> None:
    by = defaultdict(int)
    for alarm, where in memory.false_alarms:
        by[alarm.family, where] += 1
    assert [
        key for key in by if key[1] in ("healthy, memory plateau", "healthy, memory full")
    ] == []


def test_the_page_and_the_data_hold_every_number(results: Results) -> None:
    from foreshock.bench.report import page

    text = page(results.as_json(), "foreshock bench detection")
    for name, _ in DELAYS:
        assert f"`{name}`" in text
    assert "leak of 6 GiB/h, quiet memory" in text
    assert "hang of one rank" in text
