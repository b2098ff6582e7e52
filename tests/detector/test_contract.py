"""What holds for every detector. A new file in ``detector/detectors`` is tested without a new test.

The idea of rules as small checks over all implementations is river's.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from contract_telemetry import (
    frames_for,
    frames_of,
    healthy,
    rough,
    samples_of,
    take,
    without,
)

from detector.arrays import StateTable
from detector.base import AnyArray, Detector, RowView, Step
from detector.cohort.multivariate import Multivariate
from detector.engine import Engine
from detector.episodes import EPISODE_FIELDS, Change, advance, firing_rows
from detector.frame import Frame
from detector.pipeline import Pipeline
from detector.registry import available, build, build_cohort
from detector.settings import DetectorSettings
from schemas.alert import FAMILIES, Action, Scope, Severity
from schemas.codec import decode_alert, encode
from schemas.errors import ConfigError
from schemas.metrics import METRICS
from schemas.sample import CollectorStatus

State = dict[str, AnyArray]


@pytest.fixture(params=sorted(available()))
def detector(request: pytest.FixtureRequest) -> Detector:
    name: str = request.param
    return available()[name]()


def fresh(detector: Detector, rows: int) -> State:
    return {name: spec.make(rows) for name, spec in detector.fields().items()}


def quiet(detector: Detector, rows: int) -> dict[str, Any]:
    return {spec.kind: np.zeros(rows, dtype=bool) for spec in detector.kinds}


def steps(detector: Detector, seed: int = 1) -> Iterator[tuple[Frame, State, Step]]:
    """Run over rough frames: each frame, the state before it, and the step.

    All arrays given to the detector are read-only.
    """
    frames = frames_for(detector, seed)
    state = fresh(detector, len(frames[0]))
    for frame in frames:
        for array in state.values():
            array.flags.writeable = False
        step = detector.step(frame, state, quiet(detector, len(frame)))
        yield frame, state, step
        state = {**state, **step.state}


def assert_same(a: Mapping[str, AnyArray], b: Mapping[str, AnyArray], why: str) -> None:
    assert set(a) == set(b), why
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=f"{why}: {name}")


def scores(step: Step) -> dict[str, AnyArray]:
    return {kind: judged.score for kind, judged in step.judgements.items()}


def frozen(frame: Frame) -> dict[str, AnyArray]:
    arrays = {f.name: getattr(frame, f.name) for f in dataclasses.fields(frame)}
    arrays.pop("extra")
    return {name: np.array(array) for name, array in arrays.items()}


# -- the step --------------------------------------------------------------------------------------


def test_step_is_pure_and_repeatable(detector: Detector) -> None:
    for frame, state, step in steps(detector):
        firing = quiet(detector, len(frame))
        before = frozen(frame), {k: v.copy() for k, v in state.items()}
        again = detector.step(frame, state, firing)
        assert_same(frozen(frame), before[0], "the frame was changed")
        assert_same(state, before[1], "the state was changed")
        assert not any(flags.any() for flags in firing.values())
        assert_same(scores(again), scores(step), "another score for the same input")
        assert_same(again.state, step.state, "another state for the same input")


def test_scores_are_finite_or_missing_and_never_negative(detector: Detector) -> None:
    for frame, _, step in steps(detector):
        assert set(step.judgements) == {spec.kind for spec in detector.kinds}
        for judged in step.judgements.values():
            assert judged.score.shape == (len(frame),)
            known = judged.score[~np.isnan(judged.score)]
            assert np.isfinite(known).all()
            assert (known >= 0.0).all()


def test_severity_is_a_rank_for_every_row(detector: Detector) -> None:
    for frame, _, step in steps(detector):
        for judged in step.judgements.values():
            assert judged.severity.dtype == np.int8
            assert judged.severity.shape == (len(frame),)
            assert set(judged.severity.tolist()) <= {severity.rank for severity in Severity}


def test_state_is_what_was_declared(detector: Detector) -> None:
    declared = detector.fields()
    for frame, _, step in steps(detector):
        assert set(step.state) == set(declared)
        for name, array in step.state.items():
            assert array.dtype == np.dtype(declared[name].dtype), name
            assert len(array) == len(frame), name
            assert array.shape == declared[name].make(len(frame)).shape, name
        for name, column in step.columns.items():
            assert np.shape(column) == (len(frame),), name


def test_a_missing_reading_neither_opens_nor_resolves_nor_changes_state(
    detector: Detector,
) -> None:
    for frame, state, _ in steps(detector):
        blank = take(frame, list(range(len(frame))))
        dark = np.arange(len(frame)) % 3 == 0
        blank.x[:, dark] = np.nan
        for flags in (blank.lost, blank.absent, blank.gone):
            flags[dark] = False
        for column in blank.extra.values():
            column[dark] = np.nan
        blank.events = tuple((at, event) for at, event in blank.events if not dark[at])
        step = detector.step(blank, state, quiet(detector, len(frame)))
        for kind, judged in step.judgements.items():
            said = judged.score[dark]
            assert (np.isnan(said) | (said == 0.0)).all(), kind
        for name, array in step.state.items():
            assert array[dark].tobytes() == state[name][dark].tobytes(), name


def test_an_empty_frame_is_judged(detector: Detector) -> None:
    frame = take(frames_for(detector)[0], [0])
    none = dataclasses.replace(
        frame,
        **{name: getattr(frame, name)[:0] for name in ("rows", "ts", "dt", "interval", "lost")},
        **{name: getattr(frame, name)[:0] for name in ("absent", "gone", "model", "job")},
        **{name: getattr(frame, name)[:0] for name in ("mig_parent", "mig_instance")},
        x=frame.x[:, :0],
        blocks=np.zeros((1, 0), dtype=np.int64),
        extra={name: column[:0] for name, column in frame.extra.items()},
    )
    step = detector.step(none, fresh(detector, 0), quiet(detector, 0))
    assert all(judged.score.shape == (0,) for judged in step.judgements.values())


# -- rows ------------------------------------------------------------------------------------------


def test_the_order_of_rows_and_nodes_does_not_matter(detector: Detector) -> None:
    rng = np.random.default_rng(5)
    for frame, state, step in steps(detector):
        order = rng.permutation(len(frame))
        moved = detector.step(
            take(frame, order), {k: v[order] for k, v in state.items()}, quiet(detector, len(frame))
        )
        expected = {kind: score[order] for kind, score in scores(step).items()}
        assert_same(scores(moved), expected, "scores depend on the order")
        assert_same(moved.state, {k: v[order] for k, v in step.state.items()}, "so does the state")


def test_a_row_does_not_depend_on_other_nodes(detector: Detector) -> None:
    for frame, state, step in steps(detector):
        for block in frame.blocks:
            mine = block[block >= 0]
            alone = detector.step(
                take(frame, mine),
                {k: v[mine] for k, v in state.items()},
                quiet(detector, len(mine)),
            )
            expected = {kind: score[mine] for kind, score in scores(step).items()}
            assert_same(scores(alone), expected, "another node changed a score")


def test_a_row_depends_on_other_rows_only_where_peers_is_declared(detector: Detector) -> None:
    if detector.peers:
        assert detector.scope == Scope.GPU
        return
    for frame, state, step in steps(detector):
        for row in range(0, len(frame), 4):
            alone = detector.step(
                take(frame, [row]), {k: v[[row]] for k, v in state.items()}, quiet(detector, 1)
            )
            expected = {kind: score[[row]] for kind, score in scores(step).items()}
            assert_same(scores(alone), expected, "another row changed a score")


def test_the_magnitude_of_gaps_breaks_nothing(detector: Detector) -> None:
    """First samples, clock steps, equal times, an hour away."""
    for dt in (math.nan, 0.0, 1e-3, 3600.0, 1e7):
        for frame, state, _ in steps(detector):
            jumped = dataclasses.replace(frame, dt=np.full(len(frame), dt))
            step = detector.step(jumped, state, quiet(detector, len(frame)))
            for score in scores(step).values():
                assert not np.isinf(score).any()
            assert_same(
                {k: np.isinf(v) for k, v in step.state.items()},
                {k: np.zeros(v.shape, dtype=bool) for k, v in step.state.items()},
                "infinite state",
            )


def test_gpus_come_and_go(detector: Detector) -> None:
    """Through the engine: fewer, none, a blind collector, others, and all of them again."""
    engine = Engine([detector], topic="gpu.samples", partition=0)
    samples = samples_of(rough(3, nodes=2, gpus=4, ticks=40), 10.0)
    shown = {0: 4, 1: 2, 2: 0, 3: 3, 4: 4}
    for number, sample in enumerate(samples):
        count = shown[number // 2 * 5 // 40 % 5]
        states = ("ok", "blind")[number // 30 % 2]
        engine.process(
            [
                dataclasses.replace(
                    sample,
                    gpu=sample.gpu[:count],
                    m={name: values[:count] for name, values in sample.m.items()},
                    collector=CollectorStatus(state=states),
                )
            ]
        )
    for name, array in engine.dump()[1].items():
        if array.dtype.kind == "f":
            assert not np.isinf(array).any() or name.startswith("windows/"), name


# -- what people get -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def healthy_frames() -> tuple[list[Frame], list[Frame]]:
    """One hour of six healthy 8-GPU nodes, each with its own random numbers, every 2 s."""
    values = healthy(11, nodes=6, gpus=8, ticks=1800, interval=2.0)
    samples = [
        dataclasses.replace(
            sample,
            inventory=sample.inventory
            and dataclasses.replace(sample.inventory, expected_gpus=len(sample.gpu)),
        )
        for sample in samples_of(values, 2.0)
    ]
    return frames_of(samples)


def test_quiet_on_a_healthy_hour(
    detector: Detector, healthy_frames: tuple[list[Frame], list[Frame]]
) -> None:
    frames = healthy_frames[0] if detector.scope == Scope.GPU else healthy_frames[1]
    state = fresh(detector, len(frames[0]))
    episodes = {spec.kind: StateTable(EPISODE_FIELDS) for spec in detector.kinds}
    for table in episodes.values():
        table.grow(len(frames[0]))
    for frame in frames:
        firing = {kind: firing_rows(table, frame.rows) for kind, table in episodes.items()}
        step = detector.step(frame, state, firing)
        state = {**state, **step.state}
        for spec in detector.kinds:
            for moved in advance(episodes[spec.kind], spec, frame, step.judgements[spec.kind]):
                assert moved.severity < Severity.WARNING.rank, (spec.kind, moved)


_NO_NUMBER = re.compile(r"\b(nan|inf|infinity|none)\b", re.IGNORECASE)


def _check_words(detector: Detector, kind: str, row: RowView) -> None:
    said = detector.explain(kind, row)
    sentences = (said.summary, said.likely_cause, *said.next_steps)
    for sentence in sentences:
        assert sentence, kind
        assert not _NO_NUMBER.search(sentence), sentence
    assert not said.summary.endswith("."), "the full stop is put after the summary"
    assert not said.summary[0].isupper(), "the summary goes on after the GPU's name"
    assert said.action in set(Action)
    assert said.evidence
    assert said.next_steps
    assert set(said.unmeasured) <= set(METRICS)
    for item in said.evidence:
        numbers = dataclasses.asdict(item)
        for name in ("value", "expected_low", "expected_high", "baseline", "peers"):
            number = numbers[name]
            assert number is None or math.isfinite(number), (item.metric, name)


def _check_alone(detector: Detector, frame: Frame, state: State) -> None:
    """Word a row that nobody stands beside, as at the end of the only alert of a fleet."""
    row = [int(frame.ts[0] // 10_000) % len(frame)]
    alone = take(frame, row)
    step = detector.step(alone, {k: v[row] for k, v in state.items()}, quiet(detector, 1))
    for kind, judged in step.judgements.items():
        if np.isfinite(judged.score[0]):
            _check_words(detector, kind, RowView(alone, step, 0))


def test_every_kind_is_worded_for_every_row_that_may_speak(detector: Detector) -> None:
    """Also at the end of an alert, when the numbers are small again and others are missing."""
    worded = set()
    for frame, state, _ in steps(detector):
        for missing in ((), *[(name,) for name in detector.helps], detector.helps):
            partly = without(frame, missing)
            step = detector.step(partly, state, quiet(detector, len(frame)))
            for kind, judged in step.judgements.items():
                known = np.flatnonzero(np.isfinite(judged.score))
                for position in known[:: max(1, len(known) // 4)].tolist():
                    _check_words(detector, kind, RowView(partly, step, position))
                    worded.add(kind)
            _check_alone(detector, partly, state)
    assert worded == {spec.kind for spec in detector.kinds}


def test_each_detector_reaches_enter_on_rough_telemetry(detector: Detector) -> None:
    """Else the rules above were tested on rows that never speak."""
    reached = {
        spec.kind
        for seed in (1, 2)
        for _, _, step in steps(detector, seed)
        for spec in detector.kinds
        if (step.judgements[spec.kind].score >= spec.enter).any()
    }
    assert reached == {spec.kind for spec in detector.kinds}


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


def test_kinds_are_words_of_the_contract_with_sane_rules(detector: Detector) -> None:
    assert detector.kinds
    for spec in detector.kinds:
        assert spec.kind in FAMILIES[detector.family]
        assert 0.0 < spec.exit <= spec.enter
        assert spec.enter_seconds >= 0.0
        assert spec.exit_seconds >= 0.0
        assert spec.enter_samples >= 1
    assert Change.OPENED  # the episodes do the rest


def test_no_two_detectors_say_the_same_thing() -> None:
    """One fingerprint, one speaker: family, kind and scope are unique."""
    said = [(d.family, spec.kind, d.scope) for d in build() for spec in d.kinds]
    assert len(said) == len(set(said))


def test_metrics_named_stand_in_the_catalogue(detector: Detector) -> None:
    assert set(detector.needs) <= set(METRICS)
    assert set(detector.helps) <= set(METRICS)
    assert not set(detector.needs) & set(detector.helps)


def test_documented_with_parameters_notes_and_an_example(detector: Detector) -> None:
    text = type(detector).__doc__ or ""
    for section in ("Parameters\n    ---", "Notes\n    ---", "Examples\n    ---", ">>> "):
        assert section in text, section
    for parameter in dataclasses.fields(detector):  # type: ignore[arg-type]  # all are dataclasses
        assert re.search(rf"\b{parameter.name}\b", text), parameter.name
    assert detector.version


def test_name_is_that_of_the_file(detector: Detector) -> None:
    assert type(detector).__module__ == f"detector.detectors.{detector.name}"


# -- parameters ------------------------------------------------------------------------------------

CONFIGURABLE: dict[str, Any] = {**available(), Multivariate.name: Multivariate}
PARAMETERS = [
    (name, parameter.name)
    for name, cls in CONFIGURABLE.items()
    for parameter in dataclasses.fields(cls)
]


def make(name: str, **values: object) -> Detector:
    """Make one detector the way the settings do."""
    if name == Multivariate.name:
        made = build_cohort({name: values})
        assert made is not None
        return made
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
    if name == Multivariate.name:
        return
    for _, _, step in steps(subject):
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
