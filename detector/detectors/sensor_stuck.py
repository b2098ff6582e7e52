"""Finds a temperature sensor that shows one value whatever the GPU does.

The question is "may this temperature be believed?". A flat reading alone says nothing, an idle
GPU is flat for hours; a flat reading while the power moves by more than 100 W does.
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
from detector.stats.ewma import ewma
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "SensorStuck"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorStuck:
    """Range of the smoothed power over the time in which the temperature did not change.

    Parameters
    ----------
    enter_watts
        Range of the smoothed power at which a constant temperature is impossible, W: at 0.04 to
        0.09 °C/W that is 4 to 9 °C, and the sensor resolves 1.
    smooth_seconds
        Time constant of the power, s, so that bursts which the heat path swallows do not count.
    flat_seconds
        How long the temperature must be the very same, s.
    exit_seconds
        How long it must move again, s.

    Notes
    -----
    Score: the smaller of ``range / enter_watts`` and ``time / flat_seconds``. Any change of the
    temperature begins anew. While it lasts, no thermal alert of this GPU can be relied on.

    Examples
    --------
    >>> watch = SensorStuck()
    >>> state = {name: spec.make(1) for name, spec in watch.fields().items()}
    >>> off = {"sensor_stuck": np.zeros(1, dtype=bool)}
    >>> for reading in range(60):
    ...     watts = 100.0 if reading < 30 else 600.0
    ...     frame = Frame.of(
    ...         metrics={"temperature_celsius": [41.0], "power_watts": [watts]},
    ...         ts=[reading * 10_000],
    ...         dt=10.0,
    ...     )
    ...     step = watch.step(frame, state, off)
    ...     state = step.state
    >>> bool(step.judgements["sensor_stuck"].score[0] > 1.0)
    True
    """

    enter_watts: float = 100.0
    smooth_seconds: float = 30.0
    flat_seconds: float = 120.0
    exit_seconds: float = 60.0

    name: ClassVar[str] = "sensor_stuck"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "thermal_fault"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("temperature_celsius", "power_watts")
    helps: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        require_positive(
            enter_watts=self.enter_watts,
            smooth_seconds=self.smooth_seconds,
            flat_seconds=self.flat_seconds,
        )

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; a score of 1 is power and time at their thresholds."""
        return (KindSpec(kind="sensor_stuck", enter_samples=3, exit_seconds=self.exit_seconds),)

    def fields(self) -> Mapping[str, Field]:
        """Value (°C), for how long (s); smoothed power, lowest and highest since (W); age (s)."""
        names = ("celsius", "watts", "low", "high")
        return {name: Field("f4") for name in names} | {
            "flat": Field("f4", 0.0),
            "age": Field("f4", 0.0),
        }

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by what its power did while its temperature did nothing."""
        del firing
        heat, power = frame["temperature_celsius"], frame["power_watts"]
        usable = np.isfinite(heat) & np.isfinite(power)
        seen = np.where(usable, power, np.nan)
        old = {name: column.astype(np.float64) for name, column in state.items()}
        watts = ewma(old["watts"], seen, frame.elapsed, self.smooth_seconds)
        same = heat.astype(np.float32) == state["celsius"]
        age = old["age"] + frame.elapsed
        # Only a mean that the power stands at counts: on its way it lags behind the heat.
        settled = np.abs(seen - watts) <= self.enter_watts / 3.0
        counts = settled & (age >= self.smooth_seconds)
        at = np.where(counts, watts, np.nan)
        low = np.where(same, np.fmin(old["low"], at), at)
        high = np.where(same, np.fmax(old["high"], at), at)
        flat = np.where(same, old["flat"] + frame.elapsed, 0.0)
        new = {"celsius": heat, "watts": watts, "low": low, "high": high, "flat": flat, "age": age}
        span = np.nan_to_num(high - low)
        score = np.minimum(span / self.enter_watts, flat / self.flat_seconds)
        score = np.where(usable, np.maximum(score, 0.0), np.nan)
        return Step(
            judgements={
                "sensor_stuck": Judgement(
                    score=score, severity=uniform_severity(score, Severity.WARNING)
                )
            },
            state={
                name: np.where(usable, value, old[name]).astype(np.float32)
                for name, value in new.items()
            },
            columns={
                "low_watts": np.where(np.isnan(low), watts, low),
                "high_watts": np.where(np.isnan(high), watts, high),
                "flat_seconds": flat,
            },
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the constant reading beside the moving power."""
        del kind
        heat, lasted = row["temperature_celsius"], row["flat_seconds"]
        low, high = row["low_watts"], row["high_watts"]
        return Explanation(
            summary=(
                f"has shown {heat:.0f} °C without any change for {lasted:.0f} s while its power "
                f"moved between {low:.0f} and {high:.0f} W"
            ),
            evidence=(
                Evidence(
                    metric="temperature_celsius", value=heat, unit="°C", window_seconds=lasted
                ),
                Evidence(
                    metric="power_range_watts",
                    value=high - low,
                    unit="W",
                    expected_high=self.enter_watts,
                    window_seconds=lasted,
                ),
            ),
            likely_cause=(
                "The temperature sensor or its readout hangs, in the GPU's firmware or in the "
                "driver. Thermal alerts of this GPU cannot be relied on until it moves again."
            ),
            action=Action.RESET_GPU,
            next_steps=(
                "Compare with nvidia-smi and with the board sensors of the node's management "
                "controller.",
                "Reset the GPU when its job has ended; if the value stays, have it examined.",
            ),
        )


DETECTOR = SensorStuck
