"""Finds GPUs whose readings have stopped moving although the GPU is said to work.

A cache between driver and reader, a hung exporter or a wedged sensor serve old values as live.
Every other detector then judges a photograph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import (
    Explanation,
    Judgement,
    KindSpec,
    RowView,
    Step,
    require_positive,
    uniform_severity,
)
from detector.frame import Frame
from schemas.alert import Action, Evidence, Scope, Severity
from schemas.metrics import METRIC_INDEX, METRICS

__all__ = ["DETECTOR", "StaleValues"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
#: Readings that move with every sample of a GPU at work, by noise if by nothing else.
_RESTLESS = (
    "power_watts",
    "power_instant_watts",
    "energy_joules_total",
    "temperature_celsius",
    "memory_temperature_celsius",
    "gpu_utilization_ratio",
    "memory_utilization_ratio",
    "sm_clock_hertz",
    "pcie_transmit_bytes_total",
    "pcie_receive_bytes_total",
)
_RESTLESS_INDEX = np.array([METRIC_INDEX[name] for name in _RESTLESS])
_LONGEST_SECONDS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleValues:
    """How long all readings of a working GPU have been the same, bit for bit.

    Parameters
    ----------
    stale_seconds, stale_samples
        How long, s, and over how many repetitions. The slowest usual exporter refreshes every
        30 s, so twice that is no refresh.
    busy_utilization
        Utilisation from which a GPU works, 0 to 1. At rest its readings may stand still.
    powered_watts
        Power above which the energy counter must move, W, at any utilisation.
    restless
        Of power, energy, temperatures, utilisations, clock and PCIe bytes, how many must be
        there. A few coarse readings may agree by chance; a source of constants has no more.
    exit_seconds
        How long the values must move again, s.

    Notes
    -----
    The bits of all metrics of a GPU are folded into one 64-bit number per frame, which is all
    that is kept; values that are missing stay missing in it. Two different sets of readings
    fold to the same number once in 2**64. A frame without any reading says nothing.

    References
    ----------
    .. [1] Multiplicative hashing with odd constants: Knuth, The Art of Computer Programming,
       vol. 3, section 6.4.

    Examples
    --------
    The same five readings for a minute and a half, at full load:

    >>> watch = StaleValues()
    >>> state = {name: spec.make(1) for name, spec in watch.fields().items()}
    >>> same = {
    ...     "power_watts": [612.4],
    ...     "temperature_celsius": [61.0],
    ...     "gpu_utilization_ratio": [0.98],
    ...     "memory_utilization_ratio": [0.55],
    ...     "sm_clock_hertz": [1.71e9],
    ... }
    >>> for second in range(0, 91, 10):
    ...     step = watch.step(Frame.of(metrics=same, ts=[second], dt=10.0), state, {})
    ...     state = step.state
    >>> float(step.judgements["stale_values"].score[0])
    1.5
    """

    stale_seconds: float = 60.0
    stale_samples: int = 4
    busy_utilization: float = 0.05
    powered_watts: float = 10.0
    restless: int = 5
    exit_seconds: float = 10.0

    name: ClassVar[str] = "stale_values"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "telemetry"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("power_watts",)
    helps: ClassVar[tuple[str, ...]] = (
        "energy_joules_total",
        "gpu_utilization_ratio",
        "memory_utilization_ratio",
        "sm_clock_hertz",
        "temperature_celsius",
    )
    #: Whatever a node offers is compared.
    reads: ClassVar[tuple[str, ...]] = tuple(METRICS)

    def __post_init__(self) -> None:
        require_positive(stale_seconds=self.stale_seconds)
        if self.restless < 1:
            raise ValueError(f"restless must be at least 1, got {self.restless}")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; 1 after ``stale_seconds`` without a change."""
        return (KindSpec(kind="stale_values", exit=0.1, exit_seconds=self.exit_seconds),)

    def fields(self) -> Mapping[str, Field]:
        """Folded readings, seconds and repetitions since they changed."""
        return {"folded": Field("i8", 0), "still": Field("f4", 0.0), "repeats": Field("i2", 0)}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by the time since any of its readings moved."""
        del firing
        folded, answers = _fold(frame)
        same = answers & (folded == state["folded"])
        still = np.minimum(np.where(same, state["still"] + frame.elapsed, 0.0), _LONGEST_SECONDS)
        repeats = np.where(same, np.minimum(state["repeats"] + 1, 32_000), 0)
        score = np.where(repeats >= self.stale_samples, still / self.stale_seconds, 0.0)
        moved = {"folded": folded, "still": still, "repeats": repeats}
        judged = np.where(answers, np.where(self._must_move(frame), score, 0.0), np.nan)
        return Step(
            judgements={
                "stale_values": Judgement(
                    score=judged, severity=uniform_severity(judged, Severity.WARNING)
                )
            },
            state={
                name: np.where(answers, value, state[name]).astype(state[name].dtype)
                for name, value in moved.items()
            },
            columns={"still": still, "repeats": repeats},
        )

    def _must_move(self, frame: Frame) -> BoolArray:
        """(n,) enough restless readings are there, and the GPU works or its energy must grow."""
        seen = np.isfinite(frame.x[_RESTLESS_INDEX]).sum(axis=0)
        works = frame["gpu_utilization_ratio"] >= self.busy_utilization
        powered = frame["power_watts"] >= self.powered_watts
        counts = powered & np.isfinite(frame["energy_joules_total"])
        there = (seen >= self.restless) & np.isfinite(frame["power_watts"])
        return np.asarray(there & (works | counts), dtype=np.bool_)

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word what stands still and for how long."""
        del kind
        still, watts, busy = row["still"], row["power_watts"], row.value("gpu_utilization_ratio")
        said = "" if busy is None else f" and {busy:.0%} utilisation"
        drawn = "" if not np.isfinite(watts) else f", at {watts:.1f} W{said},"
        return Explanation(
            summary=(
                f"shows the very same readings{drawn} for {still:.0f} s: they are old values, "
                "not a quiet GPU"
            ),
            evidence=(
                Evidence(
                    metric="unchanged_seconds",
                    value=still,
                    unit="s",
                    expected_high=self.stale_seconds,
                ),
                Evidence(metric="power_watts", value=row.value("power_watts"), unit="W"),
                Evidence(metric="gpu_utilization_ratio", value=busy, unit=""),
            ),
            likely_cause=(
                "Something between the driver and this reader serves a copy: a hung exporter or "
                "its cache, a driver call that returns old data, or a replay of one sample."
            ),
            action=Action.WATCH,
            next_steps=(
                "Run nvidia-smi on the node twice: if its values move, restart the collector or "
                "exporter; if they do not, treat the driver as hung.",
                "Until then take silence about this GPU for ignorance, not for health.",
            ),
        )


def _fold(frame: Frame) -> tuple[AnyArray, BoolArray]:
    """(n,) all readings of a row as one number, and whether the row has any reading."""
    values = frame.x[frame.offered]
    there = np.isfinite(values)
    # Every NaN is the same gap, whatever its bits; -0.0 is 0.0.
    bits = np.where(there, values + 0.0, np.nan).view(np.uint64)
    factors = (2 * frame.offered.astype(np.uint64) + 3) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (bits ^ (bits >> np.uint64(29))) * factors[:, None]
    mixed ^= mixed >> np.uint64(32)
    # Where a metric is offered by no node of a frame it must weigh as a gap does elsewhere.
    folded = np.where(there, mixed, np.uint64(0)).sum(axis=0, dtype=np.uint64)
    answers = np.asarray(there.any(axis=0), dtype=np.bool_)
    return folded.view(np.int64), answers


DETECTOR = StaleValues
