"""Both tiers in one piece, without a bus: for replays, tests and experiments.

The same engine and the same cohort tier as the service, fed by function calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from detector.base import Detector
from detector.cohort.multivariate import Multivariate
from detector.cohort.tier import CohortTier
from detector.engine import Engine, Outcome
from detector.registry import build, build_cohort
from detector.settings import DetectorSettings
from schemas.alert import AlertEvent
from schemas.sample import NodeSample
from schemas.topics import SAMPLES

__all__ = ["Pipeline", "detectors_of"]


def detectors_of(settings: DetectorSettings) -> tuple[tuple[Detector, ...], Multivariate | None]:
    """Make the stream detectors, and the cohort detector unless it is disabled.

    Raises
    ------
    ConfigError
        If a name or parameter is unknown.
    """
    cohort = build_cohort(settings.parameters, settings.disabled)
    name = Multivariate.name
    parameters = {key: value for key, value in settings.parameters.items() if key != name}
    disabled = [key for key in settings.disabled if key != name]
    return build(parameters, disabled), cohort


class Pipeline:
    """Feed messages, get alerts.

    Parameters
    ----------
    settings
        Of the detector; the defaults if None.

    Examples
    --------
    >>> pipeline = Pipeline()
    >>> pipeline.feed([])
    []
    """

    def __init__(self, settings: DetectorSettings | None = None) -> None:
        stream, cohort = detectors_of(settings or DetectorSettings())
        self._engine = Engine(stream, topic=SAMPLES.name, partition=0)
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
        return alerts

    def finish(self) -> list[AlertEvent]:
        """End the input. Nothing that is incomplete is closed; open alerts stay open."""
        return []
