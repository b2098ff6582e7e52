"""Episodes: when an alert opens, escalates and resolves, row by row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.arrays import StateTable
from detector.base import Judgement, KindSpec
from detector.episodes import (
    EPISODE_FIELDS,
    FIRING,
    FLAP_EPISODES,
    FLAP_MS,
    QUIET_SECONDS,
    Change,
    Transition,
    advance,
    firing_rows,
    relative_score,
)
from detector.frame import Frame

NAN = float("nan")
T0 = 1_790_000_000_000
SPEC = KindSpec(kind="leak", enter=10.0, exit=5.0, enter_seconds=5.0, exit_seconds=4.0)


def frame_at(
    ts: list[int], dt: list[float], rows: list[int] | None = None, interval: float = 1.0
) -> Frame:
    frame = Frame.of(metrics={}, ts=ts)
    frame.dt = np.array(dt)
    frame.interval = np.full(len(ts), interval)
    if rows is not None:
        frame.rows = np.array(rows)
    return frame


def judged(scores: list[float], severity: int | list[int] = 2) -> Judgement:
    ranks = np.broadcast_to(np.array(severity, dtype=np.int8), (len(scores),)).copy()
    return Judgement(score=np.array(scores, dtype=np.float64), severity=ranks)


def fresh(rows: int = 1) -> StateTable:
    table = StateTable(EPISODE_FIELDS)
    table.grow(rows)
    return table


@dataclass
class Row:
    """One row fed second by second."""

    spec: KindSpec = SPEC
    table: StateTable = field(default_factory=fresh)
    second: int = 0
    log: list[tuple[int, Change]] = field(default_factory=list)
    last: Transition | None = None

    def feed(self, *scores: float, severity: int = 2, dt: float = 1.0) -> Row:
        for score in scores:
            self.second += int(dt)
            frame = frame_at([T0 + self.second * 1000], [dt])
            for moved in advance(self.table, self.spec, frame, judged([score], severity)):
                self.log.append((self.second, moved.change))
                self.last = moved
        return self


def test_opens_after_the_condition_held_for_its_time() -> None:
    row = Row().feed(*[10.0] * 4)
    assert row.log == []
    assert row.feed(10.0).log == [(5, Change.OPENED)]
    assert row.last is not None
    assert row.last.started_ms == T0 + 1000  # the first sample of the condition
    assert row.last.observed_ms == T0 + 5000
    assert row.last.seq == 1


def test_hysteresis_between_exit_and_enter_neither_opens_nor_resolves() -> None:
    assert Row().feed(*[9.9] * 100).log == []
    row = Row().feed(*[10.0] * 5, *[5.0] * 100)
    assert row.log == [(5, Change.OPENED)]


def test_hold_leaks_second_by_second_below_enter() -> None:
    """Three seconds above, two in between, then four are needed again."""
    row = Row().feed(10.0, 10.0, 10.0, 7.0, 7.0)
    assert row.feed(10.0, 10.0, 10.0).log == []
    assert row.feed(10.0).log == [(9, Change.OPENED)]
    assert row.last is not None
    assert row.last.started_ms == T0 + 1000


def test_below_exit_all_that_was_held_is_given_up() -> None:
    row = Row().feed(*[10.0] * 4, 4.9, *[10.0] * 4)
    assert row.log == []
    assert row.feed(10.0).log == [(10, Change.OPENED)]
    assert row.last is not None
    assert row.last.started_ms == T0 + 6000


def test_the_peak_of_an_attempt_that_was_given_up_is_forgotten() -> None:
    row = Row().feed(90.0, 0.0, *[10.0] * 5)
    assert row.last is not None
    assert row.last.score == 0.5


def test_needs_as_many_samples_as_asked_however_long_they_take() -> None:
    spec = KindSpec(kind="lost", enter_seconds=1.0, enter_samples=3)
    assert Row(spec).feed(1.0, 1.0, dt=10.0).log == []
    assert Row(spec).feed(1.0, 1.0, 1.0, dt=10.0).log == [(30, Change.OPENED)]


def test_one_sample_opens_a_hard_fact() -> None:
    row = Row(KindSpec(kind="lost")).feed(1.0)
    assert row.log == [(1, Change.OPENED)]


@pytest.mark.parametrize("before", [[], [10.0, 10.0], [10.0] * 5, [10.0] * 5 + [0.0, 0.0]])
def test_a_missing_score_leaves_everything_as_it_was(before: list[float]) -> None:
    row = Row().feed(*before)
    state = {name: array.copy() for name, array in row.table.dump().items()}
    changes = list(row.log)
    row.feed(*[NAN] * 50)
    assert row.log == changes
    for name, array in row.table.dump().items():
        np.testing.assert_array_equal(array, state[name], err_msg=name)


def test_escalation_is_a_new_seq_of_the_same_episode_and_goes_one_way() -> None:
    row = Row().feed(*[10.0] * 5, severity=2)
    row.feed(10.0, severity=3)
    assert row.log[-1] == (6, Change.ESCALATED)
    assert row.last is not None
    assert (row.last.seq, row.last.severity, row.last.started_ms) == (2, 3, T0 + 1000)
    row.feed(10.0, severity=2).feed(10.0, severity=3)
    assert len(row.log) == 2


def test_a_score_below_enter_does_not_escalate() -> None:
    row = Row().feed(*[10.0] * 5, severity=2).feed(7.0, severity=3)
    assert row.log == [(5, Change.OPENED)]


def test_resolves_at_the_start_of_the_clear_stretch() -> None:
    row = Row().feed(*[10.0] * 5, 0.0, 7.0, *[0.0] * 3)  # one clear second that did not last
    assert row.log == [(5, Change.OPENED)]
    row.feed(0.0)
    assert row.log[-1] == (11, Change.RESOLVED)
    assert row.last is not None
    assert row.last.ended_ms == T0 + 8000
    assert row.last.seq == 2
    assert row.last.started_ms == T0 + 1000


def test_after_the_end_a_new_episode_begins_anew() -> None:
    row = Row().feed(*[10.0] * 5, *[0.0] * 4, *[10.0] * 5)
    assert [change for _, change in row.log] == [Change.OPENED, Change.RESOLVED, Change.OPENED]
    assert row.last is not None
    assert (row.last.seq, row.last.started_ms) == (1, T0 + 10_000)


def test_a_latched_kind_never_resolves_by_itself() -> None:
    spec = KindSpec(kind="needs_reset", latched=True, exit_seconds=1.0)
    row = Row(spec).feed(1.0, *[0.0] * 1000)
    assert row.log == [(1, Change.OPENED)]
    assert firing_rows(row.table, np.array([0])).all()


def test_a_gap_counts_as_three_intervals_at_most() -> None:
    """A collector that was away for an hour did not see the condition hold for an hour."""
    row = Row().feed(10.0)
    frame = frame_at([T0 + 3_600_000], [3600.0])
    assert advance(row.table, SPEC, frame, judged([10.0])) == []
    assert row.table["held"][0] == pytest.approx(1.0 + 3.0)


def test_a_clock_step_counts_for_nothing() -> None:
    row = Row().feed(*[10.0] * 4)
    frame = frame_at([T0], [NAN])
    assert advance(row.table, SPEC, frame, judged([10.0])) == []
    assert row.table["held"][0] == 4.0


def test_score_is_half_at_the_threshold_and_below_one() -> None:
    assert relative_score(10.0, 10.0) == 0.5
    assert relative_score(1e12, 10.0) <= 1.0
    assert relative_score(0.0, 10.0) == 0.0


# -- what comes and goes ---------------------------------------------------------------------------

MINUTELY = KindSpec(kind="lost", exit_seconds=20.0)


def away_and_back(row: Row, times: int, *, away: int = 30, back: int = 30) -> Row:
    for _ in range(times):
        row.feed(*[1.0] * away, *[0.0] * back)
    return row


def test_the_third_episode_in_half_an_hour_is_one_flapping_alert() -> None:
    row = away_and_back(Row(MINUTELY), 40)
    changes = [change for _, change in row.log]
    assert changes == [Change.OPENED, Change.RESOLVED] * 2 + [Change.OPENED]
    assert row.last is not None
    assert row.last.flaps == 3
    assert firing_rows(row.table, np.array([0])).all()


def test_a_flapping_alert_resolves_after_a_quarter_of_an_hour_of_quiet() -> None:
    row = away_and_back(Row(MINUTELY), 10)
    ended = row.second - 30
    row.feed(*[0.0] * 869)
    assert [change for _, change in row.log][-1:] == [Change.OPENED]
    row.feed(*[0.0] * 2)
    assert [change for _, change in row.log][-1:] == [Change.RESOLVED]
    assert row.last is not None
    assert row.last.ended_ms == T0 + (ended + 1) * 1000
    assert (row.last.seq, row.last.flaps) == (2, 10)
    assert row.last.started_ms == T0 + 121_000


def test_after_a_flapping_alert_has_ended_the_count_begins_anew() -> None:
    row = away_and_back(Row(MINUTELY), 4).feed(*[0.0] * 900)
    count = len(row.log)
    away_and_back(row, 2)
    assert [change for _, change in row.log[count:]] == [Change.OPENED, Change.RESOLVED] * 2


def test_three_episodes_over_more_than_half_an_hour_do_not_flap() -> None:
    row = away_and_back(Row(MINUTELY), 6, away=30, back=16 * 60)
    assert len(row.log) == 12
    assert row.last is not None
    assert row.last.flaps == 0


def test_quiet_rows_are_forgotten_half_an_hour_after_their_last_opening() -> None:
    row = away_and_back(Row(MINUTELY), 1)
    assert (row.table["phase"] != 0).all()
    row.feed(*[0.0] * 1800)
    for name, array in row.table.dump().items():
        assert array.tolist() == [EPISODE_FIELDS[name].fresh], name


def test_a_missing_score_is_no_quiet() -> None:
    row = away_and_back(Row(MINUTELY), 4).feed(*[NAN] * 2000)
    assert [change for _, change in row.log][-1:] == [Change.OPENED]


def test_a_flapping_alert_still_escalates() -> None:
    row = away_and_back(Row(MINUTELY), 5).feed(1.0, severity=3)
    assert row.log[-1][1] is Change.ESCALATED
    assert row.last is not None
    assert (row.last.seq, row.last.severity) == (2, 3)


def test_a_clock_set_back_does_not_keep_openings_for_ever() -> None:
    row = away_and_back(Row(MINUTELY), 1)
    row.second -= 10**6
    row.feed(0.0)
    assert (row.table["phase"] == 0).all()


# -- the same rules as a loop in plain Python -----------------------------------------------------


Said = list[tuple[str, int, int | None, int, int]]


@dataclass
class Machine:
    """One row's episode, as the rules read."""

    spec: KindSpec
    state: str = "idle"
    held: float = 0.0
    samples: int = 0
    clear: float = 0.0
    onset: int = 0
    clear_since: int = 0
    severity: int = 0
    seq: int = 0
    peak: float = 0.0
    opened: int = 0
    opened_before: int = 0
    flaps: int = 0

    def anew(self, *, remembering: bool) -> None:
        """Idle; with or without the memory of the last openings."""
        kept = (self.opened, self.opened_before) if remembering else (0, 0)
        self.__init__(self.spec, opened=kept[0], opened_before=kept[1])  # type: ignore[misc]  # a machine as new

    def feed(
        self, ts: int, elapsed: float, score: float, severity: int
    ) -> list[tuple[str, int, int | None, int, int]]:
        if math.isnan(score):
            return []
        spec = self.spec
        if score >= spec.enter:
            return self._held(ts, elapsed, score, severity)
        if self.state == "pending":
            self.held -= elapsed
            if score < spec.exit or self.held <= 0.0:
                self.anew(remembering=True)
        if self.state == "idle" and self.opened and abs(ts - self.opened) > FLAP_MS:
            self.anew(remembering=False)
        elif self.state == "firing":
            return self._clearing(ts, elapsed, ended=score < spec.exit)
        return []

    def _held(
        self, ts: int, elapsed: float, score: float, severity: int
    ) -> list[tuple[str, int, int | None, int, int]]:
        spec = self.spec
        if self.flaps and self.clear > 0.0 and self.clear >= spec.exit_seconds:
            self.flaps += 1
        self.clear, self.peak = 0.0, max(self.peak, score)
        if self.state == "firing":
            if severity > self.severity:
                self.severity, self.seq = severity, self.seq + 1
                return [("escalated", self.onset, None, self.seq, severity)]
            return []
        if self.state == "idle":
            self.state, self.onset = "pending", ts
        self.held, self.samples = self.held + elapsed, self.samples + 1
        if self.held >= spec.enter_seconds and self.samples >= spec.enter_samples:
            self.state, self.severity, self.seq = "firing", severity, 1
            if self.opened_before and abs(ts - self.opened_before) <= FLAP_MS:
                self.flaps = FLAP_EPISODES
            self.opened_before, self.opened = self.opened, ts
            return [("opened", self.onset, None, 1, severity)]
        return []

    def _clearing(
        self, ts: int, elapsed: float, *, ended: bool
    ) -> list[tuple[str, int, int | None, int, int]]:
        if not ended:
            self.clear = 0.0
            return []
        if self.clear == 0.0:
            self.clear_since = ts
        self.clear += max(elapsed, 1e-3)
        quiet = max(self.spec.exit_seconds, QUIET_SECONDS if self.flaps else 0.0)
        if self.clear < quiet or self.spec.latched:
            return []
        out: Said = [("resolved", self.onset, self.clear_since, self.seq + 1, self.severity)]
        self.anew(remembering=not self.flaps)
        return out


specs = st.builds(
    KindSpec,
    kind=st.just("leak"),
    enter=st.just(10.0),
    exit=st.sampled_from([5.0, 10.0]),
    enter_seconds=st.sampled_from([0.0, 2.0, 5.0]),
    enter_samples=st.integers(1, 4),
    exit_seconds=st.sampled_from([0.0, 1.0, 4.0]),
    latched=st.booleans(),
)
scores = st.sampled_from([NAN, 0.0, 0.0, 4.0, 5.0, 7.0, 10.0, 10.0, 12.0, 40.0])
# Whole seconds: sums of them are exact in both machines.
steps = st.tuples(scores, st.integers(1, 3), st.sampled_from([NAN, 0.0, 1.0, 2.0, 900.0]))
histories = st.lists(st.lists(steps, max_size=25), min_size=1, max_size=5)


def said_of(moved: Transition) -> tuple[str, int, int | None, int, int]:
    return (str(moved.change), moved.started_ms, moved.ended_ms, moved.seq, moved.severity)


def by_machine(spec: KindSpec, history: list[tuple[float, int, float]]) -> Said:
    machine, said, ts = Machine(spec), Said(), T0
    for score, severity, dt in history:
        ts += 1000
        elapsed = 0.0 if math.isnan(dt) else min(dt, 3.0)
        said += machine.feed(ts, elapsed, score, severity)
    return said


@given(specs, histories)
def test_vectorised_episodes_equal_the_machine_of_each_row(
    spec: KindSpec, rows: list[list[tuple[float, int, float]]]
) -> None:
    table = fresh(len(rows))
    said: list[Said] = [[] for _ in rows]
    for tick in range(max(map(len, rows))):
        here = [row for row, history in enumerate(rows) if tick < len(history)]
        now = [rows[row][tick] for row in here]
        frame = frame_at([T0 + 1000 * (tick + 1)] * len(here), [dt for _, _, dt in now], here)
        verdict = judged([score for score, _, _ in now], [severity for _, severity, _ in now])
        for moved in advance(table, spec, frame, verdict):
            assert here[moved.position] == moved.row
            said[moved.row].append(said_of(moved))
    assert said == [by_machine(spec, history) for history in rows]


@given(specs, histories, st.randoms(use_true_random=False))
def test_interleaving_rows_changes_nothing(
    spec: KindSpec, rows: list[list[tuple[float, int, float]]], chance: Random
) -> None:
    """Rows advanced in frames of any composition end as if each were alone."""
    table = fresh(len(rows))
    done = [0] * len(rows)
    said: list[Said] = [[] for _ in rows]
    while any(n < len(history) for n, history in zip(done, rows, strict=True)):
        open_rows = [row for row in range(len(rows)) if done[row] < len(rows[row])]
        here = [r for r in open_rows if chance.random() < 0.5] or open_rows
        chance.shuffle(here)
        now = [rows[row][done[row]] for row in here]
        ts = [T0 + 1000 * (done[row] + 1) for row in here]
        frame = frame_at(ts, [dt for _, _, dt in now], here)
        verdict = judged([score for score, _, _ in now], [severity for _, severity, _ in now])
        for moved in advance(table, spec, frame, verdict):
            said[moved.row].append(said_of(moved))
        for row in here:
            done[row] += 1
    assert said == [by_machine(spec, history) for history in rows]
    still_open = [bool(events) and events[-1][0] != "resolved" for events in said]
    assert (table["phase"] == FIRING).tolist() == still_open
