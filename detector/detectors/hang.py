"""Finds ranks that stopped, and jobs that wait for ever.

The question is "does this job still make progress?". A rank that hangs in the middle of a step
leaves its GPU idle while its peers spin in the collective: utilisation 100 %, a fifth of the
power. If all of them spin for a minute, the job waits for something outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, require_positive
from detector.frame import Frame
from detector.hangwords import explained
from detector.stats.ewma import ewma
from detector.stats.groups import Groups, working_groups
from schemas.alert import Scope, Severity

__all__ = ["DETECTOR", "Hang"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_INFO, _WARNING, _CRITICAL = (s.rank for s in (Severity.INFO, Severity.WARNING, Severity.CRITICAL))
_LONGEST_PAUSE = 300.0  # s: longer waits are never taken for a habit of the job
_FLOATS = ("base", "age", "idle_seconds", "usual_pause", "spin_seconds", "usual_wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Idle and spinning members of a job, told apart by their power.

    Parameters
    ----------
    idle_utilization, busy_utilization, spin_utilization
        Utilisation up to which a GPU is idle, from which it is under load, and from which it may
        be spinning, 0 to 1.
    fallen_ratio
        Share of its own usual power below which a GPU no longer works. Ranks spin at 25 to 45 %
        of the power of training; a healthy phase change from 690 to 400 W leaves 58 %.
    working_ratio
        Share of its own usual power from which a GPU works; one of them is progress.
    spin_limit_ratio
        Share of the power limit above which nobody spins: 135 W of 700 W were seen, 184 W at
        most.
    certain_limit_ratio
        The same where the usual power was never seen, because the job waits from its start.
    quiet_bus_ratio
        Memory-bus activity above which a GPU works, 0 to 1; where it is measured.
    min_group
        GPUs needed in the group.
    min_age_seconds
        Time under load before a judgement, s.
    base_seconds
        Time constant of a GPU's usual power under load, s.
    hang_seconds, critical_seconds
        How long one rank must be idle beside spinning peers, and from when on it is critical, s:
        writing a checkpoint to shared storage takes up to two minutes and looks the same.
    pause_ratio
        A wait must be longer than the longest one of the job that ended in work by this factor:
        rank 0 writes a checkpoint while the others wait, on its node and on all others.
    collective_seconds, collective_critical_seconds
        The same for all ranks spinning, s.
    unknown_seconds
        How long where the usual power was never seen, s, on top of ``collective_seconds``.
    idle_seconds
        How long a member must be idle while others of its job work, s: an evaluation or a
        staggered end of a job leaves part of a node idle for a minute or two.
    exit_seconds
        How long the condition must have ended, s.

    Notes
    -----
    *hang*: the GPU is idle and draws at most ``fallen_ratio`` of its usual power, most GPUs of
    its group spin, none works. *collective_hang*: nobody is idle, nearly all spin, none works.
    *idle_member*: the GPU is idle, the median of the others is under load. That the peers' power
    must have fallen tells a hang from a job that ends GPU by GPU.

    No reading tells the first checkpoint of a job from a hang: one rank idle, its peers spinning.
    It is a warning, soon, and says so. How long it lasted is learned when the job works again, of
    one waiting rank and of all, for as long as the job runs and up to five minutes; the next one
    of that length is not spoken of. So is a wait of all ranks for a rank on another node. A wait
    that ends with the end of the job teaches nothing.

    A hang of the whole job is about the job (about the node where its name is unknown); the GPU
    of the lowest row speaks for it, so a job on several nodes may be named once by each.

    References
    ----------
    .. [1] Waiting in a busy loop: NVIDIA, NCCL user guide, on collectives as CUDA kernels that
       occupy SMs until all ranks have arrived.

    Examples
    --------
    Four GPUs train at 600 W; then the third stops and the others spin at 140 W:

    >>> watch = Hang()
    >>> state = {name: spec.make(4) for name, spec in watch.fields().items()}
    >>> off = {kind.kind: np.zeros(4, dtype=bool) for kind in watch.kinds}
    >>> for second in range(90):
    ...     hung = second >= 80
    ...     frame = Frame.of(
    ...         metrics={
    ...             "power_watts": [140, 140, 80, 140] if hung else [600] * 4,
    ...             "gpu_utilization_ratio": [1, 1, 0, 1] if hung else [1] * 4,
    ...         },
    ...         ts=[second * 1000] * 4,
    ...         dt=1.0,
    ...     )
    ...     frame.job[:] = 0
    ...     step = watch.step(frame, state, off)
    ...     state = step.state
    >>> step.judgements["hang"].score
    array([0., 0., 1., 0.])
    """

    idle_utilization: float = 0.05
    busy_utilization: float = 0.8
    spin_utilization: float = 0.95
    fallen_ratio: float = 0.5
    working_ratio: float = 0.6
    spin_limit_ratio: float = 0.35
    certain_limit_ratio: float = 0.25
    quiet_bus_ratio: float = 0.05
    min_group: int = 3
    min_age_seconds: float = 60.0
    base_seconds: float = 120.0
    hang_seconds: float = 10.0
    critical_seconds: float = 120.0
    pause_ratio: float = 1.5
    collective_seconds: float = 60.0
    collective_critical_seconds: float = 300.0
    unknown_seconds: float = 120.0
    idle_seconds: float = 600.0
    exit_seconds: float = 20.0

    name: ClassVar[str] = "hang"
    version: ClassVar[str] = "2"
    family: ClassVar[str] = "load_imbalance"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("power_watts", "gpu_utilization_ratio")
    helps: ClassVar[tuple[str, ...]] = ("memory_utilization_ratio", "power_limit_watts")

    def __post_init__(self) -> None:
        require_positive(base_seconds=self.base_seconds)
        if not self.fallen_ratio < self.working_ratio:
            raise ValueError("fallen_ratio must be below working_ratio")
        if self.min_group < 2:
            raise ValueError(f"min_group must be at least 2, got {self.min_group}")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """Three kinds; a score of 1 means that the condition holds."""
        held = {
            "hang": self.hang_seconds,
            "collective_hang": self.collective_seconds,
            "idle_member": self.idle_seconds,
        }
        return tuple(
            KindSpec(
                kind=kind,
                enter_seconds=seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
                scope=Scope.JOB if kind == "collective_hang" else None,
            )
            for kind, seconds in held.items()
        )

    def fields(self) -> Mapping[str, Field]:
        """Usual power (W), five times (s), the row's job and that of an open alert."""
        return {
            **{name: Field("f4", np.nan if name == "base" else 0.0) for name in _FLOATS},
            "job": Field("i4", -2),
            "collective_hang_job": Field("i4", -1),
        }

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU for the three kinds."""
        present, groups = working_groups(frame)
        new = self._begin(frame, state, present, groups)
        sides = self._sides(frame, new, groups, present)
        size = groups.size(present)
        enough = size >= self.min_group
        hung = enough & self._hung(groups, sides)
        waits, certain = self._waits(groups, sides)
        waits &= enough
        idle = enough & sides["idle"] & (groups.size(sides["busy"]) >= np.maximum(size // 2, 2))
        idle &= (frame.job >= 0) | (new["age"] >= self.min_age_seconds)
        works = present & (groups.size(sides["works"]) > 0)
        away = present & (groups.size(sides["idle"]) >= groups.size(sides["part"]))
        self._time(frame, new, works, away, hung=hung, waits=waits)
        collective = waits & (certain | (new["spin_seconds"] >= self.unknown_seconds))
        collective &= self._patient(new, "spin_seconds", "usual_wait", firing["collective_hang"])
        speaker = _speakers(frame, groups, collective, state, firing["collective_hang"])
        unknown = ~present | ((groups.number >= 0) & ~enough)
        conditions = {
            "hang": hung & self._patient(new, "idle_seconds", "usual_pause", firing["hang"]),
            "collective_hang": collective & speaker,
            "idle_member": idle,
        }
        self._learn(frame, new, groups, sides)
        new["collective_hang_job"] = np.where(
            firing["collective_hang"], state["collective_hang_job"], frame.job
        )
        severities = self._severities(new, certain)
        wanted = any(holds.any() for holds in (*conditions.values(), *firing.values()))
        columns = self._columns(frame, new, groups, sides, wanted=wanted)
        return Step(
            judgements={
                kind: Judgement(
                    score=np.where(unknown, np.nan, holds.astype(np.float64)),
                    severity=severities[kind],
                )
                for kind, holds in conditions.items()
            },
            state={
                name: np.where(present, new[name], state[name]).astype(spec.dtype)
                for name, spec in self.fields().items()
            },
            columns=columns,
        )

    def _begin(
        self, frame: Frame, state: Mapping[str, AnyArray], present: BoolArray, groups: Groups
    ) -> dict[str, AnyArray]:
        """Copy the state; a row begins anew with another job or without one."""
        other = present & ((state["job"] != frame.job) | (groups.number < 0))
        new: dict[str, AnyArray] = {
            name: np.where(other, np.nan if name == "base" else 0.0, state[name].astype(np.float64))
            for name in _FLOATS
        }
        new["job"] = np.where(present, frame.job, state["job"])
        return new

    def _sides(
        self, frame: Frame, new: Mapping[str, AnyArray], groups: Groups, present: BoolArray
    ) -> dict[str, BoolArray]:
        """Which rows are idle, busy, spinning, working; each (n,)."""
        util, watts = frame["gpu_utilization_ratio"], frame["power_watts"]
        part = present & (groups.number >= 0)
        share = np.divide(
            watts, new["base"], out=np.full(len(frame), np.nan), where=new["base"] > 0.0
        )
        old = new["age"] >= self.min_age_seconds
        quiet = ~(frame["memory_utilization_ratio"] > self.quiet_bus_ratio)
        low = ~(watts > self.spin_limit_ratio * frame["power_limit_watts"])
        spins = part & (util >= self.spin_utilization) & quiet & low
        fallen = old & (share <= self.fallen_ratio)
        idle = part & (util <= self.idle_utilization)
        certain_low = watts <= self.certain_limit_ratio * frame["power_limit_watts"]
        return {
            "part": part,
            "idle": idle,
            "stopped": idle & fallen,
            "busy": part & (util >= self.busy_utilization),
            "spins": spins & fallen,
            "spins_low": spins & certain_low & old & (frame.job >= 0),
            "works": part & ~idle & (share >= self.working_ratio) & (~low | ~quiet | ~certain_low),
        }

    def _hung(self, groups: Groups, sides: Mapping[str, BoolArray]) -> BoolArray:
        """(n,) the row stopped, most of its group spins, none works."""
        size, spins = groups.size(sides["part"]), groups.size(sides["spins"])
        others = size - groups.size(sides["idle"])
        held: BoolArray = (
            sides["stopped"]
            & (groups.size(sides["works"]) == 0)
            & (spins >= 2)
            & (spins >= 0.8 * others)
            & (others > size / 2)
        )
        return held

    def _waits(self, groups: Groups, sides: Mapping[str, BoolArray]) -> tuple[BoolArray, BoolArray]:
        """(n,) everybody in the row's group spins; and whether they are known to have worked."""
        size = groups.size(sides["part"])
        nobody = (groups.size(sides["idle"]) == 0) & (size > 0)
        fallen = (groups.size(sides["works"]) == 0) & (groups.size(sides["spins"]) >= 0.9 * size)
        low = groups.size(sides["spins_low"]) == size
        return nobody & (fallen | low), nobody & fallen

    def _time(
        self,
        frame: Frame,
        new: dict[str, AnyArray],
        works: BoolArray,
        away: BoolArray,
        *,
        hung: BoolArray,
        waits: BoolArray,
    ) -> None:
        """Count how long the conditions hold; a wait that ended in work is a habit of the job.

        One after which everybody is idle ended with the job, and is forgotten.
        """
        for lasting, usual, holds in (
            ("idle_seconds", "usual_pause", hung),
            ("spin_seconds", "usual_wait", waits),
        ):
            longest = np.minimum(np.maximum(new[usual], new[lasting]), _LONGEST_PAUSE)
            new[usual] = np.where(works, longest, new[usual])
            # One reading that says otherwise takes off what it stands for, not everything.
            change = np.where(holds, frame.elapsed, -frame.elapsed)
            new[lasting] = np.where(works | away, 0.0, np.maximum(new[lasting] + change, 0.0))

    def _patient(
        self, new: Mapping[str, AnyArray], lasting: str, usual: str, firing: BoolArray
    ) -> BoolArray:
        """(n,) a wait is longer than this job's waits are, or an alert already speaks of it."""
        longer: BoolArray = new[lasting] >= self.pause_ratio * new[usual]
        return longer | firing

    def _learn(
        self,
        frame: Frame,
        new: dict[str, AnyArray],
        groups: Groups,
        sides: Mapping[str, BoolArray],
    ) -> None:
        """Follow the usual power under load; not while the row may be waiting."""
        watts = frame["power_watts"]
        suspect = sides["busy"] & (watts <= self.fallen_ratio * new["base"])
        median, _ = groups.median(watts, sides["busy"])
        together = (frame.job >= 0) | (np.abs(watts - median) <= 0.25 * median)
        counts = sides["busy"] & together
        new["age"] = new["age"] + np.where(counts, frame.elapsed, 0.0)
        tau = np.clip(new["age"] / 3.0, 5.0, None)
        value = np.where(counts & ~suspect, watts, np.nan)
        new["base"] = ewma(new["base"], value, frame.elapsed, np.minimum(tau, self.base_seconds))

    def _severities(self, new: Mapping[str, AnyArray], certain: BoolArray) -> dict[str, AnyArray]:
        """Rank by kind: critical once the wait is long, info for who never worked."""
        long = new["idle_seconds"] >= self.critical_seconds
        lasting = certain & (new["spin_seconds"] >= self.collective_critical_seconds)
        worked = new["age"] >= self.min_age_seconds
        ranks = {
            "hang": np.where(long, _CRITICAL, _WARNING),
            "collective_hang": np.where(lasting, _CRITICAL, _WARNING),
            "idle_member": np.where(worked, _WARNING, _INFO),
        }
        return {kind: rank.astype(np.int8) for kind, rank in ranks.items()}

    def _columns(
        self,
        frame: Frame,
        new: Mapping[str, AnyArray],
        groups: Groups,
        sides: Mapping[str, BoolArray],
        *,
        wanted: bool,
    ) -> dict[str, AnyArray]:
        """Numbers for the words; the medians only if some alert may be worded."""
        columns = {
            "base_watts": new["base"],
            "idle_seconds": new["idle_seconds"],
            "spin_seconds": new["spin_seconds"],
            "group_size": groups.size(sides["part"]),
            "spinning": groups.size(sides["spins"] | sides["spins_low"]),
        }
        others = sides["part"] & ~sides["idle"]
        told = {
            "others_watts": frame["power_watts"],
            "others_busy_ratio": frame["gpu_utilization_ratio"],
            "others_base_watts": new["base"],
        }
        unknown = np.full(len(frame), np.nan)
        for name, value in told.items():
            columns[name] = groups.median(value, others)[0] if wanted else unknown
        return columns

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word who waits for whom, with the powers that show it."""
        return explained(kind, row, idle_seconds=self.idle_seconds)


def _speakers(
    frame: Frame,
    groups: Groups,
    waits: BoolArray,
    state: Mapping[str, AnyArray],
    firing: BoolArray,
) -> BoolArray:
    """(n,) which rows speak for their job: the one that did, else the lowest that waits."""
    speaks = np.zeros(len(frame), dtype=bool)
    at = np.flatnonzero(waits | firing)
    if len(at) == 0:
        return speaks
    about = np.where(firing, state["collective_hang_job"], frame.job)[at]
    order = np.lexsort((frame.rows[at], ~firing[at], about, groups.node[at]))
    node, about = groups.node[at][order], about[order]
    first = np.ones(len(at), dtype=bool)
    first[1:] = (node[1:] != node[:-1]) | (about[1:] != about[:-1])
    speaks[at[order][first]] = True
    return speaks


DETECTOR = Hang
