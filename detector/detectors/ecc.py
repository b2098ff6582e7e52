"""Reports memory errors: every one that could not be corrected, and storms of those that could.

A handful of corrected errors is daily life and a fixed limit on their number is met by any old
card. What matters is a rate that the device never had: public reports know GPUs that correct
thousands of errors a second and are called healthy by every tool.
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
from detector.resets import END_WORDS, RESET_FIELDS, reset_signs, taken_out
from detector.stats.errorrate import (
    Growth,
    Storm,
    grown,
    growth_fields,
    storm,
    storm_fields,
)
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "Ecc"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_REASONS = ("gpu_reset", "gpu_removed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ecc:
    """ECC counters: growth of the uncorrected, rate of the corrected ones.

    Parameters
    ----------
    window_seconds
        Over which corrected errors are counted, s.
    baseline_seconds
        Time constant of the GPU's own rate, s.
    ratio
        How many times its own rate is still usual for a GPU.
    floor_per_hour
        Corrected errors an hour that are usual for any GPU.
    bunch
        Corrected errors that one bad cell gives before anybody notices; they count as one.
    log10_chance
        A storm is a count with a chance below ten to the minus this: 6 is one in a million.
    exit_seconds
        How long the rate must be usual again, s.

    Notes
    -----
    ``ecc_uncorrected`` scores 1 from the reading in which the counter grew until the GPU is
    reset (the volatile counter or the energy counter begins anew) or taken out. The level at the
    first reading is a history, not an event. ``ecc_corrected_storm`` scores
    ``-log10 P(N >= n | usual rate) / log10_chance`` with Chernoff's bound of the Poisson law,
    ``n`` in bunches over the window; usual is ``max(ratio * own rate, floor)``. With the
    defaults about 80 errors in a minute, seen in two readings in a row, are a storm for a GPU
    without a history; a GPU with a rate of its own is allowed ten times that rate. Volatile
    counters are used where present, else the lifetime ones.

    References
    ----------
    .. [1] NVIDIA states no limit for the rate of corrected errors; public reports of 4,647 and
       17,657 a second under load, none when idle, none on the neighbours.

    Examples
    --------
    A storm on a GPU that never had an error, read every 5 s:

    >>> watch = Ecc()
    >>> state = {name: spec.make(1) for name, spec in watch.fields().items()}
    >>> off = {kind.kind: np.zeros(1, dtype=bool) for kind in watch.kinds}
    >>> for reading, errors in enumerate([0.0, 3.0, 88_288.0]):
    ...     frame = Frame.of(
    ...         metrics={"ecc_corrected_total": [errors]}, ts=[reading * 5000], dt=5.0
    ...     )
    ...     step = watch.step(frame, state, off)
    ...     state = step.state
    ...     print(bool(step.judgements["ecc_corrected_storm"].score[0] >= 1.0))
    False
    False
    True
    """

    window_seconds: float = 60.0
    baseline_seconds: float = 21_600.0
    ratio: float = 10.0
    floor_per_hour: float = 60.0
    bunch: float = 20.0
    log10_chance: float = 6.0
    exit_seconds: float = 60.0

    name: ClassVar[str] = "ecc"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "hardware_error"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("ecc_corrected_total", "ecc_uncorrected_total")
    helps: ClassVar[tuple[str, ...]] = ("remapped_rows_uncorrectable_total", "row_remap_pending")
    #: The lifetime counters, where the volatile ones are missing, and what shows a reset.
    reads: ClassVar[tuple[str, ...]] = (
        "ecc_corrected_aggregate_total",
        "ecc_uncorrected_aggregate_total",
        "energy_joules_total",
    )

    def __post_init__(self) -> None:
        require_positive(
            window_seconds=self.window_seconds,
            baseline_seconds=self.baseline_seconds,
            floor_per_hour=self.floor_per_hour,
            bunch=self.bunch,
            log10_chance=self.log10_chance,
        )

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """Uncorrected errors at once; a storm at its second reading."""
        return (
            KindSpec(kind="ecc_uncorrected", exit_seconds=0.0),
            KindSpec(kind="ecc_corrected_storm", enter_samples=2, exit_seconds=self.exit_seconds),
        )

    def fields(self) -> Mapping[str, Field]:
        """Both counters, the rate, and how many uncorrected errors stand since the last reset."""
        return {
            **growth_fields("corrected"),
            **growth_fields("uncorrected"),
            **storm_fields("corrected"),
            **RESET_FIELDS,
            "standing": Field("f4", 0.0),
        }

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score both kinds."""
        lifetime = "ecc_{}_aggregate_total".format
        corrected, uncorrected = (
            grown(name, state, frame[f"ecc_{name}_total"], frame[lifetime(name)])
            for name in ("corrected", "uncorrected")
        )
        rate_score, rate_state, columns = storm(
            "corrected", self._rule(), frame, state, corrected, firing["ecc_corrected_storm"]
        )
        stands, standing, shown = self._standing(frame, state, uncorrected)
        return Step(
            judgements={
                "ecc_uncorrected": Judgement(
                    score=stands, severity=uniform_severity(stands, Severity.CRITICAL)
                ),
                "ecc_corrected_storm": Judgement(
                    score=rate_score, severity=uniform_severity(rate_score, Severity.WARNING)
                ),
            },
            state={**corrected.state, **uncorrected.state, **rate_state, **standing},
            columns={
                **columns,
                **shown,
                "corrected": corrected.value,
                "uncorrected": uncorrected.value,
            },
        )

    def _rule(self) -> Storm:
        return Storm(
            window_seconds=self.window_seconds,
            baseline_seconds=self.baseline_seconds,
            ratio=self.ratio,
            floor_per_hour=self.floor_per_hour,
            bunch=self.bunch,
            log10_chance=self.log10_chance,
        )

    def _standing(
        self, frame: Frame, state: Mapping[str, AnyArray], growth: Growth
    ) -> tuple[AnyArray, dict[str, AnyArray], dict[str, AnyArray]]:
        """Follow the uncorrected errors since the last reset: score, state, columns."""
        reset, seen = reset_signs(frame, state)
        reset = reset | growth.reset
        out = taken_out(frame)
        before = state["standing"].astype(np.float64)
        after = np.where(reset | out, 0.0, before) + np.nan_to_num(growth.delta)
        heard = np.isfinite(growth.value) | reset | out
        score = np.where(heard, np.where(after > 0.0, 1.0, 0.0), np.nan)
        reason = np.where(out, 1.0, np.where(reset, 0.0, -1.0))
        columns = {"standing": np.where(after > 0.0, after, before), "reason": reason}
        return score, {"standing": after.astype(np.float32), **seen}, columns

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the count, or the rate and what is usual."""
        return self._uncorrected(row) if kind == "ecc_uncorrected" else self._storm(row)

    def _uncorrected(self, row: RowView) -> Explanation:
        errors, total = row["standing"], row.value("uncorrected")
        word = _REASONS[int(row["reason"])] if row["reason"] >= 0 else "condition_ended"
        before = "" if total is None else f" ({total:.0f} in all by its counter)"
        noun = "error" if round(errors) == 1 else "errors"
        return Explanation(
            summary=f"has {errors:.0f} new uncorrected memory {noun}{before}",
            evidence=(
                Evidence(
                    metric="ecc_uncorrected_total",
                    value=total,
                    unit="errors",
                    baseline=None if total is None else max(total - errors, 0.0),
                ),
            ),
            likely_cause=(
                "A memory cell or a cache of this GPU failed beyond what its code can repair; "
                "data of the running job may be lost."
            ),
            action=Action.RESET_GPU,
            next_steps=(
                "End the job on this GPU and restart it from a checkpoint written before.",
                "Drain the GPU and reset it, so that the faulty row is replaced by a spare one.",
                "If it comes again after the reset, or a row remap has failed, replace the GPU.",
            ),
            end_reason=word,
            end_words=END_WORDS.get(word, ""),
        )

    def _storm(self, row: RowView) -> Explanation:
        rate, usual = row["corrected_rate"], row["corrected_usual"]
        return Explanation(
            summary=(
                f"corrects {_number(rate)} memory errors a second; its own usual rate is "
                f"{_number(usual * 3600.0)} an hour"
            ),
            evidence=(
                Evidence(
                    metric="ecc_corrected_errors_per_second",
                    value=rate,
                    unit="1/s",
                    expected_high=max(self.ratio * usual, self.floor_per_hour / 3600.0),
                    baseline=usual,
                    window_seconds=row["corrected_seconds"],
                ),
                Evidence(metric="ecc_corrected_total", value=row.value("corrected"), unit="errors"),
            ),
            likely_cause=(
                "A memory row, channel or cache of this GPU is failing. The data are still right, "
                "but every correction costs time and uncorrected errors may follow."
            ),
            action=Action.DRAIN_NODE,
            next_steps=(
                "Save a checkpoint and move the job away from this GPU at the next chance.",
                "Reset the GPU; if the rate comes back under load, run a memory diagnosis "
                "(dcgmi diag -r 3) and have the GPU replaced.",
                "Compare with its neighbours: they share the load but not the memory.",
            ),
        )


def _number(value: float) -> str:
    """Write a rate with as many digits as say something.

    Examples
    --------
    >>> _number(17657.2), _number(3.14), _number(0.0)
    ('17,657', '3.1', '0')
    """
    return f"{value:,.0f}" if value >= 10.0 or round(value, 1) == 0.0 else f"{value:.1f}"


DETECTOR = Ecc
