"""Finds a node all of whose GPUs run hotter than their own past at the same power.

The question is "is it the GPU or the air?". One hot GPU has a poor cooler; if most of a node
leave their own past at once while their power is what it was, a fan wall, a filter or the inlet
air has changed. Then one alert for the node says more than eight for its GPUs, which go on and
name it as their cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray, IntArray
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, require_positive
from detector.frame import Frame
from detector.stats.ewma import ewma
from detector.stats.members import count_open
from detector.stats.priorline import PriorLine, PriorSlope
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "NodeAirflow"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_WIDTH = 16  # GPUs of a node that are followed; no node has more in one box
_NOBODY = np.iinfo(np.int32).max
_FAST_SHARE = 0.45  # of the rise lies in a pole below a second (fits to public recordings)
_STEADY_RATIO = 0.08  # of the power limit
# W; the scale where no limit is known: that of a small card, beside which a large one leaves the
# slope so uncertain that nothing is judged before it was seen at work.
_UNKNOWN_LIMIT = 70.0
_FARTHEST = 100.0  # °C


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAirflow:
    """Median over a node's GPUs of what each is hotter than its own past at this power.

    Parameters
    ----------
    enter_celsius
        Median excess at which it is the air, °C. Inlet air swings by 2 to 5 °C a day, of which
        a baseline of ``memory_seconds`` leaves half; a fan wall that fails gives 8 and more.
    most_ratio
        Share of the GPUs that must be above half of that, 0 to 1: a lone hot GPU, or one tenant
        of two, is not the air.
    min_gpus
        GPUs with a known past at least.
    smooth_seconds
        Time constant of the smoothed median, s.
    slow_seconds
        Time constant of the slow pole of the heat path, s (15 to 57 s on SXM boards).
    memory_seconds
        Time constant of the baselines, s.
    rise_celsius, rise_deviation
        Rise of the temperature from no load to the power limit that a GPU begins with, °C, and
        how far it may be off: 31 to 60 on H100, 45 on T4 and RTX 4080.
    alike_seconds
        Over which time readings count as one of ±1 °C, s.
    uncertain_deviations
        The excess of a GPU must be so many standard deviations of its baseline.
    young_celsius, young_seconds
        Added to the limit at first, °C, and the time constant with which that fades, s.
    enter_seconds, exit_seconds
        How long it must hold, or have ended, s.

    Notes
    -----
    Per GPU ``T = a + r * S``, ``S = (0.45 P + 0.55 EW40(P)) / power limit``, learned while no
    alert is open; judged while the power is steady. Score of a node: ``EW(median excess) /
    limit``, 0 unless most of its GPUs are above half of it. A GPU that is new on the node begins
    anew. Critical when the hardware already cuts the clocks of half of the GPUs for heat. Nodes
    of one rack are not compared here: what meets all of them is grouped where all alerts arrive.

    References
    ----------
    .. [1] Range of thermal resistance, its poles, and ambient of 22 to 33 °C: fits to public
       recordings of H100 nodes.

    Examples
    --------
    An hour at 600 W and 60 °C, then all four GPUs at 68 °C:

    >>> watch = NodeAirflow()
    >>> state = {name: spec.make(1) for name, spec in watch.fields().items()}
    >>> off = {"node_airflow": np.zeros(1, dtype=bool)}
    >>> for second in range(0, 3900, 10):
    ...     node = Frame.of(metrics={}, ts=[second * 1000], dt=10.0)
    ...     heat = 60.0 if second < 3600 else 68.0
    ...     readings = {"temperature_celsius": [heat] * 4, "power_watts": [600.0] * 4}
    ...     node.members = Frame.of(metrics=readings, ts=[second * 1000] * 4, dt=10.0)
    ...     node.extra["known_gpus"] = np.array([4.0])
    ...     step = watch.step(node, state, off)
    ...     state = step.state
    >>> bool(step.judgements["node_airflow"].score[0] > 1.0)
    True
    """

    enter_celsius: float = 5.0
    most_ratio: float = 0.75
    min_gpus: int = 3
    smooth_seconds: float = 30.0
    slow_seconds: float = 40.0
    memory_seconds: float = 7200.0
    rise_celsius: float = 42.0
    rise_deviation: float = 15.0
    alike_seconds: float = 300.0
    uncertain_deviations: float = 3.0
    young_celsius: float = 20.0
    young_seconds: float = 300.0
    enter_seconds: float = 60.0
    exit_seconds: float = 180.0

    name: ClassVar[str] = "node_airflow"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "thermal_fault"
    scope: ClassVar[Scope] = Scope.NODE
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    helps: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        require_positive(
            enter_celsius=self.enter_celsius,
            smooth_seconds=self.smooth_seconds,
            slow_seconds=self.slow_seconds,
            memory_seconds=self.memory_seconds,
            rise_deviation=self.rise_deviation,
            alike_seconds=self.alike_seconds,
            young_seconds=self.young_seconds,
        )
        if self.min_gpus < 2:
            raise ValueError(f"min_gpus must be at least 2, got {self.min_gpus}")
        if not 0.5 <= self.most_ratio <= 1:
            raise ValueError(f"most_ratio must be in [0.5, 1], got {self.most_ratio}")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; a score of 1 is the median excess at its limit."""
        return (
            KindSpec(
                kind="node_airflow",
                enter_seconds=self.enter_seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
            ),
        )

    @property
    def _prior(self) -> PriorSlope:
        return PriorSlope(
            slope=self.rise_celsius,
            deviation=self.rise_deviation,
            noise=1.0,
            alike_seconds=self.alike_seconds,
            memory_seconds=self.memory_seconds,
        )

    def fields(self) -> Mapping[str, Field]:
        """Per GPU: row of the table, power limit and slow power (W), baseline; per node: rest."""
        return {
            "who": Field("i4", _NOBODY, _WIDTH),
            "scale": Field("f4", width=_WIDTH),
            "slow": Field("f4", width=_WIDTH),
            **self._prior.fields(_WIDTH),
            "excess": Field("f4", 0.0),
            "age": Field("f4", 0.0),
        }

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every node by how many of its GPUs left their past, and how far."""
        usable = np.isfinite(frame["known_gpus"])
        if frame.members is None or not frame.members.blocks.size or not usable.any():
            return _step(np.full(len(frame), np.nan), frame, dict(state))
        dt = np.where(usable, frame.elapsed, 0.0)
        place, who = _slots(frame.members)
        heat, watts = (_column(frame.members, name, place) for name in _READINGS)
        new = who != state["who"]
        scale, late = _scale(frame.members, place, np.where(new, np.nan, state["scale"]))
        line = PriorLine(self._prior, state).restarted(new | late)
        slow = ewma(
            np.where(new, np.nan, state["slow"].astype(np.float64)),
            watts,
            dt[:, None],
            self.slow_seconds,
        )
        limit = np.where(np.isfinite(scale), scale, _UNKNOWN_LIMIT)
        load = (_FAST_SHARE * watts + (1.0 - _FAST_SHARE) * slow) / limit
        unsure = np.minimum(line.uncertainty(load), _FARTHEST) * self.uncertain_deviations
        judged = (np.abs(watts - slow) <= _STEADY_RATIO * limit) & (line.weight > 0.0)
        judged &= (unsure <= self.enter_celsius) & np.isfinite(heat)
        own = np.where(judged, np.clip(heat - line.predict(load), -_FARTHEST, _FARTHEST), np.nan)
        median, count, most = self._together(own)
        said = usable & (count >= self.min_gpus)
        excess = ewma(
            state["excess"].astype(np.float64),
            np.where(said, median, np.nan),
            dt,
            self.smooth_seconds,
        )
        age = state["age"] + dt
        allowed = self.enter_celsius + self.young_celsius * np.exp(-age / self.young_seconds)
        together = most | (firing["node_airflow"] & (median > 0.0))
        score = np.where(together, np.maximum(excess, 0.0) / allowed, 0.0)
        learns = usable & ~firing["node_airflow"]
        time = np.where(learns, np.minimum(dt, 10.0), 0.0)[:, None]
        after = line.learn(load, heat, np.broadcast_to(time, load.shape)).dump()
        after |= {"who": who, "scale": scale, "slow": slow, "excess": excess, "age": age}
        return _step(
            np.where(said, score, np.nan),
            frame,
            {name: _kept(usable, after[name], state[name]) for name in state},
            excess_celsius=excess,
            hot_gpus=(own > 0.5 * self.enter_celsius).sum(axis=1).astype(np.float64),
            judged_gpus=count.astype(np.float64),
            mean_celsius=_mean(heat, judged),
            mean_watts=_mean(watts, judged),
        )

    def _together(self, own: FloatArray) -> tuple[FloatArray, IntArray, BoolArray]:
        """(k,) median excess, GPUs judged, and whether most of them are above half the limit."""
        ordered = np.sort(own, axis=1)  # missing ones come last
        count = np.isfinite(own).sum(axis=1)
        each = np.arange(len(own))
        low, high = ordered[each, np.maximum(count - 1, 0) // 2], ordered[each, count // 2]
        median = np.where(count > 0, 0.5 * (low + high), np.nan)
        hot = (own > 0.5 * self.enter_celsius).sum(axis=1)
        return median, count, hot >= self.most_ratio * np.maximum(count, 1)

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word how many GPUs are hotter than their past, and by how much."""
        del kind
        excess, hot, judged = row["excess_celsius"], row["hot_gpus"], row["judged_gpus"]
        heat, watts = row.value("mean_celsius"), row.value("mean_watts")
        now = "" if heat is None or watts is None else f", now {heat:.0f} °C at {watts:.0f} W"
        return Explanation(
            summary=(
                f"has {hot:.0f} of {judged:.0f} GPUs hotter than their own past at the same "
                f"power, by {excess:.1f} °C in the median{now}"
            ),
            evidence=(
                Evidence(
                    metric="temperature_residual_celsius",
                    value=excess,
                    unit="°C",
                    expected_high=self.enter_celsius,
                    window_seconds=self.smooth_seconds,
                ),
                Evidence(metric="hot_gpus", value=hot, unit="GPUs", peers=judged),
                Evidence(metric="temperature_celsius", value=heat, unit="°C"),
                Evidence(metric="power_watts", value=watts, unit="W"),
            ),
            likely_cause=(
                "The air or the coolant that all GPUs of this node share: a failed fan or pump, a "
                "clogged filter, a missing blanking panel, or warmer inlet air."
            ),
            action=Action.CHECK_COOLING,
            next_steps=(
                "Look at the chassis fans and the inlet temperature on the node's management "
                "controller.",
                "Look whether other nodes of the rack report the same: then it is the inlet or "
                "the room, not this node.",
                "Lower the power limits, or drain the node before the hardware slows it down.",
            ),
        )


_READINGS = ("temperature_celsius", "power_watts")


def _slots(members: Frame) -> tuple[IntArray, AnyArray]:
    """(k, width) positions of each node's GPUs in the order of their rows, -1 as padding; rows."""
    blocks = members.blocks
    who = np.where(blocks >= 0, members.rows[blocks], _NOBODY)
    if (np.diff(who, axis=1) < 0).any():
        order = np.argsort(who, axis=1, kind="stable")
        who, blocks = np.take_along_axis(who, order, 1), np.take_along_axis(blocks, order, 1)
    nodes, found = len(blocks), min(blocks.shape[1], _WIDTH)
    place = np.full((nodes, _WIDTH), -1, dtype=np.int64)
    rows = np.full((nodes, _WIDTH), _NOBODY, dtype=np.int32)
    place[:, :found], rows[:, :found] = blocks[:, :found], who[:, :found]
    return place, rows


def _column(members: Frame, name: str, place: IntArray) -> FloatArray:
    """(k, width) values of a metric, NaN in padded places."""
    return np.where(place >= 0, members[name][place], np.nan)


def _scale(members: Frame, place: IntArray, known: AnyArray) -> tuple[FloatArray, BoolArray]:
    """(k, width) power limits, kept once known; and where one became known just now."""
    if np.isfinite(known[place >= 0]).all():
        return known.astype(np.float64), np.zeros(known.shape, dtype=bool)
    default = _column(members, "power_default_limit_watts", place)
    limit = np.where(np.isfinite(default), default, _column(members, "power_limit_watts", place))
    limit = np.where(limit > 0.0, limit, np.nan)
    late = np.isnan(known) & np.isfinite(limit)
    return np.where(late, limit, known).astype(np.float64), late


def _mean(values: FloatArray, use: BoolArray) -> FloatArray:
    """(k,) mean over the GPUs in use; NaN without any."""
    count = use.sum(axis=1)
    total = np.where(use, values, 0.0).sum(axis=1)
    mean: FloatArray = np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)
    return mean


def _kept(usable: BoolArray, after: AnyArray, before: AnyArray) -> AnyArray:
    """Rows that said something get their new state, the others keep what they had."""
    mask = usable if before.ndim == 1 else usable[:, None]
    kept: AnyArray = np.where(mask, after, before).astype(before.dtype)
    return kept


def _step(
    score: FloatArray, frame: Frame, state: dict[str, AnyArray], **columns: FloatArray
) -> Step:
    """Make the outcome; critical where the hardware already cuts the clocks of half the GPUs."""
    cut = count_open(frame, "throttling/hw_thermal")
    known = np.nan_to_num(frame["known_gpus"], nan=np.inf)
    critical = (cut > 0) & (cut >= 0.5 * known)
    severity = np.where(critical, Severity.CRITICAL.rank, Severity.WARNING.rank)
    judged = Judgement(score=score, severity=severity.astype(np.int8))
    return Step(judgements={"node_airflow": judged}, state=state, columns=dict(columns))


DETECTOR = NodeAirflow
