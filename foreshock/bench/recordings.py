"""Real telemetry, held out of all tuning: what the detector says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from collector.replay.samples import samples_of
from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from detector.pipeline import Pipeline
from schemas.alert import Severity

__all__ = ["RecordingResult", "replayed"]

#: File below ``timeseries``, its column map, and the (family, GPU index) that it really shows.
_KNOWN: tuple[tuple[str, str, frozenset[tuple[str, int]]], ...] = (
    (
        "hopper_sxm_x8_run_0317_0339.csv.gz",
        "hopper_sxm_x8.toml",
        frozenset({("thermal_fault", 1)}),
    ),
    ("hopper_sxm_x8_baseline_0341_0346.csv.gz", "hopper_sxm_x8.toml", frozenset()),
    ("superbench_monitor_8x16gb.jsonl", "superbench_monitor.toml", frozenset()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingResult:
    """One recording: how long, what was owed and found, and what was false."""

    name: str
    gpu_days: float
    owed: int
    found: int
    false_alarms: tuple[str, ...]


def replayed(folder: Path, maps: Path) -> Iterator[RecordingResult]:
    """Replay the recordings below a folder; those that are not there are left out.

    Parameters
    ----------
    folder
        Holds ``timeseries``.
    maps
        Folder of the column maps.
    """
    for name, map_name, owed in _KNOWN:
        path = folder / "timeseries" / name
        if path.exists():
            yield _replay(path, maps / map_name, owed)


def _replay(path: Path, map_path: Path, owed: frozenset[tuple[str, int]]) -> RecordingResult:
    source = ReplaySource(ReplaySettings(files=(path,), map=map_path))
    samples = list(samples_of(source))
    alerts = Pipeline().feed(samples)
    span = (samples[-1].ts[-1] - samples[0].ts[0]) / 86_400_000.0
    said = {
        (alert.family, alert.kind, alert.subject.gpu_index)
        for alert in alerts
        if Severity(alert.severity).rank >= Severity.WARNING.rank
    }
    right = {(family, gpu) for family, _, gpu in said if (family, gpu) in owed}
    false = sorted(
        f"{family}/{kind} on GPU {gpu}" for family, kind, gpu in said if (family, gpu) not in owed
    )
    return RecordingResult(
        name=path.name,
        gpu_days=span * len(samples[0].gpu),
        owed=len(owed),
        found=len(right),
        false_alarms=tuple(false),
    )
