"""Xid codes as data: what the driver reports, how serious it is, what to do.

A number says little without its class. Codes that a program causes (a page fault, an illegal
instruction) are notes; codes with which the device itself asks for service are critical.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from schemas.alert import Action, Severity
from schemas.sample import EventKind, SampleEvent

__all__ = ["XIDS", "Xid", "XidClass", "graded", "xid_of"]


class XidClass(StrEnum):
    """Who must act, after the buckets of NVIDIA's catalogue."""

    NOTE = "note"
    APPLICATION = "application"
    SYMPATHETIC = "sympathetic"
    CONTAINED = "contained"
    LINK = "link"
    DEVICE = "device"
    BUS = "bus"
    SETUP = "setup"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Xid:
    """One row of the table.

    Parameters
    ----------
    code
        Number in the kernel line.
    group
        Who must act.
    severity, action
        Of an alert about it.
    title
        In a few words; empty where no public description is certain.
    source
        Where class and severity come from: a key of :data:`SOURCES`.
    """

    code: int
    group: XidClass
    severity: Severity
    action: Action
    title: str
    source: str


#: Keys of the column ``source``.
SOURCES = {
    "catalogue": "NVIDIA, Xid catalogue, resolution bucket for Ampere and later",
    "field": "public fleet reports, which contradict or sharpen the catalogue",
    "both": "the catalogue's bucket, its severity after public alert rules",
}

_TITLES = {
    8: "GPU stopped processing",
    11: "invalid or corrupted push buffer stream",
    13: "graphics engine exception",
    25: "invalid push buffer stream",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer stream",
    37: "driver firmware error",
    38: "driver firmware error",
    43: "channel reset after a fault of its program",
    44: "graphics engine fault at a context switch",
    45: "preemptive clean-up after an earlier error or an ended process",
    46: "GPU stopped processing",
    48: "uncorrectable memory error (double bit)",
    54: "auxiliary power not connected",
    60: "video processor exception",
    62: "internal micro-controller halted",
    63: "row remap or page retirement recorded",
    64: "row remap or page retirement could not be recorded",
    66: "illegal access by the driver",
    67: "illegal access by the driver",
    68: "video decoder exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    80: "corrupted data sent to the GPU",
    92: "high rate of single-bit memory errors",
    93: "InfoROM wear limit",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP firmware does not answer (RPC timeout)",
    120: "GSP firmware error",
    121: "C2C link error, corrected",
    136: "link training failed",
    137: "NVLink access without privilege",
    140: "unrecovered memory error",
    143: "GPU initialisation failed",
    144: "NVLink error (SAW)",
    145: "NVLink error (RLW)",
    146: "NVLink error (TLW)",
    147: "NVLink error (TREX)",
    148: "NVLink error (NVLPW)",
    149: "NVLink error (NETIR)",
    150: "NVLink error (MSE)",
    154: "recovery action changed",
}


def _rows(
    codes: Iterable[int],
    group: XidClass,
    severity: Severity,
    action: Action,
    source: str = "catalogue",
) -> dict[int, Xid]:
    return {
        code: Xid(code, group, severity, action, _TITLES.get(code, ""), source) for code in codes
    }


_INFO, _WARNING, _CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL
_APPLICATION = (
    *(8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85),
    *(86, 88, 89, *range(96, 106), *range(126, 136), 139),
)

#: Code to its row. The later line wins.
XIDS: dict[int, Xid] = {
    **_rows(
        (37, 38, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161),
        XidClass.NOTE,
        _INFO,
        Action.WATCH,
    ),
    **_rows(_APPLICATION, XidClass.APPLICATION, _INFO, Action.RESTART_APP),
    # The catalogue's "ignore"; it ends the program all the same.
    **_rows((43,), XidClass.APPLICATION, _INFO, Action.RESTART_APP),
    **_rows((45,), XidClass.SYMPATHETIC, _INFO, Action.WATCH),
    # Bucket "reset GPU", yet in the field a program that overloads its contexts.
    **_rows((109,), XidClass.APPLICATION, _INFO, Action.RESTART_APP, "field"),
    **_rows((94,), XidClass.CONTAINED, _WARNING, Action.RESET_GPU, "both"),
    **_rows(
        (46, 62, 64, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158),
        XidClass.DEVICE,
        _CRITICAL,
        Action.RESET_GPU,
        "both",
    ),
    **_rows((48,), XidClass.DEVICE, _CRITICAL, Action.RESET_GPU, "both"),
    **_rows((79,), XidClass.BUS, _CRITICAL, Action.REBOOT_NODE, "both"),
    **_rows((74,), XidClass.LINK, _CRITICAL, Action.DRAIN_NODE, "both"),
    # Graded by the word in the line: see graded().
    **_rows(range(144, 151), XidClass.LINK, _WARNING, Action.RESET_GPU),
    **_rows((54,), XidClass.SETUP, _WARNING, Action.CHECK_POWER),
    **_rows((151,), XidClass.SETUP, _WARNING, Action.REBOOT_NODE),
    **_rows((78, 159), XidClass.SETUP, _INFO, Action.WATCH),
    # The action itself is read from the device: hardware_error/needs_reset. 171, 172: see 48.
    **_rows((154, 171, 172), XidClass.NOTE, _INFO, Action.WATCH),
}
_OFF_BUS = "fallen off the bus"


def xid_of(event: SampleEvent) -> int | None:
    """Return the code of an event, or None if it is no Xid.

    Two messages of the kernel say that a GPU fell off the bus without a number; they count as
    the code with which the driver says the same.

    Examples
    --------
    >>> xid_of(SampleEvent(ts=0, kind="xid", xid=119))
    119
    >>> xid_of(SampleEvent(ts=0, kind="kernel", message="NVRM: GPU has fallen off the bus."))
    79
    >>> xid_of(SampleEvent(ts=0, kind="kernel", message="ERROR detected invalid context"))
    """
    if event.kind == EventKind.XID and event.xid is not None:
        return event.xid
    if event.kind in {EventKind.XID, EventKind.KERNEL} and _OFF_BUS in (event.message or ""):
        return 79
    return None


def graded(code: int, message: str | None = None) -> Xid:
    """Return the row of a code; an unknown one is a note.

    Lines about NVLink 5 (144 to 150) name themselves fatal or non-fatal.

    Examples
    --------
    >>> graded(99999).severity
    <Severity.INFO: 'info'>
    >>> graded(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00").severity
    <Severity.CRITICAL: 'critical'>
    """
    row = XIDS.get(code)
    if row is None:
        return Xid(code, XidClass.UNKNOWN, _INFO, Action.WATCH, "", "catalogue")
    if 144 <= code <= 150 and message:
        severity = {"Fatal": _CRITICAL, "Nonfatal": _INFO}
        found = [severity[word] for word in message.split() if word in severity]
        if found:
            return Xid(code, row.group, found[0], row.action, row.title, row.source)
    return row
