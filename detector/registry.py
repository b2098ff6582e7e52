"""Finds the detectors: a file in ``detector/detectors`` that defines ``DETECTOR`` is one.

Discovery is a function call. A table filled by the side effect of an import would be emptied by
the next clean-up of unused imports.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any

import detector.detectors
from detector.base import Detector
from detector.cohort.listing import COHORT_DETECTORS
from detector.settings import DetectorSettings
from detector.shadow import Trial, without_shadow
from schemas.errors import ConfigError

__all__ = ["available", "build", "build_cohort", "detectors_of", "trial_of"]


def available() -> dict[str, type[Detector]]:
    """Return name to class of every detector found, sorted by name."""
    found: dict[str, type[Detector]] = {}
    for module_info in pkgutil.iter_modules(detector.detectors.__path__):
        module = importlib.import_module(f"detector.detectors.{module_info.name}")
        found[module.DETECTOR.name] = module.DETECTOR
    return dict(sorted(found.items()))


def build(
    parameters: Mapping[str, Mapping[str, Any]] | None = None, disabled: Iterable[str] = ()
) -> tuple[Detector, ...]:
    """Make the detectors with their parameters.

    Parameters
    ----------
    parameters
        Detector name to overrides of its fields.
    disabled
        Names to leave out.

    Raises
    ------
    ConfigError
        If a detector or a parameter is unknown, or a value is refused.
    """
    classes = available()
    overrides = parameters or {}
    for name in [*overrides, *disabled]:
        if name not in classes:
            raise ConfigError(f"There is no detector {name!r}.{_nearest(name, classes)}")
    left_out = set(disabled)
    return tuple(
        _make(cls, overrides.get(name, {})) for name, cls in classes.items() if name not in left_out
    )


def build_cohort(
    parameters: Mapping[str, Mapping[str, Any]] | None = None, disabled: Iterable[str] = ()
) -> tuple[Detector, ...]:
    """Make the cohort tier's detectors that are not disabled. Raises ConfigError."""
    left_out, overrides = set(disabled), parameters or {}
    return tuple(
        _make(cls, overrides.get(cls.name, {}))
        for cls in COHORT_DETECTORS
        if cls.name not in left_out
    )


def detectors_of(
    settings: DetectorSettings,
) -> tuple[tuple[Detector, ...], tuple[Detector, ...]]:
    """Make the stream detectors, and those of the cohort tier, without the disabled ones.

    Raises
    ------
    ConfigError
        If a name or parameter is unknown.
    """
    given = without_shadow(settings.parameters)
    cohort = build_cohort(given, settings.disabled)
    names = {cls.name for cls in COHORT_DETECTORS}
    parameters = {key: value for key, value in given.items() if key not in names}
    disabled = [key for key in settings.disabled if key not in names]
    return build(parameters, disabled), cohort


def trial_of(settings: DetectorSettings) -> Trial:
    """Find the detectors on trial: ``shadow = true`` among their parameters.

    Raises
    ------
    ConfigError
        If a name or parameter is unknown, or a switch is neither true nor false.
    """
    stream, cohort = detectors_of(settings)
    return Trial.of([*stream, *cohort], settings.parameters)


def _make(cls: type[Detector], values: Mapping[str, Any]) -> Detector:
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]  # all are dataclasses
    known = list(fields)
    for key, value in values.items():
        if key not in known:
            raise ConfigError(
                f"The detector {cls.name!r} has no parameter {key!r}.{_nearest(key, known)}"
            )
        _check(cls.name, key, value, whole=isinstance(fields[key].default, int))
    try:
        return cls(**values)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"The detector {cls.name!r} refuses its parameters: {exc}.") from exc


def _check(name: str, key: str, value: Any, *, whole: bool) -> None:
    """Refuse what is no number of the right kind. Every parameter is a size, a time or a share."""
    wanted = "a whole number of at least 0" if whole else "a number of at least 0"
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < math.inf:
        raise ConfigError(
            f"The parameter {key!r} of the detector {name!r} must be {wanted}, got {value!r}."
        )


def _nearest(word: str, words: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(words), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
