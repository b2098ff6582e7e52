"""Finds GPUs whose power limit is lower than it should be, so that they hold their job back.

The question is "may this GPU draw what its neighbours may?". A limit that is low for a whole node
is a decision; one that is low on a single GPU is a leftover or a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, require_positive
from detector.frame import MISSING_CODE, Frame
from detector.stats.peers import block_view, peer_median, to_rows
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "PowerLimit"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLimit:
    """Enforced power limit against the default and against peers of the same model.

    Parameters
    ----------
    enter_ratio
        How far below, as a share of the default or of the peers' limit, 0 to 1.
    min_peers
        Peers of the same model on the node needed for a comparison.
    enter_seconds, exit_seconds
        How long it must hold, or have ended, s: a change of all limits goes GPU by GPU.

    Notes
    -----
    Below the peers' median limit: warning, since the job runs at the pace of its slowest member.
    Below the default only, as all peers are or where there are none: info, since operators
    lower limits on purpose. Working *at* the limit is never an alert. Score:
    ``shortfall / enter_ratio``.

    Examples
    --------
    >>> frame = Frame.of(
    ...     metrics={
    ...         "power_limit_watts": [700.0, 700.0, 500.0],
    ...         "power_default_limit_watts": [700.0, 700.0, 700.0],
    ...     },
    ...     ts=[0, 0, 0],
    ... )
    >>> judged = PowerLimit().step(frame, {}, {}).judgements["power_limit_low"]
    >>> judged.score.round(1), judged.severity
    (array([0. , 0. , 9.5]), array([1, 1, 2], dtype=int8))
    """

    enter_ratio: float = 0.03
    min_peers: int = 2
    enter_seconds: float = 120.0
    exit_seconds: float = 60.0

    name: ClassVar[str] = "power_limit"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "throttling"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("power_limit_watts",)
    helps: ClassVar[tuple[str, ...]] = ("power_default_limit_watts", "power_watts")

    def __post_init__(self) -> None:
        require_positive(enter_ratio=self.enter_ratio)
        if self.min_peers < 1:
            raise ValueError(f"min_peers must be at least 1, got {self.min_peers}")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """One kind; a score of 1 is the shortfall at its threshold."""
        return (
            KindSpec(
                kind="power_limit_low",
                enter_seconds=self.enter_seconds,
                enter_samples=3,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """No state: the limits stand in the frame."""
        return {}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every GPU by the larger of both shortfalls."""
        del state, firing
        limit, default = frame["power_limit_watts"], frame["power_default_limit_watts"]
        peers = self._peer_limit(frame)
        by_peers, by_default = _shortfall(limit, peers), _shortfall(limit, default)
        short = np.fmax(by_peers, by_default)
        score = np.where(np.isnan(short), np.nan, np.maximum(short, 0.0) / self.enter_ratio)
        odd = by_peers >= self.enter_ratio
        severity = np.where(odd, Severity.WARNING.rank, Severity.INFO.rank).astype(np.int8)
        return Step(
            judgements={"power_limit_low": Judgement(score=score, severity=severity)},
            state={},
            columns={"peers_watts": peers},
        )

    def _peer_limit(self, frame: Frame) -> FloatArray:
        """(n,) median limit of the other GPUs of the node with the same, known model."""
        blocks = frame.blocks
        model = block_view(frame.model, blocks, MISSING_CODE)
        same = (model[:, :, None] == model[:, None, :]) & (model != MISSING_CODE)[:, None, :]
        median, count = peer_median(block_view(frame["power_limit_watts"], blocks, np.nan), same)
        return to_rows(np.where(count >= self.min_peers, median, np.nan), blocks, len(frame))

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the limit beside the default and the peers'."""
        del kind
        limit = row["power_limit_watts"]
        peers, default = row.value("peers_watts"), row.value("power_default_limit_watts")
        beside = [
            f"{words} {value:.0f} W"
            for value, words in ((peers, "its peers have"), (default, "the default is"))
            if value is not None
        ]
        return Explanation(
            summary=f"may draw only {limit:.0f} W where {' and '.join(beside)}",
            evidence=(
                Evidence(
                    metric="power_limit_watts",
                    value=limit,
                    unit="W",
                    expected_low=peers if peers is not None else default,
                    baseline=default,
                    peers=peers,
                    window_seconds=self.enter_seconds,
                ),
                Evidence(metric="power_watts", value=row.value("power_watts"), unit="W"),
            ),
            likely_cause=(
                "The limit was lowered on this GPU and not put back, or the board took it down "
                "because its power feed asked for it."
            ),
            action=Action.CHECK_POWER,
            next_steps=(
                "See who set it (nvidia-smi -q -d POWER, the provisioning of the node).",
                "Set all GPUs of a job to one limit (nvidia-smi -pl): the slowest sets the pace.",
                "If the limit cannot be raised, check power supplies and cables of the node.",
            ),
        )


def _shortfall(limit: FloatArray, of: FloatArray) -> FloatArray:
    """(n,) share by which the limit is below; negative where it is above."""
    ratio: FloatArray = np.divide(limit, of, out=np.full(len(limit), np.nan), where=of > 0.0)
    return 1.0 - ratio


DETECTOR = PowerLimit
