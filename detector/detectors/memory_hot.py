"""Says that the memory of a GPU is too hot: near the end of what it stands, or beyond its habit.

The question is "is the memory overheating while the chip looks well?". On boards with stacked
memory that is often the first limit reached, and the chip's own temperature does not show it: a
pad that lost contact heats the memory alone.
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
from detector.stats.priorline import PriorLine, PriorSlope
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "MemoryHot"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_SCALE = 10.0  # °C for one unit of score, near the limit
_FARTHEST = 60.0  # °C; what lies further off says no more


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHot:
    """Memory temperature against its limit and against its own past beside the chip.

    Parameters
    ----------
    limit_celsius
        Highest operating temperature of the memory, °C: 95 on A100 (captured from
        ``nvidia-smi -q``). From Hopper on the driver states it as a margin of 0 without saying at
        how many degrees.
    enter_celsius, exit_celsius
        Distance to the limit at or below which the memory is hot, and above which that has
        ended, °C.
    excess_celsius
        Excess over its own past at the same temperature of the chip, °C. Jobs that read memory
        much and jobs that compute much differ by a few degrees.
    believed_celsius
        Memory temperature from which an excess counts, °C: cold memory is no trouble.
    uncertain_deviations
        The excess must also be so many standard deviations of the baseline: what it never saw
        it does not judge.
    young_celsius, young_seconds
        Added to the limit of the excess at first, °C, and the time constant with which that
        fades, s.
    memory_seconds
        Time constant of the baseline, s.
    smooth_seconds
        Time constant of the smoothed temperature and excess, s.
    enter_seconds, exit_seconds
        How long it must hold, or have ended, s.

    Notes
    -----
    ``excess = EW(T_mem - line(T_gpu))``; the line begins with a slope of 1 and learns the GPU's
    own, not while an alert is open. Score: the larger of ``1 + (enter - distance) / 10 °C`` and
    ``excess / limit of the excess``. Critical at the limit: the memory clock is cut there.
    Where the memory's temperature is not measured (GDDR boards) nothing is said.

    References
    ----------
    .. [1] nvidia-smi -q of A100-SXM4: memory maximum operating temperature 95 °C; NVML field 82.

    Examples
    --------
    >>> frame = Frame.of(
    ...     metrics={
    ...         "memory_temperature_celsius": [62.0, 90.0, 97.0],
    ...         "temperature_celsius": [55.0, 70.0, 70.0],
    ...     },
    ...     ts=[0, 0, 0],
    ... )
    >>> watch = MemoryHot()
    >>> fresh = {name: spec.make(3) for name, spec in watch.fields().items()}
    >>> judged = watch.step(frame, fresh, {"memory_hot": np.zeros(3, dtype=bool)}).judgements
    >>> judged["memory_hot"].score.round(1), judged["memory_hot"].severity
    (array([0. , 1. , 1.7]), array([2, 2, 3], dtype=int8))
    """

    limit_celsius: float = 95.0
    enter_celsius: float = 5.0
    exit_celsius: float = 8.0
    excess_celsius: float = 8.0
    believed_celsius: float = 75.0
    uncertain_deviations: float = 3.0
    young_celsius: float = 20.0
    young_seconds: float = 300.0
    memory_seconds: float = 14400.0
    smooth_seconds: float = 15.0
    enter_seconds: float = 60.0
    exit_seconds: float = 120.0

    name: ClassVar[str] = "memory_hot"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "thermal_fault"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("memory_temperature_celsius",)
    helps: ClassVar[tuple[str, ...]] = ("temperature_celsius", "memory_utilization_ratio")

    def __post_init__(self) -> None:
        require_positive(
            limit_celsius=self.limit_celsius,
            excess_celsius=self.excess_celsius,
            young_seconds=self.young_seconds,
            memory_seconds=self.memory_seconds,
            smooth_seconds=self.smooth_seconds,
        )
        if not 0 <= self.exit_celsius - self.enter_celsius < _SCALE:
            raise ValueError("exit_celsius must be in [enter_celsius, enter_celsius + 10)")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; a score of 1 is the distance, or the excess, at its threshold."""
        return (
            KindSpec(
                kind="memory_hot",
                exit=1.0 - (self.exit_celsius - self.enter_celsius) / _SCALE,
                enter_seconds=self.enter_seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
            ),
        )

    @property
    def _prior(self) -> PriorSlope:
        return PriorSlope(
            slope=1.0,
            deviation=0.3,
            noise=1.0,
            alike_seconds=300.0,
            memory_seconds=self.memory_seconds,
        )

    def fields(self) -> Mapping[str, Field]:
        """Smoothed temperature and excess (°C), the baseline, and its age (s)."""
        means = {"heat": Field("f4"), "excess": Field("f4", 0.0), "age": Field("f4", 0.0)}
        return means | self._prior.fields()

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU whose memory temperature is measured."""
        raw, chip = frame["memory_temperature_celsius"], frame["temperature_celsius"]
        usable = np.isfinite(raw)
        if not usable.any():
            return self._silent(frame, state)
        dt = frame.elapsed
        heat = ewma(state["heat"].astype(np.float64), raw, dt, self.smooth_seconds)
        line = PriorLine(self._prior, state)
        known = usable & (line.weight > 0.0)
        expected = np.where(known, line.predict(chip), np.nan)
        seen = np.clip(raw - expected, -_FARTHEST, _FARTHEST)
        excess = ewma(state["excess"].astype(np.float64), seen, dt, self.smooth_seconds)
        learns = np.where(usable & ~firing["memory_hot"], np.minimum(dt, 10.0), 0.0)
        age = state["age"] + np.where(usable & np.isfinite(chip), dt, 0.0)
        limit = self._limit(line, chip, age)
        beyond = np.where(known & (heat >= self.believed_celsius), excess / limit, 0.0)
        near = 1.0 + (self.enter_celsius - (self.limit_celsius - heat)) / _SCALE
        score = np.maximum(np.maximum(near, np.nan_to_num(beyond)), 0.0)
        critical = heat >= self.limit_celsius
        severity = np.where(critical, Severity.CRITICAL.rank, Severity.WARNING.rank)
        return Step(
            judgements={
                "memory_hot": Judgement(
                    score=np.where(usable, score, np.nan), severity=severity.astype(np.int8)
                )
            },
            state=line.learn(chip, raw, learns).dump()
            | {
                "heat": heat.astype(np.float32),
                "excess": excess.astype(np.float32),
                "age": age.astype(np.float32),
            },
            columns={"smoothed_celsius": heat, "excess_celsius": excess, "usual_celsius": expected},
        )

    def _silent(self, frame: Frame, state: Mapping[str, AnyArray]) -> Step:
        unknown = np.full(len(frame), np.nan)
        severity = np.full(len(frame), Severity.WARNING.rank, dtype=np.int8)
        judged = {"memory_hot": Judgement(score=unknown, severity=severity)}
        return Step(judgements=judged, state=dict(state))

    def _limit(self, line: PriorLine, chip: FloatArray, age: FloatArray) -> FloatArray:
        """(n,) excess that is too much, °C."""
        unsure = np.minimum(np.nan_to_num(line.uncertainty(chip), nan=np.inf), _FARTHEST)
        settled = np.maximum(self.excess_celsius, self.uncertain_deviations * unsure)
        limit: FloatArray = settled + self.young_celsius * np.exp(-age / self.young_seconds)
        return limit

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the memory's temperature beside its limit, its habit and the chip."""
        del kind
        heat, usual = row["smoothed_celsius"], row.value("usual_celsius")
        chip, excess = row.value("temperature_celsius"), row["excess_celsius"]
        beside = "" if chip is None else f" while the chip is at {chip:.0f} °C"
        habit = "" if usual is None else f", {excess:+.0f} °C against its own past"
        return Explanation(
            summary=(
                f"has its memory at {heat:.0f} °C (limit {self.limit_celsius:.0f} °C)"
                f"{beside}{habit}"
            ),
            evidence=(
                Evidence(
                    metric="memory_temperature_celsius",
                    value=heat,
                    unit="°C",
                    expected_high=self.limit_celsius - self.enter_celsius,
                    baseline=usual,
                    window_seconds=self.smooth_seconds,
                ),
                Evidence(
                    metric="memory_temperature_excess_celsius",
                    value=excess,
                    unit="°C",
                    expected_high=self.excess_celsius,
                    window_seconds=self.smooth_seconds,
                ),
                Evidence(metric="temperature_celsius", value=chip, unit="°C"),
                Evidence(
                    metric="memory_utilization_ratio",
                    value=row.value("memory_utilization_ratio"),
                    unit="",
                ),
            ),
            likely_cause=(
                "The memory is cooled worse than the chip beside it: a thermal pad or cold plate "
                "without contact, or air that is too warm for a job that reads memory all the "
                "time."
            ),
            action=Action.CHECK_COOLING,
            next_steps=(
                "Compare with the other GPUs of the node: one alone means its own cooler, all of "
                "them mean inlet or airflow.",
                "Lower the power limit for now (nvidia-smi -pl): at the limit the memory clock is "
                "cut and bandwidth falls without a word elsewhere.",
                "If the excess stays, have the cooler of this GPU reseated.",
            ),
        )


DETECTOR = MemoryHot
