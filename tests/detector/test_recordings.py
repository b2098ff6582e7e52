"""Real telemetry through the real importer and both tiers: what it must say, and nothing else."""

from __future__ import annotations

import csv
import gzip
import io
import random
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

import pytest
from telemetry import serious

from collector.replay.samples import samples_of
from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from detector.pipeline import Pipeline
from schemas.alert import AlertEvent

# A recording has 4 514 readings, and other tests share the cores.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]
RUN = "hopper_sxm_x8_run_0317_0339.csv.gz"
BASELINE = "hopper_sxm_x8_baseline_0341_0346.csv.gz"
OUTLIER = ("thermal_fault", "peer_outlier", "warning", "GPU-5f0e4a10-0000-4000-8000-000000000001")
Table = list[list[str]]


def replayed(path: Path, map_name: str = "hopper_sxm_x8.toml") -> list[AlertEvent]:
    source = ReplaySource(ReplaySettings(files=(path,), map=ROOT / "maps" / map_name))
    return Pipeline().feed(list(samples_of(source)))


def rewritten(shared: Path, name: str, target: Path, change: Callable[[Table], Table]) -> Path:
    """Write a changed copy of a recording; the first row of the table is the header."""
    with gzip.open(shared / "recordings" / "timeseries" / name, "rt") as file:
        table = [[cell.strip() for cell in row] for row in csv.reader(file)]
    text = io.StringIO()
    csv.writer(text).writerows(change(table))
    target.write_text(text.getvalue())
    return target


def permuted(table: Table) -> Table:
    order = list(range(len(table[0])))
    random.Random(5).shuffle(order)
    return [[row[i] for i in order] for row in table]


def resampled(seconds: int) -> Callable[[Table], Table]:
    """Keep the first reading of the node in every step."""

    def change(table: Table) -> Table:
        kept: dict[int, str] = {}
        rows = [table[0]]
        for row in table[1:]:
            step = int(datetime.fromisoformat(row[0]).timestamp()) // seconds
            if kept.setdefault(step, row[0]) == row[0]:
                rows.append(row)
        return rows

    return change


def times(alerts: Iterable[AlertEvent]) -> list[str]:
    return [alert.observed_at for alert in alerts if alert.state == "firing"]


def test_the_run_gives_the_outlier_between_0333_and_0335_and_nothing_else(shared: Path) -> None:
    alerts = replayed(shared / "recordings" / "timeseries" / RUN)
    assert serious(alerts) == [OUTLIER]
    assert all("2025-09-24T03:33" <= moment <= "2025-09-24T03:35:00" for moment in times(alerts))
    # It holds to the end of the file: through the staggered stop and the cool-down.
    assert [alert.state for alert in alerts if alert.kind == "peer_outlier"] == ["firing"]


@pytest.mark.parametrize(
    "change",
    [permuted, resampled(1), resampled(5), resampled(10)],
    ids=["permuted", "1s", "5s", "10s"],
)
def test_the_run_gives_the_same_with_other_columns_and_rates(
    shared: Path, tmp_path: Path, change: Callable[[Table], Table]
) -> None:
    alerts = replayed(rewritten(shared, RUN, tmp_path / "run.csv", change))
    assert serious(alerts) == [OUTLIER]
    assert all("2025-09-24T03:33" <= moment <= "2025-09-24T03:35:00" for moment in times(alerts))


@pytest.mark.slow
def test_permuted_columns_give_the_very_same_alerts(shared: Path, tmp_path: Path) -> None:
    plain = replayed(shared / "recordings" / "timeseries" / RUN)
    other = replayed(rewritten(shared, RUN, tmp_path / "run.csv", permuted))
    assert plain == other


@pytest.mark.parametrize("seconds", [None, 1, 5, 10])
def test_the_baseline_is_quiet(shared: Path, tmp_path: Path, seconds: int | None) -> None:
    path = shared / "recordings" / "timeseries" / BASELINE
    if seconds is not None:
        path = rewritten(shared, BASELINE, tmp_path / "base.csv", resampled(seconds))
    assert serious(replayed(path)) == []


@pytest.mark.slow
def test_both_recordings_one_after_the_other_give_the_outlier_alone(shared: Path) -> None:
    folder = shared / "recordings" / "timeseries"
    source = ReplaySource(
        ReplaySettings(
            files=(folder / RUN, folder / BASELINE), map=ROOT / "maps" / "hopper_sxm_x8.toml"
        )
    )
    assert serious(Pipeline().feed(list(samples_of(source)))) == [OUTLIER]


def test_a_single_spike_in_the_superbench_log_is_quiet(shared: Path) -> None:
    path = shared / "recordings" / "timeseries" / "superbench_monitor_8x16gb.jsonl"
    assert serious(replayed(path, "superbench_monitor.toml")) == []
