"""One reading for a person: what would be published, without a bus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import orjson

from collector.batching import Batching, NodeBatcher
from collector.health import sentence_of
from collector.settings import CollectorSettings
from collector.source import JobSource, Reading, Source
from collector.truth import refuse_impossible
from schemas.codec import encode
from schemas.metrics import METRICS

__all__ = ["as_json", "as_text", "read_once"]


def read_once(source: Source, ts_ms: int, jobs: JobSource | None = None) -> list[Reading]:
    """Read a source once, as the agent would.

    Parameters
    ----------
    source
        Open; it stays so.
    ts_ms
        Now, unix milliseconds.
    jobs
        Knows the jobs, where the source does not.
    """
    found = []
    for reading in source.read(ts_ms):
        checked, _ = refuse_impossible(reading)
        if jobs is not None and checked.jobs is None and checked.gpus:
            found.append(_with_jobs(checked, jobs))
        else:
            found.append(checked)
    return found


def _with_jobs(reading: Reading, jobs: JobSource) -> Reading:
    return replace(reading, jobs=jobs.jobs(reading.ts, reading.gpus, reading.pids))


def as_json(
    readings: Sequence[Reading], settings: CollectorSettings, kind: str, node: dict[str, float]
) -> str:
    """Return the messages that would be published, and the numbers of the machine.

    Returns
    -------
    str
        ``{"samples": [NodeSample, ...], "node": {name: number}}``, indented.
    """
    samples = []
    for reading in readings:
        rules = Batching(
            interval_seconds=settings.interval_seconds,
            flush_seconds=settings.flush_seconds,
            keyframe_seconds=settings.keyframe_seconds,
            source=kind,
            labels=settings.labels,
            expected_gpus=settings.expected_gpus,
        )
        batcher = NodeBatcher(reading.node, "once", rules)
        samples += [encode(s) for s in (*batcher.add(reading), *batcher.flush())]
    whole = {"samples": [orjson.loads(sample) for sample in samples], "node": node}
    return json.dumps(whole, indent=2, ensure_ascii=False)


def as_text(readings: Sequence[Reading]) -> str:
    """Return the readings as a table per GPU: metric, value, unit; then why the rest is missing."""
    lines: list[str] = []
    for reading in readings:
        lines.append(f"{reading.node}: {sentence_of(reading.state, alive=True, waiting=0)}")
        models = {facts.gpu: facts.model for facts in reading.inventory.gpus}
        for place, gpu in enumerate(reading.gpus):
            lines.append(f"  {gpu} {models.get(gpu) or ''}".rstrip())
            for name, column in reading.values.items():
                value = column[place]
                if value is not None:
                    lines.append(f"    {name:38s} {value:>20,.6g}")
                elif (code := reading.status.get(name, {}).get(place)) != "unsupported":
                    lines.append(f"    {name:38s} {code or 'missing':>20s}")
        if reading.gpus:
            absent = sorted(set(METRICS) - set(reading.values))
            lines.append(f"  not offered here: {', '.join(absent) or 'nothing'}")
    return "\n".join(lines)
