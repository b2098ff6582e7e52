"""Finds GPUs that have lost NVLink connections, or whose connections fail all the time.

A card without a bridge has no links and needs none; a board that was made with links, or a GPU
that had them an hour ago, should have them now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray
from detector.base import Explanation, Judgement, KindSpec, RowView, Step, require_positive
from detector.frame import Frame
from detector.stats.errorrate import Storm, grown, growth_fields, storm, storm_fields
from detector.stats.peers import differing_peers
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "NvLink"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes
_MOST = 127.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink:
    """Active links against history, peers and board; error counter against its own rate.

    Parameters
    ----------
    grace_seconds
        Links train in the first minutes after a boot: nothing is said before this uptime, s.
    enter_samples, enter_seconds
        For how many readings in a row, and how long (s), links must be missing.
    exit_seconds
        How long they must be back, s.
    window_seconds, baseline_seconds, ratio, floor_per_hour, bunch, log10_chance
        The test of the error counter: window and own rate's time constant (s), how many times
        the own rate is usual, errors an hour that are usual for any GPU, errors that one upset
        brings, and how unlikely a count must be, as for the detector ``ecc``.

    Notes
    -----
    Links that should be up: the most that were seen on this GPU; the median of its peers of the
    same model, if it ever had links or its board has them built in; on such a board also the
    number of links that the device has. Score 1 where fewer are up. Critical where none is left
    that was there before or that the peers have, else warning. Errors score by the Poisson test
    of ``ecc``: vendor limits of one error a minute have replaced nodes for nothing.

    A GPU in MIG mode has no links: all of them read inactive, and that is no fault. Neither it
    nor its instances are judged by links, nor are they anybody's peers. The mode may be told up
    to a minute later than the links go; its other mark, a utilisation that can no longer be
    read, comes with them and counts until then.

    Examples
    --------
    >>> watch = NvLink()
    >>> state = {name: spec.make(4) for name, spec in watch.fields().items()}
    >>> frame = Frame.of(metrics={"nvlink_active_links": [4.0, 6.0, 6.0, 6.0]}, ts=[0] * 4)
    >>> frame.extra = {"nvlink_board": np.ones(4)}
    >>> off = {"nvlink": np.zeros(4, dtype=bool)}
    >>> watch.step(frame, state, off).judgements["nvlink"].score
    array([1., 0., 0., 0.])
    """

    grace_seconds: float = 300.0
    enter_samples: int = 4
    enter_seconds: float = 3.0
    exit_seconds: float = 60.0
    window_seconds: float = 60.0
    baseline_seconds: float = 21_600.0
    ratio: float = 10.0
    floor_per_hour: float = 60.0
    bunch: float = 20.0
    log10_chance: float = 6.0

    name: ClassVar[str] = "nvlink"
    version: ClassVar[str] = "2"
    family: ClassVar[str] = "hardware_error"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("nvlink_active_links",)
    helps: ClassVar[tuple[str, ...]] = ("nvlink_errors_total",)
    #: Cannot be read in MIG mode.
    reads: ClassVar[tuple[str, ...]] = ("gpu_utilization_ratio",)

    def __post_init__(self) -> None:
        require_positive(
            window_seconds=self.window_seconds,
            baseline_seconds=self.baseline_seconds,
            floor_per_hour=self.floor_per_hour,
            bunch=self.bunch,
            log10_chance=self.log10_chance,
        )
        if self.enter_samples < 1:
            raise ValueError(f"enter_samples must be at least 1, got {self.enter_samples}")

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``nvlink``, after a few readings in a row."""
        return (
            KindSpec(
                kind="nvlink",
                enter_samples=self.enter_samples,
                enter_seconds=self.enter_seconds,
                exit_seconds=self.exit_seconds,
            ),
        )

    def fields(self) -> Mapping[str, Field]:
        """Keep the most links seen, whether utilisation ever was, and the rate of errors."""
        return {
            "links": Field("i1", 0),
            "used": Field("i1", 0),
            **growth_fields("errors"),
            **storm_fields("errors"),
        }

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score missing links and the rate of errors, the larger of the two."""
        missing = np.full(len(frame), np.nan)
        growth = grown("errors", state, frame["nvlink_errors_total"], missing)
        rate_score, rate_state, rate = storm(
            "errors", self._rule(), frame, state, growth, firing["nvlink"]
        )
        used = np.maximum(state["used"], np.isfinite(frame["gpu_utilization_ratio"]))
        active = np.where(_partitioned(frame, used), np.nan, frame["nvlink_active_links"])
        best = np.fmax(state["links"].astype(np.float64), np.minimum(active, _MOST))
        peers = differing_peers(active, frame.model, frame.blocks)
        due, witnessed = self._due(frame, best, peers)
        fewer = active < due
        links_score = np.where(np.isfinite(active), fewer.astype(np.float64), np.nan)
        links_score[_fact(frame, "uptime_seconds") < self.grace_seconds] = np.nan
        score = np.fmax(links_score, rate_score)
        # What opened the alert cannot be read: let the other reading end nothing.
        score = np.where(firing["nvlink"] & np.isnan(links_score) & ~(score >= 1.0), np.nan, score)
        dead = fewer & (active <= 0.0) & (witnessed > 0.0)
        severity = np.where(dead, Severity.CRITICAL.rank, Severity.WARNING.rank).astype(np.int8)
        return Step(
            judgements={"nvlink": Judgement(score=score, severity=severity)},
            state={
                "links": best.astype(np.int8),
                "used": used.astype(np.int8),
                **growth.state,
                **rate_state,
            },
            columns={"due": due, "best": best, "peers": peers, "links_score": links_score, **rate},
        )

    def _due(
        self, frame: Frame, best: FloatArray, peers: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Links that should be up, and those for which there is a second witness, (n,) each."""
        board = _fact(frame, "nvlink_board") > 0.0
        witnessed = np.fmax(best, np.where(board | (best > 0.0), peers, 0.0))
        return np.fmax(witnessed, np.where(board, _fact(frame, "nvlink_links"), 0.0)), witnessed

    def _rule(self) -> Storm:
        return Storm(
            window_seconds=self.window_seconds,
            baseline_seconds=self.baseline_seconds,
            ratio=self.ratio,
            floor_per_hour=self.floor_per_hour,
            bunch=self.bunch,
            log10_chance=self.log10_chance,
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word the missing links, or the rate of errors."""
        del kind
        active, due, rate = row.value("nvlink_active_links"), row["due"], row["errors_rate"]
        usual = row["errors_usual"]
        if active is not None and (active < due or not rate > 0.0):
            summary = f"has {active:.0f} of {due:.0f} NVLink links up"
        else:
            summary = (
                f"counts {rate:.1f} NVLink errors a second; its own usual rate is "
                f"{usual * 3600.0:.0f} an hour"
            )
        return Explanation(
            summary=summary,
            evidence=(
                Evidence(
                    metric="nvlink_active_links",
                    value=active,
                    unit="links",
                    expected_low=due,
                    baseline=row.value("best"),
                    peers=row.value("peers"),
                ),
                Evidence(
                    metric="nvlink_errors_per_second",
                    value=rate,
                    unit="1/s",
                    expected_high=max(self.ratio * usual, self.floor_per_hour / 3600.0),
                    baseline=usual,
                    window_seconds=row["errors_seconds"],
                ),
            ),
            likely_cause=(
                "A link, its connector, bridge or switch port failed, or the fabric manager did "
                "not bring it up. Collectives of this GPU take a slower way or fail."
            ),
            action=Action.DRAIN_NODE,
            next_steps=(
                "Run nvidia-smi nvlink --status and -e on the node; look for Xid 74 or 144 to 150.",
                "See whether the fabric manager runs; drain the node and reset all of its GPUs.",
                "If the same link fails again, have the board, cable or switch examined.",
            ),
        )


def _partitioned(frame: Frame, used: AnyArray) -> BoolArray:
    """(n,) in MIG mode, an instance, or with the marks of the mode that is not told yet.

    Without any link, and with a utilisation that was read before and is not any more.
    """
    unread = (used > 0) & np.isnan(frame["gpu_utilization_ratio"])
    marked: BoolArray = unread & (frame["nvlink_active_links"] <= 0.0)
    return frame.mig_parent | frame.mig_instance | marked


def _fact(frame: Frame, name: str) -> FloatArray:
    """(n,) a fact about the GPU, NaN where unknown."""
    return frame.extra.get(name, np.full(len(frame), np.nan))


DETECTOR = NvLink
