"""The commands on a real NVIDIA GPU: what they cost, and an allocation that really ends in OOM."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from bus import BusSettings, open_bus
from schemas.alert import AlertEvent
from schemas.codec import decode_alert
from schemas.topics import ALERTS

pytestmark = pytest.mark.gpu

WARM_SECONDS, SECONDS = 20.0, 60.0
#: The numbers that the collector is held to, for eight GPUs at 1 Hz, child included.
MOST_CPU, MOST_RESIDENT = 0.005, 80 * 2**20
GROWTH_SECONDS = 240
STEADY_SECONDS = 60

# By the driver's own library, so that nothing has to be installed: a little more every second,
# after a steady beginning, until the driver refuses. Its last line is the time of the refusal.
_ALLOCATOR = f"""
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def do(name, *args):
    code = getattr(cuda, name)(*args)
    if code not in (0, 2):
        sys.exit(f"{{name}}: error {{code}}")
    return code
device, context = ctypes.c_int(), ctypes.c_void_p()
free, total, place = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
do("cuInit", 0)
do("cuDeviceGet", ctypes.byref(device), 0)
do("cuCtxCreate_v2", ctypes.byref(context), 0, device)
do("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
step = max(2 << 20, free.value // {GROWTH_SECONDS})
print("begun", flush=True)
time.sleep({STEADY_SECONDS})
while do("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(step)) == 0:
    time.sleep(1.0)
print(time.time(), flush=True)
"""


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has no NVIDIA GPU with its driver")
    return {
        **os.environ,
        "FORESHOCK_DATA_DIR": str(tmp_path / "data"),
        "FORESHOCK_COLLECTOR__PORT": "0",
        "FORESHOCK_DETECTOR__PORT": "0",
        "FORESHOCK_BUS__TRANSPORT": "sqlite",
        "FORESHOCK_BUS__PATH": str(tmp_path / "bus.sqlite"),
        "FORESHOCK_LOG_LEVEL": "error",
    }


@contextmanager
def running(command: str, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", "foreshock", command], env=environment)
    try:
        yield process
        assert process.poll() is None, f"{command} has ended"
    finally:
        process.terminate()
        process.wait(30)


def family_of(pid: int) -> list[int]:
    """Return a process and its children."""
    # The kernel lists them by the thread that started them.
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [pid, *(int(child) for text in lists for child in text.split())]


def cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_the_collector_costs_what_it_may(environment: Mapping[str, str]) -> None:
    with running("collect", environment) as process:
        time.sleep(WARM_SECONDS)
        pids = family_of(process.pid)
        assert len(pids) == 2, "the collector and its child"
        before, begun = cpu_seconds(pids), time.monotonic()
        time.sleep(SECONDS)
        share = (cpu_seconds(pids) - before) / (time.monotonic() - begun)
        assert share <= MOST_CPU
        assert sum(map(resident, pids)) <= MOST_RESIDENT


def alerts(environment: Mapping[str, str]) -> list[AlertEvent]:
    path = Path(environment["FORESHOCK_BUS__PATH"])
    bus = open_bus(BusSettings.model_validate({"transport": "sqlite", "path": path}))
    try:
        return [decode_alert(record.value) for record in bus.read_all(ALERTS.full_name())]
    finally:
        bus.close()


@pytest.mark.slow
@pytest.mark.timeout(STEADY_SECONDS + 2 * GROWTH_SECONDS + 120)
def test_an_allocation_that_ends_in_oom_is_forecast(environment: Mapping[str, str]) -> None:
    with running("collect", environment), running("detect", environment):
        done = subprocess.run(
            [sys.executable, "-c", _ALLOCATOR],
            capture_output=True,
            text=True,
            timeout=STEADY_SECONDS + 2 * GROWTH_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"nothing can be allocated here: {done.stderr.strip()}")
        refused_at = float(done.stdout.split()[-1])
        told = alerts(environment)
    forecasts = [
        datetime.fromisoformat(alert.observed_at).timestamp()
        for alert in told
        if alert.family == "oom_precursor" and alert.state == "firing"
    ]
    assert forecasts, f"only {sorted({alert.kind for alert in told})} of an OOM"
    assert refused_at - min(forecasts) >= 60.0, "seconds between forecast and refusal"
