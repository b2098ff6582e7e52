"""Finds GPUs whose clocks are cut by heat or by the power brake, and only those.

Running at the power cap is what a busy GPU does: on a healthy 690 W training job the software
power cap is active in every sample. That reason is context here, never an alert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, require_positive
from detector.frame import Frame
from detector.stats.ewma import ewma
from detector.stats.peers import block_view, peer_median, to_rows
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "Throttling"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True)
class _Reason:
    """One clock event reason: its bit (nvml.h), its counter, how it is called and met."""

    bit: int
    counter: str
    label: str
    needs_load: bool
    hardware: bool
    action: Action
    cause: str
    steps: tuple[str, ...]


_REASONS: dict[str, _Reason] = {
    "hw_thermal": _Reason(
        bit=0x40,
        counter="throttle_hw_thermal_seconds_total",
        label="hardware thermal slowdown",
        needs_load=True,
        hardware=True,
        action=Action.CHECK_COOLING,
        cause=(
            "The GPU reached its slowdown temperature and the hardware cut the clocks by half or "
            "more: airflow, coolant, thermal interface or inlet temperature."
        ),
        steps=(
            "Look whether neighbours are hot too: if so check fans, coolant and inlet of the node.",
            "Move the job away or lower the power limit until the cooling is repaired.",
        ),
    ),
    "sw_thermal": _Reason(
        bit=0x20,
        counter="throttle_sw_thermal_seconds_total",
        label="software thermal slowdown",
        needs_load=True,
        hardware=False,
        action=Action.CHECK_COOLING,
        cause=(
            "Core or memory is at its maximum operating temperature and the driver holds the "
            "clocks down."
        ),
        steps=(
            "Compare core and memory temperature with the limits; look at fans and inlet.",
            "Expect the whole job to run at the pace of this GPU until it is cooler.",
        ),
    ),
    "power_brake": _Reason(
        bit=0x80,
        counter="throttle_power_brake_seconds_total",
        label="hardware power brake",
        needs_load=False,
        hardware=True,
        action=Action.CHECK_POWER,
        cause=(
            "The board's external power brake is asserted: power supply, power distribution or a "
            "rack-level limit, not the GPU's own work."
        ),
        steps=(
            "Check power supplies, their event log and the rack's power distribution.",
            "Look whether other GPUs of the node or rack are braked too.",
            "If supplies are healthy and the brake stays, power-cycle the node.",
        ),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """Share of time under a fault-class clock event reason.

    Parameters
    ----------
    duty_enter
        Share of throttled time over the last minute that is a fault, 0 to 1. A floor of 1 to
        5 % keeps out checks that failed on microseconds (a counter that moved by 0.8 ms in 10 s).
    duty_seconds
        Time constant of that share, s.
    steady_duty, steady_samples
        So many samples in a row at this duty or more are a fault at once: three readings in a
        row, because the slowdown bit also appears for one reading during a clock change
        (nvml.h on clocks event reasons).
    brief_duty, brief_samples
        Of the hardware's own reasons: so many readings in a row whose counter moved by this
        share of the time or more. A change of clocks moves it once, by milliseconds.
    severe_duty, severe_seconds
        Share over the longer window at which a thermal slowdown is critical.
    exit_seconds
        How long there must be no throttling, or a share below a quarter of ``duty_enter``, s;
        longer than the pause between the bursts of one cause.
    idle_utilization
        Thermal bits below this utilisation are not counted, 0 to 1.

    Notes
    -----
    The driver's cumulative counters (NVML fields 269 to 271) decide where they are present:
    ``duty = delta / dt``; they see bursts between samples. Else the reason bits are tested one
    by one, never by equality. A counter that goes back is a reset: it is based anew and that
    interval says nothing.

    References
    ----------
    .. [1] NVIDIA, nvml.h 13, clocks event reasons and field ids 269-271.

    Examples
    --------
    A brake bit in three readings in a row, on a driver without counters:

    >>> watch = Throttling()
    >>> state = {name: spec.make(1) for name, spec in watch.fields().items()}
    >>> off = {kind.kind: np.zeros(1, dtype=bool) for kind in watch.kinds}
    >>> for reading in range(4):
    ...     bits = 0.0 if reading == 0 else 136.0
    ...     frame = Frame.of(metrics={"clock_event_reasons": [bits]}, ts=[reading], dt=10.0)
    ...     step = watch.step(frame, state, off)
    ...     state = step.state
    ...     print(float(step.judgements["power_brake"].score[0]))
    0.0
    0.0
    0.0
    1.0
    """

    duty_enter: float = 0.02
    duty_seconds: float = 60.0
    steady_duty: float = 0.5
    steady_samples: int = 3
    brief_duty: float = 0.05
    brief_samples: int = 3
    severe_duty: float = 0.10
    severe_seconds: float = 120.0
    exit_seconds: float = 90.0
    idle_utilization: float = 0.05

    name: ClassVar[str] = "throttling"
    version: ClassVar[str] = "3"
    family: ClassVar[str] = "throttling"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = True  # only for the clock loss in the evidence
    needs: ClassVar[tuple[str, ...]] = ("clock_event_reasons",)
    helps: ClassVar[tuple[str, ...]] = (
        "throttle_hw_thermal_seconds_total",
        "throttle_sw_thermal_seconds_total",
        "throttle_power_brake_seconds_total",
        "sm_clock_hertz",
        "temperature_celsius",
        "temperature_margin_celsius",
        "memory_temperature_celsius",
        "power_watts",
    )

    def __post_init__(self) -> None:
        require_positive(duty_seconds=self.duty_seconds, severe_seconds=self.severe_seconds)
        if not 0 < self.duty_enter < 1:
            raise ValueError(f"duty_enter must be in (0, 1), got {self.duty_enter}")
        for name in ("steady_samples", "brief_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """Three kinds; a score of 1 is the threshold of the share or of the run of readings."""
        return tuple(
            KindSpec(kind=kind, enter=1.0, exit=0.25, exit_seconds=self.exit_seconds)
            for kind in _REASONS
        )

    def fields(self) -> Mapping[str, Field]:
        """Per kind: last counter (s) and its time (ms), two shares, two runs of readings."""
        fields: dict[str, Field] = {}
        for kind in _REASONS:
            fields[f"{kind}_last"] = Field("f8")
            fields[f"{kind}_last_ts"] = Field("i8", -1)
            fields[f"{kind}_duty"] = Field("f4", 0.0)
            fields[f"{kind}_long"] = Field("f4", 0.0)
            fields[f"{kind}_run"] = Field("i2", 0)
            fields[f"{kind}_brief"] = Field("i1", 0)
        return fields

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU for each of the three reasons."""
        del firing
        judgements: dict[str, Judgement] = {}
        new_state: dict[str, AnyArray] = {}
        columns: dict[str, AnyArray] = {}
        for kind, reason in _REASONS.items():
            counter = frame[reason.counter]
            counted = np.isfinite(counter)
            last, last_ts = state[f"{kind}_last"], state[f"{kind}_last_ts"]
            # From the counter's own last reading: a frame may have lacked it.
            seconds = np.where(np.isfinite(frame.dt), (frame.ts - last_ts) / 1000.0, np.nan)
            instant = self._instant(frame, reason, counter - last, seconds)
            moved = self._advance(frame, kind, state, instant)
            moved[f"{kind}_last"] = np.where(counted, counter, last)
            moved[f"{kind}_last_ts"] = np.where(counted, frame.ts, last_ts)
            new_state |= moved
            steady = moved[f"{kind}_run"] >= self.steady_samples
            brief = counted & (moved[f"{kind}_brief"] >= self.brief_samples) & reason.hardware
            by_share = np.where(counted, moved[f"{kind}_duty"] / self.duty_enter, 0.0)
            score = np.maximum(np.where(steady | brief, 1.0, 0.0), by_share)
            # An interval without any throttling starts the clearing; the share decays for
            # minutes, and an end that late would be wrong in every report.
            score = np.where(instant > 0.0, score, 0.0)
            score = np.where(np.isnan(instant), np.nan, score)
            severity = self._severity(kind, steady, moved[f"{kind}_long"])
            judgements[kind] = Judgement(score=score, severity=severity)
            columns[f"{kind}_share"] = moved[f"{kind}_duty"]
            columns[f"{kind}_readings"] = moved[f"{kind}_run"]
            columns[f"{kind}_instant"] = instant
        # Worth the sorting only where an alert may be worded.
        slowed = any((judged.score >= 1.0).any() for judged in judgements.values())
        unknown = np.full(len(frame), np.nan)
        columns["peers_hertz"] = _peer_clock(frame) if slowed else unknown
        return Step(judgements=judgements, state=new_state, columns=columns)

    def _instant(
        self, frame: Frame, reason: _Reason, delta: FloatArray, seconds: FloatArray
    ) -> FloatArray:
        """(n,) share of throttled time since the previous reading; NaN where unknown."""
        known = np.isfinite(delta) & (delta >= 0.0) & (seconds > 0.0)
        share = np.divide(delta, seconds, out=np.full(len(frame), np.nan), where=known)
        bits = frame["clock_event_reasons"]
        mask = np.where(np.isfinite(bits), bits, 0.0).astype(np.int64)
        seen = (mask & reason.bit) != 0
        if reason.needs_load:
            seen &= ~(frame["gpu_utilization_ratio"] < self.idle_utilization)
        by_bit = np.where(np.isfinite(bits), seen.astype(np.float64), np.nan)
        return np.where(np.isfinite(frame[reason.counter]), np.minimum(share, 1.0), by_bit)

    def _advance(
        self, frame: Frame, kind: str, state: Mapping[str, AnyArray], instant: FloatArray
    ) -> dict[str, AnyArray]:
        """Move the shares and the run of readings; NaN leaves them alone."""
        dt = frame.elapsed
        duty = ewma(state[f"{kind}_duty"].astype(np.float64), instant, dt, self.duty_seconds)
        long = ewma(state[f"{kind}_long"].astype(np.float64), instant, dt, self.severe_seconds)
        run = np.where(instant >= self.steady_duty, state[f"{kind}_run"] + 1, 0)
        run = np.where(np.isnan(instant), state[f"{kind}_run"], np.minimum(run, 32_000))
        brief = np.where(instant >= self.brief_duty, state[f"{kind}_brief"] + 1, 0)
        brief = np.where(np.isnan(instant), state[f"{kind}_brief"], np.minimum(brief, 100))
        return {
            f"{kind}_brief": brief.astype(np.int8),
            f"{kind}_duty": duty.astype(np.float32),
            f"{kind}_long": long.astype(np.float32),
            f"{kind}_run": run.astype(np.int16),
        }

    def _severity(self, kind: str, steady: BoolArray, long: AnyArray) -> AnyArray:
        """Brake: critical. Hardware thermal: critical when steady or long. Else warning."""
        critical, warning = Severity.CRITICAL.rank, Severity.WARNING.rank
        if kind == "power_brake":
            return np.full(len(steady), critical, dtype=np.int8)
        if kind == "sw_thermal":
            return np.full(len(steady), warning, dtype=np.int8)
        severe = steady | (long >= self.severe_duty)
        return np.where(severe, critical, warning).astype(np.int8)

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the slowdown: share of time, clock loss against peers, temperature and power."""
        reason = _REASONS[kind]
        share, readings = row[f"{kind}_share"], int(row[f"{kind}_readings"])
        steady = readings >= self.steady_samples
        when = f"in all of the last {readings} readings" if steady else self._part(kind, row)
        clock, peers = row["sm_clock_hertz"], row.value("peers_hertz")
        loss = ""
        if peers is not None and peers > 0.0 and np.isfinite(clock) and clock < peers:
            loss = f"; SM clock {clock / 1e6:.0f} MHz, {1 - clock / peers:.0%} below its peers"
        elif np.isfinite(clock):
            loss = f"; SM clock {clock / 1e6:.0f} MHz"
        evidence = [
            Evidence(
                metric=f"{kind}_share_ratio",
                value=share,
                unit="",
                expected_high=self.duty_enter,
                window_seconds=self.duty_seconds,
            ),
            Evidence(
                metric="sm_clock_hertz", value=row.value("sm_clock_hertz"), unit="Hz", peers=peers
            ),
            Evidence(
                metric="temperature_celsius", value=row.value("temperature_celsius"), unit="°C"
            ),
            Evidence(metric="power_watts", value=row.value("power_watts"), unit="W"),
        ]
        return Explanation(
            summary=f"is slowed by {reason.label}, {when}{loss}",
            evidence=tuple(evidence),
            likely_cause=reason.cause,
            action=reason.action,
            next_steps=reason.steps,
        )

    def _part(self, kind: str, row: RowView) -> str:
        """Say how much of which time, the last reading's as long as a minute shows less."""
        share, instant = row[f"{kind}_share"], row[f"{kind}_instant"]
        if share < self.duty_enter <= instant:
            return f"{instant:.0%} of the time since the reading before"
        return f"{share:.0%} of the last minute"


def _peer_clock(frame: Frame) -> FloatArray:
    """(n,) median SM clock of the other GPUs of the node with the same model."""
    clock = block_view(frame["sm_clock_hertz"], frame.blocks, np.nan)
    model = block_view(frame.model, frame.blocks, -2)
    median, _ = peer_median(clock, model[:, :, None] == model[:, None, :])
    return to_rows(median, frame.blocks, len(frame))


DETECTOR = Throttling
