"""`foreshock collect` over the stand-in of the driver: the whole command, its child, its end."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Processes

from bus import open_bus
from bus.settings import BusSettings
from schemas.codec import decode_sample
from schemas.sample import NodeSample
from schemas.topics import SAMPLES
from tests.nvml_standin.standin import Standin, build, h100


@pytest.fixture
def driver(tmp_path: Path) -> Standin:
    """Two healthy GPUs."""
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        reason = "no C compiler for the stand-in of libnvidia-ml.so.1; install gcc"
        if os.environ.get("FORESHOCK_REQUIRE_SERVICES"):
            pytest.fail(reason)
        pytest.skip(reason)
    made = Standin(build(tmp_path / "library"), tmp_path)
    made.say(h100(2))
    return made


@pytest.fixture
def processes(driver: Standin, tmp_path: Path) -> Iterator[Processes]:
    """The command's environment: the library by the settings, the script by its own variables."""
    environment = dict(driver.environment)
    del environment["LD_LIBRARY_PATH"]
    started = Processes(
        tmp_path,
        {
            **environment,
            "FORESHOCK_COLLECTOR__NVML_LIBRARY": str(driver.library),
            "FORESHOCK_COLLECTOR__INTERVAL_SECONDS": "0.2",
            "FORESHOCK_COLLECTOR__FLUSH_SECONDS": "0.2",
            "FORESHOCK_COLLECTOR__CALL_DEADLINE_SECONDS": "2",
            "FORESHOCK_COLLECTOR__KERNEL__USE": "off",
        },
    )
    yield started
    started.end()


def published(folder: Path) -> list[NodeSample]:
    file = next((folder / "data" / "bus").glob("*.sqlite"), None)
    if file is None:
        return []
    bus = open_bus(BusSettings(path=file))
    try:
        reader = bus.subscriber(group=f"test-{time.monotonic_ns()}", topics=[SAMPLES.full_name()])
        found: list[NodeSample] = []
        while batch := reader.poll(1000, 0.1):
            found += [decode_sample(record.value) for record in batch]
        reader.close()
    finally:
        bus.close()
    return found


def states(folder: Path) -> list[str]:
    return [str(sample.collector.state) for sample in published(folder)]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_collect_reads_hangs_recovers_and_ends_cleanly(
    processes: Processes, driver: Standin, tmp_path: Path
) -> None:
    process = processes.start("collect")
    first = processes.wait_for(
        "the first reading",
        lambda: [sample for sample in published(tmp_path) if len(sample.gpu) == 2],
    )[0]
    assert first.m["power_watts"] == [692.0, 692.0]
    (_, child), *_ = driver.log()
    driver.say({"-.nvmlDeviceGetCount": "hang"})
    processes.wait_for("the hang", lambda: "unresponsive" in states(tmp_path))
    processes.wait_for("the end of the child that hangs", lambda: gone(child))
    driver.say({"-.nvmlDeviceGetCount": 2})
    processes.wait_for("the way back", lambda: "unresponsive" not in states(tmp_path)[-3:])
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    told = published(tmp_path)
    assert told[-1].collector.state == "stopping"
    assert [sample.seq for sample in told] == list(range(len(told)))
    word, last = driver.log()[-1]
    assert word == "shutdown"
    assert last != child
    assert gone(last)


def test_a_collector_that_is_killed_leaves_no_child(processes: Processes, driver: Standin) -> None:
    process = processes.start("collect")
    processes.wait_for("the child", driver.listeners)
    process.kill()
    process.wait(10)
    processes.wait_for("the goodbye of the child", lambda: driver.log()[-1][0] == "shutdown")
    processes.wait_for("its end", lambda: gone(driver.log()[-1][1]))
