"""Both tiers in one piece, without a bus: for replays, tests and experiments.

The same engine and the same cohort tier as the service, fed by function calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from detector.base import Detector
from detector.cohort.tier import CohortTier
from detector.engine import Engine, Outcome
from detector.registry import detectors_of, trial_of
from detector.settings import DetectorSettings
from schemas.alert import AlertEvent
from schemas.sample import NodeSample
from schemas.topics import SAMPLES

__all__ = ["Pipeline"]


class Pipeline:
    """Feed messages, get alerts.

    Parameters
    ----------
    settings
        Of the detector; the defaults if None.
    watch
        Puts something in a detector's place, to look over its shoulder; see
        :mod:`detector.tracing`.

    Examples
    --------
    >>> pipeline = Pipeline()
    >>> pipeline.feed([])
    []
    """

    def __init__(
        self,
        settings: DetectorSettings | None = None,
        watch: Callable[[Detector], Detector] = lambda detector: detector,
    ) -> None:
        chosen = settings or DetectorSettings()
        stream, cohort = detectors_of(chosen)
        self._trial = trial_of(chosen)
        stream, cohort = tuple(map(watch, stream)), tuple(map(watch, cohort))
        self._engine = Engine(
            stream, topic=SAMPLES.name, partition=0, series_minutes=chosen.series_minutes
        )
        self._cohorts = CohortTier(cohort) if cohort else None
        self.total = Outcome()

    def feed(self, samples: NodeSample | Sequence[NodeSample]) -> list[AlertEvent]:
        """Take one message or several, in order, and return the alerts that changed.

        Parameters
        ----------
        samples
            Messages of one log. Several at a time are faster and give the same alerts.
        """
        batch = [samples] if isinstance(samples, NodeSample) else samples
        outcome = self._engine.process(batch)
        self.total.counts += outcome.counts
        alerts = outcome.alerts
        if self._cohorts is not None:
            alerts += self._cohorts.process(outcome.windows, caught_up=False)
        return self._trial.mark(alerts)

    def finish(self) -> list[AlertEvent]:
        """End the input. Nothing that is incomplete is closed; open alerts stay open."""
        return []
