"""The frame: what a detector sees of one round, one row per GPU present.

A batch with several ticks of one GPU is cut into rounds so that a frame holds each GPU at most
once; all GPUs of one node and tick stand in one frame, in one block, so peers can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from detector.arrays import BoolArray, FloatArray, IntArray
from schemas.metrics import METRIC_INDEX
from schemas.sample import SampleEvent

__all__ = ["MISSING_CODE", "Frame"]

_T = TypeVar("_T")

#: Code of an unknown model or job.
MISSING_CODE = -1


@dataclass(slots=True, kw_only=True)
class Frame:
    """One round.

    Parameters
    ----------
    rows
        (n,) rows of the fleet table, each once.
    span
        The same as a slice, if they are one ascending piece of the table, else None.
    ts
        (n,) event time, unix milliseconds.
    dt
        (n,) seconds since the row's previous frame; NaN at the first and after a clock step.
    interval
        (n,) usual seconds between the row's frames, NaN at the first.
    x
        (metrics, n) values in catalogue order, float64, NaN = missing.
    offered
        Catalogue indices of the metrics that any message of the round carried; the other rows
        of ``x`` are NaN throughout.
    blocks
        (k, g) positions in this frame of the GPUs of each of k nodes, -1 as padding.
    lost
        (n,) the driver answered GPU_IS_LOST for this GPU.
    absent
        (n,) the GPU is known and expected, and the node no longer lists it.
    gone
        (n,) the node no longer lists the GPU, expected or not; its values are NaN.
    mig_parent, mig_instance
        (n,) the GPU is partitioned, or is such a partition.
    model, job
        (n,) codes, -1 where unknown. Equal codes mean equal models or jobs.
    events
        (position, event) of what happened since the previous frame: to GPUs in a frame of GPUs,
        to nodes, or to GPUs that the node never listed, in a frame of nodes.
    members
        In a frame of nodes: the frame of their GPUs, whose k-th block belongs to the k-th row.
    members_open
        In a frame of nodes: "family/kind" to (GPUs,), whether that alert of the GPU is open.
    members_holding
        The same for alerts whose condition still holds, without those that only wait to end;
        only kinds of which some alert is open.
    extra
        Columns that are no metrics, by name, (n,) each: facts of the inventory
        (:data:`detector.fleet.FACTS`), ``uptime_seconds`` of the node, ``implausible_readings``
        of this round and ``implausible_metric`` (catalogue index of one of them) in a frame of
        GPUs; ``expected_gpus``, ``known_gpus``, ``listed_gpus`` (by this message, partitions left
        out), ``collector_state`` (index into :class:`~schemas.sample.CollectorState`),
        ``nvml_error``, ``uptime_seconds``, ``message_seconds`` (between messages),
        ``silent_seconds`` (0 for a node that speaks) and ``arrival_seconds`` (from the event to
        the arrival, NaN where the wall clock means nothing) in a frame of nodes.

    derived
        What :meth:`once` has made; nothing of it is in a frame that nobody has looked at.

    Examples
    --------
    >>> frame = Frame.of(metrics={"power_watts": [70.0, 71.0]}, ts=[1000, 1000])
    >>> frame["power_watts"]
    array([70., 71.])
    >>> bool(np.isnan(frame["temperature_celsius"]).all())
    True
    """

    rows: IntArray
    ts: IntArray
    dt: FloatArray
    interval: FloatArray
    x: FloatArray
    offered: IntArray
    blocks: IntArray
    lost: BoolArray
    absent: BoolArray
    gone: BoolArray
    mig_parent: BoolArray
    mig_instance: BoolArray
    model: IntArray
    job: IntArray
    events: tuple[tuple[int, SampleEvent], ...] = ()
    span: slice | None = None
    members: Frame | None = None
    members_open: dict[str, BoolArray] = field(default_factory=dict)
    members_holding: dict[str, BoolArray] = field(default_factory=dict)
    extra: dict[str, FloatArray] = field(default_factory=dict)
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> FloatArray:
        """Return one column, (n,). KeyError for a name that is neither metric nor extra."""
        if name in self.extra:
            return self.extra[name]
        column: FloatArray = self.x[METRIC_INDEX[name]]
        return column

    @property
    def at(self) -> slice | IntArray:
        """Index of the frame's rows in the arrays of a table: a slice, if there is one."""
        return self.rows if self.span is None else self.span

    def once(self, name: str, make: Callable[[], _T]) -> _T:
        """Return a value derived from this frame alone, made by the first who asks for it.

        Parameters
        ----------
        name
            The same for the same value only: it names what is made, with its parameters.
        """
        if name not in self.derived:
            self.derived[name] = make()
        value: _T = self.derived[name]
        return value

    @property
    def elapsed(self) -> FloatArray:
        """(n,) seconds that this sample speaks for: dt, 0 at the first, at most 3 intervals.

        The cap keeps a gap in the telemetry from counting as time in which a condition held.
        """
        return self.once("elapsed", self._elapsed)

    def _elapsed(self) -> FloatArray:
        capped = np.minimum(self.dt, 3.0 * self.interval)
        return np.where(np.isfinite(capped), capped, 0.0)

    @classmethod
    def of(
        cls,
        *,
        metrics: dict[str, list[float]],
        ts: list[int],
        dt: float = np.nan,
        nodes: int = 1,
    ) -> Frame:
        """Build a plain frame for tests and examples: equal nodes, nothing special.

        Parameters
        ----------
        metrics
            Name to n values.
        ts
            n event times in unix milliseconds.
        dt
            Seconds since the previous frame, the same for all.
        nodes
            Number of nodes over which the rows are spread evenly.
        """
        n = len(ts)
        x = np.full((len(METRIC_INDEX), n), np.nan)
        for name, values in metrics.items():
            x[METRIC_INDEX[name]] = values
        flags = np.zeros(n, dtype=bool)
        return cls(
            rows=np.arange(n),
            ts=np.array(ts, dtype=np.int64),
            dt=np.full(n, dt),
            interval=np.full(n, dt),
            x=x,
            offered=np.array(sorted(METRIC_INDEX[name] for name in metrics), dtype=np.int64),
            blocks=np.arange(n).reshape(nodes, -1),
            lost=flags,
            absent=flags.copy(),
            gone=flags.copy(),
            mig_parent=flags.copy(),
            mig_instance=flags.copy(),
            model=np.zeros(n, dtype=np.int64),
            job=np.full(n, MISSING_CODE, dtype=np.int64),
        )
