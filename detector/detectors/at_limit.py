"""Finds a job that has grown to the end of its memory.

The question is "has it hit the wall?". A full card does not answer it: inference servers reserve
nine tenths at the start, and a caching allocator keeps what it once took. Growth beyond the job's
own plateau, and work that stopped there, do.
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
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "AtLimit"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_GIB = float(2**30)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLimit:
    """Memory beyond the job's plateau and at its end.

    Parameters
    ----------
    full_ratio
        Share of the capacity that must be used for a note, 0 to 1.
    stuck_ratio
        Share of the capacity that is left, below which a GPU that no longer works is stuck.
    growth_ratio
        Growth over the plateau, as a share of the capacity: a level alone is no risk.
    plateau_seconds
        Time constant of the job's plateau, s.
    step_bytes, step_ratio, load_bytes_per_second
        A change between two readings beyond the larger of the first two, or a faster rise, is
        a model being loaded: the plateau begins anew there.
    idle_utilization, busy_utilization
        Utilisation below which a GPU does not work, and its mean over ``plateau_seconds`` from
        which it did before, 0 to 1.
    enter_seconds, stuck_seconds
        How long the memory must be full for a note, and full and idle to be critical, s.
    exit_seconds
        How long it must have ended, s.

    Notes
    -----
    ``plateau = EW15min(used)``. Full and grown beyond the plateau: info. Critical when less than
    1 % is left on a GPU that had been working and does nothing for a minute: an allocation
    waits, or the process hangs on its failure. Score: 1 where full and grown, 2 where stuck.

    References
    ----------
    .. [1] A flat 86 or 95 % over hours is what frameworks do; see the field case O02.

    Examples
    --------
    >>> watch = AtLimit()
    >>> state = {name: spec.make(1) for name, spec in watch.fields().items()}
    >>> off = {"at_limit": np.zeros(1, dtype=bool)}
    >>> for reading in range(20):
    ...     frame = Frame.of(
    ...         metrics={
    ...             "memory_used_bytes": [(72 + 0.4 * reading) * 2**30],
    ...             "memory_total_bytes": [80 * 2**30],
    ...         },
    ...         ts=[reading * 10_000],
    ...         dt=10.0,
    ...     )
    ...     step = watch.step(frame, state, off)
    ...     state = step.state
    >>> float(step.judgements["at_limit"].score[0])
    1.0
    """

    full_ratio: float = 0.95
    stuck_ratio: float = 0.01
    growth_ratio: float = 0.02
    plateau_seconds: float = 900.0
    step_bytes: float = 2 * _GIB
    step_ratio: float = 0.04
    load_bytes_per_second: float = 0.15 * _GIB
    idle_utilization: float = 0.02
    busy_utilization: float = 0.05
    enter_seconds: float = 60.0
    stuck_seconds: float = 60.0
    exit_seconds: float = 120.0

    name: ClassVar[str] = "at_limit"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "oom_precursor"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("memory_used_bytes", "memory_total_bytes")
    helps: ClassVar[tuple[str, ...]] = ("memory_reserved_bytes", "gpu_utilization_ratio")

    def __post_init__(self) -> None:
        require_positive(
            plateau_seconds=self.plateau_seconds, load_bytes_per_second=self.load_bytes_per_second
        )

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind: a note, critical once stuck."""
        return (
            KindSpec(
                kind="at_limit",
                enter_seconds=self.enter_seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """Last value and plateau (bytes), mean utilisation, seconds without work at the wall."""
        return {
            "last": Field("f8"),
            "plateau": Field("f8"),
            "worked": Field("f4"),
            "stuck": Field("f4", 0.0),
        }

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by how it stands to its plateau and to the end."""
        reserved = np.nan_to_num(frame["memory_reserved_bytes"], nan=0.0)
        used, capacity = frame["memory_used_bytes"], frame["memory_total_bytes"] - reserved
        usable = np.isfinite(used) & np.isfinite(capacity) & (capacity > 0.0) & ~frame.mig_parent
        dt = frame.elapsed
        plateau = self._plateau(frame, state, np.where(usable, used, np.nan), capacity, firing)
        busy = np.where(usable, frame["gpu_utilization_ratio"], np.nan)
        worked = ewma(state["worked"].astype(np.float64), busy, dt, self.plateau_seconds)
        grown = used - plateau >= self.growth_ratio * capacity
        full = usable & grown & (used >= self.full_ratio * capacity)
        wall = full & (capacity - used < self.stuck_ratio * capacity)
        waits = wall & (busy < self.idle_utilization) & (worked >= self.busy_utilization)
        lasted = np.where(waits, state["stuck"] + dt, 0.0)
        stuck = np.where(usable, lasted, state["stuck"])
        critical = stuck >= self.stuck_seconds
        score = np.where(usable, full.astype(np.float64) + critical, np.nan)
        severity = np.where(critical, Severity.CRITICAL.rank, Severity.INFO.rank)
        return Step(
            judgements={"at_limit": Judgement(score=score, severity=severity.astype(np.int8))},
            state={
                "last": np.where(usable, used, state["last"]),
                "plateau": plateau,
                "worked": worked.astype(np.float32),
                "stuck": stuck.astype(np.float32),
            },
            columns={"capacity_bytes": capacity, "plateau_bytes": plateau, "stuck_seconds": stuck},
        )

    def _plateau(
        self,
        frame: Frame,
        state: Mapping[str, AnyArray],
        used: FloatArray,
        capacity: FloatArray,
        firing: Mapping[str, BoolArray],
    ) -> FloatArray:
        """(n,) the level that the job holds; anew after a step or a load, frozen while open."""
        dt = frame.elapsed
        change = used - state["last"]
        jump = np.maximum(self.step_bytes, self.step_ratio * np.nan_to_num(capacity))
        jump = np.maximum(jump, self.load_bytes_per_second * dt)
        loads = (np.abs(change) > jump) | (
            change > self.load_bytes_per_second * np.maximum(dt, 1.0)
        )
        held = np.where(firing["at_limit"], 0.0, dt)
        return np.where(loads, used, ewma(state["plateau"], used, held, self.plateau_seconds))

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word what is left, and from which plateau it came."""
        del kind
        used, capacity, plateau = (
            row["memory_used_bytes"],
            row["capacity_bytes"],
            row["plateau_bytes"],
        )
        stuck = row["stuck_seconds"] >= self.stuck_seconds
        left = max(capacity - used, 0.0)
        halted = f", and nothing has run for {row['stuck_seconds']:.0f} s" if stuck else ""
        return Explanation(
            summary=(
                f"memory is at {used / capacity:.1%} ({left / 2**20:.0f} MiB left), grown from "
                f"{plateau / _GIB:.1f} to {used / _GIB:.1f} GiB{halted}"
            ),
            evidence=(
                Evidence(
                    metric="memory_used_bytes",
                    value=used,
                    unit="bytes",
                    expected_high=plateau + self.growth_ratio * capacity,
                    baseline=plateau,
                    window_seconds=self.plateau_seconds,
                ),
                Evidence(metric="memory_capacity_bytes", value=capacity, unit="bytes"),
                Evidence(
                    metric="gpu_utilization_ratio",
                    value=row.value("gpu_utilization_ratio"),
                    unit="",
                ),
            ),
            likely_cause=(
                "The job grew to the end of the memory: the next large allocation fails, or has "
                "failed already and the process hangs on it."
            ),
            action=Action.RESTART_APP if stuck else Action.WATCH,
            next_steps=(
                "Look at the job's log for an out-of-memory error; restart it from its last "
                "checkpoint if it does nothing any more.",
                "Lower batch size or sequence length, or the cache that grew.",
            ),
        )


DETECTOR = AtLimit
