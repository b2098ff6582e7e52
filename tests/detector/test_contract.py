"""What holds for every detector. A new file in ``detector/detectors`` is tested without a new test.

The idea of rules as small checks over all implementations is river's.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from detector.base import Detector
from detector.cohort.listing import COHORT_DETECTORS
from detector.contract import CHECKS, Material, declared, rows, stepping
from detector.contract.material import scores, steps
from detector.contract.telemetry import rough, samples_of
from detector.pipeline import Pipeline
from detector.registry import available, build, build_cohort
from detector.settings import DetectorSettings
from schemas.codec import decode_alert, encode
from schemas.errors import ConfigError


@pytest.fixture(params=sorted(available()))
def detector(request: pytest.FixtureRequest) -> Detector:
    name: str = request.param
    return available()[name]()


# -- the rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", list(CHECKS))
def test_every_detector_holds_every_rule(detector: Detector, rule: str) -> None:
    CHECKS[rule](detector, Material())


def test_there_are_rules_and_each_is_said_in_a_sentence() -> None:
    assert len(CHECKS) >= 19
    modules = (stepping, rows, declared)
    written = {name for module in modules for name in dir(module) if name.startswith("check_")}
    assert {f"check_{rule}" for rule in CHECKS} == written
    for rule, check in CHECKS.items():
        assert (check.__doc__ or "").strip(), rule


_NO_NUMBER = re.compile(r"\b(nan|inf|infinity|none)\b", re.IGNORECASE)


def test_alerts_on_rough_telemetry_pass_the_contract() -> None:
    """Whole events, with opening, escalation and end, through the pipeline and the codec."""
    found = []
    for seed in range(4):
        found += Pipeline().feed(samples_of(rough(seed, nodes=3, gpus=5, ticks=120), 10.0))
    assert {alert.state for alert in found} == {"firing", "resolved"}
    for alert in found:
        assert decode_alert(encode(alert)) == alert
        assert not _NO_NUMBER.search(alert.summary), alert.summary
        assert 0.0 <= alert.score <= 1.0


def test_no_two_detectors_say_the_same_thing() -> None:
    """One fingerprint, one speaker: family, kind and scope are unique."""
    said = [(d.family, spec.kind, d.scope) for d in build() for spec in d.kinds]
    assert len(said) == len(set(said))


def test_name_is_that_of_the_file(detector: Detector) -> None:
    assert type(detector).__module__ == f"detector.detectors.{detector.name}"


# -- parameters ------------------------------------------------------------------------------------

COHORT = {cls.name: cls for cls in COHORT_DETECTORS}
CONFIGURABLE: dict[str, Any] = {**available(), **COHORT}
PARAMETERS = [
    (name, parameter.name)
    for name, cls in CONFIGURABLE.items()
    for parameter in dataclasses.fields(cls)
]


def make(name: str, **values: object) -> Detector:
    """Make one detector the way the settings do."""
    if name in COHORT:
        return next(d for d in build_cohort({name: values}) if d.name == name)
    return next(d for d in build({name: values}) if d.name == name)


def nearby(default: float) -> list[float]:
    """Other values that may be allowed, an integer for an integer."""
    if isinstance(default, int):
        return [default + 1, default - 1]
    return [default * 1.01, default * 0.99, default + 0.5]


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_every_parameter_can_be_set(name: str, parameter: str) -> None:
    default = getattr(CONFIGURABLE[name](), parameter)

    def taken(value: float) -> bool:
        try:
            return bool(getattr(make(name, **{parameter: value}), parameter) == value)
        except ConfigError:
            return False

    assert taken(default)
    assert any(taken(value) for value in nearby(default))


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
@pytest.mark.parametrize("value", ["many", None, True, -1, math.nan, math.inf, [1]])
def test_nonsense_is_refused_with_the_parameters_name(
    name: str, parameter: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=parameter):
        make(name, **{parameter: value})


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_zero_is_refused_or_does_no_harm(name: str, parameter: str) -> None:
    try:
        subject = make(name, **{parameter: 0})
    except ConfigError:
        return
    if name in COHORT:
        return
    for _, _, step in steps(subject, Material()):
        assert all(not np.isinf(score).any() for score in scores(step).values())


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_a_misspelt_parameter_is_refused_with_a_suggestion(name: str, parameter: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{parameter}'"):
        make(name, **{parameter + "x": 1.0})


@pytest.mark.parametrize("name", sorted(available()))
def test_a_misspelt_detector_is_refused_with_a_suggestion(name: str) -> None:
    refuse: list[Callable[[], object]] = [
        lambda: build({name + "x": {}}),
        lambda: build(disabled=[name + "x"]),
        lambda: Pipeline(DetectorSettings(disabled=(name + "x",))),
    ]
    for attempt in refuse:
        with pytest.raises(ConfigError, match=f"Did you mean '{name}'"):
            attempt()


@pytest.mark.parametrize("name", sorted(available()))
def test_a_disabled_detector_is_left_out(name: str) -> None:
    assert {d.name for d in build(disabled=[name])} == set(available()) - {name}
