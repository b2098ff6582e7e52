"""Says that a GPU is about to reach the temperature at which it slows down.

The question is "how far is it to the device's own limit?". Degrees do not answer it: 83 °C is a
normal day for one card and the end for another. Newer GPUs state their limits as a margin, which
runs the other way: smaller is hotter.
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

__all__ = ["DETECTOR", "NearLimit"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_SCALE = 10.0  # °C for one unit of score


@dataclass(frozen=True, slots=True, kw_only=True)
class NearLimit:
    """Smoothed margin to the thermal limit.

    Parameters
    ----------
    enter_celsius, exit_celsius
        Margin at or below which a GPU is near its limit, and above which that has ended, °C. A
        busy node of H100 runs with a margin of 10 or more in its hottest slot.
    critical_celsius
        Margin at or below which it is critical, °C: at 0 the driver holds the clocks down, at
        -2 the hardware cuts them, at -8 the board shuts down (captured on H100).
    believed_celsius
        Temperature below which a small margin is not believed, °C: some drivers return 0 or -5
        for a cold GPU.
    smooth_seconds
        Time constant of the smoothed margin, s.
    enter_seconds, exit_seconds
        How long it must hold, or have ended, s.

    Notes
    -----
    Only ``temperature_margin_celsius`` is compared: the collector takes it from the device, or
    forms it from an absolute slowdown threshold. A negative threshold is a margin and never
    stands beside a temperature. Score: ``1 + (enter - margin) / 10 °C``.

    References
    ----------
    .. [1] NVIDIA, nvml.h 13, nvmlDeviceGetMarginTemperature and field ids 193 to 196.

    Examples
    --------
    >>> frame = Frame.of(
    ...     metrics={
    ...         "temperature_margin_celsius": [58.0, 5.0],
    ...         "temperature_celsius": [29.0, 82.0],
    ...     },
    ...     ts=[0, 0],
    ... )
    >>> watch = NearLimit()
    >>> fresh = {name: spec.make(2) for name, spec in watch.fields().items()}
    >>> watch.step(frame, fresh, {}).judgements["near_limit"].score
    array([0., 1.])
    """

    enter_celsius: float = 5.0
    exit_celsius: float = 8.0
    critical_celsius: float = 0.0
    believed_celsius: float = 50.0
    smooth_seconds: float = 10.0
    enter_seconds: float = 10.0
    exit_seconds: float = 60.0

    name: ClassVar[str] = "near_limit"
    version: ClassVar[str] = "2"
    family: ClassVar[str] = "thermal_fault"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("temperature_margin_celsius",)
    helps: ClassVar[tuple[str, ...]] = (
        "temperature_celsius",
        "power_watts",
        "fan_ratio",
        "sm_clock_hertz",
    )

    def __post_init__(self) -> None:
        require_positive(smooth_seconds=self.smooth_seconds)
        if not self.enter_celsius <= self.exit_celsius < self.enter_celsius + _SCALE:
            raise ValueError("exit_celsius must be in [enter_celsius, enter_celsius + 10)")
        if self.critical_celsius > self.enter_celsius:
            raise ValueError("critical_celsius must be at most enter_celsius")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; a score of 1 is the enter margin, one more for every 10 °C below it."""
        return (
            KindSpec(
                kind="near_limit",
                exit=1.0 - (self.exit_celsius - self.enter_celsius) / _SCALE,
                enter_seconds=self.enter_seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """Smoothed margin (°C)."""
        return {"margin": Field("f4")}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by its margin."""
        del firing  # a limit has no baseline that a fault could spoil
        heat, raw = frame["temperature_celsius"], frame["temperature_margin_celsius"]
        doubted = (raw <= self.enter_celsius) & (heat < self.believed_celsius)
        raw = np.where(doubted, np.nan, raw)
        old = state["margin"].astype(np.float64)
        margin = ewma(old, raw, frame.elapsed, self.smooth_seconds)
        closeness = 1.0 + (self.enter_celsius - margin) / _SCALE
        score = np.where(np.isnan(raw), np.nan, np.maximum(closeness, 0.0))
        critical = margin <= self.critical_celsius
        severity = np.where(critical, Severity.CRITICAL.rank, Severity.WARNING.rank)
        return Step(
            judgements={"near_limit": Judgement(score=score, severity=severity.astype(np.int8))},
            state={"margin": margin.astype(np.float32)},
            columns={
                "smoothed_margin_celsius": margin,
                # At which temperature the margin is 0: it belongs to the device and stands still.
                "limit_celsius": heat + frame["temperature_margin_celsius"],
            },
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the distance to the limit."""
        del kind
        margin, limit = row["smoothed_margin_celsius"], row.value("limit_celsius")
        # The temperature of the same seconds, so that it and the margin make up the limit.
        heat = None if limit is None else round(limit) - round(margin)
        of = "" if limit is None else f" of {round(limit)} °C"
        at = "" if heat is None else f", at {heat} °C"
        far = abs(round(margin))
        where = {1: f"is {far} °C below", 0: "has reached", -1: f"is {far} °C above"}
        side = int(np.sign(round(margin)))
        return Explanation(
            summary=f"{where[side]} its thermal limit{of}{at} in the mean of "
            f"{self.smooth_seconds:.0f} s",
            evidence=(
                Evidence(
                    metric="temperature_margin_celsius",
                    value=margin,
                    unit="°C",
                    expected_low=self.enter_celsius,
                    window_seconds=self.smooth_seconds,
                ),
                Evidence(
                    metric="temperature_celsius",
                    value=None if limit is None else limit - margin,
                    unit="°C",
                    window_seconds=self.smooth_seconds,
                ),
                Evidence(metric="power_watts", value=row.value("power_watts"), unit="W"),
                Evidence(metric="fan_ratio", value=row.value("fan_ratio"), unit=""),
            ),
            likely_cause=(
                "The cooling no longer keeps up with the power: inlet air or coolant too warm, a "
                "dirty or failing cooler, or a fan curve that is too low."
            ),
            action=Action.CHECK_COOLING,
            next_steps=(
                "Compare with the other GPUs of the node: all near the limit means inlet or "
                "airflow, one alone means its own cooler.",
                "Lower the power limit for now (nvidia-smi -pl): that costs less than slowdown.",
                "At a margin of 0 °C the driver holds the clocks down; a few degrees further the "
                "hardware cuts them by half.",
            ),
        )


DETECTOR = NearLimit
