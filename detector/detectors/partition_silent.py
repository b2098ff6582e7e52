"""Reports many nodes that fall silent at once: one fault of what they share, one alert.

Ten nodes that stop sending in the same seconds have not failed ten times. The network, a rack's
power or the message broker has failed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, require_positive
from detector.frame import Frame
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "PartitionSilent"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSilent:
    """Share of a partition's nodes that fell silent together.

    Parameters
    ----------
    share
        Share of the nodes that are heard in this partition, 0 to 1.
    nodes
        Fewer nodes than this are reported one by one: of five nodes one is already a fifth.

    Notes
    -----
    The nodes are those whose time was up within 5 s of each other (``node_silent`` says when it
    is). Their own alerts are not raised. When so many are back that the share is no longer
    reached the alert ends, and those that stay away are counted anew, each for itself. What
    spans partitions is grouped by the api.

    Examples
    --------
    >>> frame = Frame.of(metrics={}, ts=[0])
    >>> frame.extra["silent_nodes"] = np.array([40.0])
    >>> frame.extra["heard_nodes"] = np.array([200.0])
    >>> PartitionSilent().step(frame, {}, {}).judgements["node_silent"].score
    array([2.])
    """

    share: float = 0.1
    nodes: float = 3.0

    name: ClassVar[str] = "partition_silent"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "telemetry"
    scope: ClassVar[Scope] = Scope.PIPELINE
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    helps: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        require_positive(share=self.share)

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``node_silent``, of the pipeline."""
        return (KindSpec(kind="node_silent", exit=1.0, exit_seconds=0.0),)

    def fields(self) -> Mapping[str, Field]:
        """No state: arrivals are kept by the engine."""
        return {}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score the share of silent nodes over the share that is allowed."""
        del state, firing
        unknown = np.full(len(frame), np.nan)
        # Told once for the partition, not in the frames of its nodes.
        silent = frame.extra.get("silent_nodes", unknown)
        heard = frame.extra.get("heard_nodes", unknown)
        part = np.divide(silent, heard, out=unknown, where=heard > 0.0)
        score = part / self.share
        grave, costly = Severity.CRITICAL.rank, Severity.WARNING.rank
        severity = np.where(part > 0.5, grave, costly).astype(np.int8)
        return Step(
            judgements={"node_silent": Judgement(score=score, severity=severity)},
            state={},
            columns={"part": part},
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word how many are silent."""
        del kind
        silent, heard, part = row["silent_nodes"], row["heard_nodes"], row["part"]
        return Explanation(
            summary=(
                f"hears nothing from {silent:.0f} of {heard:.0f} nodes ({part:.0%}), which fell "
                "silent together; they are reported here and not one by one"
            ),
            evidence=(
                Evidence(
                    metric="silent_nodes",
                    value=silent,
                    unit="nodes",
                    expected_high=self.share * heard,
                ),
            ),
            likely_cause=(
                "Something that these nodes share: a switch or a rack's power, the message "
                "broker, name resolution, or a rollout of the collector."
            ),
            action=Action.WATCH,
            next_steps=(
                "Look at broker and network first; compare racks and switches of the nodes.",
                "If collectors were being rolled out, look at the new version's log.",
                "Take the silence of these nodes for ignorance, not for health.",
            ),
        )


DETECTOR = PartitionSilent
