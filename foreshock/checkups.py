"""The checks of ``foreshock doctor``: one function, one frozen result.

A check never raises for what it looks for. It is registered in :mod:`foreshock.doctor`.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from api.database import Database, file_of
from api.storekinds import kind_of
from bus import open_bus
from collector.source import Reading
from collector.sources import open_source
from foreshock.compose import SERVICES, placed
from foreshock.config import Loaded
from foreshock.configtext import show_toml
from foreshock.datadir import DATA_VERSION, read_version
from foreshock.preflight import listening, port_fault, wrong_settings
from foreshock.secrets import MASK
from foreshock.up import why_no_gpu
from schemas.errors import ForeshockError
from schemas.topics import ALL_TOPICS

__all__ = [
    "Check",
    "Grade",
    "Result",
    "check_bus",
    "check_clock",
    "check_data_dir",
    "check_devices",
    "check_driver",
    "check_ports",
    "check_settings",
    "check_space",
    "check_store",
    "check_topics",
    "fail",
    "ok",
    "warn",
]

# Below this much free space the store and the bus may fill the disk within a day of one
# node's samples (about 2 KiB a second with the full catalogue and eight GPUs).
_MIN_FREE_BYTES = 1 * 2**30
# A step of the wall clock against the steady one, in seconds, that is no mere slewing.
_MAX_STEP_SECONDS = 0.05


#: What to do about a bus that cannot be used, by transport.
_BUS_ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "kafka": "Start the brokers, or set bus.kafka.bootstrap to where they are; log-in and TLS "
        'are bus.kafka.properties. On one machine no Kafka is needed: bus.transport = "sqlite".',
        "sqlite": "Check the owner of the file and its folder, or set bus.path.",
        "memory": "Set bus.transport to sqlite.",
    }
)


class Grade(StrEnum):
    """How a check ended. Only ``fail`` keeps foreshock from working."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one check found.

    Parameters
    ----------
    name
        What was looked at.
    grade
        Whether it is well.
    found
        Sentence or numbers: what is there.
    advice
        What to do; empty if nothing.
    """

    name: str
    grade: Grade
    found: str
    advice: str = ""


Check = Callable[[Loaded], Result]


def ok(name: str, found: str) -> Result:
    """Return what is well."""
    return Result(name=name, grade=Grade.OK, found=found)


def warn(name: str, found: str, advice: str) -> Result:
    """Return what works and should be looked at."""
    return Result(name=name, grade=Grade.WARN, found=found, advice=advice)


def fail(name: str, found: str, advice: str = "") -> Result:
    """Return what keeps foreshock from working."""
    return Result(name=name, grade=Grade.FAIL, found=found, advice=advice)


def check_settings(loaded: Loaded) -> Result:
    """Report the settings file, what contradicts in it, and secrets that others can read."""
    name = "settings"
    wrong = wrong_settings(loaded.settings)
    if wrong:
        return fail(name, "\n".join(wrong), "No service starts with these; change them.")
    if loaded.file is None:
        count = len(loaded.origins)
        values = "1 value" if count == 1 else f"{count} values"
        return ok(name, f"no file, {values} from the environment")
    mode = loaded.file.stat().st_mode
    # A group may read: that is how a service's user gets the settings that root owns.
    if mode & stat.S_IROTH and MASK in show_toml(loaded):
        advice = f"chmod 600 {loaded.file}"
        return warn(name, f"{loaded.file} holds secrets and others can read it", advice)
    return ok(name, str(loaded.file))


def check_driver(loaded: Loaded) -> Result:
    """Read every GPU once, through the collector."""
    name = "GPUs"
    source = open_source(loaded.settings.collector)
    try:
        readings = source.read(time.time_ns() // 1_000_000)
    finally:
        source.close()
    if source.kind != "nvml":
        return ok(name, f"none needed, the source is {source.kind}")
    sentence = why_no_gpu(readings)
    if sentence is None:
        return _gpus_found(name, readings)
    found, _, advice = sentence.removeprefix("There is no GPU to watch: ").partition(". ")
    return fail(name, found, advice)


def _gpus_found(name: str, readings: Sequence[Reading]) -> Result:
    count = sum(len(reading.gpus) for reading in readings)
    inventory = readings[0].inventory
    found = f"{count} GPUs, driver {inventory.driver_version or 'unknown'}"
    expected = inventory.expected_gpus
    if expected is not None and expected > count:
        advice = "Look at 'nvidia-smi -L' and the kernel log for a GPU that has gone."
        return warn(name, f"{found}, but {expected} are expected", advice)
    return ok(name, found)


def check_devices(loaded: Loaded) -> Result:
    """Look whether this user may open the device files of the driver."""
    name = "device files"
    if loaded.settings.collector.source != "nvml":
        return ok(name, f"none needed, the source is {loaded.settings.collector.source}")
    files = sorted(Path("/dev").glob("nvidia[0-9]*")) + sorted(Path("/dev").glob("nvidiactl"))
    if not files:
        return fail(
            name, "no /dev/nvidia*", "Install or load the driver; give a container the GPUs."
        )
    closed = [str(file) for file in files if not os.access(file, os.R_OK | os.W_OK)]
    if closed:
        return fail(name, f"no access to {', '.join(closed)}", "Add this user to the files' group.")
    return ok(name, f"{len(files)} files can be opened")


def check_bus(loaded: Loaded) -> Result:
    """Ask the transport whether it works."""
    name, settings = "bus", placed(loaded.settings)
    if settings.bus.transport == "sqlite" and not settings.bus.path.exists():
        return ok(name, f"{settings.bus.path} will be created by the first service")
    try:
        bus = open_bus(settings.bus)
        try:
            return ok(name, bus.check(5.0))
        finally:
            bus.close()
    except ForeshockError as exc:
        return fail(name, str(exc), _BUS_ADVICE[settings.bus.transport])


def check_topics(loaded: Loaded) -> Result:
    """Look whether every topic of the contract exists."""
    name, settings = "topics", placed(loaded.settings)
    if settings.bus.transport == "memory":
        return ok(name, "made anew at each start, transport memory")
    if settings.bus.transport == "sqlite" and not settings.bus.path.exists():
        return ok(name, "will be created by the first service, transport sqlite")
    try:
        bus = open_bus(settings.bus)
        try:
            there = {topic.name for topic in bus.describe_topics()}
        finally:
            bus.close()
    except ForeshockError as exc:
        return fail(name, str(exc), _BUS_ADVICE[settings.bus.transport])
    wanted = [topic.full_name(settings.bus.prefix) for topic in ALL_TOPICS]
    missing = [topic for topic in wanted if topic not in there]
    if missing and settings.bus.transport == "sqlite":
        return ok(name, f"will be created by the next service: {', '.join(missing)}")
    if missing:
        return fail(name, f"missing: {', '.join(missing)}", "Run: foreshock topics create")
    return ok(name, f"all {len(wanted)} exist")


def check_data_dir(loaded: Loaded) -> Result:
    """Look at the rights and the version of the data directory."""
    name, path = "data directory", loaded.settings.data_dir
    if _nearest_existing(path) != path:
        return _can_be_made(name, path)
    if not path.is_dir() or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return fail(name, f"{path} cannot be written", "Change its owner, or set data_dir.")
    try:
        version = read_version(path)
    except ForeshockError as exc:
        return fail(name, str(exc))
    if version is not None and version > DATA_VERSION:
        return fail(name, f"{path} is of version {version}", "Install the newer foreshock.")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return warn(name, f"{path} is open to others ({mode:o})", f"chmod 700 {path}")
    return ok(name, f"{path}, version {version or DATA_VERSION}")


def _nearest_existing(path: Path) -> Path:
    """Return the path or the nearest thing above it that this user can see."""
    # os.path's function is False where Path's raises: in a folder of somebody else.
    return next(one for one in (path, *path.parents) if os.path.exists(one))  # noqa: PTH110


def _can_be_made(name: str, path: Path) -> Result:
    above = _nearest_existing(path)
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return ok(name, f"{path} will be created by the first service")
    why = "this user may not write there" if above.is_dir() else "that is a file, not a folder"
    advice = "Set data_dir to a folder of this user, or have it made: sudo install -d -m 700 -o "
    return fail(name, f"{path} cannot be created in {above}: {why}", f"{advice}$USER {path}")


def check_space(loaded: Loaded) -> Result:
    """Look at the free space where the data goes."""
    name, path = "free space", loaded.settings.data_dir
    there = _nearest_existing(path)
    free = shutil.disk_usage(there).free
    found = f"{free / 2**30:.1f} GiB on the disk of {there}"
    if free < _MIN_FREE_BYTES:
        return warn(name, found, "Free some space, or set data_dir to another disk.")
    return ok(name, found)


def check_store(loaded: Loaded) -> Result:
    """Look whether the alert store can be written. The api itself checks its version."""
    name, url = "alert store", loaded.settings.api.database
    try:
        file = file_of(url.get_secret_value() if url else None, loaded.settings.data_dir)
    except ForeshockError as exc:
        return fail(
            name, str(exc), "Set api.database to sqlite:///path or postgresql://…, or leave it out."
        )
    if file is None:
        return _store_server(name, url.get_secret_value() if url else "", loaded)
    if _nearest_existing(file) != file:
        return ok(name, f"{file} will be created by the api")
    try:
        # Taking the write lock and giving it back changes nothing and proves all.
        connection = sqlite3.connect(f"file:{file}?mode=rw", uri=True, timeout=5)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
            (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        finally:
            connection.close()
    except (sqlite3.Error, TypeError) as exc:
        return fail(name, f"{file}: {exc}", "Check its owner; move it away if it is damaged.")
    return ok(name, f"{file}, schema {revision}")


def _store_server(name: str, url: str, loaded: Loaded) -> Result:
    """Ask the server that holds the alert store; nothing is created or migrated."""
    kind = kind_of(url, loaded.settings.data_dir)
    database = Database(kind)
    try:
        revision = database.revision()
    except ForeshockError as exc:
        return fail(name, str(exc), "Check the server, its database and api.database.")
    finally:
        database.close()
    return ok(name, f"{kind.name}, schema {revision or 'to be created by the api'}")


def check_clock(_loaded: Loaded) -> Result:
    """Compare the wall clock with the steady clock, and ask whether it is synchronised."""
    name = "clock"
    wall, steady = time.time(), time.monotonic()
    time.sleep(0.2)
    step = abs((time.time() - wall) - (time.monotonic() - steady))
    if step > _MAX_STEP_SECONDS:
        return warn(name, f"the wall clock jumped by {step:.3f} s", "Look at the time service.")
    synchronised = _ntp_synchronised()
    if synchronised is None:
        return ok(name, "steady; whether it is synchronised could not be asked")
    if not synchronised:
        advice = "Start a time service (chrony, systemd-timesyncd): event times come from here."
        return warn(name, "steady, not synchronised", advice)
    return ok(name, "steady and synchronised")


def _ntp_synchronised() -> bool | None:
    """Ask systemd; None where there is none."""
    tool = shutil.which("timedatectl")
    if tool is None:
        return None
    try:
        answer = subprocess.run(  # noqa: S603 - fixed arguments
            [tool, "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"yes": True, "no": False}.get(answer.stdout.strip())


def check_ports(loaded: Loaded) -> Result:
    """Look whether the three ports are free."""
    name, places = "ports", listening(loaded.settings, tuple(SERVICES))
    faults = {at: port_fault(at) for at in places}
    taken = [f"{at.host}:{at.port} ({at.service})" for at, fault in faults.items() if fault]
    if taken:
        advice = "Fine if foreshock is running; else stop the other program or set another port."
        return warn(name, f"in use: {', '.join(taken)}", advice)
    return ok(name, "free: " + ", ".join(f"{at.service} {at.host}:{at.port}" for at in places))
