"""WindowBatch: one node's GPUs of one cohort over ten seconds. The message on ``gpu.windows``.

Windows are what the slow tier and the live view read: a hundredth of the samples' volume, and
keyed by job, so that all GPUs of one job meet in one partition whatever node they are on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "WINDOW_MS",
    "WINDOW_SCHEMA",
    "MetricWindow",
    "WindowBatch",
    "WindowColumns",
    "WindowSource",
]

WINDOW_SCHEMA = "gpu.window/1"
WINDOW_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSource:
    """Where the windows come from and how far that source has got.

    Parameters
    ----------
    topic, partition
        Partition of ``gpu.samples`` that fed the window.
    watermark
        Unix milliseconds: every window of this node that ends at or before it has been sent.
    """

    topic: str
    partition: int
    watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricWindow:
    """One metric over the window: G values each, None where a GPU had no reading."""

    mean: list[float | None]
    min: list[float | None]
    max: list[float | None]
    last: list[float | None]


class WindowColumns(Mapping[str, MetricWindow]):
    """The summaries of a window as they were computed, turned into lists only if somebody looks.

    A node closes a hundred rows of numbers every ten seconds, and the encoder takes them as
    they are.

    Parameters
    ----------
    names
        Names of the metrics.
    mean, min, max, last
        (metrics, G) numbers, NaN = missing: contiguous numpy arrays, which orjson can write and
        this package need not import.
    """

    __slots__ = ("_parts", "names")

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        mean: Any,
        min: Any,  # noqa: A002 - the contract's word
        max: Any,  # noqa: A002 - the contract's word
        last: Any,
    ) -> None:
        self.names = names
        self._parts = {"mean": mean, "min": min, "max": max, "last": last}

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the same as plain dictionaries of rows, for the encoder."""
        parts = self._parts.items()
        return {
            name: {part: rows[at] for part, rows in parts} for at, name in enumerate(self.names)
        }

    def __getitem__(self, name: str) -> MetricWindow:
        if name not in self.names:
            raise KeyError(name)
        at = self.names.index(name)
        return MetricWindow(**{part: _listed(rows[at]) for part, rows in self._parts.items()})

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return repr(dict(self))


def _listed(row: Any) -> list[float | None]:
    return [None if math.isnan(value) else value for value in row.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBatch:
    """Ten seconds of some GPUs of one node that belong to one cohort.

    Parameters
    ----------
    cohort
        Job id, else the node's name; the key of the message.
    job
        Job id, or None where none is known.
    start, end
        Unix milliseconds, ``start`` included, ``end`` not; ``start`` is a multiple of 10 000.
    gpu, model
        G UUIDs and their models (None where unknown).
    samples
        Samples that went in, per GPU.
    missing
        Missing readings among them, per GPU, over all metrics that the node offers.
    clock_event_reasons
        Bits seen at any time in the window, combined, per GPU.
    m
        Metric name to its summary. Counters carry the same four numbers of the raw counter.
    """

    cohort: str
    node: str
    start: int
    end: int
    source: WindowSource
    gpu: tuple[str, ...]
    model: tuple[str | None, ...]
    samples: tuple[int, ...]
    missing: tuple[int, ...]
    clock_event_reasons: tuple[int, ...]
    m: Mapping[str, MetricWindow]
    job: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    schema: str = WINDOW_SCHEMA
