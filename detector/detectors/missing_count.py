"""Reports a node that came up with fewer GPUs than it should have.

A GPU that was never seen has no UUID to name, so this is an alert of the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, uniform_severity
from detector.frame import Frame
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "MissingCount"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingCount:
    """Expected GPUs of a node against those seen since the detector knows it.

    Parameters
    ----------
    enter_seconds, enter_samples, exit_seconds
        How long GPUs must be short, or complete again. Drivers list GPUs one after the other
        while they load.

    Notes
    -----
    ``expected`` comes from the PCI bus or the collector's settings. GPUs that were seen before
    and left are reported one by one by the detector ``lost`` and are not counted here.

    Examples
    --------
    >>> frame = Frame.of(metrics={}, ts=[0])
    >>> frame.extra["expected_gpus"], frame.extra["known_gpus"] = np.array([8.0]), np.array([7.0])
    >>> MissingCount().step(frame, {}, {}).judgements["missing"].score
    array([1.])
    """

    enter_seconds: float = 30.0
    enter_samples: int = 3
    exit_seconds: float = 30.0

    name: ClassVar[str] = "missing_count"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "gpu_lost"
    scope: ClassVar[Scope] = Scope.NODE
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    helps: ClassVar[tuple[str, ...]] = ()

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``missing``, of the node."""
        return (
            KindSpec(
                kind="missing",
                enter_seconds=self.enter_seconds,
                enter_samples=self.enter_samples,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """No state."""
        return {}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score 1 where fewer GPUs are known than expected; NaN where either is unknown."""
        del state, firing
        short = frame["expected_gpus"] - frame["known_gpus"]
        score = np.where(np.isnan(short), np.nan, (short > 0.0).astype(np.float64))
        severity = uniform_severity(score, Severity.CRITICAL)
        return Step(judgements={"missing": Judgement(score=score, severity=severity)}, state={})

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the shortage."""
        del kind
        expected, known = row["expected_gpus"], row["known_gpus"]
        return Explanation(
            summary=f"lists {known:.0f} GPUs where {expected:.0f} are expected",
            evidence=(
                Evidence(metric="known_gpus", value=known, unit="GPUs", expected_low=expected),
            ),
            likely_cause=(
                "A GPU did not come up after boot or driver load: power, seating, firmware, or it "
                "has failed."
            ),
            action=Action.DRAIN_NODE,
            next_steps=(
                "Compare lspci with nvidia-smi -L and read the kernel log since boot.",
                "Reboot the node once; if the GPU stays away, have its slot examined.",
                "If the node has fewer GPUs on purpose, set collector.expected_gpus.",
            ),
        )


DETECTOR = MissingCount
