"""Detectors on trial: computed and recorded, and nobody is told.

``shadow = true`` among a detector's parameters marks its alerts. Those of others never name them
as a cause: what nobody sees explains nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from detector.base import Detector
from schemas.alert import AlertEvent, Scope, Subject, fingerprint_of
from schemas.errors import ConfigError

__all__ = ["NOT_ON_TRIAL", "SHADOW", "Trial", "without_shadow"]

#: The name of the switch; it stands beside a detector's parameters.
SHADOW = "shadow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Which detectors are on trial.

    Parameters
    ----------
    names
        Of the detectors.
    kinds
        (family, kind, scope) of what they alone say.

    Examples
    --------
    >>> NOT_ON_TRIAL.mark([])
    []
    """

    names: frozenset[str] = frozenset()
    kinds: frozenset[tuple[str, str, Scope]] = frozenset()

    @classmethod
    def of(
        cls, detectors: Iterable[Detector], parameters: Mapping[str, Mapping[str, Any]]
    ) -> Trial:
        """Find the switches among the parameters of detectors."""
        names = frozenset(name for name, values in parameters.items() if values.get(SHADOW))
        kinds = frozenset(
            (detector.family, spec.kind, spec.scope or detector.scope)
            for detector in detectors
            if detector.name in names
            for spec in detector.kinds
        )
        return cls(names=names, kinds=kinds)

    def mark(self, alerts: Sequence[AlertEvent]) -> list[AlertEvent]:
        """Mark the alerts of detectors on trial, and take them away as causes of others."""
        if not self.names:
            return list(alerts)
        return [self._marked(alert) for alert in alerts]

    def _marked(self, alert: AlertEvent) -> AlertEvent:
        if alert.detector.name in self.names:
            return replace(alert, shadow=True)
        if alert.caused_by is not None and alert.caused_by in self._unseen(alert.subject):
            return replace(alert, caused_by=None)
        return alert

    def _unseen(self, subject: Subject) -> set[str]:
        """Fingerprints of what the detectors on trial may have said of a subject or its node."""
        node = Subject(scope=Scope.NODE, node=subject.node)
        return {
            fingerprint_of(family, kind, node if scope == Scope.NODE else subject)
            for family, kind, scope in self.kinds
        }


def without_shadow(
    parameters: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return the parameters without the switches.

    Raises
    ------
    ConfigError
        If a switch is neither true nor false.
    """
    for name, values in parameters.items():
        switch = values.get(SHADOW, False)
        if not isinstance(switch, bool):
            raise ConfigError(
                f"The switch {SHADOW!r} of the detector {name!r} must be true or false, "
                f"got {switch!r}."
            )
    return {
        name: {key: value for key, value in values.items() if key != SHADOW}
        for name, values in parameters.items()
    }


#: Nothing is on trial.
NOT_ON_TRIAL = Trial()
