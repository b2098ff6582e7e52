"""The numbers that the design asks for, beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["DesignRow", "design_rows"]

# Any: the tree of JSON values that Results.as_json gives.
Tree = dict[str, Any]
#: What it is called, class and magnitude (None for all), and share that must be in time.
_TIMES: tuple[tuple[str, str, float | None], ...] = (
    ("hardware throttle, half of the time", "hw_thermal", 0.5),
    ("hardware throttle, a tenth of the time", "hw_thermal", 0.1),
    ("power brake of a node, all the time", "power_brake", 1.0),
    ("power brake of a node, a tenth of the time", "power_brake", 0.1),
    ("hang of one rank", "hang", None),
    ("collective hang", "collective_hang", None),
    ("straggler 10 %", "straggler", 0.10),
    ("thermal resistance +15 %", "thermal_resistance", 0.15),
    ("corrected-ECC storm, 17,700/s", "ecc_storm", 17_700.0),
)
_SHARE = 0.95
_FLAT = ("healthy, memory full", "healthy, memory plateau")


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignRow:
    """One row: what, target, measured, and whether it was reached."""

    what: str
    target: str
    measured: str
    reached: bool


def design_rows(results: Tree) -> list[DesignRow]:
    """Return the detection rows of the design, in its order."""
    rows = [_recordings(results["recordings"])] if results["recordings"] else []
    if "soak" in results["suites"]:
        rows.append(_rate("false alarms in the soak", results["suites"]["soak"], 0.01))
    rows += [row for time in _TIMES if (row := _time(results["classes"], *time)) is not None]
    rows += [row for group in ("quiet", "churning") if (row := _leaks(results, group)) is not None]
    if "memory" in results["suites"]:
        rows.append(_rate("false alarms of the memory suite", results["suites"]["memory"], 0.05))
        rows.append(_plateau(results["suites"]["memory"]))
    return rows


def _recordings(rows: list[Tree]) -> DesignRow:
    false = sum(len(row["false_alarms"]) for row in rows)
    return DesignRow(
        what="false alarms on the recordings",
        target="0",
        measured=f"{false} in {len(rows)} recordings",
        reached=false == 0,
    )


def _rate(what: str, suite: Tree, most: float) -> DesignRow:
    rate, (low, high) = suite["false_alarms_per_gpu_day"], suite["false_alarms_interval"]
    return DesignRow(
        what=what,
        target=f"≤ {most:g} per GPU-day",
        measured=(
            f"{rate:.4f} ({low:.4f} to {high:.4f}); "
            f"{suite['false_alarms']} in {suite['gpu_days']:,.0f} GPU-days"
        ),
        reached=rate <= most,
    )


def _time(classes: list[Tree], what: str, name: str, magnitude: float | None) -> DesignRow | None:
    rows = [
        row for row in classes if row["class"] == name and magnitude in (None, row["magnitude"])
    ]
    if not rows:
        return None
    trials, in_time = (sum(row[key] for row in rows) for key in ("trials", "in_time"))
    slowest = [row["delay_p95"] for row in rows if row["delay_p95"] is not None]
    worst = f"p95 of those found {max(slowest):.0f} s" if slowest else "none found"
    return DesignRow(
        what=what,
        target=f"≤ {rows[0]['target_seconds']:.0f} s",
        measured=f"{in_time} of {trials} in time, {worst}",
        reached=in_time >= _SHARE * trials,
    )


def _leaks(results: Tree, group: str) -> DesignRow | None:
    rows = [row for row in results["oom"] if row["memory"] == group and row["gib_per_hour"] == 6.0]
    if not rows:
        return None
    early, trials = rows[0]["lead_1800s"], rows[0]["trials"]
    low, high = rows[0]["interval_1800s"]
    return DesignRow(
        what=f"leak of 6 GiB/h, {group} memory",
        target="≥ 30 min ahead in ≥ 90 %",
        measured=f"{early} of {trials} ({low:.2f} to {high:.2f})",
        reached=early >= 0.9 * trials,
    )


def _plateau(suite: Tree) -> DesignRow:
    false = sum(
        one["count"]
        for one in suite["false_alarms_by"]
        if one["family"] == "oom_precursor" and one["while"] in _FLAT
    )
    return DesignRow(
        what="flat plateau, up to 97 % full",
        target="nothing of warning or above",
        measured=f"{false} alarms",
        reached=false == 0,
    )
