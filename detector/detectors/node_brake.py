"""Says once for a whole node that its power is braked, instead of once for every GPU.

A power brake rarely meets one GPU: it comes from a supply, a rack or the facility. The alerts of
the GPUs go on beside this one and name it as their cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, uniform_severity
from detector.frame import Frame
from detector.stats.members import count_open
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "NodeBrake"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBrake:
    """Share of a node's GPUs whose power-brake alert is open and whose brake still holds.

    Parameters
    ----------
    enter_ratio
        Share of the node's GPUs that makes it a matter of the node, 0 to 1.
    min_gpus
        GPUs braked at least.
    exit_seconds
        How long fewer than half as many must be braked, s: as long as for one GPU, so that the
        alerts of one event end together and say the same duration.

    Notes
    -----
    Score: braked GPUs over ``max(min_gpus, enter_ratio * GPUs)``. No delay of its own: each GPU
    has shown the brake in three readings, or for 2 % of a minute, before it counts.

    Examples
    --------
    >>> gpus = Frame.of(metrics={}, ts=[0, 0, 0, 0])
    >>> frame = Frame.of(metrics={}, ts=[0])
    >>> frame.members, frame.extra["known_gpus"] = gpus, np.array([4.0])
    >>> frame.members_open["throttling/power_brake"] = np.array([True, False, True, False])
    >>> NodeBrake().step(frame, {}, {}).judgements["power_brake"].score
    array([1.])
    """

    enter_ratio: float = 0.5
    min_gpus: int = 2
    exit_seconds: float = 90.0

    name: ClassVar[str] = "node_brake"
    version: ClassVar[str] = "2"
    family: ClassVar[str] = "throttling"
    scope: ClassVar[Scope] = Scope.NODE
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    helps: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.min_gpus < 1:
            raise ValueError(f"min_gpus must be at least 1, got {self.min_gpus}")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``power_brake``, of the node."""
        return (KindSpec(kind="power_brake", exit=0.5, exit_seconds=self.exit_seconds),)

    def fields(self) -> Mapping[str, Field]:
        """No state: the episodes of the GPUs are the memory."""
        return {}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score every node by its braked GPUs; NaN where their number is unknown."""
        del state, firing
        known = frame["known_gpus"]
        braked = count_open(frame, "throttling/power_brake", holding=True)
        needed = np.maximum(self.min_gpus, self.enter_ratio * np.nan_to_num(known))
        score = np.where(np.isnan(known), np.nan, braked / needed)
        return Step(
            judgements={
                "power_brake": Judgement(
                    score=score, severity=uniform_severity(score, Severity.CRITICAL)
                )
            },
            state={},
            columns={"braked_gpus": braked},
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word how much of the node is braked."""
        del kind
        braked, known = row["braked_gpus"], row["known_gpus"]
        return Explanation(
            summary=f"has {braked:.0f} of {known:.0f} GPUs under the hardware power brake",
            evidence=(
                Evidence(
                    metric="braked_gpus", value=braked, unit="GPUs", expected_high=0.0, peers=known
                ),
            ),
            likely_cause=(
                "The node's power feed asserts the brake: a failed or overloaded power supply, "
                "power distribution, or a rack-level limit. Clocks are cut by half or more."
            ),
            action=Action.CHECK_POWER,
            next_steps=(
                "Check the power supplies and their event log on the node's management controller.",
                "Look whether other nodes of the rack are braked too: then it is the rack's feed.",
                "Move jobs away; if the supplies are healthy and the brake stays, power-cycle the "
                "node.",
            ),
        )


DETECTOR = NodeBrake
