"""Builds the stand-in ``libnvidia-ml.so.1`` and writes the script it answers from.

The library is C, compiled by the machine's own compiler and loaded by NVIDIA's real binding, so
that what is shown with it is shown through every layer that a real driver would go through.
``nvml_standin.h`` describes the script.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["MIB", "Standin", "build", "h100"]

MIB = 2**20
_SOURCES = tuple(Path(__file__).parent / name for name in ("script.c", "calls.c"))


def build(folder: Path, driver: int = 580) -> Path:
    """Compile the library of one driver branch into a folder of its own; return that folder."""
    target = folder / str(driver) / "libnvidia-ml.so.1"
    if target.exists():
        return target.parent
    target.parent.mkdir(parents=True, exist_ok=True)
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError("there is no C compiler: install gcc")
    options = ("-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror")
    fresh = target.with_suffix(f".{os.getpid()}")
    named = ("-Wl,-soname,libnvidia-ml.so.1", "-o", str(fresh))
    sources = (*map(str, _SOURCES), "-lpthread")
    subprocess.run((compiler, *options, f"-DDRIVER={driver}", *named, *sources), check=True)
    fresh.rename(target)
    return target.parent


# The library looks at its script once a millisecond (LOOK_SECONDS in script.c).
_SEEN_SECONDS = 0.003

# Fields that a healthy card offers and that stand at zero.
_QUIET_FIELDS = (76, 269, 270, 271, 230, 94, 38, 45, 52, 59, 173, 179, 180)


class Standin:
    """One imitated driver: a library, a script and the log of who attached.

    Parameters
    ----------
    library
        Folder that holds ``libnvidia-ml.so.1``.
    folder
        Where script and log stand.
    """

    def __init__(self, library: Path, folder: Path) -> None:
        self.library = library / "libnvidia-ml.so.1"
        self._script = folder / "script"
        self._log = folder / "attached"
        self._answers: dict[str, str] = {}
        self.events = 0

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to load this driver."""
        return {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "NVML_STANDIN": str(self._script),
            "NVML_STANDIN_LOG": str(self._log),
        }

    def say(self, answers: Mapping[str, object], *, forget: tuple[str, ...] = ()) -> None:
        """Change answers of the script, all at once; a None removes its key."""
        for key, value in [*answers.items(), *((key, None) for key in forget)]:
            if value is None:
                self._answers.pop(key, None)
            else:
                self._answers[key] = str(value)
        fresh = self._script.with_suffix(".fresh")
        fresh.write_text("".join(f"{key} {value}\n" for key, value in self._answers.items()))
        fresh.rename(self._script)
        time.sleep(_SEEN_SECONDS)

    def happen(self, gpu: int, event_type: int, data: int = 0) -> None:
        """Let an NVML event happen to a GPU."""
        self.events += 1
        self.say({f"-.event.{self.events}": f"{gpu} {event_type} {data}", "-.events": self.events})

    def log(self) -> list[tuple[str, int]]:
        """Who attached, detached or made a forbidden call: (word, process id), oldest first."""
        return [(word, pid) for word, pid in self._lines() if word != "listens"]

    def listeners(self) -> int:
        """How many GPUs have been registered for events, so far."""
        return sum(1 for word, _ in self._lines() if word == "listens")

    def _lines(self) -> list[tuple[str, int]]:
        if not self._log.exists():
            return []
        words = [line.split() for line in self._log.read_text().splitlines()]
        return [(word, int(pid)) for word, pid in words]


def h100(count: int = 8) -> dict[str, object]:
    """Return a script of healthy H100s at work, as their captures and the domain notes say."""
    script: dict[str, object] = {
        "-.nvmlDeviceGetCount": count,
        "-.nvmlSystemGetDriverVersion": "580.105.08",
        "-.nvmlSystemGetNVMLVersion": "13.580.105.08",
    }
    for gpu in range(count):
        script[f"{gpu}.nvmlDeviceGetUUID"] = f"GPU-{gpu:08d}-0000-4000-8000-000000000000"
        script[f"{gpu}.nvmlDeviceGetSerial"] = f"16500000000{gpu:02d}"
        script[f"{gpu}.nvmlDeviceGetPciInfo"] = f"00000000:{0x1A + gpu:02X}:00.0"
    calls: dict[str, object] = {
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetVbiosVersion": "96.00.74.00.01",
        "nvmlDeviceGetTemperature.0": 40,
        "nvmlDeviceGetMarginTemperature": 47,
        "nvmlDeviceGetPowerUsage": 692_000,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetTotalEnergyConsumption": "ramp 123456789 692000",
        "nvmlDeviceGetUtilizationRates": "99 60",
        "nvmlDeviceGetEncoderUtilization": "0 100000",
        "nvmlDeviceGetDecoderUtilization": "0 100000",
        "nvmlDeviceGetMemoryInfo": f"{81559 * MIB} {41080 * MIB} {40000 * MIB} {479 * MIB}",
        "nvmlDeviceGetBAR1MemoryInfo": f"{131072 * MIB} {131070 * MIB} {2 * MIB}",
        "nvmlDeviceGetClockInfo.0": 1980,
        "nvmlDeviceGetClockInfo.1": 1980,
        "nvmlDeviceGetClockInfo.2": 2619,
        "nvmlDeviceGetClockInfo.3": 1545,
        "nvmlDeviceGetMaxClockInfo.1": 1980,
        "nvmlDeviceGetMaxClockInfo.2": 2619,
        "nvmlDeviceGetPerformanceState": 0,
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetCurrentClocksEventReasons": 4,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 4,
        "nvmlDeviceGetCurrPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetPcieReplayCounter": 0,
        "nvmlDeviceGetTotalEccErrors.0.0": 0,
        "nvmlDeviceGetTotalEccErrors.1.0": 0,
        "nvmlDeviceGetTotalEccErrors.0.1": 0,
        "nvmlDeviceGetTotalEccErrors.1.1": 0,
        "nvmlDeviceGetRemappedRows": "0 0 0 0",
        "nvmlDeviceGetRowRemapperHistogram": "2560 0 0 0 0",
        "nvmlDeviceGetSramEccErrorStatus": "0 0 0 0 0 0 0 0 0 0 0 0",
        "nvmlDeviceGetMigMode": "0 0",
        "nvmlDeviceGetMaxMigDeviceCount": 7,
        "nvmlDeviceGetSupportedEventTypes": 0xFE0B,
        "nvmlDeviceGetSamples.0": " ".join(str(690_000 + 100 * i) for i in range(50)),
        "nvmlDeviceGetSamples.1": "97 98 99 99 100 100",
        "nvmlDeviceGetSamples.5": "1965 1980 1980 1980 1980 1980",
        "nvmlGpmQueryDeviceSupport": 1,
    }
    calls |= {f"nvmlDeviceGetNvLinkState.{link}": 1 for link in range(18)}
    for location in (2, 7):
        for which in ("0.0", "0.1", "1.0", "1.1"):
            calls[f"nvmlDeviceGetMemoryErrorCounter.{which}.{location}"] = 0
    fields: dict[int, object] = dict.fromkeys(_QUIET_FIELDS, 0)
    fields |= {82: 45, 186: 695_000, 91: 18, 193: -8, 194: -2, 195: -4, 196: 0}
    fields |= {74: "ramp 1500000000 900000000"}
    fields |= {197: "ramp 10000 5000000", 198: "ramp 20000 7000000"}
    fields |= dict.fromkeys((138, 139), "ramp 1000 2000000")
    gpm = {1: 99.0, 2: 96.5, 3: 40.0, 5: 55.0, 10: 62.0, 20: 120.0, 21: 80.0, 60: 9000, 61: 9100}
    script |= {f"*.{name}": value for name, value in calls.items()}
    script |= {f"*.field.{number}": value for number, value in fields.items()}
    script |= {f"*.gpm.{number}": value for number, value in gpm.items()}
    return script
