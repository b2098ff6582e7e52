"""Finds busy GPUs that run far below their clock without heat or a brake to explain it.

The question is "is this GPU held back by something that nobody wanted?". A low clock means
nothing on an idle card, under a power cap, or where the operator set it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, require_positive
from detector.frame import Frame
from detector.stats.peers import block_view, peer_median, to_rows
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "SlowClock"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
# nvml.h, clocks event reasons
_BY_OPERATOR = 0x2
_HW_SLOWDOWN = 0x8
_NAMED = 0x20 | 0x40 | 0x80  # thermal slowdowns and the brake: other kinds speak of these


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowClock:
    """Clock against the maximum and the peers, with power as second witness; and the bare bit.

    Parameters
    ----------
    busy_utilization
        Utilisation from which a low clock means something, 0 to 1.
    clock_ratio
        Share of the maximum, or of the peers' median clock, below which a clock is low.
    power_ratio
        Share of the power limit above which a low clock is what the power allows.
    min_peers
        Busy peers (same node, model and job) needed for a comparison.
    stuck_seconds
        How long the clock must be low, s: longer than a change of performance state.
    slowdown_samples, slowdown_seconds
        Readings in a row, and seconds, with the slowdown bit alone: the bit also appears for a
        reading while the clock changes.
    idle_utilization
        Slowdown bits below this utilisation are not counted, 0 to 1.
    exit_seconds
        How long the condition must have ended, s.

    Notes
    -----
    ``clock_stuck_low``: utilisation >= 90 %, clock < 60 % of the maximum or of the peers, power
    < 60 % of the limit, for two minutes; not for partitioned GPUs, and not with the reason
    "clocks set by the operator" (2), a thermal slowdown or the brake. Where all peers are as
    slow and none of them gives a reason, somebody has probably locked the clocks: info.
    Score: ``clock_ratio / ratio``, so 1 at the threshold.
    ``hw_slowdown``: bit 0x8 without thermal (0x40) and brake (0x80) bits.

    References
    ----------
    .. [1] NVIDIA, nvml.h 13, clocks event reasons: HW slowdown "may also be reported during
       P-state or clock change".

    Examples
    --------
    >>> frame = Frame.of(
    ...     metrics={
    ...         "gpu_utilization_ratio": [0.99, 0.99],
    ...         "sm_clock_hertz": [300e6, 1935e6],
    ...         "sm_clock_max_hertz": [1980e6, 1980e6],
    ...         "power_watts": [140.0, 690.0],
    ...         "power_limit_watts": [700.0, 700.0],
    ...         "clock_event_reasons": [0.0, 4.0],
    ...     },
    ...     ts=[0, 0],
    ... )
    >>> SlowClock().step(frame, {}, {}).judgements["clock_stuck_low"].score.round(2)
    array([3.96, 0.  ])
    """

    busy_utilization: float = 0.9
    clock_ratio: float = 0.6
    power_ratio: float = 0.6
    min_peers: int = 2
    stuck_seconds: float = 120.0
    slowdown_samples: int = 3
    slowdown_seconds: float = 2.0
    idle_utilization: float = 0.05
    exit_seconds: float = 60.0

    name: ClassVar[str] = "slow_clock"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "throttling"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("clock_event_reasons",)
    helps: ClassVar[tuple[str, ...]] = (
        "gpu_utilization_ratio",
        "sm_clock_hertz",
        "sm_clock_max_hertz",
        "power_watts",
        "power_limit_watts",
        "temperature_celsius",
    )

    def __post_init__(self) -> None:
        require_positive(clock_ratio=self.clock_ratio)
        for name in ("slowdown_samples", "min_peers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``hw_slowdown`` after three readings, ``clock_stuck_low`` after two minutes."""
        return (
            KindSpec(
                kind="hw_slowdown",
                enter_seconds=self.slowdown_seconds,
                enter_samples=self.slowdown_samples,
                exit_seconds=self.exit_seconds,
            ),
            KindSpec(
                kind="clock_stuck_low",
                exit=0.9,
                enter_seconds=self.stuck_seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """No state: both are facts of the frame that must last."""
        return {}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU for both kinds."""
        del state, firing
        bits = frame["clock_event_reasons"]
        known = np.isfinite(bits)
        mask = np.where(known, bits, 0.0).astype(np.int64)
        idle = frame["gpu_utilization_ratio"] < self.idle_utilization
        alone = ((mask & _HW_SLOWDOWN) != 0) & ((mask & _NAMED) == 0) & ~idle
        slowdown = np.where(known, alone.astype(np.float64), np.nan)
        ratio, by_peers, peers = self._ratios(frame)
        score = self._stuck(frame, mask, known, ratio)
        # As slow as everybody: a lock, of which the driver does not always tell.
        alike = by_peers >= self.clock_ratio
        severity = np.where(alike, Severity.INFO.rank, Severity.WARNING.rank).astype(np.int8)
        warning = np.full(len(frame), Severity.WARNING.rank, dtype=np.int8)
        return Step(
            judgements={
                "hw_slowdown": Judgement(score=slowdown, severity=warning),
                "clock_stuck_low": Judgement(score=score, severity=severity),
            },
            state={},
            columns={"peers_hertz": peers, "clock_share": ratio},
        )

    def _ratios(self, frame: Frame) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(n,) the lower of clock / maximum and clock / peers; clock / peers; the peers' clock."""
        clock, top = frame["sm_clock_hertz"], frame["sm_clock_max_hertz"]
        peers = self._peer_clock(frame)
        by_peers = _ratio(clock, peers)
        return np.fmin(_ratio(clock, top), by_peers), by_peers, peers

    def _peer_clock(self, frame: Frame) -> FloatArray:
        """(n,) median clock of the other busy GPUs of the node with the same model and job."""
        blocks = frame.blocks
        busy = frame["gpu_utilization_ratio"] >= self.busy_utilization
        clock = block_view(np.where(busy, frame["sm_clock_hertz"], np.nan), blocks, np.nan)
        model, job = block_view(frame.model, blocks, -2), block_view(frame.job, blocks, -2)
        same = (model[:, :, None] == model[:, None, :]) & (job[:, :, None] == job[:, None, :])
        median, count = peer_median(clock, same)
        return to_rows(np.where(count >= self.min_peers, median, np.nan), blocks, len(frame))

    def _stuck(
        self, frame: Frame, mask: np.ndarray[Any, Any], known: BoolArray, ratio: FloatArray
    ) -> FloatArray:
        use, watts = frame["gpu_utilization_ratio"], frame["power_watts"]
        explained = (mask & (_BY_OPERATOR | _NAMED)) != 0
        starved = watts < self.power_ratio * frame["power_limit_watts"]
        counts = (use >= self.busy_utilization) & starved & ~explained
        share = np.divide(
            self.clock_ratio, ratio, out=np.full(len(frame), np.nan), where=ratio > 0.0
        )
        judged = known & np.isfinite(use) & np.isfinite(share)
        judged &= np.isfinite(watts) & np.isfinite(frame["power_limit_watts"])
        judged &= ~frame.mig_parent & ~frame.mig_instance
        return np.where(judged, np.where(counts, share, 0.0), np.nan)

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the clock against maximum and peers, with power and utilisation."""
        clock, top, peers = (
            row.value("sm_clock_hertz"),
            row.value("sm_clock_max_hertz"),
            row.value("peers_hertz"),
        )
        watts, limit = row.value("power_watts"), row.value("power_limit_watts")
        evidence = (
            Evidence(
                metric="sm_clock_hertz",
                value=clock,
                unit="Hz",
                expected_low=None if top is None else self.clock_ratio * top,
                baseline=top,
                peers=peers,
                window_seconds=self.stuck_seconds,
            ),
            Evidence(metric="power_watts", value=watts, unit="W", baseline=limit),
            Evidence(
                metric="gpu_utilization_ratio", value=row.value("gpu_utilization_ratio"), unit=""
            ),
            Evidence(metric="clock_event_reasons", value=row.value("clock_event_reasons"), unit=""),
        )
        speed = "at an unknown clock" if clock is None else f"at {clock / 1e6:.0f} MHz"
        if kind == "hw_slowdown":
            return _slowdown_words(speed, evidence)
        beside = [
            f"{value / 1e6:.0f} MHz {words}"
            for value, words in ((top, "possible"), (peers, "of its peers"))
            if value is not None
        ]
        power = "" if watts is None or limit is None else f", drawing {watts:.0f} of {limit:.0f} W"
        against = f" instead of {' and '.join(beside)}" if beside else ""
        return Explanation(
            summary=f"is busy but runs {speed}{against}{power}, and no reason is given",
            evidence=evidence,
            likely_cause=(
                "Something holds the clock down without naming it: a fault of the board's power "
                "feed, a GPU stuck in a low performance state, or clocks locked and forgotten "
                "(nvidia-smi -lgc)."
            ),
            action=Action.RESET_GPU,
            next_steps=(
                "See whether the clocks were locked on purpose (nvidia-smi -q -d CLOCK); "
                "nvidia-smi -rgc releases them.",
                "Drain the GPU and reset it; if the clock stays low, power-cycle the node.",
                "If that does not help, check the power cables and have the board examined.",
            ),
        )


def _slowdown_words(speed: str, evidence: tuple[Evidence, ...]) -> Explanation:
    return Explanation(
        summary=f"is under hardware slowdown that is neither heat nor power brake, {speed}",
        evidence=evidence,
        likely_cause=(
            "The hardware cut the clocks on a fast trigger: an over-current or under-voltage "
            "event of the board's power feed is the usual one."
        ),
        action=Action.CHECK_POWER,
        next_steps=(
            "Look for voltage or power supply events in the node's management controller.",
            "If it stays after the load has ended, reset the GPU; if it comes back, check the "
            "power cables and have the board examined.",
        ),
    )


def _ratio(value: FloatArray, of: FloatArray) -> FloatArray:
    ratio: FloatArray = np.divide(value, of, out=np.full(len(value), np.nan), where=of > 0.0)
    return ratio


DETECTOR = SlowClock
