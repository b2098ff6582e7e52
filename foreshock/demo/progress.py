"""What the demo has seen so far: alerts, deliveries, samples. Pure state for the view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from collector.simulated.faults import Truth
from foreshock.demo.receiver import Delivery
from foreshock.demo.scoring import Score, SeenAlert, score, seen_alerts
from schemas.alert import AlertEvent

__all__ = ["Progress", "place_of"]

#: Wall seconds that an alert may be on its way before its absence counts.
SETTLING_SECONDS = 3.0


def place_of(node: str | None, gpu_index: int | None, job: str | None = None) -> str:
    """Name an entity in a few words.

    Examples
    --------
    >>> place_of("sim-01", 3)
    'sim-01 GPU 3'
    """
    if node is None:
        return job or "fleet"
    return node if gpu_index is None else f"{node} GPU {gpu_index}"


@dataclass(slots=True, kw_only=True)
class Progress:
    """Everything seen since the start.

    Parameters
    ----------
    truths
        The schedule.
    gpu_index
        UUID to index, to name GPUs as people do.
    events
        Alert events in the order of arrival.
    deliveries
        What the receiver got, in the order of arrival.
    samples
        GPU samples read.
    """

    truths: tuple[Truth, ...]
    gpu_index: dict[str, int]
    events: list[AlertEvent] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    samples: int = 0

    def scored(self, now_ms: int, speed: float) -> Score:
        """Compare what was alerted with the schedule.

        Parameters
        ----------
        now_ms
            Simulated time, unix milliseconds.
        speed
            Simulated seconds per wall second; an alert may still be on its way.
        """
        answered = now_ms - round(SETTLING_SECONDS * speed * 1000)
        return score(self.truths, seen_alerts(self.events), answered)

    def truth_place(self, truth: Truth) -> str:
        """Name the entity of a fault."""
        if len(truth.gpu_uuids) != 1:
            return truth.node
        return place_of(truth.node, self.gpu_index.get(truth.gpu_uuids[0]))

    def event_place(self, event: AlertEvent) -> str:
        """Name the entity of an alert event."""
        subject = event.subject
        index = self.gpu_index.get(subject.gpu_uuid or "", subject.gpu_index)
        return place_of(subject.node, index, subject.job)

    def alert_place(self, alert: SeenAlert) -> str:
        """Name the entity of an alert."""
        return place_of(alert.node, self.gpu_index.get(alert.gpu_uuid or ""))

    def delivered(self) -> tuple[int, int]:
        """Count distinct deliveries and those of them whose signature held."""
        ids = {d.webhook_id for d in self.deliveries}
        good = {d.webhook_id for d in self.deliveries if d.verified}
        return len(ids), len(good)

    def newest_events(self, count: int) -> Sequence[AlertEvent]:
        """Return the last ``count`` events, newest last."""
        return self.events[-count:]
