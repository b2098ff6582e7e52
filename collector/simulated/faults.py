"""What goes wrong in the simulated fleet, when, and what a detector owes in return.

A schedule mixes faults with decoys: things that look odd and are healthy. A fault carries its
truth (family, kind, entity, times and the moment by which an alert is due); a decoy's truth is
that nothing of severity warning or above may be said.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from collector.simulated.identity import gpu_uuid, node_name
from schemas.errors import SourceError

__all__ = [
    "SPECS",
    "Fault",
    "FaultKind",
    "FaultSpec",
    "Truth",
    "check_schedule",
    "default_schedule",
    "load_schedule",
    "truths_of",
]


class FaultKind(StrEnum):
    """Everything that can be scheduled; about those from JOB_RESTART on nothing may be said."""

    THERMAL = "thermal"
    HW_THERMAL = "hw_thermal"
    SW_THERMAL = "sw_thermal"
    POWER_BRAKE = "power_brake"
    LEAK = "leak"
    GPU_LOST = "gpu_lost"
    GPU_MISSING = "gpu_missing"
    STRAGGLER = "straggler"
    HANG = "hang"
    ECC_STORM = "ecc_storm"
    JOB_RESTART = "job_restart"
    WARM_UP = "warm_up"
    STAGGERED_STOP = "staggered_stop"
    FLAT_PLATEAU = "flat_plateau"
    POWER_CAP = "power_cap"
    CORRECTED_ECC = "corrected_ecc"
    SHORT_DIPS = "short_dips"
    SENSOR_SPIKE = "sensor_spike"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """What one kind of fault means.

    Parameters
    ----------
    family, kind
        Family and kind of the alert that is due; empty for a decoy.
    deadline_seconds
        Simulated seconds from the start by which the alert is due.
    magnitude, unit
        Default magnitude and its meaning.
    whole_node
        Whether it may be scheduled without a GPU, for all GPUs of the node.
    """

    family: str = ""
    kind: str = ""
    deadline_seconds: float = 0.0
    magnitude: float = 0.0
    unit: str = ""
    whole_node: bool = False

    @property
    def decoy(self) -> bool:
        """Whether nothing may be said about it."""
        return not self.family


#: Deadlines: the thermal rule holds 15 °C for 5 minutes before it speaks; throttling is judged
#: over 60 to 120 s; a leak needs 1 GiB of rise and a straight line; a lost GPU one sample; a
#: missing one is given two minutes, because a driver may list its GPUs late after a reset.
SPECS: dict[FaultKind, FaultSpec] = {
    FaultKind.THERMAL: FaultSpec(
        family="thermal_fault",
        kind="peer_outlier",
        deadline_seconds=480.0,
        magnitude=28.0,
        unit="°C of excess at 400 W",
    ),
    FaultKind.HW_THERMAL: FaultSpec(
        family="throttling",
        kind="hw_thermal",
        deadline_seconds=90.0,
        magnitude=30.0,
        unit="°C by which the unthrottled chip would pass 87 °C",
    ),
    FaultKind.SW_THERMAL: FaultSpec(
        family="throttling",
        kind="sw_thermal",
        deadline_seconds=150.0,
        magnitude=18.0,
        unit="°C by which the unthrottled chip would pass 87 °C",
    ),
    FaultKind.POWER_BRAKE: FaultSpec(
        family="throttling",
        kind="power_brake",
        deadline_seconds=60.0,
        magnitude=0.4,
        unit="share of the clock that is left",
        whole_node=True,
    ),
    FaultKind.LEAK: FaultSpec(
        family="oom_precursor",
        kind="leak",
        deadline_seconds=720.0,
        magnitude=40.0,
        unit="GiB/h",
        whole_node=True,
    ),
    FaultKind.GPU_LOST: FaultSpec(family="gpu_lost", kind="lost", deadline_seconds=30.0),
    FaultKind.GPU_MISSING: FaultSpec(family="gpu_lost", kind="missing", deadline_seconds=120.0),
    FaultKind.STRAGGLER: FaultSpec(
        family="load_imbalance",
        kind="straggler",
        deadline_seconds=120.0,
        magnitude=0.2,
        unit="share of the speed that is lost",
    ),
    FaultKind.HANG: FaultSpec(family="load_imbalance", kind="hang", deadline_seconds=60.0),
    FaultKind.ECC_STORM: FaultSpec(
        family="hardware_error",
        kind="ecc_corrected_storm",
        deadline_seconds=60.0,
        magnitude=17_700.0,
        unit="errors a second",
    ),
    FaultKind.JOB_RESTART: FaultSpec(whole_node=True),
    FaultKind.WARM_UP: FaultSpec(whole_node=True),
    FaultKind.STAGGERED_STOP: FaultSpec(whole_node=True),
    FaultKind.FLAT_PLATEAU: FaultSpec(magnitude=0.95, unit="share of memory", whole_node=True),
    FaultKind.POWER_CAP: FaultSpec(whole_node=True),
    FaultKind.CORRECTED_ECC: FaultSpec(magnitude=12.0, unit="errors in all"),
    FaultKind.SHORT_DIPS: FaultSpec(magnitude=22.3, unit="seconds between dips", whole_node=True),
    FaultKind.SENSOR_SPIKE: FaultSpec(magnitude=23.0, unit="°C for one sample"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One scheduled thing.

    Parameters
    ----------
    kind
        What happens.
    node
        Position of the node, from 0.
    gpu
        Index of the GPU, or None for every GPU of the node where the kind allows it.
    start_seconds, duration_seconds
        Simulated seconds from the first reading, and how long it lasts.
    magnitude
        In the unit of :data:`SPECS`; None takes the default of the kind.
    """

    kind: FaultKind
    node: int
    start_seconds: float
    duration_seconds: float
    gpu: int | None = None
    magnitude: float | None = None

    def __post_init__(self) -> None:
        if self.gpu is None and not SPECS[self.kind].whole_node:
            raise SourceError(f"a fault of kind {self.kind} needs a gpu; name one by its index.")
        if self.duration_seconds <= 0.0:
            raise SourceError(f"a fault of kind {self.kind} needs a duration above 0 seconds.")

    @property
    def spec(self) -> FaultSpec:
        """What the kind means."""
        return SPECS[self.kind]

    @property
    def size(self) -> float:
        """Magnitude in force."""
        return self.spec.magnitude if self.magnitude is None else self.magnitude

    @property
    def end_seconds(self) -> float:
        """When it ends, simulated seconds from the first reading."""
        return self.start_seconds + self.duration_seconds

    def active(self, seconds: float) -> bool:
        """Whether it acts at ``seconds``; the start is included, the end is not."""
        return self.start_seconds <= seconds < self.end_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a fault obliges a detector to say; times are unix milliseconds of simulated time.

    Parameters
    ----------
    fault
        Kind of fault, for rules about its physical companions.
    family, kind
        Of the alert that is due; empty for a decoy.
    node, gpu_uuids
        Entity: the node's name and the GPUs hit.
    start, end, deadline
        When it acts, and by when the alert is due.
    """

    fault: FaultKind
    family: str
    kind: str
    node: str
    gpu_uuids: tuple[str, ...]
    start: int
    end: int
    deadline: int

    @property
    def decoy(self) -> bool:
        """Whether nothing of severity warning or above may be said about it."""
        return not self.family


def truths_of(
    faults: Iterable[Fault], *, seed: int, gpus: int, origin_ms: int
) -> tuple[Truth, ...]:
    """Turn a schedule into truths.

    Parameters
    ----------
    faults
        The schedule.
    seed, gpus
        Of the fleet settings; they make the UUIDs.
    origin_ms
        Event time of the fleet's first reading, unix milliseconds.
    """
    return tuple(_truth(fault, seed, gpus, origin_ms) for fault in faults)


def _truth(fault: Fault, seed: int, gpus: int, origin_ms: int) -> Truth:
    hit = range(gpus) if fault.gpu is None else (fault.gpu,)
    start = origin_ms + round(fault.start_seconds * 1000)
    return Truth(
        fault=fault.kind,
        family=fault.spec.family,
        kind=fault.spec.kind,
        node=node_name(fault.node),
        gpu_uuids=tuple(gpu_uuid(seed, fault.node, gpu) for gpu in hit),
        start=start,
        end=origin_ms + round(fault.end_seconds * 1000),
        deadline=start + round(fault.spec.deadline_seconds * 1000),
    )


_KEYS: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "node": (int,),
    "gpu": (int,),
    "start_seconds": (int, float),
    "duration_seconds": (int, float),
    "magnitude": (int, float),
}


def load_schedule(path: Path) -> tuple[Fault, ...]:
    """Read a schedule from TOML: a list of ``[[fault]]`` tables with the fields of a Fault.

    Raises
    ------
    SourceError
        If the file cannot be read or a table is wrong; the text names the key.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("fault", [])
    except (OSError, tomllib.TOMLDecodeError) as exc:
        raise SourceError(f"the fault schedule {path} cannot be read: {exc}") from exc
    if not isinstance(tables, list):
        raise SourceError(f"{path}: fault must be a list; write [[fault]] for each one.")
    return tuple(_fault(table, f"{path}: fault {index}") for index, table in enumerate(tables, 1))


# Any: values of a TOML table until they are checked here.
def _fault(table: dict[str, Any], where: str) -> Fault:
    for key, value in table.items():
        wanted = _KEYS.get(key)
        if wanted is None:
            raise SourceError(f"{where}: {key} is not known; known are {', '.join(_KEYS)}.")
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise SourceError(f"{where}: {key} has the wrong type: {value!r}.")
    for key in ("kind", "node", "start_seconds", "duration_seconds"):
        if key not in table:
            raise SourceError(f"{where}: {key} is missing.")
    try:
        kind = FaultKind(table["kind"])
    except ValueError as exc:
        raise SourceError(f"{where}: {exc}; known are {', '.join(FaultKind)}.") from exc
    return Fault(**{**table, "kind": kind})


def check_schedule(faults: Sequence[Fault], *, nodes: int, gpus: int) -> None:
    """Refuse a fault outside the fleet.

    Raises
    ------
    SourceError
        Naming the fault and the place that does not exist.
    """
    for fault in faults:
        if not 0 <= fault.node < nodes or not 0 <= (fault.gpu or 0) < gpus:
            raise SourceError(
                f"the fault {fault.kind} is set for node {fault.node}, gpu {fault.gpu}, but the "
                f"fleet has {nodes} nodes of {gpus} GPUs (counted from 0)."
            )


def default_schedule(seed: int = 1) -> tuple[Fault, ...]:
    """Half an hour of trouble for two nodes of eight GPUs.

    The seed shifts which GPU is hit, so that no detector can be fitted to places. The first
    fault comes after 90 s; the last deadline is at 1,460 s.
    """

    def gpu(place: int) -> int:
        return (place + seed) % 8

    kind = FaultKind
    rows: tuple[tuple[FaultKind, int, int | None, float, float], ...] = (
        (kind.FLAT_PLATEAU, 1, gpu(4), 0.0, 1e9),
        (kind.SHORT_DIPS, 1, None, 0.0, 1e9),
        (kind.POWER_CAP, 0, None, 0.0, 1e9),
        (kind.POWER_BRAKE, 1, None, 90.0, 45.0),
        (kind.HW_THERMAL, 0, gpu(5), 200.0, 120.0),
        (kind.THERMAL, 1, gpu(2), 240.0, 700.0),
        (kind.LEAK, 0, gpu(6), 300.0, 900.0),
        (kind.CORRECTED_ECC, 0, gpu(0), 400.0, 60.0),
        (kind.SW_THERMAL, 0, gpu(3), 480.0, 200.0),
        (kind.SENSOR_SPIKE, 1, gpu(0), 700.0, 1.0),
        (kind.GPU_LOST, 1, gpu(7), 1010.0, 500.0),
        (kind.GPU_MISSING, 0, gpu(1), 1340.0, 200.0),
        (kind.STAGGERED_STOP, 1, None, 1540.0, 87.0),
        (kind.JOB_RESTART, 0, None, 1680.0, 20.0),
    )
    return tuple(
        Fault(kind=what, node=node, gpu=index, start_seconds=start, duration_seconds=duration)
        for what, node, index, start, duration in rows
    )
