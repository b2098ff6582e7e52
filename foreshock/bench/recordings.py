"""Real telemetry, held out of all tuning: what the detector says of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collector.replay.samples import samples_of
from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from detector.pipeline import Pipeline
from schemas.alert import Severity

__all__ = ["RecordingResult", "recorded", "replay"]

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


def recorded(folder: Path) -> list[Path]:
    """Return the known recordings that a folder holds below ``timeseries``."""
    paths = [folder / "timeseries" / name for name, _, _ in _KNOWN]
    return [path for path in paths if path.exists()]


def replay(path: Path, maps: Path) -> RecordingResult:
    """Replay one recording, which is owed nothing but what is known of it.

    Parameters
    ----------
    path
        One of :func:`recorded`.
    maps
        Folder of the column maps.
    """
    map_name, owed = next((known[1], known[2]) for known in _KNOWN if known[0] == path.name)
    source = ReplaySource(ReplaySettings(files=(path,), map=maps / map_name))
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
