"""What the Xids of a GPU or a node add up to: the code that matters, how often, since when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
from detector.base import Explanation, Judgement, RowView, Step
from detector.frame import Frame
from detector.resets import END_WORDS
from detector.xid import SOURCES, Xid, XidClass, graded, xid_of
from schemas.alert import Action, Evidence, Severity

__all__ = ["XID_FIELDS", "note_xids", "word_xid"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes

#: Code that matters most (-1: nothing open), its severity, how often it came; last time of any.
XID_FIELDS: dict[str, Field] = {
    "code": Field("i4", -1),
    "grade": Field("i1", 0),
    "count": Field("i4", 0),
    "last_ts": Field("i8", 0),
}
_MOST = 2**31 - 1
_REASONS = ("quiet", "gpu_reset", "gpu_removed")


def note_xids(
    frame: Frame,
    state: Mapping[str, AnyArray],
    *,
    heard: BoolArray,
    ended: Mapping[str, BoolArray],
    quiet_seconds: float,
    stale_seconds: float,
) -> Step:
    """Fold the Xids of a round into what is open, and score 1 while something is.

    Parameters
    ----------
    frame, state
        The round, and :data:`XID_FIELDS` of its rows.
    heard
        (n,) the row says anything at all; else nothing ends.
    ended
        End reason to (n,): what stood until now is over.
    quiet_seconds
        After so long without any Xid a note ends, s.
    stale_seconds
        An Xid older than that when it arrives is a note, s: what followed it is unknown.
    """
    new = {name: state[name].copy() for name in XID_FIELDS}
    open_before = new["code"] >= 0
    note = new["grade"] <= Severity.INFO.rank
    quiet = note & (frame.ts - new["last_ts"] > 1000.0 * quiet_seconds)
    reason = np.full(len(frame), -1.0)
    for word, over in (("quiet", quiet), *ended.items()):
        reason[heard & open_before & over] = _REASONS.index(word)
    shown = {name: array.astype(np.float64) for name, array in new.items()}
    closed = reason >= 0
    for name, declared in XID_FIELDS.items():
        new[name] = np.where(closed, declared.fresh, new[name]).astype(declared.dtype)
    touched = _fold(frame, new, stale_seconds)
    shown = {name: np.where(closed & ~touched, was, new[name]) for name, was in shown.items()}
    score: FloatArray = np.where(new["code"] >= 0, 1.0, 0.0)
    score = np.where(heard | touched, score, np.nan)
    severity = np.maximum(new["grade"], Severity.INFO.rank).astype(np.int8)
    judged = Judgement(score=score, severity=severity)
    return Step(judgements={"xid": judged}, state=dict(new), columns={**shown, "reason": reason})


def _fold(frame: Frame, new: dict[str, AnyArray], stale_seconds: float) -> BoolArray:
    """Take the round's Xids in, in place; return the rows that had one."""
    touched = np.zeros(len(frame), dtype=bool)
    for position, event in frame.events:
        code = xid_of(event)
        if code is None or not 0 <= code <= _MOST:
            continue
        row = graded(code, event.message)
        stale = int(frame.ts[position]) - event.ts > 1000.0 * stale_seconds
        grade = Severity.INFO.rank if stale else row.severity.rank
        known = int(new["code"][position])
        if known == code:
            count = min(int(new["count"][position]) + max(event.count, 1), _MOST)
            new["count"][position] = count
            new["grade"][position] = max(grade, int(new["grade"][position]))
        elif known < 0 or _weight(row, grade) > _weight(graded(known), new["grade"][position]):
            new["code"][position] = code
            new["grade"][position] = grade
            new["count"][position] = min(max(event.count, 1), _MOST)
        new["last_ts"][position] = frame.ts[position]
        touched[position] = True
    return touched


def _weight(row: Xid, grade: int) -> tuple[int, bool, bool]:
    """Order codes: the graver; then one with a cause of its own; then one that is known."""
    return int(grade), row.group is not XidClass.SYMPATHETIC, row.group is not XidClass.UNKNOWN


_CAUSES = {
    XidClass.NOTE: "The driver records this for information.",
    XidClass.APPLICATION: (
        "A program on this GPU did something wrong (bad access, bad instruction) or was ended. "
        "One such report is no sign of bad hardware."
    ),
    XidClass.SYMPATHETIC: (
        "Work was torn down after another error, or because its process ended. It is never the "
        "cause itself."
    ),
    XidClass.CONTAINED: (
        "A memory error was contained: only the program that touched it was ended. The faulty row "
        "is repaired at the next reset."
    ),
    XidClass.LINK: (
        "An NVLink connection of this GPU or of its partner failed; the registers in the kernel "
        "line say which."
    ),
    XidClass.DEVICE: (
        "The GPU's own hardware or firmware failed. A process named in the kernel line only "
        "happened to ask."
    ),
    XidClass.BUS: (
        "The GPU no longer answers on the PCIe bus: link, power delivery, riser or the GPU itself."
    ),
    XidClass.SETUP: "Cabling, firmware or driver set-up of this GPU needs a look.",
    XidClass.UNKNOWN: "The code is not in the table: newer than this version, or not public.",
}
_STEPS: dict[Action, tuple[str, ...]] = {
    Action.WATCH: ("Nothing to do now; look at the kernel log if it comes again.",),
    Action.RESTART_APP: (
        "Look at the program's own log; restart it if it died.",
        "If the same GPU reports it under different jobs, run a diagnosis (dcgmi diag).",
    ),
    Action.RESET_GPU: (
        "Drain the GPU, then reset it (nvidia-smi --gpu-reset) or reboot the node.",
        "If it comes again within a month, run a diagnosis and have the GPU replaced.",
    ),
    Action.REBOOT_NODE: (
        "Drain the node and collect nvidia-bug-report.sh before anything else.",
        "Reboot the node; if it happens again, reseat or replace the GPU.",
    ),
    Action.DRAIN_NODE: (
        "Drain the GPU's node and look at nvidia-smi nvlink --status and its error counters.",
        "Reset all GPUs that share the link together; if it comes again, have the link examined.",
    ),
    Action.CHECK_POWER: ("Check the GPU's power cables and the power supply.",),
}


def word_xid(row: RowView, lead: str) -> Explanation:
    """Word the open code; ``lead`` is what stands before "Xid 79"."""
    code, count = int(row["code"]), int(row["count"])
    known = graded(max(code, 0))
    title = f" ({known.title})" if known.title else ""
    often = "once" if count <= 1 else f"{count} times"
    reason = int(row["reason"])
    word = _REASONS[reason] if reason >= 0 else "condition_ended"
    stale = int(row["grade"]) < known.severity.rank and known.group is not XidClass.LINK
    late = ", but long before it was read" if stale and code >= 0 else ""
    return Explanation(
        summary=f"{lead} Xid {max(code, 0)}{title}, {often}{late}",
        evidence=(
            Evidence(metric="xid", value=float(max(code, 0)), unit=""),
            Evidence(metric="xid_count", value=float(count), unit="events", expected_high=0.0),
        ),
        likely_cause=f"{_CAUSES[known.group]} (After: {SOURCES[known.source]}.)",
        action=known.action,
        next_steps=_STEPS[known.action],
        end_reason=word,
        end_words=END_WORDS.get(word, ""),
    )
