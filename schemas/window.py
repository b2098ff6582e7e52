"""WindowBatch: one node's GPUs of one cohort over ten seconds. The message on ``gpu.windows``.

Windows are what the slow tier and the live view read: a hundredth of the samples' volume, and
keyed by job, so that all GPUs of one job meet in one partition whatever node they are on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["WINDOW_MS", "WINDOW_SCHEMA", "MetricWindow", "WindowBatch", "WindowSource"]

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
    m: dict[str, MetricWindow]
    job: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    schema: str = WINDOW_SCHEMA
