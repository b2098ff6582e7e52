"""One piece of work per device: a device that hangs delays the others once."""

from __future__ import annotations

import threading
import time

from collector.sweep import HUNG, DirectSweep, GuardedSweep


def test_results_come_in_the_order_of_the_devices() -> None:
    pieces = [(3, "c"), (1, "a"), (2, "b")]
    for sweep in (DirectSweep(), GuardedSweep(5.0)):
        assert sweep.each(pieces, str.upper) == ["C", "A", "B"]
        assert sweep.each([], str.upper) == []


def test_a_device_that_hangs_is_left_out_until_its_work_comes_back() -> None:
    gate = threading.Event()
    asked: list[int] = []

    def work(number: int) -> int:
        asked.append(number)
        if number == 1:
            gate.wait(30)
        return number * 10

    sweep = GuardedSweep(0.2)
    pieces = [(number, number) for number in range(4)]
    begun = time.monotonic()
    assert sweep.each(pieces, work) == [0, HUNG, 20, 30]
    assert time.monotonic() - begun < 5
    assert sweep.stuck == {1}
    assert sweep.each(pieces, work) == [0, HUNG, 20, 30]
    assert asked.count(1) == 1  # never a second call beside the one that hangs
    gate.set()
    deadline = time.monotonic() + 10
    while sweep.stuck and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sweep.each(pieces, work) == [0, 10, 20, 30]


def test_threads_do_not_pile_up() -> None:
    gates = [threading.Event() for _ in range(3)]

    def work(number: int) -> int:
        gates[number].wait(30)
        return number

    before = threading.active_count()
    sweep = GuardedSweep(0.05)
    pieces = [(number, number) for number in range(3)]
    for _ in range(20):
        assert sweep.each(pieces, work) == [HUNG] * 3
    assert threading.active_count() <= before + 3
    for gate in gates:
        gate.set()
    deadline = time.monotonic() + 10
    while sweep.stuck and time.monotonic() < deadline:
        time.sleep(0.01)
    for _ in range(20):
        assert sweep.each(pieces, work) == [0, 1, 2]
    assert threading.active_count() <= before + 4
