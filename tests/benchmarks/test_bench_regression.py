"""A small fixed part of the detection benchmark: what was found once must go on being found."""

from __future__ import annotations

from foreshock.bench.report import page
from foreshock.bench.results import class_rows, oom_rows
from foreshock.bench.run import Size, run_detection

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
FAULTS = Size(
    trials=1,
    tuning_trials=0,
    leak_trials=0,
    gpu_days=0.0,
    names=tuple(dict.fromkeys(name for name, _ in DELAYS)),
)
MEMORY = Size(
    trials=0,
    tuning_trials=0,
    leak_trials=1,
    gpu_days=0.0,
    memory_interval=60.0,
    rates=tuple(LEADS),
)
SEED = 7
FLAT = ("healthy, memory plateau", "healthy, memory full")


def test_faults_are_found_in_their_time_and_nothing_else_is_said() -> None:
    results = run_detection(FAULTS, seed=SEED)
    score = results.scores["faults"]
    rows = {(row["class"], row["magnitude"]): row for row in class_rows(score.found)}
    assert set(rows) == set(DELAYS)
    late = {
        key: row["delay_p50"]
        for key, row in rows.items()
        if row["right"] != 1 or row["delay_p50"] > DELAYS[key]
    }
    assert late == {}
    assert [one.truth.name for one in score.found if one.top is False] == []
    assert [(alarm.family, alarm.kind, where) for alarm, where in score.false_alarms] == []
    text = page(results.as_json(), "foreshock bench detection")
    assert all(f"`{name}`" in text for name, _ in DELAYS)
    assert "hang of one rank" in text


def test_leaks_on_quiet_memory_are_told_early_and_flat_memory_never() -> None:
    results = run_detection(MEMORY, seed=SEED)
    score = results.scores["memory"]
    leads = {
        row["gib_per_hour"]: row["lead_p50"] / 60.0
        for row in oom_rows(score.found)
        if row["memory"] == "quiet"
    }
    assert set(leads) == set(LEADS)
    assert {rate: lead for rate, lead in leads.items() if lead < LEADS[rate]} == {}
    assert [where for _, where in score.false_alarms if where in FLAT] == []
    assert "leak of 6 GiB/h, quiet memory" in page(results.as_json(), "")
