"""The demo as a whole: real services, real bus, real deliveries; and the schedule by itself."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from collector.batching import Batching, NodeBatcher
from collector.simulated.faults import default_schedule
from collector.simulated.fleet import SimulatedFleet
from collector.simulated.settings import SimulatedSettings
from detector.pipeline import Pipeline
from foreshock.demo.command import run_demo
from foreshock.demo.scoring import Score, Verdict, score, seen_alerts
from schemas.alert import AlertEvent
from schemas.errors import DataDirError

ORIGIN = 1_790_000_000_000


@pytest.fixture
def kept_umask() -> Iterator[None]:
    """The demo makes its files private by the umask of its process; ours must stay."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


def run_schedule(seed: int, seconds: int = 1900) -> Score:
    """The default schedule through collector batching and detector, without bus and clock."""
    fleet = SimulatedFleet(SimulatedSettings(seed=seed), faults=default_schedule(seed))
    rules = Batching(
        interval_seconds=1.0, flush_seconds=1.0, keyframe_seconds=60.0, source="simulated"
    )
    batchers: dict[str, NodeBatcher] = {}
    pipeline = Pipeline()
    events: list[AlertEvent] = []
    for second in range(seconds):
        for reading in fleet.read(ORIGIN + 1000 * second):
            batcher = batchers.setdefault(reading.node, NodeBatcher(reading.node, "boot", rules))
            events += pipeline.feed(batcher.add(reading))
    return score(fleet.truths(ORIGIN), seen_alerts(events), ORIGIN + 1000 * seconds)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 9))]
)
def test_every_fault_of_the_schedule_is_alerted_in_time_and_nothing_else(seed: int) -> None:
    result = run_schedule(seed)
    assert [f"{a.family}/{a.kind}: {a.summary}" for a in result.wrong] == []
    assert {f.truth.fault: f.verdict for f in result.faults} == {
        f.truth.fault: Verdict.RIGHT for f in result.faults
    }


@pytest.mark.usefixtures("kept_umask")
def test_the_demo_alerts_delivers_verifies_and_ends_cleanly(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    out = io.StringIO()
    code = run_demo(
        seconds=10.0,
        port=0,
        seed=1,
        data_dir=folder,
        speed=30.0,
        console=Console(file=out, width=160),
    )
    text = out.getvalue()
    assert code == 0, text
    assert "alert firing critical throttling/power_brake on sim-02" in text
    assert "webhook received alert.firing, signature verified" in text
    assert "NOT VERIFIED" not in text
    assert " at x30, " in text
    assert re.search(r"[1-7] right, 0 missed, \d not due yet.\s0 wrong alerts;", text)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with pytest.raises(DataDirError, match="earlier run"):
        run_demo(seconds=1.0, port=0, seed=1, data_dir=folder, console=Console(file=out))
