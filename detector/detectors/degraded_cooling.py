"""Finds a GPU that runs hotter than its own past says it should at this power.

The question is "has the way of the heat become worse?". Neither the temperature nor the peers
answer it while the excess is small: paste that dries out costs 5 °C, the slots of a chassis
differ by 14. The GPU's own past at the same power does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
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
from detector.stats.peers import block_view, peer_median, to_rows
from detector.stats.thermalmodel import ThermalModel, ThermalPrior
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "DegradedCooling"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_STEADY_RATIO = 0.06  # of the power limit: 40 W of 700
_STEADY_OWN_RATIO = 0.08  # of the power itself
_PRIOR_WATTS = 700.0  # power limit of the boards from which the prior comes
# W; the scale where no limit is known: that of a small card, beside which a large one leaves the
# slopes so uncertain that nothing is judged before it was seen at work.
_UNKNOWN_LIMIT = 70.0
_SETTLED_SECONDS = 60.0
_MEANS = ("watts", "slow_watts", "hot", "variance", "age", "scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradedCooling:
    """Smoothed residual of a thermal model that is learned per GPU.

    Parameters
    ----------
    enter_celsius
        Residual at which the cooling has become worse, °C: +10 to 15 % of thermal resistance at
        500 to 690 W. Residuals of healthy GPUs deviate by 0.6 to 1.5 °C.
    enter_deviations
        The same in standard deviations of the GPU's own residuals.
    uncertain_deviations
        The same in standard deviations of the model: what it never saw it does not judge.
    smooth_seconds
        Time constant of the smoothed residual, s.
    slow_seconds
        Time constant of the slow pole of the heat path, s (15 to 57 s on SXM boards).
    memory_seconds
        Time constant of forgetting, s.
    noise_celsius2_seconds
        Variance of a residual times the time over which residuals are alike, °C² s. The default
        makes five minutes at one power worth one reading of ±1 °C.
    young_celsius, young_seconds
        Added to the limit at first, °C, and the time constant with which that fades, s: what
        looks like a baseline in the first minutes may be a warm-up.
    min_peers
        GPUs of the node that know their own past, beside which the air they share is told apart.
    enter_seconds, exit_seconds
        How long it must hold, or have ended, s.

    Notes
    -----
    ``T = b0 + b1 * P + b2 * EW40(P)`` by recursive least squares; prior b0 27 °C, b1 0.025 and
    b2 0.035 °C/W (H100), with wide deviations, to which the covariance is capped. Powers are
    taken relative to the default power limit, so that the prior fits every board: a cooler is
    made for its board, and 70 W heat a T4 as 700 W do an H100. The median residual of the other
    GPUs of the node is taken off: warmer inlet air meets all of them.
    Residuals count while the power is steady; learning stops while an alert is open. Score:
    residual over the largest of the three limits. A GPU that changes its slot begins anew.

    References
    ----------
    .. [1] Range of thermal resistance (0.044 to 0.086 °C/W) and poles: fits to public
       recordings of H100 nodes.

    Examples
    --------
    An hour at 600 W and 62 °C, then 67 °C at the same power:

    >>> watch = DegradedCooling()
    >>> state = {name: spec.make(1) for name, spec in watch.fields().items()}
    >>> off = {"degraded_cooling": np.zeros(1, dtype=bool)}
    >>> for second in range(0, 3700, 5):
    ...     heat = 62.0 if second < 3600 else 67.0
    ...     frame = Frame.of(
    ...         metrics={
    ...             "temperature_celsius": [heat],
    ...             "power_watts": [600.0],
    ...             "power_default_limit_watts": [700.0],
    ...         },
    ...         ts=[second * 1000],
    ...         dt=5.0,
    ...     )
    ...     step = watch.step(frame, state, off)
    ...     state = step.state
    >>> bool(step.judgements["degraded_cooling"].score[0] > 1.0)
    True
    """

    enter_celsius: float = 3.0
    enter_deviations: float = 1.5
    uncertain_deviations: float = 3.0
    smooth_seconds: float = 30.0
    slow_seconds: float = 40.0
    memory_seconds: float = 14400.0
    noise_celsius2_seconds: float = 300.0
    young_celsius: float = 20.0
    young_seconds: float = 300.0
    min_peers: int = 3
    enter_seconds: float = 45.0
    exit_seconds: float = 120.0

    name: ClassVar[str] = "degraded_cooling"
    version: ClassVar[str] = "2"
    family: ClassVar[str] = "thermal_fault"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("temperature_celsius", "power_watts")
    helps: ClassVar[tuple[str, ...]] = ("fan_ratio", "temperature_margin_celsius")
    reads: ClassVar[tuple[str, ...]] = ("power_limit_watts", "power_default_limit_watts")

    def __post_init__(self) -> None:
        require_positive(
            enter_celsius=self.enter_celsius,
            smooth_seconds=self.smooth_seconds,
            slow_seconds=self.slow_seconds,
            memory_seconds=self.memory_seconds,
            noise_celsius2_seconds=self.noise_celsius2_seconds,
            young_seconds=self.young_seconds,
        )
        if self.min_peers < 1:
            raise ValueError(f"min_peers must be at least 1, got {self.min_peers}")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; a score of 1 is the residual at its limit."""
        return (
            KindSpec(
                kind="degraded_cooling",
                enter_seconds=self.enter_seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
            ),
        )

    @property
    def _prior(self) -> ThermalPrior:
        return ThermalPrior(
            coefficients=(27.0, 2.5, 3.5),
            deviations=(15.0, 3.0, 3.0),
            noise_celsius2_seconds=self.noise_celsius2_seconds,
            memory_seconds=self.memory_seconds,
        )

    def fields(self) -> Mapping[str, Field]:
        """Declare the model, power now and slow, residual (°C), its variance, age (s), limit (W).

        Powers are W of a board of 700 W.
        """
        means = {name: Field("f4") for name in _MEANS}
        fresh = {"hot": Field("f4", 0.0), "variance": Field("f4", 1.0), "age": Field("f4", 0.0)}
        return self._prior.fields() | means | fresh

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by its smoothed residual over its limit."""
        old = {name: state[name].astype(np.float64) for name in _MEANS}
        usable = np.isfinite(frame["temperature_celsius"]) & np.isfinite(frame["power_watts"])
        heat = np.where(usable, frame["temperature_celsius"], np.nan)
        dt = frame.elapsed
        scale = _scale(frame, old["scale"], old["age"])
        factor = _PRIOR_WATTS / np.where(np.isfinite(scale), scale, _UNKNOWN_LIMIT)
        seen = np.where(usable, frame["power_watts"] * factor, np.nan)
        watts = ewma(old["watts"], seen, dt, self.slow_seconds / 8.0)
        slow = ewma(old["slow_watts"], seen, dt, self.slow_seconds)
        model = ThermalModel(self._prior, state)
        expected = model.predict(watts, slow)
        unsure = model.uncertainty(watts, slow)
        raw = heat - expected
        room = np.where(np.isfinite(scale), _STEADY_RATIO * _PRIOR_WATTS, 0.0)
        steady = np.abs(watts - slow) <= np.maximum(room, _STEADY_OWN_RATIO * slow)
        shared = self._shared(frame, np.where(unsure <= self.enter_celsius / 2.0, raw, np.nan))
        own = np.where(steady & usable, raw - shared, np.nan)
        frozen = firing["degraded_cooling"]
        hot = ewma(old["hot"], own, dt, self.smooth_seconds)
        quiet = np.where(frozen, np.nan, own)
        # A residual far beyond its limit says little of what is usual.
        square = np.minimum(quiet, 2.0 * self.enter_celsius) ** 2
        variance = ewma(old["variance"], square, dt, self.memory_seconds / 4.0)
        learned = model.learn(heat, watts, slow, np.where(frozen, 0.0, np.minimum(dt, 10.0)))
        limit = np.maximum(self.enter_celsius, self.enter_deviations * np.sqrt(variance))
        limit = np.maximum(limit, self.uncertain_deviations * unsure)
        age = old["age"] + np.where(usable, dt, 0.0)
        limit = limit + self.young_celsius * np.exp(-age / self.young_seconds)
        score = np.where(np.isnan(own), np.nan, np.maximum(hot, 0.0) / limit)
        new = {"watts": watts, "slow_watts": slow, "hot": hot, "variance": variance, "age": age}
        new["scale"] = scale
        return Step(
            judgements={
                "degraded_cooling": Judgement(
                    score=score, severity=uniform_severity(score, Severity.WARNING)
                )
            },
            state=learned.dump() | {name: value.astype(np.float32) for name, value in new.items()},
            columns={
                "residual_celsius": hot,
                "expected_celsius": expected + shared,
                "limit_celsius": limit,
                "smoothed_watts": slow / factor,
            },
        )

    def _shared(self, frame: Frame, residual: FloatArray) -> FloatArray:
        """(n,) median residual of the other GPUs of the node; 0 where too few are known."""
        blocks = frame.blocks
        values = block_view(residual, blocks, np.nan)
        median, count = peer_median(values, np.ones((*values.shape, values.shape[1]), dtype=bool))
        known = np.where(count >= self.min_peers, median, 0.0)
        return np.nan_to_num(to_rows(known, blocks, len(frame)))

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the residual: what the temperature is, and what it used to be at this power."""
        del kind
        heat, expected = row["temperature_celsius"], row["expected_celsius"]
        residual, watts = row["residual_celsius"], row["smoothed_watts"]
        fan = row.value("fan_ratio")
        blown = "" if fan is None else f", fan at {fan:.0%}"
        return Explanation(
            summary=(
                f"runs {residual:.1f} °C hotter than its own past at this power: {heat:.0f} °C "
                f"where {expected:.0f} °C is usual at {watts:.0f} W{blown}"
            ),
            evidence=(
                Evidence(
                    metric="temperature_celsius",
                    value=heat,
                    unit="°C",
                    expected_high=expected + row["limit_celsius"],
                    baseline=expected,
                    window_seconds=self.smooth_seconds,
                ),
                Evidence(
                    metric="temperature_residual_celsius",
                    value=residual,
                    unit="°C",
                    expected_high=row["limit_celsius"],
                    window_seconds=self.smooth_seconds,
                ),
                Evidence(metric="power_watts", value=watts, unit="W"),
                Evidence(metric="fan_ratio", value=fan, unit=""),
            ),
            likely_cause=(
                "The way of the heat has become worse on this GPU alone: a fan or pump that "
                "slows down, dust or a blocked air path, thermal paste, coolant flow."
            ),
            action=Action.CHECK_COOLING,
            next_steps=(
                "Look at fan speed, dust filters and coolant flow of this slot.",
                "Keep the job running while the margin lasts; expect thermal slowdown next.",
                "If it came overnight and stays, plan to renew the thermal interface.",
            ),
        )


def _scale(frame: Frame, known: FloatArray, age: FloatArray) -> FloatArray:
    """(n,) default power limits, W. One that becomes known late comes too late for the model."""
    open_rows = np.isnan(known) & (age <= _SETTLED_SECONDS)
    if not open_rows.any():
        return known
    default, limit = frame["power_default_limit_watts"], frame["power_limit_watts"]
    limit = np.where(np.isfinite(default), default, limit)
    return np.where(open_rows & (limit > 0.0), limit, known)


DETECTOR = DegradedCooling
