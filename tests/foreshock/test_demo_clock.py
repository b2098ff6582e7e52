"""Simulated time starts in the past, runs fast, meets now, and goes on at the real pace."""

from __future__ import annotations

import threading
import time

import pytest

from foreshock.demo.clock import ScaledClock


class Machine:
    """Wall and monotonic time that only a test moves."""

    def __init__(self) -> None:
        self.passed = 0.0

    def wall(self) -> float:
        return 1_790_000_000.0 + self.passed

    def elapsed(self) -> float:
        return 50.0 + self.passed


@pytest.fixture
def machine() -> Machine:
    return Machine()


def make(machine: Machine, speed: float = 10.0, catch_up: float = 180.0) -> ScaledClock:
    return ScaledClock(speed, catch_up_seconds=catch_up, wall=machine.wall, elapsed=machine.elapsed)


def test_it_stands_still_until_it_is_started(machine: Machine) -> None:
    clock = make(machine)
    machine.passed = 7.0
    assert clock.monotonic() == 0.0
    clock.start()
    assert clock.unix_ms() == round((machine.wall() - 9 * 180) * 1000)


def test_it_runs_ten_times_as_fast_and_meets_now_after_the_catch_up(machine: Machine) -> None:
    clock = make(machine)
    clock.start()
    machine.passed = 30.0
    assert clock.monotonic() == pytest.approx(300.0)
    assert clock.speed == 10.0
    machine.passed = 180.0
    assert clock.unix_ms() == round(machine.wall() * 1000)
    assert clock.speed == 1.0


def test_it_goes_on_at_the_real_pace(machine: Machine) -> None:
    clock = make(machine)
    clock.start()
    machine.passed = 500.0
    assert clock.unix_ms() == round(machine.wall() * 1000)
    assert clock.monotonic() == pytest.approx(1800.0 + 320.0)


def test_unix_and_monotonic_time_never_drift_apart(machine: Machine) -> None:
    clock = make(machine)
    clock.start()
    for passed in (0.0, 1.0, 179.9, 180.0, 180.1, 1000.0):
        machine.passed = passed
        assert clock.unix_ms() - clock.start_ms == pytest.approx(1000 * clock.monotonic(), abs=1)


def test_sleeping_waits_the_scaled_time() -> None:
    clock = ScaledClock(50.0, catch_up_seconds=100.0)
    clock.start()
    before = time.monotonic()
    assert clock.sleep_until(clock.monotonic() + 5.0, threading.Event()) is False
    assert 0.09 <= time.monotonic() - before < 5.0
    assert clock.monotonic() >= 5.0


def test_sleeping_ends_with_the_stop() -> None:
    clock = ScaledClock(10.0)
    clock.start()
    stop = threading.Event()
    stop.set()
    assert clock.sleep_until(1e6, stop) is True


def test_sleeping_until_a_moment_beyond_the_meeting_waits_at_both_paces(machine: Machine) -> None:
    clock = make(machine, speed=10.0, catch_up=2.0)
    clock.start()

    class Noted(threading.Event):
        waited: float | None = None

        def wait(self, timeout: float | None = None) -> bool:
            self.waited = timeout
            return False

    stop = Noted()
    clock.sleep_until(25.0, stop)
    assert stop.waited == pytest.approx(2.0 + 5.0)


def test_slower_than_real_is_refused() -> None:
    with pytest.raises(ValueError, match="speed"):
        ScaledClock(0.5)
