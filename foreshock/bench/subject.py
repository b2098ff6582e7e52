"""Foreshock itself as one of the detectors under test: messages in, alarms out."""

from __future__ import annotations

import time
from collections.abc import Iterable

from detector.pipeline import Pipeline
from detector.settings import DetectorSettings
from foreshock.bench.messages import messages
from foreshock.bench.scoring import Alarm
from foreshock.bench.world import GPUS, ORIGIN_MS, World
from schemas.alert import AlertEvent, AlertState, Severity, parse_time

__all__ = ["Foreshock", "alarms_of"]


class Foreshock:
    """Both tiers with their defaults, fed as the service feeds them.

    Parameters
    ----------
    settings
        Of the detector; the defaults if None.
    """

    name = "foreshock"

    def __init__(self, settings: DetectorSettings | None = None) -> None:
        self._settings = settings
        self.seconds = 0.0
        self.samples = 0

    def alarms(self, world: World) -> list[Alarm]:
        """Run a world from beginning to end through a fresh detector."""
        pipeline, events = Pipeline(self._settings), []
        for batch in messages(world):
            begin = time.process_time()
            events += pipeline.feed(batch)
            self.seconds += time.process_time() - begin
        events += pipeline.finish()
        self.samples += pipeline.total.counts["gpu_samples"]
        return alarms_of(world, events)


def alarms_of(world: World, events: Iterable[AlertEvent]) -> list[Alarm]:
    """Put the events of each alert together."""
    nodes = {world.name(node): world.first_node + node for node in range(world.nodes)}
    gpus = {
        world.uuid(node, gpu, tick): gpu
        for node in range(world.nodes)
        for gpu in range(GPUS)
        for tick in (0, world.ticks)
    }
    jobs = {
        job: world.first_node + node
        for node, changes in world.jobs.items()
        for _, parts in changes
        for _, job in parts
    }
    told: dict[str, tuple[AlertEvent, dict[int, float]]] = {}
    for event in events:
        if event.state != AlertState.FIRING:
            continue
        at = (parse_time(event.observed_at) - ORIGIN_MS) / 1000.0
        _, ranks = told.setdefault(event.alert_id, (event, {}))
        ranks.setdefault(Severity(event.severity).rank, at)
    out = []
    for event, ranks in told.values():
        subject = event.subject
        node = nodes.get(subject.node or "", jobs.get(subject.job or "", -1))
        gpu = gpus.get(subject.gpu_uuid or "") if subject.scope == "gpu" else None
        said = tuple(sorted(ranks.items()))
        out.append(Alarm(node=node, gpu=gpu, family=event.family, kind=event.kind, at=said))
    return out
