"""Recorded telemetry as messages, without a bus: what an in-process replay feeds on."""

from __future__ import annotations

from collections.abc import Iterator

from collector.batching import Batching, NodeBatcher
from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from schemas.sample import NodeSample

__all__ = ["iter_samples", "samples_of"]

# Inventory and jobs are repeated this often, as a live collector does.
_KEYFRAME_SECONDS = 60.0


def iter_samples(settings: ReplaySettings, *, flush_seconds: float = 0.0) -> Iterator[NodeSample]:
    """Read recordings as the messages that a collector would have sent.

    Parameters
    ----------
    settings
        Files, format, column map, time zone, name of the node.
    flush_seconds
        Ticks of this many seconds of event time travel in one message; 0: one tick each.

    Raises
    ------
    SourceError
        If a file cannot be read or understood; before the first message is given out.
    """
    return samples_of(ReplaySource(settings), flush_seconds=flush_seconds)


def samples_of(source: ReplaySource, *, flush_seconds: float = 0.0) -> Iterator[NodeSample]:
    """Read an open source to its end, and close it. The messages are the same every time."""
    rules = Batching(
        interval_seconds=source.interval_seconds,
        flush_seconds=flush_seconds,
        keyframe_seconds=_KEYFRAME_SECONDS,
        source=source.kind,
    )
    batchers: dict[str, NodeBatcher] = {}
    boot_id = source.boot_id
    try:
        while not source.exhausted:
            readings = source.read(0)
            if source.boot_id != boot_id:
                yield from _flush(batchers)
                batchers.clear()
                boot_id = source.boot_id
            for reading in readings:
                batcher = batchers.get(reading.node)
                if batcher is None:
                    batcher = NodeBatcher(reading.node, boot_id or "", rules)
                    batchers[reading.node] = batcher
                yield from batcher.add(reading)
        yield from _flush(batchers)
    finally:
        source.close()


def _flush(batchers: dict[str, NodeBatcher]) -> Iterator[NodeSample]:
    for batcher in batchers.values():
        yield from batcher.flush()
