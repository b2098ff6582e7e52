"""One MIG instance of a GPU: memory and activity of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from collector.answers import Answers
from collector.device import NvmlDoor, call
from collector.facts import ask_fact, text_of
from collector.gpm import Gpm
from collector.plan import Plan
from collector.processes import Processes
from collector.readings import MEMORY_ROWS, Group
from schemas.sample import GpuInventory

__all__ = ["MigInstance", "Parent", "list_instances"]


class Parent(Protocol):
    """What an instance asks of the GPU that it is a part of."""

    @property
    def facts(self) -> GpuInventory:
        """What the GPU is."""
        ...


class MigInstance:
    """One instance. NVML offers memory and processes per instance, GPM its activity.

    Parameters
    ----------
    door, handle, uuid
        Whom to ask, and its identity.
    parent
        The physical GPU.
    """

    def __init__(self, door: NvmlDoor, handle: object, uuid: str, parent: Parent) -> None:
        self._door = door
        self._handle = handle
        self._parent = parent
        self._plan = Plan(MEMORY_ROWS)
        self._processes = Processes()
        number = ask_fact(door, handle, call("nvmlDeviceGetGpuInstanceId"))
        self._gpm = None if number is None else Gpm(int(number))
        self.uuid = uuid
        self.pids: tuple[int, ...] | None = None
        name = ask_fact(door, handle, call("nvmlDeviceGetName"))
        _, found, profile = (text_of(name) or "").partition("MIG ")
        self.profile = profile if found else None

    def attach(self, handle: object) -> None:
        """Use this handle from now on."""
        self._handle = handle

    def read(self, parent_handle: object, groups: frozenset[Group]) -> Answers:
        """Read the instance; counters of activity are asked through its parent."""
        answers = self._plan.read(self._door, self._handle)
        if answers.failure() is not None:
            return answers
        if self._gpm is not None and Group.PROFILING in groups:
            self._gpm.read(self._door, parent_handle, answers)
        if Group.PROCESSES in groups:
            self.pids = self._processes.read(
                self._door,
                self._handle,
                answers,
                total_bytes=answers.values.get("memory_total_bytes"),
            )
        return answers

    def close(self) -> None:
        """Give back what was taken from the driver."""
        if self._gpm is not None:
            self._gpm.close(self._door)

    @property
    def facts(self) -> GpuInventory:
        """What the instance is."""
        parent = self._parent.facts
        return GpuInventory(
            gpu=self.uuid,
            index=parent.index,
            model=parent.model,
            pci=parent.pci,
            parent=parent.gpu,
            mig_profile=self.profile,
        )


def list_instances(
    door: NvmlDoor, handle: object, parent: Parent, known: Sequence[MigInstance]
) -> tuple[MigInstance, ...]:
    """List the instances of a partitioned GPU.

    Parameters
    ----------
    door, handle, parent
        The GPU.
    known
        Instances of the last list; one that is still there is kept, because the activity of an
        instance is a difference to its own last snapshot.
    """
    count = ask_fact(door, handle, call("nvmlDeviceGetMaxMigDeviceCount")) or 0
    kept = {instance.uuid: instance for instance in known}
    found = []
    for number in range(int(count)):
        part = ask_fact(door, handle, call("nvmlDeviceGetMigDeviceHandleByIndex", number))
        uuid = None if part is None else text_of(ask_fact(door, part, call("nvmlDeviceGetUUID")))
        if part is None or uuid is None:
            continue
        instance = kept.pop(uuid, None)
        if instance is None:
            instance = MigInstance(door, part, uuid, parent)
        else:
            instance.attach(part)
        found.append(instance)
    for gone in kept.values():
        gone.close()
    return tuple(found)
