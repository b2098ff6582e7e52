"""Finds the GPU that is much hotter than its neighbours doing the same work.

The question is "is the cooling of this GPU worse than that of its peers?". A constant limit does
not answer it: the hottest healthy slot of a chassis stands 10 °C above the median of its node,
and the failing one is still 10 °C below every limit.
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
from detector.stats.peers import alike_pairs, block_view, peer_median, to_rows
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "PeerOutlier"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOutlier:
    """Temperature above the median of like-loaded peers of the same node.

    Parameters
    ----------
    enter_celsius
        Excess over the peers' median at which a GPU is an outlier, °C. Healthy slots of one
        chassis differ by up to 14 °C (B200 at idle: 38 to 53 °C; H100 at equal power: 52 to
        65 °C), so the default leaves more room than that.
    exit_celsius
        Excess below which the condition has ended, °C.
    enter_seconds, exit_seconds
        How long it must hold, or have ended, s. A GPU cools for one to three minutes after its
        job ended beside idle peers; five minutes outlast that.
    smooth_seconds
        Time constant of the smoothed excess, s.
    power_seconds
        Time constant of the power that is compared, s: the slow thermal pole of SXM boards is
        15 to 57 s, so the temperature follows the power of the last minute.
    alike_watts, alike_ratio
        Peers draw the same power within the larger of this many W and this share.
    alike_utilization
        Where there is no power reading: peers have the same utilisation within this ratio.
    min_peers
        Peers needed for a judgement. With two a single odd neighbour would decide.

    Notes
    -----
    ``excess = EW(T - median(T of peers))``. Peers share node, model, power limit and, where it
    is known, job; partitioned GPUs take no part in any way but as they are. The excess is
    neither divided by the power nor judged at full load only: on a recorded 8-GPU node the
    outlier stands +20 °C at idle, +16 °C at 400 W and +8 °C at 690 W above its peers.

    References
    ----------
    .. [1] Robust comparison by the median: Rousseeuw and Croux (1993), "Alternatives to the
       Median Absolute Deviation", JASA 88(424).

    Examples
    --------
    Eight GPUs at the same power; the second stays 19 °C above the others.

    >>> watch = PeerOutlier()
    >>> frame = Frame.of(
    ...     metrics={
    ...         "temperature_celsius": [23, 42, 24, 23, 25, 22, 24, 23],
    ...         "power_watts": [73, 81, 80, 72, 73, 73, 74, 73],
    ...     },
    ...     ts=[0] * 8,
    ... )
    >>> fresh = {name: spec.make(8) for name, spec in watch.fields().items()}
    >>> step = watch.step(frame, fresh, {"peer_outlier": np.zeros(8, dtype=bool)})
    >>> float(step.judgements["peer_outlier"].score[1])
    19.0
    """

    enter_celsius: float = 15.0
    exit_celsius: float = 12.0
    enter_seconds: float = 300.0
    exit_seconds: float = 120.0
    smooth_seconds: float = 30.0
    power_seconds: float = 40.0
    alike_watts: float = 60.0
    alike_ratio: float = 0.15
    alike_utilization: float = 0.25
    min_peers: int = 3

    name: ClassVar[str] = "peer_outlier"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "thermal_fault"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("temperature_celsius",)
    helps: ClassVar[tuple[str, ...]] = (
        "power_watts",
        "fan_ratio",
        "temperature_margin_celsius",
        "sm_clock_hertz",
    )

    def __post_init__(self) -> None:
        require_positive(smooth_seconds=self.smooth_seconds, power_seconds=self.power_seconds)
        if not 0 < self.exit_celsius <= self.enter_celsius:
            raise ValueError("exit_celsius must be in (0, enter_celsius]")
        if self.min_peers < 1:
            raise ValueError(f"min_peers must be at least 1, got {self.min_peers}")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; the score is the smoothed excess in °C, at least 0."""
        return (
            KindSpec(
                kind="peer_outlier",
                enter=self.enter_celsius,
                exit=self.exit_celsius,
                enter_seconds=self.enter_seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """Smoothed excess (°C) and smoothed power (W)."""
        return {"excess": Field("f4"), "power": Field("f4")}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by its smoothed excess over its peers."""
        del firing  # a comparison with peers has no baseline that a fault could spoil
        dt = frame.elapsed
        power = ewma(
            state["power"].astype(np.float64), frame["power_watts"], dt, self.power_seconds
        )
        hot = block_view(frame["temperature_celsius"], frame.blocks, np.nan)
        median, count = peer_median(hot, self._peers(frame, power))
        enough = count >= self.min_peers
        raw = to_rows(np.where(enough, hot - median, np.nan), frame.blocks, len(frame))
        excess = ewma(state["excess"].astype(np.float64), raw, dt, self.smooth_seconds)
        # A GPU cooler than its peers is no fault: scores begin at 0.
        score = np.where(np.isnan(raw), np.nan, np.maximum(excess, 0.0))
        return Step(
            judgements={
                "peer_outlier": Judgement(
                    score=score, severity=uniform_severity(score, Severity.WARNING)
                )
            },
            state={"excess": excess.astype(np.float32), "power": power.astype(np.float32)},
            columns={
                "excess_celsius": excess,
                "peers_celsius": to_rows(median, frame.blocks, len(frame)),
                "peer_count": to_rows(count, frame.blocks, len(frame)),
                "smoothed_watts": power,
            },
        )

    def _peers(self, frame: Frame, power: FloatArray) -> BoolArray:
        """(k, g, g): same model, job and power limit, and the same load."""
        blocks = frame.blocks
        peers = alike_pairs(block_view(power, blocks, np.nan), self.alike_watts, self.alike_ratio)
        unknown = np.isnan(block_view(power, blocks, np.nan))
        if unknown.any():
            busy = block_view(frame["gpu_utilization_ratio"], blocks, np.nan)
            by_use = alike_pairs(busy, self.alike_utilization, 0.0)
            peers = peers | (unknown[:, :, None] & unknown[:, None, :] & by_use)
        for codes in (frame.model, frame.job):
            same = block_view(codes, blocks, -2)
            peers = peers & (same[:, :, None] == same[:, None, :])
        limit = np.nan_to_num(block_view(frame["power_limit_watts"], blocks, np.nan), nan=-1.0)
        peers = peers & (np.abs(limit[:, :, None] - limit[:, None, :]) <= 1.0)
        return peers & (blocks >= 0)[:, None, :]

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the outlier with its temperature, its peers and the power."""
        del kind
        here, peers = row["temperature_celsius"], row["peers_celsius"]
        excess, count = row["excess_celsius"], int(row["peer_count"])
        watts = row.value("smoothed_watts")
        load = "at like load" if watts is None else f"at like power ({watts:.0f} W)"
        return Explanation(
            summary=(
                f"runs at {here:.0f} °C, {excess:.0f} °C above the median ({peers:.0f} °C) of "
                f"{count} peers {load}, for {self.enter_seconds / 60:.0f} min or longer"
            ),
            evidence=(
                Evidence(
                    metric="temperature_celsius",
                    value=here,
                    unit="°C",
                    expected_high=peers + self.enter_celsius,
                    peers=peers,
                    window_seconds=self.enter_seconds,
                ),
                Evidence(
                    metric="temperature_excess_celsius",
                    value=excess,
                    unit="°C",
                    expected_high=self.enter_celsius,
                    window_seconds=self.smooth_seconds,
                ),
                Evidence(metric="power_watts", value=watts, unit="W"),
            ),
            likely_cause=(
                "The cooling of this GPU is worse than that of its neighbours: thermal "
                "paste, heat sink seating, a blocked air path or coolant loop; or its sensor "
                "reads high."
            ),
            action=Action.CHECK_COOLING,
            next_steps=(
                "Compare fan duty and air or coolant path of this slot with its neighbours.",
                "Keep the job running: no limit is reached yet. Watch for thermal slowdown.",
                "At the next maintenance reseat the heat sink or renew the thermal interface; if "
                "the excess stays, have the GPU examined.",
            ),
        )


DETECTOR = PeerOutlier
