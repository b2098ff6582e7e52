"""Memory that churns, memory that comes and goes, and memory that leaks: told apart.

Many simulated cards at once, straight through the detector's step: hours in seconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from detector.arrays import StateTable
from detector.detectors.leak import Leak
from detector.episodes import EPISODE_FIELDS, Change, advance, firing_rows
from detector.frame import Frame

GIB = 2.0**30
CAPACITY = 79.0
Array = np.ndarray[Any, np.dtype[np.float64]]
Opened = list[tuple[float, int, str, int]]


def opened(gib: Array, interval: float, jobs: Array | None = None) -> Opened:
    """(second, card, kind, severity) of every alert about (ticks, cards) of memory in GiB."""
    watch, cards = Leak(), gib.shape[1]
    state = {name: field.make(cards) for name, field in watch.fields().items()}
    episodes = {spec.kind: StateTable(EPISODE_FIELDS) for spec in watch.kinds}
    for table in episodes.values():
        table.grow(cards)
    found: Opened = []
    for tick, used in enumerate(gib):
        frame = Frame.of(
            metrics={
                "memory_used_bytes": (
                    np.round(np.minimum(used, CAPACITY) * 512) / 512 * GIB
                ).tolist(),
                "memory_total_bytes": [80.0 * GIB] * cards,
                "memory_reserved_bytes": [GIB] * cards,
            },
            ts=[1_000_000 + round(tick * interval * 1000)] * cards,
            dt=interval if tick else np.nan,
            nodes=cards,
        )
        if jobs is not None:
            frame.job[:] = jobs[tick]
        firing = {kind: firing_rows(table, frame.rows) for kind, table in episodes.items()}
        step = watch.step(frame, state, firing)
        state = {**state, **step.state}
        for spec in watch.kinds:
            moves = advance(episodes[spec.kind], spec, frame, step.judgements[spec.kind])
            found += [
                (tick * interval, m.position, spec.kind, m.severity)
                for m in moves
                if m.change is Change.OPENED
            ]
    return found


def churn(kind: str, ticks: int, cards: int, interval: float, seed: int) -> Array:
    """What allocation and release add to the level of a job, GiB."""
    rng = np.random.default_rng(seed)
    if kind == "quiet":
        return rng.normal(0, 0.01, (ticks, cards))
    if kind == "bursts":
        busy = rng.random((ticks, cards)) < 0.2
        return np.where(busy, rng.uniform(0, 8, (ticks, cards)), 0.0)
    size, seconds = {"1 GiB": (1.0, 0.0), "3 GiB": (3.0, 0.0), "slow": (1.5, 120.0)}[kind]
    keeps = np.exp(-interval / seconds) if seconds else 0.0
    out = rng.normal(0, size, (ticks, cards))
    for tick in range(1, ticks):
        out[tick] = keeps * out[tick - 1] + np.sqrt(1 - keeps**2) * out[tick]
    return out


def leads(rate: float, kind: str, interval: float, level: float = 48.0) -> Array:
    """Minutes from the first warning to the end of the memory; -1 for none. (16,)"""
    cards, hour = 16, 3600.0
    ticks = int(((CAPACITY - level) / rate + 1.0) * hour / interval)
    hours = np.arange(ticks)[:, None] * interval / hour
    gib = level + churn(kind, ticks, cards, interval, 3) + rate * np.maximum(hours - 1.0, 0.0)
    found = opened(gib, interval)
    out = np.full(cards, -1.0)
    for card in range(cards):
        full = np.flatnonzero(gib[:, card] >= CAPACITY)
        end = (full[0] if len(full) else ticks) * interval
        warned = [at for at, who, _, _ in found if who == card and hour <= at < end]
        if warned:
            out[card] = (end - warned[0]) / 60
    return out


@pytest.mark.parametrize("interval", [10.0, 60.0])
def test_a_quiet_leak_of_6_gib_an_hour_is_warned_of_30_minutes_ahead(interval: float) -> None:
    assert (leads(6.0, "quiet", interval) >= 30.0).all()


@pytest.mark.parametrize("kind", ["1 GiB", "slow", "bursts"])
def test_a_leak_in_churning_memory_is_warned_of_30_minutes_ahead(kind: str) -> None:
    """A regression through the samples misses nearly all of these; the troughs miss none."""
    ahead = leads(6.0, kind, 30.0)
    assert (ahead > 0.0).all()
    assert (ahead >= 30.0).mean() >= 0.85


def test_a_leak_in_memory_that_churns_by_3_gib_is_mostly_warned_of() -> None:
    ahead = leads(6.0, "3 GiB", 30.0)
    assert (ahead > 0.0).mean() >= 0.6
    assert (ahead >= 30.0).mean() >= 0.5


@pytest.mark.parametrize("interval", [10.0, 57.0])
@pytest.mark.parametrize("kind", ["quiet", "1 GiB", "3 GiB", "bursts"])
def test_memory_that_churns_about_a_level_is_no_alert(kind: str, interval: float) -> None:
    ticks = int(8 * 3600 / interval)
    gib = np.linspace(55, 68, 12) + churn(kind, ticks, 12, interval, 4)
    assert opened(gib, interval) == []


def saw(period: float, height: float, hours: float, interval: float) -> Array:
    """Teeth of about one height and length from 50 GiB on, (ticks, 8); each begins with a fall."""
    rng = np.random.default_rng(5)
    ticks = int(hours * 3600 / interval)
    gib = np.zeros((ticks, 8))
    for card in range(8):
        at, length, top = 0.97, period, height
        for tick in range(ticks):
            gib[tick, card] = 50.0 + at * top
            at += interval / length
            if at >= 1.0:
                at = 0.0
                length, top = period * rng.uniform(0.9, 1.1), height * rng.uniform(0.9, 1.1)
    return gib


@pytest.mark.parametrize("period", [600.0, 1500.0, 3600.0])
def test_a_saw_tooth_warns_of_no_tooth_but_the_first_that_is_seen(period: float) -> None:
    """The first one may end anywhere; after that it is known from where the memory comes back."""
    gib = saw(period, 20.0, 6.0, 10.0)
    assert [alert for alert in opened(gib, 10.0) if alert[0] > 1.2 * period + 60] == []
    # Short teeth are over before a job that was just met is judged at all.
    if period <= 600.0:
        assert opened(gib, 10.0) == []


def test_another_job_is_not_excused_by_the_teeth_of_the_one_before() -> None:
    teeth = saw(1500.0, 22.0, 2.0, 10.0)[:, :1]
    leak = 50.0 + np.arange(1440)[:, None] * 10.0 / 3600 * 7.0
    gib = np.concatenate([teeth, leak])
    jobs = np.repeat([1, 2], [len(teeth), len(leak)])[:, None]
    found = [at for at, _, kind, _ in opened(gib, 10.0, jobs) if kind == "leak"]
    # At 67 GiB, below the top of the teeth.
    assert any(len(teeth) * 10.0 < at for at in found)
    warned = next(at for at in found if at > len(teeth) * 10.0)
    assert gib[int(warned / 10.0), 0] < 73.0


def test_a_job_that_dies_of_its_leak_and_starts_again_is_warned_of_again() -> None:
    life = np.concatenate([np.linspace(1, 49, 12), 49 + np.arange(720) * 10.0 / 240])
    gib = np.tile(np.minimum(life, CAPACITY), 3)[:, None]
    lives = {int(at // (len(life) * 10.0)) for at, _, _, _ in opened(gib, 10.0)}
    assert lives == {0, 1, 2}


@pytest.mark.parametrize("rate", [0.2, 0.3, 0.4])
def test_growth_beyond_the_rate_of_a_load_is_critical_on_a_settled_job(rate: float) -> None:
    seconds = np.arange(1200.0)[:, None]
    gib = 60.0 + rate * np.maximum(seconds - 900.0, 0.0)
    found = [alert for alert in opened(gib, 1.0) if alert[2] == "fast_growth"]
    assert [severity for _, _, _, severity in found] == [3]
    assert found[0][0] < 900.0 + (CAPACITY - 60.0) / rate


@pytest.mark.parametrize("rate", [0.2, 0.4, 1.0])
def test_a_load_onto_a_fresh_card_and_one_that_ends_early_are_no_alert(rate: float) -> None:
    seconds = np.arange(1800.0)[:, None]
    fresh = np.minimum(0.5 + rate * seconds, 76.0)
    later = 45.0 + np.minimum(rate * np.maximum(seconds - 900.0, 0.0), 15.0)
    assert opened(np.concatenate([fresh, later], axis=1), 1.0) == []


def test_a_staircase_of_a_warm_up_and_a_plateau_are_no_alert() -> None:
    seconds = np.arange(0, 3600.0, 5.0)[:, None]
    stairs = np.minimum(8.0 + 9.0 * (seconds // 40.0), 74.0)
    slower = np.minimum(20.0 + 4.0 * (seconds // 30.0), 76.5)
    taken = np.where(seconds < 20.0, 1.0, 75.5)
    assert opened(np.concatenate([stairs, slower, taken], axis=1), 5.0) == []


def test_a_bump_of_an_evaluation_does_not_hide_a_leak() -> None:
    seconds = np.arange(0, 4 * 3600.0, 10.0)[:, None]
    bump = np.where(seconds % 900.0 < 50.0, 9.0, 0.0)
    gib = 50.0 + 6.0 * np.maximum(seconds / 3600.0 - 0.5, 0.0) + bump
    found = opened(gib, 10.0)
    assert found
    end = 3600.0 * (0.5 + (CAPACITY - 9.0 - 50.0) / 6.0)
    assert found[0][0] <= end - 1200.0
