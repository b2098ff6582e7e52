"""Words of the hang detector: who waits for whom, with the powers that show it."""

from __future__ import annotations

import numpy as np

from detector.base import Explanation, RowView
from schemas.alert import Action, Evidence

__all__ = ["explained"]

_CAUSES: dict[str, tuple[str, Action, tuple[str, ...]]] = {
    "hang": (
        "The rank on this GPU stopped in the middle of a step: a crashed or blocked process, a "
        "stuck data loader or file system, or a GPU that no longer answers. Its peers wait in "
        "the collective. Writing a checkpoint looks the same while it lasts: how long this job "
        "takes for one is learned from the first.",
        Action.RESTART_APP,
        (
            "Look at the rank's process: its log (does it write a checkpoint?), its stack (py-spy "
            "dump), and whether it is in uninterruptible sleep.",
            "Look for an Xid of this GPU and for kernel messages on its node.",
            "Restart the job from its last checkpoint if the rank does not come back.",
        ),
    ),
    "collective_hang": (
        "All ranks spin in a collective and nobody works: a rank on another node stopped, the "
        "network lost a link, or the ranks disagree about which collective comes next. A rank "
        "elsewhere that writes the first checkpoint of the job makes all others wait as well.",
        Action.RESTART_APP,
        (
            "Look for a stopped rank, a lost GPU or an Xid on the other nodes of the job.",
            "Check the network: link state and error counters of the adapters.",
            "Collect stacks of all ranks (py-spy dump, the NCCL flight recorder), then restart "
            "the job from its last checkpoint.",
        ),
    ),
    "idle_member": (
        "The job holds this GPU and does not use it: its rank ended or was never started, or the "
        "job was given more GPUs than it needs.",
        Action.WATCH,
        (
            "Check that the job starts one rank per GPU and that this one still runs.",
            "Ask for fewer GPUs next time if the job cannot use them all.",
        ),
    ),
}


def explained(kind: str, row: RowView, *, idle_seconds: float) -> Explanation:
    """Word one alert of the hang detector.

    Parameters
    ----------
    kind
        ``hang``, ``collective_hang`` or ``idle_member``.
    row
        The GPU that is meant, or that speaks for its job.
    idle_seconds
        How long a member must be idle before it is said, s.
    """
    cause, action, steps = _CAUSES[kind]
    return Explanation(
        summary=_summary(kind, row, idle_seconds),
        evidence=_evidence(kind, row),
        likely_cause=cause,
        action=action,
        next_steps=steps,
    )


def _summary(kind: str, row: RowView, idle_seconds: float) -> str:
    size = int(np.nan_to_num(row["group_size"]))
    own, others = row["power_watts"], row["others_watts"]
    if kind == "collective_hang":
        spinning = int(np.nan_to_num(row["spinning"]))
        usual = row["others_base_watts"]
        before = f"; usual under load is {usual:.0f} W" if usual > 1.2 * others else ""
        return (
            f"makes no progress: {spinning} of {size} GPUs on this node spin at "
            f"{_watts(others)} with full utilisation, for {row['spin_seconds']:.0f} s{before}"
        )
    if kind == "hang":
        return (
            f"has stopped at {_watts(own)} (usual {_watts(row['base_watts'])}) while its "
            f"{size - 1} peers wait for it at {_watts(others)} "
            f"(usual {_watts(row['others_base_watts'])}), for {row['idle_seconds']:.0f} s"
        )
    return (
        f"is idle at {_watts(own)} in a job whose other GPUs work at {_watts(others)}, for "
        f"{idle_seconds / 60:.0f} min or longer; {size} GPUs are compared"
    )


def _watts(value: float) -> str:
    return f"{value:.0f} W" if np.isfinite(value) else "an unknown power"


def _evidence(kind: str, row: RowView) -> tuple[Evidence, ...]:
    seconds = {"hang": "idle_seconds", "collective_hang": "spin_seconds"}.get(kind)
    lasted = None if seconds is None else row.value(seconds)
    return (
        Evidence(
            metric="power_watts",
            value=row.value("power_watts"),
            unit="W",
            baseline=row.value("base_watts"),
            peers=row.value("others_watts"),
            window_seconds=lasted,
        ),
        Evidence(
            metric="memory_utilization_ratio",
            value=row.value("memory_utilization_ratio"),
            unit="",
        ),
        Evidence(
            metric="gpu_utilization_ratio",
            value=row.value("gpu_utilization_ratio"),
            unit="",
            peers=row.value("others_busy_ratio"),
        ),
    )
