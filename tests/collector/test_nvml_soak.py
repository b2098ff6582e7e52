"""Hours in seconds: memory, descriptors and threads of parent and child do not grow."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collector.nvmlparent import NvmlChildSource
from tests.collector.conftest import read
from tests.nvml_standin.standin import Standin

Watch = Callable[..., NvmlChildSource]


def resident_kib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.slow
def test_a_day_of_looks_leaves_memory_and_descriptors_flat(standin: Standin, watch: Watch) -> None:
    source = watch(standin, slow_seconds=10.0)
    for tick in range(300):  # caches fill
        read(source, tick)
    child = standin.log()[0][1]
    before = [(resident_kib(pid), files(pid)) for pid in (os.getpid(), child)]
    # One reading in 30 s over a day; every second one looks anew at what the GPUs offer.
    for step in range(2880):
        read(source, 300 + step * 30)
        if step % 97 == 0:
            standin.happen(step % 8, 0x8, 31)
            source.heard()
    after = [(resident_kib(pid), files(pid)) for pid in (os.getpid(), child)]
    for (memory, opened), (later, open_later) in zip(before, after, strict=True):
        assert later - memory < 2048
        assert open_later <= opened
    assert standin.log() == [("init", child)]


@pytest.mark.slow
def test_children_that_die_leave_nothing_behind(standin: Standin, watch: Watch) -> None:
    source = watch(standin)
    read(source)
    before, threads = files(os.getpid()), threading.active_count()
    for tick in range(1, 6):
        os.kill(standin.log()[-1][1], signal.SIGKILL)
        until = time.monotonic() + 60
        while read(source, tick * 10).state != "ok":
            assert time.monotonic() < until
            source.take_back()  # without the growing pauses
            time.sleep(0.01)
    assert files(os.getpid()) <= before
    assert threading.active_count() == threads
    pids = {pid for _, pid in standin.log()}
    assert sum(1 for pid in pids if Path(f"/proc/{pid}").exists()) == 1
