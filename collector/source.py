"""What the collector reads: one protocol for every kind of source.

A source is asked for one reading of the whole node at a time and answers even when nothing can
be read: the state of the collector is itself a message. It keeps no statistics and reads no
clock of its own except where the readings carry their own time (recorded telemetry).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from schemas.sample import CollectorState, Inventory, JobRef, SampleEvent

__all__ = ["EventSource", "JobSource", "Reading", "Source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Everything about one node at one instant.

    Parameters
    ----------
    node
        Name of the node. A live source has one; a recording may hold many.
    ts
        Event time, unix milliseconds.
    gpus
        UUIDs, in the order of the values.
    values
        Metric name to one number or None per GPU. A metric that no GPU offers is absent.
    status
        Metric name to {position of the GPU: code}, only where a value is missing or refused.
    state, nvml_error
        What the collector can see at all.
    events
        What happened since the previous reading.
    inventory
        What the GPUs are. The agent decides when it travels.
    jobs
        Jobs on the GPUs, or None where the source knows nothing of jobs.
    parents
        MIG UUID to UUID of the parent GPU.
    pids
        Process ids on each GPU as this node's own process table numbers them, by UUID; None
        where the source knows nothing of processes. Never published as such: the agent asks
        what jobs they belong to.
    host
        Numbers of the machine around the GPUs, name to number, if they were asked for at this
        reading.
    """

    node: str
    ts: int
    gpus: tuple[str, ...] = ()
    values: dict[str, list[float | None]] = field(default_factory=dict)
    status: dict[str, dict[int, str]] = field(default_factory=dict)
    state: str = CollectorState.OK
    nvml_error: int | None = None
    events: tuple[SampleEvent, ...] = ()
    inventory: Inventory = field(default_factory=Inventory)
    jobs: tuple[JobRef, ...] | None = None
    parents: dict[str, str] = field(default_factory=dict)
    pids: Mapping[str, tuple[int, ...]] | None = None
    host: Mapping[str, float] | None = None


class Source(Protocol):
    """One thing that can be read.

    A source with a history of its own may also carry ``boot_id`` (text, of the readings last
    returned) and ``interval_seconds`` (usual distance between two readings of a node); the agent
    then publishes those instead of the kernel's boot id and the interval of the settings. A source
    that is told of events between two readings offers ``heard()``: events since the last call.
    """

    #: Kind for ``collector.source`` on the wire: ``nvml``, ``simulated`` or ``replay``.
    kind: str

    def read(self, ts_ms: int) -> list[Reading]:
        """Read everything now.

        Parameters
        ----------
        ts_ms
            Event time of this tick, unix milliseconds. A recording ignores it and uses its own.

        Returns
        -------
        list of Reading
            One per node. Empty if there is nothing at this tick. Never raises for a fault of a
            device or driver: such a fault is a state or a status inside the reading.
        """
        ...

    @property
    def exhausted(self) -> bool:
        """Whether nothing will ever come again (the end of a recording)."""
        ...

    def close(self) -> None:
        """Let go of the driver or file."""
        ...


class EventSource(Protocol):
    """Something beside the driver that tells what happens on this node: the kernel log.

    It is asked several times a second from the agent's own thread and must never wait.
    """

    def poll(self, ts_ms: int) -> list[SampleEvent]:
        """Return what happened since the last call.

        Parameters
        ----------
        ts_ms
            Now, unix milliseconds.

        Returns
        -------
        list of SampleEvent
            ``gpu`` may be left out where ``pci`` is known; the agent looks it up. Never raises
            for a fault of the log: such a fault is a state.
        """
        ...

    def settle(self) -> None:
        """Learn that all polled events were handed on: a restart need not read them again."""
        ...

    def health(self) -> Mapping[str, object]:
        """Return ``state`` (a word) and ``detail`` (a sentence). Safe from any thread."""
        ...

    def close(self) -> None:
        """Let go of the log."""
        ...


class JobSource(Protocol):
    """Knows which jobs use the GPUs of this node."""

    def jobs(
        self, ts_ms: int, gpus: tuple[str, ...], pids: Mapping[str, tuple[int, ...]] | None
    ) -> tuple[JobRef, ...] | None:
        """Return the jobs on these GPUs, or None where nothing can be known.

        Parameters
        ----------
        ts_ms
            Event time of the reading, unix milliseconds.
        gpus
            UUIDs of the reading.
        pids
            Process ids by UUID, or None where they are not known.

        Returns
        -------
        tuple of JobRef or None
            An empty tuple means that no job is there. Never raises.
        """
        ...

    def health(self) -> Mapping[str, object]:
        """Return more about what is asked, by name; empty where there is nothing to say."""
        ...

    def close(self) -> None:
        """Let go of what is open."""
        ...
