"""NodeSample: one node, T ticks x G GPUs, columnar. The message on ``gpu.samples``.

Lists under ``m`` are flat and row-major (``tick * G + gpu``): flat lists decode faster than
nested ones. Missing is ``None`` here, null on the wire and NaN in arrays: never 0, never -1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

__all__ = [
    "HOST_NUMBERS",
    "SAMPLE_SCHEMA",
    "CollectorState",
    "CollectorStatus",
    "EventKind",
    "GpuInventory",
    "Inventory",
    "JobRef",
    "NodeSample",
    "SampleEvent",
    "ThresholdKind",
    "ValueStatus",
    "status_cell",
]

SAMPLE_SCHEMA = "gpu.sample/1"

#: What a sample may say of the machine around the GPUs: name to meaning. Names are never used for
#: something else; readers ignore those that they do not know.
HOST_NUMBERS: Mapping[str, str] = MappingProxyType(
    {
        "cpu_utilization_ratio": "Share of all processor time used since the last number, 0 to 1.",
        "cpu_count": "Logical processors.",
        "load1": "Processes that run or want to, mean of 1 minute.",
        "load5": "The same of 5 minutes.",
        "load15": "The same of 15 minutes.",
        "memory_total_bytes": "Main memory.",
        "memory_available_bytes": "Main memory that programs could still get.",
        "swap_total_bytes": "Swap.",
        "swap_used_bytes": "Swap in use.",
    }
)


class ValueStatus(StrEnum):
    """Why a value is missing, beside ``error:<nvml code>`` for a failed call."""

    UNSUPPORTED = "unsupported"
    NO_PERMISSION = "no_permission"
    STALE = "stale"
    IMPLAUSIBLE = "implausible"


def status_cell(key: str) -> int:
    """Return the cell, tick times GPUs plus GPU, that a key of a sample's ``status`` names.

    Returns
    -------
    int
        -1 for a key that names none: what others write there is not to be trusted.

    Examples
    --------
    >>> [status_cell(key) for key in ("12", "", "-1", "²", "9" * 5000)]
    [12, -1, -1, -1, -1]
    """
    return int(key) if key.isascii() and key.isdecimal() and len(key) < 10 else -1


class CollectorState(StrEnum):
    """What the collector can see at all."""

    OK = "ok"
    NO_DRIVER = "no_driver"
    NO_LIBRARY = "no_library"
    NO_PERMISSION = "no_permission"
    VERSION_MISMATCH = "version_mismatch"
    BLIND = "blind"
    UNRESPONSIVE = "unresponsive"
    STOPPING = "stopping"
    #: Let go of on purpose, for a GPU reset: not a fault.
    RELEASED = "released"


class EventKind(StrEnum):
    """Things that happen at an instant rather than being measured at a tick."""

    XID = "xid"
    SXID = "sxid"
    KERNEL = "kernel"
    GPU_LOST = "gpu_lost"
    GPU_RETURNED = "gpu_returned"
    COUNTER_RESET = "counter_reset"
    DRIVER_CHANGED = "driver_changed"
    COLLECTOR_STARTED = "collector_started"


class ThresholdKind(StrEnum):
    """Whether temperature thresholds are absolute degrees or margins below the limit."""

    ABSOLUTE = "absolute"
    MARGIN = "margin"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEvent:
    """One event, with its own event time.

    Parameters
    ----------
    ts
        Unix milliseconds.
    kind
        One of :class:`EventKind`; unknown kinds are ignored by consumers.
    gpu
        UUID, if known.
    pci
        PCI address as read, if known.
    xid
        Xid code, for ``kind == "xid"``; code of the NVSwitch, for ``kind == "sxid"``.
    count
        How many equal events this record stands for.
    message
        The line or the driver's words.
    pid, process
        The process that the line names: who happened to ask, not who is to blame.
    gpu_instance, compute_instance
        Numbers of the MIG partition that the line names.
    """

    ts: int
    kind: str
    gpu: str | None = None
    pci: str | None = None
    xid: int | None = None
    count: int = 1
    message: str | None = None
    pid: int | None = None
    process: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorStatus:
    """State of the collector itself; always there, so that G = 0 is a heartbeat.

    Parameters
    ----------
    state
        One of :class:`CollectorState`.
    nvml_error
        NVML return code behind the state, or None.
    interval_seconds, flush_seconds
        Sampling and flush interval in force, in seconds.
    source
        Kind of source: ``nvml``, ``simulated``, ``replay``.
    """

    state: str = CollectorState.OK
    nvml_error: int | None = None
    interval_seconds: float = 1.0
    flush_seconds: float = 1.0
    source: str = "nvml"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRef:
    """A job on some GPUs of the node. A GPU may serve several."""

    gpus: tuple[str, ...]
    job: str
    project: str | None = None
    user_hash: str | None = None
    container: str | None = None
    rank: int | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInventory:
    """What a GPU is, as opposed to what it does. Temperatures in °C, clocks in Hz."""

    gpu: str
    index: int | None = None
    model: str | None = None
    pci: str | None = None
    serial: str | None = None
    vbios: str | None = None
    parent: str | None = None
    mig_mode: bool | None = None
    persistence_mode: bool | None = None
    mig_profile: str | None = None
    threshold_kind: str | None = None
    slowdown_celsius: float | None = None
    shutdown_celsius: float | None = None
    max_operating_celsius: float | None = None
    memory_max_celsius: float | None = None
    nvlink_links: int | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Keyframe: first message, on change and every 60 s.

    Parameters
    ----------
    gpus
        One entry per GPU and per MIG instance.
    expected_gpus
        How many GPUs the node should have (from the PCI bus or the settings), or None.
    driver_version, nvml_version
        As the driver says them.
    uptime_seconds
        Since boot of the node.
    labels
        From the settings: cluster, rack, slot ...
    """

    gpus: tuple[GpuInventory, ...] = ()
    expected_gpus: int | None = None
    driver_version: str | None = None
    nvml_version: str | None = None
    uptime_seconds: float | None = None
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """Everything one node says in one flush.

    Parameters
    ----------
    node
        Name of the node, key of the message.
    boot_id
        Changes with every boot (and every start of a replay): counters and ``seq`` begin anew.
    seq
        Contiguous per (node, boot_id), from 0: a gap is a loss, a repetition a duplicate.
    ts
        T event times, integer unix milliseconds, strictly increasing.
    gpu
        G ids: GPU UUIDs, or MIG UUIDs with their parent in ``parents``.
    m
        Metric name to T * G numbers or None, row-major. A metric absent here is unsupported
        on the whole node.
    collector
        State of the collector, always there.
    status
        Metric name to {str(tick * G + gpu): code}, only where something is not "ok". The code is
        a :class:`ValueStatus` or ``error:<nvml code>``.
    events, jobs, inventory
        As described by their types. ``jobs`` None means unchanged, an empty tuple means none.
    parents
        MIG UUID to UUID of the parent GPU.
    host
        Numbers of the machine around the GPUs at the last tick, by name: :data:`HOST_NUMBERS`
        says which; what is not known is left out. None means that they were not asked for anew.
    """

    node: str
    boot_id: str
    seq: int
    ts: tuple[int, ...]
    gpu: tuple[str, ...]
    m: Mapping[str, list[float | None]]
    collector: CollectorStatus = field(default_factory=CollectorStatus)
    status: dict[str, dict[str, str]] = field(default_factory=dict)
    events: tuple[SampleEvent, ...] = ()
    jobs: tuple[JobRef, ...] | None = None
    inventory: Inventory | None = None
    parents: dict[str, str] = field(default_factory=dict)
    host: dict[str, float] | None = None
    schema: str = SAMPLE_SCHEMA
