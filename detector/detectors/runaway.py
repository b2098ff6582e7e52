"""Finds a GPU whose temperature climbs although its power does not: a fan or pump has failed.

The question is "is heat no longer carried away?". A slope alone does not answer it: a healthy
GPU that begins to work climbs as fast, at power that is just as flat by then. What tells them
apart is the past: the power had been flat and the temperature had settled for minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, require_positive
from detector.frame import Frame
from detector.stats.ewma import ewma
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "Runaway"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_HW_THERMAL = 0x40  # nvml.h, clocks event reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Runaway:
    """Temperature rising away from its steady value at steady power.

    Parameters
    ----------
    enter_celsius, exit_celsius
        Temperature above its own steady value at which it runs away, and below which that has
        ended, °C. Sensors resolve 1 °C and healthy temperatures at flat power move by 1 to 2.
    enter_slope
        Rise that must go on, °C/s. Ten times what is left of a warm-up after ``flat_seconds``;
        a stopped fan or pump gives 0.3 to 1.
    flat_seconds
        How long the power must have been flat, s: three times the slowest thermal time
        constant of a board (15 to 57 s).
    flat_watts, flat_ratio
        Power is flat within the larger of this many W and this share.
    slow_seconds, fast_seconds
        Time constants of the steady value, and of the slope and the power now, s.
    enter_seconds, exit_seconds
        How long it must hold, or have ended, s.

    Notes
    -----
    ``excess = T - EW120(T)``, ``slope = (T - EW15(T)) / 15 s``: a ramp of r °C/s is r times the
    time constant ahead of its own mean. Score: the smaller of both against their thresholds,
    while ``EW15(P)`` and ``P`` stand at ``EW120(P)``. While an alert is open the steady values
    are frozen and only the excess counts: a card that has reached its slowdown temperature
    climbs no more. Critical once the hardware thermal slowdown is active.

    References
    ----------
    .. [1] Poles of the heat path and slopes: public recordings of 8-GPU nodes, warm-up after a
       load step of 0.26 to 0.46 °C/s.

    Examples
    --------
    Ten minutes at 320 W and 66 °C, then 0.6 °C/s:

    >>> watch = Runaway()
    >>> state = {name: spec.make(1) for name, spec in watch.fields().items()}
    >>> off = {"runaway": np.zeros(1, dtype=bool)}
    >>> for reading, heat in enumerate([66.0] * 120 + [67.0, 69.0, 72.0, 75.0, 78.0]):
    ...     frame = Frame.of(
    ...         metrics={"temperature_celsius": [heat], "power_watts": [320.0]},
    ...         ts=[reading * 5000],
    ...         dt=5.0,
    ...     )
    ...     step = watch.step(frame, state, off)
    ...     state = step.state
    >>> round(float(step.judgements["runaway"].score[0]), 1)
    1.8
    """

    enter_celsius: float = 6.0
    exit_celsius: float = 3.0
    enter_slope: float = 0.15
    flat_seconds: float = 180.0
    flat_watts: float = 30.0
    flat_ratio: float = 0.1
    slow_seconds: float = 120.0
    fast_seconds: float = 15.0
    enter_seconds: float = 5.0
    exit_seconds: float = 60.0

    name: ClassVar[str] = "runaway"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "thermal_fault"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("temperature_celsius", "power_watts")
    helps: ClassVar[tuple[str, ...]] = (
        "clock_event_reasons",
        "fan_ratio",
        "temperature_margin_celsius",
    )

    def __post_init__(self) -> None:
        require_positive(
            slow_seconds=self.slow_seconds,
            fast_seconds=self.fast_seconds,
            enter_slope=self.enter_slope,
        )
        if not 0 < self.exit_celsius <= self.enter_celsius:
            raise ValueError("exit_celsius must be in (0, enter_celsius]")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; a score of 1 is excess and slope at their thresholds."""
        return (
            KindSpec(
                kind="runaway",
                exit=self.exit_celsius / self.enter_celsius,
                enter_seconds=self.enter_seconds,
                enter_samples=2,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """Slow and fast means of temperature (°C) and power (W); seconds of flat power."""
        means = ("slow_celsius", "fast_celsius", "slow_watts", "fast_watts")
        return {name: Field("f4") for name in means} | {"flat": Field("f4", 0.0)}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by how far and how fast it leaves its steady temperature."""
        heat, watts = frame["temperature_celsius"], frame["power_watts"]
        usable = np.isfinite(heat) & np.isfinite(watts)
        frozen = firing["runaway"]
        dt = frame.elapsed
        held = np.where(usable & ~frozen, dt, 0.0)
        old = {name: column.astype(np.float64) for name, column in state.items()}
        seen_heat, seen_watts = np.where(usable, heat, np.nan), np.where(usable, watts, np.nan)
        new = {
            "slow_celsius": ewma(old["slow_celsius"], seen_heat, held, self.slow_seconds),
            "fast_celsius": ewma(old["fast_celsius"], seen_heat, dt, self.fast_seconds),
            "slow_watts": ewma(old["slow_watts"], seen_watts, held, self.slow_seconds),
            "fast_watts": ewma(old["fast_watts"], seen_watts, dt, self.fast_seconds),
        }
        room = np.maximum(self.flat_watts, self.flat_ratio * new["slow_watts"])
        flat = np.abs(new["fast_watts"] - new["slow_watts"]) <= room
        lasted = np.where(flat, old["flat"] + dt, 0.0)
        new["flat"] = np.where(usable & ~frozen, lasted, old["flat"])
        excess = heat - new["slow_celsius"]
        slope = (heat - new["fast_celsius"]) / self.fast_seconds
        steady = (new["flat"] >= self.flat_seconds) & (watts <= new["slow_watts"] + room)
        both = np.minimum(excess / self.enter_celsius, slope / self.enter_slope)
        score = np.where(frozen, excess / self.enter_celsius, np.where(steady, both, 0.0))
        return Step(
            judgements={
                "runaway": Judgement(
                    score=np.where(usable, np.maximum(score, 0.0), np.nan),
                    severity=_severity(frame),
                )
            },
            state={name: column.astype(np.float32) for name, column in new.items()},
            columns={
                "excess_celsius": excess,
                "slope_celsius_per_second": slope,
                "steady_celsius": new["slow_celsius"],
                "steady_watts": new["slow_watts"],
            },
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the climb: from where, how fast, at which power, and what the fan does."""
        del kind
        heat, steady = row["temperature_celsius"], row["steady_celsius"]
        slope, watts = row["slope_celsius_per_second"], row["steady_watts"]
        fan = row.value("fan_ratio")
        blown = "" if fan is None else f", fan command at {fan:.0%}"
        return Explanation(
            summary=(
                f"climbed from {steady:.0f} to {heat:.0f} °C at unchanged power ({watts:.0f} W), "
                f"now at {slope * 60:+.0f} °C/min{blown}"
            ),
            evidence=(
                Evidence(
                    metric="temperature_celsius",
                    value=heat,
                    unit="°C",
                    expected_high=steady + self.enter_celsius,
                    baseline=steady,
                    window_seconds=self.slow_seconds,
                ),
                Evidence(
                    metric="temperature_slope_celsius_per_second",
                    value=slope,
                    unit="°C/s",
                    expected_high=self.enter_slope,
                    window_seconds=self.fast_seconds,
                ),
                Evidence(
                    metric="power_watts", value=row.value("power_watts"), unit="W", baseline=watts
                ),
                Evidence(metric="fan_ratio", value=fan, unit=""),
            ),
            likely_cause=(
                "Heat is no longer carried away: a failed fan or pump, a coolant leak, or an air "
                "path that was blocked just now."
            ),
            action=Action.CHECK_COOLING,
            next_steps=(
                "Save a checkpoint and move the job away: hardware slowdown comes next, then "
                "shutdown.",
                "Look at the fan's speed (not its command), the pump and the coolant flow.",
                "Keep the GPU out of service until its cooling is repaired.",
            ),
        )


def _severity(frame: Frame) -> AnyArray:
    """Critical once the hardware cuts the clocks for heat."""
    bits = frame["clock_event_reasons"]
    mask = np.where(np.isfinite(bits), bits, 0.0).astype(np.int64)
    hot = (mask & _HW_THERMAL) != 0
    return np.where(hot, Severity.CRITICAL.rank, Severity.WARNING.rank).astype(np.int8)


DETECTOR = Runaway
