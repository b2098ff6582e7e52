"""NVML in a killable child process: every failure through the real binding and a real library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collector.host import HostFiles
from collector.nvmlparent import NvmlChildSource
from collector.nvmlwire import AskReading, ChildSettings, SayHello, dump
from collector.source import Reading
from tests.collector.conftest import T0, read
from tests.nvml_standin.standin import Standin, h100

Watch = Callable[..., NvmlChildSource]


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def until_state(source: NvmlChildSource, state: str, seconds: float = 20.0) -> Reading:
    until = time.monotonic() + seconds
    tick = 0
    while True:
        tick += 1
        reading = read(source, tick)
        if reading.state == state:
            return reading
        assert time.monotonic() < until, f"still {reading.state}"
        time.sleep(0.02)


def test_eight_gpus_are_read_in_the_child_and_the_parent_loads_no_binding(
    standin: Standin, watch: Watch
) -> None:
    source = watch(standin)
    reading = read(source)
    assert reading.state == "ok"
    assert len(reading.gpus) == 8
    assert reading.values["temperature_celsius"] == [40.0] * 8
    assert reading.values["power_watts"] == [692.0] * 8
    assert reading.inventory.gpus[0].model == "NVIDIA H100 80GB HBM3"
    assert reading.inventory.driver_version == "580.105.08"
    (word, pid), *rest = standin.log()
    assert (word, rest) == ("init", [])
    assert pid != os.getpid()
    again = read(source, 1)
    assert again.inventory == reading.inventory  # not sent again, all the same there
    assert len(standin.log()) == 1


def test_a_stop_finishes_the_call_and_shuts_nvml_down(standin: Standin, watch: Watch) -> None:
    source = watch(standin)
    read(source)
    standin.say({"0.nvmlDeviceGetPowerUsage": "slow 300 1000"})
    source.begin(T0 + 1000)
    source.close()
    assert [word for word, _ in standin.log()] == ["init", "shutdown"]


def child_of(standin: Standin) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-m", "collector.nvmlchild"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **standin.environment},
    )
    assert child.stdin is not None
    child.stdin.write(dump(ChildSettings(node="n1")) + dump(AskReading(1, T0)))
    child.stdin.flush()
    assert child.stdout is not None
    assert child.stdout.readline() == dump(SayHello())
    assert b'"reading"' in child.stdout.readline()
    return child


def test_sigterm_in_the_midst_of_a_call_finishes_it_and_shuts_nvml_down(standin: Standin) -> None:
    child = child_of(standin)
    assert child.stdin is not None
    assert child.stdout is not None
    standin.say({"7.nvmlDeviceGetPowerUsage": "slow 400 1000"})
    child.stdin.write(dump(AskReading(2, T0 + 1000)))
    child.stdin.flush()
    time.sleep(0.1)  # into the slow call; too early or too late is allowed all the same
    child.send_signal(signal.SIGTERM)
    assert b'"read":2' in child.stdout.read()
    assert child.wait(5) == 0
    assert standin.log()[-1] == ("shutdown", child.pid)
    child.stdin.close()
    child.stdout.close()


@pytest.mark.parametrize("end", ["sigterm", "parent_gone"])
def test_an_idle_child_ends_cleanly(end: str, standin: Standin) -> None:
    child = child_of(standin)
    assert child.stdin is not None
    if end == "sigterm":
        child.send_signal(signal.SIGTERM)
    else:
        child.stdin.close()
    assert child.wait(5) == 0
    assert standin.log()[-1] == ("shutdown", child.pid)
    child.stdin.close()
    assert child.stdout is not None
    child.stdout.close()


def test_a_hung_driver_is_told_by_the_parent_and_the_child_is_replaced(
    standin: Standin, watch: Watch
) -> None:
    source = watch(standin, deadline_seconds=3.0)
    assert len(read(source).gpus) == 8
    (_, first) = standin.log()[0]
    standin.say({"-.nvmlDeviceGetCount": "hang"})
    begun = time.monotonic()
    reading = read(source, 1)
    assert reading.state == "unresponsive"
    assert reading.gpus == ()
    assert len(reading.inventory.gpus) == 8  # the list is kept: nobody is missing
    assert 2.9 < time.monotonic() - begun < 10.0
    wait_for(lambda: not Path(f"/proc/{first}").exists())
    # A heartbeat costs no call, until the pause is over.
    assert read(source, 2).state == "unresponsive"
    standin.say({"-.nvmlDeviceGetCount": 8})
    after = until_state(source, "ok")
    assert after.gpus == tuple(gpu.gpu for gpu in reading.inventory.gpus)
    assert after.events == ()
    assert standin.log()[-1][1] != first


def test_a_driver_that_hangs_for_good_is_tried_with_growing_pauses(
    standin: Standin, watch: Watch
) -> None:
    standin.say({"-.nvmlInit": "hang"})
    source = watch(standin, deadline_seconds=0.6)
    started: list[float] = []
    tick = 0
    while len(started) < 3:
        tick += 1
        assert read(source, tick).state == "unresponsive"
        if source.children_started > len(started):
            started.append(time.monotonic())  # its deadline is over
        time.sleep(0.02)
    # Each child takes its start and the deadline; between two lie 1 s, then 2 s.
    first, second, third = started
    assert second - first > 1.0 + 0.6
    assert third - second > 2.0 + 0.6


def test_one_hung_gpu_delays_the_others_by_less_than_a_second_and_once(
    standin: Standin, watch: Watch
) -> None:
    assert ChildSettings(node="n1").device_deadline_seconds < 1.0
    # Twice as patient here: a busy machine must not make a GPU look hung that is not.
    source = watch(standin, device_deadline_seconds=1.5)
    before = read(source)
    standin.say({"3.nvmlDeviceGetPowerUsage": "hang"})
    times = []
    for tick in range(1, 5):
        begun = time.monotonic()
        reading = read(source, tick)
        times.append(time.monotonic() - begun)
        assert reading.state == "ok"
        assert reading.gpus == before.gpus
        watts = reading.values["power_watts"]
        assert watts == [692.0] * 3 + [None] + [692.0] * 4
        assert reading.status["temperature_celsius"] == {3: "error:10"}
        assert reading.events == ()
    assert 1.5 <= times[0] < 4.0
    assert min(times[1:]) < 1.0
    assert len(standin.log()) == 1  # the same child all the time
    standin.say({"3.nvmlDeviceGetPowerUsage": 692_000})
    wait_for(lambda: read(source, 9).values["power_watts"] == [692.0] * 8)


def test_one_lost_gpu_is_told_and_the_other_seven_go_on(standin: Standin, watch: Watch) -> None:
    source = watch(standin)
    before = read(source)
    standin.say({"2.*": "!15"})
    reading = read(source, 1)
    assert reading.state == "ok"
    assert [(str(event.kind), event.gpu) for event in reading.events] == [
        ("gpu_lost", before.gpus[2])
    ]
    assert reading.gpus == before.gpus
    assert reading.values["temperature_celsius"] == [40.0] * 2 + [None] + [40.0] * 5
    assert {codes.get(2) for codes in reading.status.values()} == {"error:15"}
    assert read(source, 2).events == ()
    standin.say({"2.*": None})
    back = read(source, 3)
    assert [(str(event.kind), event.gpu) for event in back.events] == [
        ("gpu_returned", before.gpus[2])
    ]
    assert back.values["temperature_celsius"] == [40.0] * 8


def test_a_new_child_knows_the_gpu_that_was_lost(standin: Standin, watch: Watch) -> None:
    source = watch(standin)
    before = read(source)
    standin.say({"2.*": "!15"})
    read(source, 1)
    os.kill(standin.log()[0][1], signal.SIGKILL)
    assert read(source, 2).state == "blind"
    after = until_state(source, "ok")
    assert after.gpus == before.gpus
    assert after.events == ()  # lost already
    assert after.values["temperature_celsius"][2] is None
    assert after.inventory.gpus[2].model == "NVIDIA H100 80GB HBM3"


def test_all_gpus_failing_at_once_is_one_event_of_the_host(standin: Standin, watch: Watch) -> None:
    source = watch(standin)
    read(source)
    standin.say({f"{gpu}.*": "!999" for gpu in range(8)})
    reading = read(source, 1)
    assert (reading.state, reading.nvml_error, reading.gpus) == ("blind", 999, ())
    assert reading.events == ()
    standin.say({f"{gpu}.*": None for gpu in range(8)})
    assert len(read(source, 10).gpus) == 8


@pytest.mark.parametrize(
    ("code", "state"),
    [(9, "no_driver"), (4, "no_permission"), (18, "version_mismatch"), (999, "blind")],
)
def test_every_reason_not_to_attach_has_its_state_and_the_agent_lives(
    code: int, state: str, standin: Standin, watch: Watch
) -> None:
    standin.say({"-.nvmlInit": f"!{code}"})
    source = watch(standin)
    for tick in range(3):
        reading = read(source, tick)
        assert (reading.state, reading.nvml_error, reading.gpus) == (state, code, ())
    standin.say({"-.nvmlInit": None})
    assert len(until_state(source, "ok").gpus) == 8  # the driver is loaded later


def test_no_library_is_a_state_and_one_that_is_installed_later_is_found(
    standin: Standin, watch: Watch, tmp_path: Path
) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    source = watch(standin, environment={"LD_LIBRARY_PATH": str(folder)})
    reading = read(source)
    if reading.gpus:
        pytest.skip("this machine has a driver of its own")
    assert (reading.state, reading.nvml_error) == ("no_library", 12)
    (folder / "libnvidia-ml.so.1").symlink_to(standin.library)
    assert len(until_state(source, "ok").gpus) == 8


def test_the_library_may_lie_where_the_settings_say(standin: Standin, watch: Watch) -> None:
    source = watch(standin, environment={"LD_LIBRARY_PATH": ""}, library=str(standin.library))
    assert len(read(source).gpus) == 8


def test_no_gpu_and_a_good_driver_is_well_and_empty(standin: Standin, watch: Watch) -> None:
    standin.say({"-.nvmlDeviceGetCount": 0})
    reading = read(watch(standin))
    assert (reading.state, reading.gpus, reading.nvml_error) == ("ok", (), None)


def test_a_driver_upgraded_under_a_running_collector_needs_no_restart(
    standin: Standin, watch: Watch, nvml_library: Callable[[int], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    library = folder / "libnvidia-ml.so.1"
    library.symlink_to(standin.library)
    source = watch(standin, environment={"LD_LIBRARY_PATH": str(folder)})
    read(source)
    # The package is upgraded: the old library is in memory, the module has gone with the GPUs.
    standin.say({"-.nvmlInit": "!18", **{f"{gpu}.*": "!999" for gpu in range(8)}})
    assert read(source, 1).state == "blind"
    until_state(source, "version_mismatch")
    library.unlink()
    library.symlink_to(nvml_library(700) / "libnvidia-ml.so.1")
    standin.say(
        {
            "-.nvmlInit": None,
            "-.nvmlSystemGetDriverVersion": "700.10",
            **{f"{gpu}.*": None for gpu in range(8)},
        }
    )
    reading = until_state(source, "ok")
    assert len(reading.gpus) == 8
    assert reading.inventory.driver_version == "700.10"
    assert [str(event.kind) for event in reading.events] == ["driver_changed"]


def test_expected_gpus_come_from_the_pci_bus(
    standin: Standin, watch: Watch, tmp_path: Path
) -> None:
    devices = tmp_path / "pci"
    for number in range(8):
        folder = devices / f"0000:{number:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")
    nowhere = Path("/nonexistent")
    host = HostFiles(boot_id=nowhere, uptime=nowhere, driver_version=nowhere, pci_devices=devices)
    standin.say({"-.nvmlDeviceGetCount": 7})
    reading = read(watch(standin, host=host))
    assert len(reading.gpus) == 7
    assert reading.inventory.expected_gpus == 8


def test_gpus_are_let_go_of_and_taken_back(standin: Standin, watch: Watch) -> None:
    source = watch(standin)
    before = read(source)
    source.release(60.0)
    assert [word for word, _ in standin.log()] == ["init", "shutdown"]
    reading = read(source, 1)
    assert (reading.state, reading.gpus) == ("released", ())
    assert len(reading.inventory.gpus) == 8
    source.take_back()
    assert read(source, 2).gpus == before.gpus
    source.release(0.05)
    time.sleep(0.1)
    assert read(source, 3).state == "ok"  # forgotten to take back: taken back in time


def test_an_event_of_the_driver_arrives_between_two_readings(
    standin: Standin, watch: Watch
) -> None:
    source = watch(standin)
    reading = read(source)
    wait_for(lambda: standin.listeners() == 8)
    standin.happen(5, 0x8, 79)
    found: list[object] = []
    wait_for(lambda: bool(found.extend(source.heard()) or found))
    (event,) = found
    assert (event.kind, event.gpu, event.xid) == ("xid", reading.gpus[5], 79)  # type: ignore[attr-defined]
    assert event.pci == "0000:1f:00.0"  # type: ignore[attr-defined]
    standin.happen(0, 0x8000, 1)
    found.clear()
    wait_for(lambda: bool(found.extend(source.heard()) or found))
    assert found[0].message == "NVML: recovery action changed (1)"  # type: ignore[attr-defined]


def test_a_reading_in_pieces_is_one_reading(standin: Standin, watch: Watch) -> None:
    source = watch(standin)
    source.begin(T0)
    stop = threading.Event()
    readings = None
    for _ in range(1000):
        readings = source.result(time.monotonic() + 0.005, stop)
        if readings is not None:
            break
    assert readings is not None
    assert len(readings[0].gpus) == 8
    assert not source.busy


def test_an_old_and_a_new_driver_give_the_same_values(
    nvml_library: Callable[[int], Path], watch: Watch, tmp_path: Path
) -> None:
    found = {}
    for branch in (470, 580, 700):
        folder = tmp_path / str(branch)
        folder.mkdir()
        driver = Standin(nvml_library(branch), folder)
        driver.say(h100(2))
        reading = read(watch(driver))
        assert reading.state == "ok"
        found[branch] = reading.values
    for metric in ("temperature_celsius", "clock_event_reasons", "memory_total_bytes"):
        assert found[470][metric] == found[580][metric] == found[700][metric], metric
    # The older memory call counts the reserved part as used.
    used = found[580]["memory_used_bytes"][0]
    reserved = found[580]["memory_reserved_bytes"][0]
    assert used is not None
    assert reserved is not None
    assert found[470]["memory_used_bytes"][0] == used + reserved
    assert "memory_reserved_bytes" not in found[470]
