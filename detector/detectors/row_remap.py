"""Reports memory repairs that wait for a reset, and those that cannot be made any more.

Since Ampere a GPU replaces faulty rows by spare ones at a reset; before, it retired pages. A
repair that waits is no reason to fail a node: the GPU goes on working. A failed one is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from detector.arrays import BoolArray, Field
from detector.base import Explanation, Judgement, KindSpec, RowView, Step
from detector.frame import Frame
from schemas.alert import Action, Evidence, Scope, Severity

__all__ = ["DETECTOR", "RowRemap"]

AnyArray = np.ndarray[Any, np.dtype[Any]]  # state arrays have many dtypes


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRemap:
    """Flags of the row remapper, and pages retired on older GPUs.

    Parameters
    ----------
    max_pages
        Retired pages, of single and double bit errors together, at which a GPU is at its end:
        the table holds 64, and vendors replace from 60 on.
    exit_seconds
        How long the flags must be clear, s.

    Notes
    -----
    Score 1 where a flag stands. Pending remap or retirement: warning, a reset makes the repair.
    Failed remap, or ``max_pages`` retired pages: critical, the spare rows are used up. A flag
    that cannot be read (partitioned GPU, lost GPU) ends nothing.

    References
    ----------
    .. [1] NVIDIA, GPU memory error management; nvml.h 13, field ids 142-145.

    Examples
    --------
    >>> watch = RowRemap()
    >>> frame = Frame.of(
    ...     metrics={"row_remap_pending": [1.0, 0.0], "row_remap_failed": [0.0, 0.0]}, ts=[0, 0]
    ... )
    >>> off = {"row_remap": np.zeros(2, dtype=bool)}
    >>> judged = watch.step(frame, {}, off).judgements["row_remap"]
    >>> judged.score, judged.severity
    (array([1., 0.]), array([2, 2], dtype=int8))
    """

    max_pages: float = 60.0
    exit_seconds: float = 30.0

    name: ClassVar[str] = "row_remap"
    version: ClassVar[str] = "1"
    family: ClassVar[str] = "hardware_error"
    scope: ClassVar[Scope] = Scope.GPU
    peers: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("row_remap_pending", "row_remap_failed")
    helps: ClassVar[tuple[str, ...]] = (
        "remapped_rows_correctable_total",
        "remapped_rows_uncorrectable_total",
    )
    #: What GPUs before Ampere have instead.
    reads: ClassVar[tuple[str, ...]] = (
        "retired_pages_pending",
        "retired_pages_single_bit_total",
        "retired_pages_double_bit_total",
    )

    @property
    def kinds(self) -> tuple[KindSpec, ...]:
        """``row_remap``, at once."""
        return (KindSpec(kind="row_remap", exit_seconds=self.exit_seconds),)

    def fields(self) -> Mapping[str, Field]:
        """No state: the device keeps the flags."""
        return {}

    def step(
        self, frame: Frame, state: Mapping[str, AnyArray], firing: Mapping[str, BoolArray]
    ) -> Step:
        """Score 1 where a repair waits or has failed."""
        del state
        pages = frame["retired_pages_single_bit_total"] + frame["retired_pages_double_bit_total"]
        pending, failed = frame["row_remap_pending"], frame["row_remap_failed"]
        retiring = frame["retired_pages_pending"]
        dead = (failed > 0.0) | (pages >= max(self.max_pages, 1.0))
        bad = dead | (pending > 0.0) | (retiring > 0.0)
        # One generation of GPUs has rows, the other pages: either is enough to be well.
        rows_known = np.isfinite(pending) & np.isfinite(failed)
        pages_known = np.isfinite(pages) & np.isfinite(retiring)
        some = np.isfinite(pending) | np.isfinite(failed) | np.isfinite(retiring)
        well = rows_known | pages_known | (some & ~firing["row_remap"])
        score = np.where(bad, 1.0, np.where(well, 0.0, np.nan))
        severity = np.where(dead, Severity.CRITICAL.rank, Severity.WARNING.rank).astype(np.int8)
        return Step(
            judgements={"row_remap": Judgement(score=score, severity=severity)},
            state={},
            columns={"pages": pages, "dead": dead.astype(np.float64)},
        )

    def explain(self, kind: str, row: RowView) -> Explanation:
        """Word which repair waits or failed."""
        del kind
        evidence = tuple(
            Evidence(metric=name, value=row.value(name), unit=unit, expected_high=high)
            for name, unit, high in (
                ("row_remap_failed", "", 0.0),
                ("row_remap_pending", "", 0.0),
                ("remapped_rows_uncorrectable_total", "rows", None),
                ("retired_pages_pending", "", 0.0),
                ("retired_pages_single_bit_total", "pages", None),
                ("retired_pages_double_bit_total", "pages", None),
            )
            if row.value(name) is not None
        ) or (Evidence(metric="row_remap_pending", value=None, unit="", expected_high=0.0),)
        if row["dead"] > 0.0:
            return self._beyond_repair(row, evidence)
        waits = "page retirement" if row["retired_pages_pending"] > 0.0 else "row remap"
        return Explanation(
            summary=f"waits for a reset to repair its memory: a {waits} is pending",
            evidence=evidence,
            likely_cause=(
                "A memory error was found and its repair is prepared. The GPU goes on working "
                "and takes new jobs until then."
            ),
            action=Action.RESET_GPU,
            next_steps=(
                "Let the running job end or save a checkpoint, then drain and reset the GPU.",
                "Afterwards the flag must be clear; if a remap fails, replace the GPU.",
            ),
        )

    def _beyond_repair(self, row: RowView, evidence: tuple[Evidence, ...]) -> Explanation:
        pages = row.value("pages")
        what = "a row remap has failed"
        if not row["row_remap_failed"] > 0.0 and pages is not None:
            what = f"{pages:.0f} pages are retired, the table ends at 64"
        return Explanation(
            summary=f"cannot repair its memory any more: {what}",
            evidence=evidence,
            likely_cause=(
                "The spare memory of this GPU is used up, or a row that was replaced failed again."
            ),
            action=Action.REPLACE,
            next_steps=(
                "Drain the node and take the GPU out of service.",
                "Collect nvidia-bug-report.sh and ask the vendor for a replacement.",
            ),
        )


DETECTOR = RowRemap
