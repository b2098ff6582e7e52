"""The results as a page of Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshock.bench.design import design_rows
from foreshock.bench.prose import HOW, INTRODUCTION

__all__ = ["page"]

# Any: the tree of JSON values that Results.as_json gives.
Tree = dict[str, Any]


def page(results: Tree, command: str) -> str:
    """Lay out the results.

    Parameters
    ----------
    results
        As :meth:`foreshock.bench.results.Results.as_json` gives them.
    command
        What makes them again.
    """
    parts = [
        "# Detection: what was measured",
        INTRODUCTION,
        f"```sh\n{command}\n```",
        _sizes(results),
        "## The numbers of the design",
        _design(results),
        "## Where it falls short",
        _short(results),
        "## Found, by class and magnitude",
        _classes(results["classes"]),
        "## Memory: warned ahead of the end",
        _oom(results["oom"]),
        "## Beside the rivals",
        _rivals(results),
        "## False alarms of foreshock, by what was going on",
        _false(results["suites"]),
        "## Real recordings, held out of all tuning",
        _recordings(results["recordings"]),
        "## How it is measured",
        HOW,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _n(value: float | None, digits: int = 2, unit: str = "") -> str:
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def _range(pair: Sequence[float | None], digits: int = 2) -> str:
    return f"{_n(pair[0], digits)} to {_n(pair[1], digits)}"


def _sizes(results: Tree) -> str:
    suites = results["suites"]
    sizes = ", ".join(
        f"{name} {suite['gpu_days']:,.1f} GPU-days with {suite['faults']} faults"
        for name, suite in suites.items()
    )
    return (
        f"Seed {results['seed']}, {results['trials']} trials per class and magnitude, side "
        f"`{results['side']}`: {sizes}. The run took {results['seconds'] / 60:.0f} min."
    )


def _design(results: Tree) -> str:
    rows = [
        (row.what, row.target, row.measured, "yes" if row.reached else "**no**")
        for row in design_rows(results)
    ]
    return _table(("what", "target", "measured, held-out side", "reached"), rows)


def _short(results: Tree) -> str:
    """List what is not reached, and the classes of which a fifth or more is missed."""
    lines = [
        f"* {row.what}: {row.measured}, wanted {row.target}."
        for row in design_rows(results)
        if not row.reached
    ]
    for row in results["classes"]:
        if row["right"] <= 0.8 * row["trials"] and row["right"] < row["trials"]:
            magnitude = f" {row['magnitude']:g} {row['unit']}" if row["unit"] else ""
            lines.append(f"* `{row['class']}`{magnitude}: {row['right']} of {row['trials']} found.")
    for name, suite in results["suites"].items():
        for one in suite["false_alarms_by"][:3]:
            what = f"`{one['family']}/{one['kind']}`"
            lines.append(f"* {what} wrongly said {one['count']} times in {name}: {one['while']}.")
    return "\n".join(lines) or "Nowhere in this run."


def _classes(rows: Sequence[Tree]) -> str:
    body = [
        (
            f"`{row['class']}`",
            f"{row['magnitude']:,g} {row['unit']}".strip() if row["unit"] else "–",
            f"{row['right']} of {row['trials']}",
            _range(row["recall_interval"]),
            str(row["half"]),
            _n(row["delay_p50"], 0, " s"),
            _n(row["delay_p95"], 0, " s"),
            _n(row["top1"]),
            _n(row["alerts_per_incident"], 1),
        )
        for row in rows
    ]
    head = (
        "class", "magnitude", "found", "95 % interval", "half", "delay p50", "delay p95",
        "first alarm on the right entity", "alarms per incident",
    )  # fmt: skip
    return _table(head, body)


def _oom(rows: Sequence[Tree]) -> str:
    body = [
        (
            row["memory"],
            f"{row['gib_per_hour']:g} GiB/h",
            str(row["trials"]),
            _n((row["time_to_full_p50"] or 0.0) / 60, 0, " min"),
            *(str(row[f"lead_{s}s"]) for s in (60, 300, 900, 1800)),
            _range(row["interval_1800s"]),
            _n(None if row["lead_p50"] is None else row["lead_p50"] / 60, 0, " min"),
        )
        for row in rows
    ]
    head = (
        "memory", "leak", "trials", "time to full p50", "≥ 1 min", "≥ 5 min", "≥ 15 min",
        "≥ 30 min ahead", "95 % interval", "lead p50",
    )  # fmt: skip
    return _table(head, body)


def _rivals(results: Tree) -> str:
    rows = [_rival_row("foreshock", results["suites"], "defaults")]
    for rival in results["rivals"]:
        default = rival["default_setting"]
        rows.append(_rival_row(rival["name"], rival["default"], f"default {_setting(default)}"))
        if rival["settings_tried"] > 1:
            tuned = f"tuned {_setting(rival['tuned_setting'])}"
            rows.append(_rival_row(rival["name"], rival["tuned"], tuned))
    head = (
        "detector", "setting", "recall faults", "95 % interval", "recall leaks",
        "false per GPU-day, faults", "leaks", "soak", "µs per sample",
    )  # fmt: skip
    return _table(head, rows)


def _setting(setting: Tree) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in setting.items()) or "–"


def _rival_row(name: str, suites: Tree, setting: str) -> tuple[str, ...]:
    faults, memory, soak = (suites.get(part) for part in ("faults", "memory", "soak"))
    return (
        name,
        setting,
        _n(faults and faults["recall"]),
        _range(faults["recall_interval"]) if faults else "–",
        _n(memory and memory["recall"]),
        *(_n(part and part["false_alarms_per_gpu_day"], 3) for part in (faults, memory, soak)),
        _n(faults and faults["microseconds_per_sample"], 1),
    )


def _false(suites: Tree) -> str:
    rows = [
        (name, f"`{one['family']}/{one['kind']}`", one["while"], str(one["count"]))
        for name, suite in suites.items()
        for one in suite["false_alarms_by"]
    ]
    return _table(("suite", "alarm", "while", "count"), rows) if rows else "None."


def _recordings(rows: Sequence[Tree]) -> str:
    if not rows:
        return "None were given (`--recordings DIR`)."
    body = [
        (
            f"`{row['name']}`",
            _n(row["gpu_days"], 3),
            f"{row['found']} of {row['owed']}",
            "; ".join(row["false_alarms"]) or "none",
        )
        for row in rows
    ]
    return _table(("recording", "GPU-days", "faults found", "false alarms"), body)
