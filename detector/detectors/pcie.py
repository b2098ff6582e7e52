"""Finds GPUs whose link to the host runs on fewer lanes, or slower, than it should.

Saving power, a link slows down whenever nothing is sent: the generation says something only under
load. Lanes are not given up at idle, but a slot may be wired with fewer on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
from detector.base import Explanation, Judgement, KindSpec, RowView, Step
from detector.frame import Frame
from detector.stats.peers import differing_peers
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "Pcie"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_MOST = 127.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie:
    """Lanes and generation of the PCIe link, under load.

    Parameters
    ----------
    busy_utilization
        From this utilisation on the link is judged, 0 to 1.
    min_peers
        So many other GPUs of the same model on the node must be there for their median to be a
        witness: of two cards one may sit in a smaller slot.
    enter_samples, enter_seconds
        For how many readings in a row, and how long (s), the link must be degraded.
    exit_seconds
        How long it must be well again, s.

    Notes
    -----
    Score 1 where a busy GPU has fewer lanes than the most that it had itself, than the median of
    its peers, or than its inventory allows; or a lower generation. Warning where the GPU itself
    had more lanes before or its peers have more; critical if fewer than half are left. Info
    where only the inventory speaks for more, since a slot may be wired so. A generation is a
    warning only where the peers have a higher one at the same moment. An idle GPU is not judged.

    Examples
    --------
    Eight GPUs at work, one of them on four lanes:

    >>> watch = Pcie()
    >>> state = {name: spec.make(8) for name, spec in watch.fields().items()}
    >>> frame = Frame.of(
    ...     metrics={"pcie_width_lanes": [4.0] + [16.0] * 7, "gpu_utilization_ratio": [0.9] * 8},
    ...     ts=[0] * 8,
    ... )
    >>> judged = watch.step(frame, state, {}).judgements["pcie_degraded"]
    >>> judged.score.tolist(), int(judged.severity[0])
    ([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 3)
    """

    busy_utilization: float = 0.5
    min_peers: int = 3
    enter_samples: int = 3
    enter_seconds: float = 2.0
    exit_seconds: float = 30.0

    name: ClassVar[str] = "pcie"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "hardware_error"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("pcie_width_lanes", "gpu_utilization_ratio")
    helps: ClassVar[tuple[str, ...]] = ("pcie_generation", "pcie_replay_total")

    def __post_init__(self) -> None:
        if self.enter_samples < 1:
            raise ValueError(f"enter_samples must be at least 1, got {self.enter_samples}")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``pcie_degraded``, after a few readings in a row."""
        return (
            KindSpec(
                kind="pcie_degraded",
                enter_samples=self.enter_samples,
                enter_seconds=self.enter_seconds,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """Keep the most lanes and the highest generation seen."""
        return {"lanes": Field("i1", 0), "generation": Field("i1", 0)}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score busy GPUs against their best, their peers and their inventory."""
        del firing
        lanes, generation = frame["pcie_width_lanes"], frame["pcie_generation"]
        busy = frame["gpu_utilization_ratio"] >= self.busy_utilization
        best_lanes, kept_lanes = _best(state["lanes"], lanes)
        _, kept_generation = _best(state["generation"], generation)
        peer_lanes, peer_generation = (
            differing_peers(
                np.where(busy, column, np.nan), frame.model, frame.blocks, self.min_peers
            )
            for column in (lanes, generation)
        )
        most = np.fmax(np.fmax(best_lanes, peer_lanes), _fact(frame, "pcie_width_max"))
        top = np.fmax(
            np.fmax(kept_generation.astype(np.float64), peer_generation),
            _fact(frame, "pcie_generation_max"),
        )
        narrow, slow = lanes < most, generation < top
        known = busy & np.isfinite(lanes)
        score = np.where(known, (narrow | slow).astype(np.float64), np.nan)
        witnessed = (lanes < best_lanes) | (lanes < peer_lanes) | (generation < peer_generation)
        few = witnessed & (lanes < most / 2.0)
        severity = np.full(len(frame), Severity.INFO.rank, dtype=np.int8)
        severity[witnessed] = Severity.WARNING.rank
        severity[few] = Severity.CRITICAL.rank
        return Step(
            judgements={"pcie_degraded": Judgement(score=score, severity=severity)},
            state={"lanes": kept_lanes, "generation": kept_generation},
            columns={
                "most_lanes": most,
                "top_generation": top,
                "peer_lanes": peer_lanes,
                "peer_generation": peer_generation,
                "own_lanes": best_lanes,
                "narrow": narrow.astype(np.float64),
            },
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the lanes or the generation against what they should be."""
        del kind
        lanes, most = row["pcie_width_lanes"], row["most_lanes"]
        generation, top = row.value("pcie_generation"), row.value("top_generation")
        words = f"runs on {lanes:.0f} of {most:.0f} PCIe lanes"
        if not row["narrow"] > 0.0:
            words = f"runs on all of its {lanes:.0f} PCIe lanes"
        if generation is not None and top is not None:
            less = " instead of " if generation < top else " of "
            words += f", generation {generation:.0f}{less}{top:.0f}"
        return Explanation(
            summary=f"{words}, at {row['gpu_utilization_ratio']:.0%} load",
            evidence=(
                Evidence(
                    metric="pcie_width_lanes",
                    value=lanes,
                    unit="lanes",
                    expected_low=most,
                    baseline=row.value("own_lanes"),
                    peers=row.value("peer_lanes"),
                ),
                Evidence(
                    metric="pcie_generation",
                    value=generation,
                    unit="",
                    expected_low=top,
                    peers=row.value("peer_generation"),
                ),
            ),
            likely_cause=(
                "The link trained badly: seating, riser, dust on the contacts, a failing slot or "
                "GPU; or the slot is wired with fewer lanes on purpose."
            ),
            action=Action.DRAIN_NODE,
            next_steps=(
                "Compare LnkSta with LnkCap in lspci -vv for the GPU and the bridge above it.",
                "At the next chance reset the GPU or reboot the node; if the link stays, reseat "
                "the board.",
                "If the slot has fewer lanes by design, silence this alert for the GPU.",
            ),
        )


def _best(before: AnyArray, value: FloatArray) -> tuple[FloatArray, AnyArray]:
    """Return the highest value seen, as floats and as state."""
    best = np.fmax(before.astype(np.float64), np.minimum(value, _MOST))
    return best, best.astype(np.int8)


def _fact(frame: Frame, name: str) -> FloatArray:
    """(n,) a fact of the inventory, NaN where unknown."""
    unknown = np.full(len(frame), np.nan)
    return frame.extra.get(name, unknown)


DETECTOR = Pcie
