"""Reports a node whose GPUs nobody sees: the collector is blind, or the driver hangs.

Running jobs usually go on, so this is one alert of the node and never a set of lost GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, uniform_severity
from detector.frame import Frame
from schemas.alert import Action, Evidence, Scope, Severity
from schemas.sample import CollectorState

__all__ = ["DETECTOR", "CollectorSight"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True)
class _Words:
    """What a state means, why it comes about and what to do."""

    summary: str
    cause: str
    steps: tuple[str, ...]
    action: Action = Action.NONE


_STATES = tuple(CollectorState)
_OK = _STATES.index(CollectorState.OK)
_HANGS = _STATES.index(CollectorState.UNRESPONSIVE)
_STOPPING = _STATES.index(CollectorState.STOPPING)
_BLIND: dict[CollectorState, _Words] = {
    CollectorState.NO_DRIVER: _Words(
        summary="is not monitored: the NVIDIA driver is not loaded",
        cause=(
            "The kernel module is not loaded: an upgrade without a reboot, a kernel without a "
            "matching module, Secure Boot, or GPUs bound to another driver."
        ),
        steps=(
            "Look with lsmod and dmesg why the nvidia module is not there, and load it.",
            "After a kernel upgrade rebuild the module (DKMS) and reboot the node.",
        ),
        action=Action.REBOOT_NODE,
    ),
    CollectorState.NO_LIBRARY: _Words(
        summary="is not monitored: the library libnvidia-ml.so.1 is not found",
        cause=(
            "The user-space part of the driver is not installed, or not visible in the "
            "collector's container."
        ),
        steps=(
            "Install the driver's user-space libraries, or start the container with the NVIDIA "
            "runtime and the capability utility.",
        ),
    ),
    CollectorState.NO_PERMISSION: _Words(
        summary="is not monitored: the driver refuses the collector access",
        cause="The collector may not open /dev/nvidia*: user, container or device cgroup.",
        steps=("Give the collector access to /dev/nvidiactl and /dev/nvidia0 onwards.",),
    ),
    CollectorState.VERSION_MISMATCH: _Words(
        summary="is not monitored: driver and library have different versions",
        cause=(
            "The driver was upgraded underneath running processes. Running jobs go on, new ones "
            "cannot start on this node."
        ),
        steps=(
            "Drain the node, then reload the kernel module or reboot it.",
            "Hold driver packages back from unattended upgrades.",
        ),
        action=Action.REBOOT_NODE,
    ),
    CollectorState.BLIND: _Words(
        summary="is not monitored: no GPU answers the collector",
        cause=(
            "NVML cannot be used: the container lost its devices (error 999 after a reload of "
            "the container runtime's cgroups), the driver is reloading, or it failed."
        ),
        steps=(
            "Run nvidia-smi on the node itself: if it works there, restart the collector's "
            "container.",
            "If it fails there too, read the kernel log for NVRM lines and reboot the node.",
        ),
    ),
}
_EMPTY = _Words(
    summary="is not monitored: the driver lists no GPU any more",
    cause="All GPUs left the bus or the driver at once: a reload, a power fault of the board.",
    steps=(
        "Compare lspci with nvidia-smi -L and read the kernel log.",
        "Drain the node and reboot it; if the GPUs stay away, have its power and risers examined.",
    ),
    action=Action.DRAIN_NODE,
)
_BLIND_CODES = tuple(_STATES.index(state) for state in _BLIND)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSight:
    """What the collector itself says it can see.

    Parameters
    ----------
    blind_seconds, blind_samples
        How long the collector must be blind before people are told, s and readings: a reload of
        the driver takes some ten seconds and is no fault.
    hang_seconds, hang_samples
        The same for a driver that does not answer. The collector waits for a call for 10 s
        before it says so; five more make 15 s from the last values, two readings in a row.
    exit_seconds
        How long it must see again, s.

    Notes
    -----
    The collector's state is a word in each message; a message without GPUs is a heartbeat. Kind
    ``collector_blind``: no_driver, no_library, no_permission, version_mismatch, blind, or a
    collector that is well and lists none of the GPUs that it listed before. Kind
    ``driver_unresponsive``: a call into the driver did not return; the process that made it
    cannot be ended either. Each ends when the other begins. A collector that is stopping says
    nothing about the driver.

    References
    ----------
    .. [1] NVIDIA, nvml.h 13, nvmlReturn_t: 4 no permission, 9 driver not loaded, 12 library not
       found, 18 library and driver versions differ, 999 unknown.

    Examples
    --------
    >>> frame = Frame.of(metrics={}, ts=[0, 0])
    >>> words = [CollectorState.OK, CollectorState.VERSION_MISMATCH]
    >>> states = np.array([float(list(CollectorState).index(word)) for word in words])
    >>> frame.extra |= {"collector_state": states}
    >>> frame.extra |= {name: np.array([8.0, 8.0]) for name in ("listed_gpus", "known_gpus")}
    >>> CollectorSight().step(frame, {}, {}).judgements["collector_blind"].score
    array([0., 1.])
    """

    blind_seconds: float = 30.0
    blind_samples: int = 2
    hang_seconds: float = 5.0
    hang_samples: int = 2
    exit_seconds: float = 10.0

    name: ClassVar[str] = "collector_state"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "telemetry"
    scope: ClassVar[Scope] = Scope.NODE
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    helps: ClassVar[tuple[str, ...]] = ()

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``collector_blind`` and ``driver_unresponsive``, of the node."""
        return (
            KindSpec(
                kind="collector_blind",
                enter_seconds=self.blind_seconds,
                enter_samples=self.blind_samples,
                exit_seconds=self.exit_seconds,
            ),
            KindSpec(
                kind="driver_unresponsive",
                enter_seconds=self.hang_seconds,
                enter_samples=self.hang_samples,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """No state: the word stands in the message."""
        return {}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score 1 where the collector cannot see, 0 where it can, NaN where it does not say."""
        del state, firing
        word = frame["collector_state"]
        silent = np.isnan(word) | (word == _STOPPING)
        empty = (word == _OK) & (frame["listed_gpus"] == 0.0) & (frame["known_gpus"] > 0.0)
        blind = np.isin(word, _BLIND_CODES) | empty
        return Step(
            judgements={
                "collector_blind": _judged(blind, silent, Severity.WARNING),
                "driver_unresponsive": _judged(word == _HANGS, silent, Severity.CRITICAL),
            },
            state={},
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the state with the driver's own return code."""
        code = row.value("nvml_error")
        known = row.value("known_gpus")
        words = _hang_words() if kind == "driver_unresponsive" else _blind_words(row)
        said = "" if code is None else f" (NVML error {code:.0f})"
        return Explanation(
            summary=f"{words.summary}{said}{_concerned(known)}",
            evidence=(
                Evidence(metric="nvml_error", value=code, unit="", expected_high=0.0),
                Evidence(metric="known_gpus", value=known, unit="GPUs"),
            ),
            likely_cause=words.cause,
            action=words.action,
            next_steps=words.steps,
        )


def _judged(holds: BoolArray, silent: BoolArray, severity: Severity) -> Judgement:
    score: FloatArray = np.where(silent, np.nan, holds.astype(np.float64))
    return Judgement(score=score, severity=uniform_severity(score, severity))


def _blind_words(row: RowView) -> _Words:
    """Words of the state; those of an empty list where the collector itself is well."""
    state = _STATES[int(row["collector_state"])]
    if state is CollectorState.OK:
        return _EMPTY
    return _BLIND.get(state, _BLIND[CollectorState.BLIND])


def _hang_words() -> _Words:
    return _Words(
        summary="has a driver that does not answer: a call into it never returned",
        cause=(
            "The driver or a GPU's firmware (GSP) hangs. The process that called it is in "
            "uninterruptible sleep; jobs on the node hang or will at their next call."
        ),
        steps=(
            "Read the kernel log for Xid 119, 120 or 79 and for hung-task lines.",
            "Collect nvidia-bug-report.sh with a time limit, then drain and reboot the node.",
            "Do not start more tools that call the driver: each of them will hang too.",
        ),
        action=Action.REBOOT_NODE,
    )


def _concerned(known: float | None) -> str:
    if known is None or known < 1.0:
        return ""
    return f"; its {known:.0f} GPUs are not watched" if known > 1.0 else "; its GPU is not watched"


DETECTOR = CollectorSight
