"""One GPU behind NVML: what it is (inventory), what it says at a tick, its MIG instances."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from collector.answers import Answers
from collector.device import Code, NvmlDoor, call, unsupported
from collector.facts import Thresholds, ask_fact, read_field_facts, read_thresholds, text_of
from collector.gpm import GPM_METRICS, Gpm
from collector.mig import MigInstance, list_instances
from collector.plan import Plan
from collector.processes import Processes
from collector.readings import ROWS, SLOW_GROUPS, Group
from collector.rings import RING_METRICS, Rings
from schemas.errors import DeviceError
from schemas.pci import canonical_pci
from schemas.sample import GpuInventory, ThresholdKind

__all__ = ["ALL_GROUPS", "Gpu", "metrics_of"]

ALL_GROUPS = frozenset(Group)
_LINK_COUNT = 91  # field
_MIG_ENABLED = 1
_LINKS, _SRAM, _COUNT = "nvlink_active_links", "sram_threshold_exceeded", "process_count"
_LATENCY = "driver_latency_seconds"

# What is read by more than a row of the table, by group.
_EXTRA: dict[Group, tuple[str, ...]] = {
    Group.CORE: (_LATENCY,),
    Group.LINKS: (_LINKS,),
    Group.ERRORS: (_SRAM,),
    Group.SAMPLES: RING_METRICS,
    Group.PROFILING: GPM_METRICS,
    Group.PROCESSES: (_COUNT,),
}


def metrics_of(groups: frozenset[Group]) -> frozenset[str]:
    """Return the metrics that these groups consist of."""
    rows = {row.metric for row in ROWS if row.group in groups}
    return frozenset(rows.union(*(_EXTRA.get(group, ()) for group in groups)))


# Links are counted by a call each (18 on an H100): not at every tick.
_CARRIED = metrics_of(SLOW_GROUPS) | {_LINKS}


class Gpu:
    """One physical GPU, known by its UUID; handle and index may change under it.

    Parameters
    ----------
    door
        Calls NVML.
    uuid
        Identity.
    groups
        What is read.
    facts
        What was known of it before, or None.
    """

    def __init__(
        self,
        door: NvmlDoor,
        uuid: str,
        groups: frozenset[Group] = ALL_GROUPS,
        facts: GpuInventory | None = None,
    ) -> None:
        self._door = door
        self._handle: object | None = None
        self._groups = groups
        self._plan = Plan(row for row in ROWS if row.group in groups)
        self._rings = Rings()
        self._gpm = Gpm()
        self._processes = Processes()
        self._carried: Answers | None = None
        self._skip: set[str] = set()
        self._last: Answers | None = None
        self._thresholds = Thresholds()
        self._failed = int(Code.UNKNOWN)
        self.uuid = uuid
        self.index = 0 if facts is None or facts.index is None else facts.index
        self.lost = False
        self.facts = facts or GpuInventory(gpu=uuid)
        self.instances: tuple[MigInstance, ...] = ()
        self.parts: tuple[tuple[MigInstance, Answers], ...] = ()
        self.pids: tuple[int, ...] | None = None

    @property
    def handle(self) -> object | None:
        """NVML's handle, None while there is none."""
        return self._handle

    def attach(self, handle: object, index: int) -> None:
        """Use this handle from now on."""
        self._handle = handle
        self.index = index

    def detach(self, code: int) -> None:
        """Have no handle: everything fails with ``code`` until attached again."""
        self._handle = None
        self._failed = code

    def change(self, groups: frozenset[Group]) -> None:
        """Read these groups from now on."""
        self._groups = groups
        self._plan = Plan(row for row in ROWS if row.group in groups)
        self._carried = None
        self._last = None

    def close(self) -> None:
        """Give back what was taken from the driver."""
        self._gpm.close(self._door)
        for instance in self.instances:
            instance.close()

    def read(self, *, slow: bool = True) -> Answers:
        """Read everything; what fails has its code, and a lost GPU fails with 15 throughout.

        Parameters
        ----------
        slow
            Whether to ask again for what moves slowly; else the last answers are repeated.
        """
        self.parts = ()
        if self._handle is None:
            return self.failing(self._failed)
        slow = slow or self._carried is None
        groups = self._groups if slow else self._groups - SLOW_GROUPS
        answers = self._plan.read(self._door, self._handle, groups)
        if not answers.lost:
            self._read_extras(answers, groups, slow=slow)
        if answers.lost:
            return self.failing(int(Code.GPU_IS_LOST))
        self._carry(answers, slow=slow)
        self._derive_margin(answers)
        self._last = answers
        self.parts = tuple((part, part.read(self._handle, groups)) for part in self.instances)
        return answers

    def failing(self, code: int) -> Answers:
        """Answers of a GPU on which every call fails with this code."""
        self.parts = ()
        return Answers({}, dict.fromkeys(self._offered() or metrics_of(self._groups), code))

    def _offered(self) -> frozenset[str]:
        """Return what the last good reading had, or a better answer than "not supported" to."""
        last = self._last
        if last is None:
            return metrics_of(self._groups)
        answered = (name for name, code in last.codes.items() if not unsupported(code))
        return frozenset({*last.values, *answered})

    def refresh(self) -> None:
        """Ask again what the GPU is and offers: at the start, every minute, after a change.

        A GPU that does not answer at all keeps the facts known of it.
        """
        if self._handle is None or not self._answers():
            return
        self._skip.clear()
        self._carried = None
        for part in (self._plan, self._rings, self._gpm, self._processes):
            part.probe()
        mode = self._fact("nvmlDeviceGetMigMode")
        mig = None if mode is None else mode[0] == _MIG_ENABLED
        self._thresholds = read_thresholds(self._door, self._handle)
        persistence = self._fact("nvmlDeviceGetPersistenceMode")
        (links,) = read_field_facts(self._door, self._handle, _LINK_COUNT)
        self.facts = GpuInventory(
            gpu=self.uuid,
            index=self.index,
            model=text_of(self._fact("nvmlDeviceGetName")),
            pci=self._pci(),
            serial=text_of(self._fact("nvmlDeviceGetSerial")),
            vbios=text_of(self._fact("nvmlDeviceGetVbiosVersion")),
            mig_mode=mig,
            persistence_mode=None if persistence is None else persistence == 1,
            threshold_kind=self._thresholds.kind,
            slowdown_celsius=self._thresholds.slowdown,
            shutdown_celsius=self._thresholds.shutdown,
            max_operating_celsius=self._thresholds.maximum,
            memory_max_celsius=self._thresholds.memory_maximum,
            nvlink_links=None if links is None else int(links),
            pcie_generation_max=self._fact("nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_width_max=self._fact("nvmlDeviceGetMaxPcieLinkWidth"),
        )
        known, self.instances = self.instances, ()
        if mig:
            self.instances = list_instances(self._door, self._handle, self, known)

    def _answers(self) -> bool:
        try:
            self._door.invoke("nvmlDeviceGetUUID", self._handle)
            self._door.invoke("nvmlDeviceGetName", self._handle)
        except DeviceError as exc:
            return unsupported(exc.code)
        return True

    # Any: ctypes structures of the binding.
    def _fact(self, name: str, *args: int) -> Any:
        return ask_fact(self._door, self._handle, call(name, *args))

    def _pci(self) -> str | None:
        info = self._fact("nvmlDeviceGetPciInfo")
        text = text_of(getattr(info, "busId", None))
        return None if text is None else canonical_pci(text) or text

    def _read_extras(self, answers: Answers, groups: frozenset[Group], *, slow: bool) -> None:
        """Read what takes more than a row of the table; stop at a GPU that is lost."""
        if self._plan.latency is not None:
            answers.values[_LATENCY] = self._plan.latency
        steps: tuple[tuple[Group, bool, Callable[[Answers], None]], ...] = (
            (Group.SAMPLES, True, self._read_rings),
            (Group.PROFILING, True, self._read_activity),
            (Group.LINKS, slow, self._read_links),
            (Group.ERRORS, slow, self._read_sram),
            (Group.PROCESSES, slow, self._read_processes),
        )
        for group, due, step in steps:
            if group in groups and due and not answers.lost:
                step(answers)

    def _read_rings(self, answers: Answers) -> None:
        self._rings.read(self._door, self._handle, answers)

    def _read_activity(self, answers: Answers) -> None:
        self._gpm.read(self._door, self._handle, answers)

    def _carry(self, answers: Answers, *, slow: bool) -> None:
        """Remember what moves slowly, or repeat it."""
        if slow:
            self._carried = Answers(
                {name: value for name, value in answers.values.items() if name in _CARRIED},
                {name: code for name, code in answers.codes.items() if name in _CARRIED},
            )
        elif self._carried is not None:
            answers.values.update(self._carried.values)
            answers.codes.update(self._carried.codes)

    def _read_links(self, answers: Answers) -> None:
        """Count the NVLinks that are up; a GPU without links does not offer the metric."""
        links = self.facts.nvlink_links or 0
        if links == 0 or _LINKS in self._skip:
            answers.codes[_LINKS] = int(Code.NOT_SUPPORTED)
            return
        try:
            states = [
                self._door.invoke("nvmlDeviceGetNvLinkState", self._handle, link)
                for link in range(links)
            ]
        except DeviceError as exc:
            answers.codes[_LINKS] = exc.code
            if unsupported(exc.code):
                self._skip.add(_LINKS)
            return
        answers.values[_LINKS] = float(sum(1 for state in states if state == 1))

    def _read_sram(self, answers: Answers) -> None:
        """Ask whether the errors of the SRAM exceed what NVIDIA replaces a board for."""
        if _SRAM in self._skip:
            answers.codes[_SRAM] = int(Code.NOT_SUPPORTED)
            return
        try:
            status = self._door.structure("c_nvmlEccSramErrorStatus_v1_t")
            self._door.invoke("nvmlDeviceGetSramEccErrorStatus", self._handle, ctypes.byref(status))
        except DeviceError as exc:
            answers.codes[_SRAM] = exc.code
            if unsupported(exc.code):
                self._skip.add(_SRAM)
            return
        answers.values[_SRAM] = float(status.bThresholdExceeded)

    def _read_processes(self, answers: Answers) -> None:
        total = answers.values.get("memory_total_bytes")
        self.pids = self._processes.read(self._door, self._handle, answers, total_bytes=total)

    def _derive_margin(self, answers: Answers) -> None:
        """Slowdown threshold - temperature, where the device has no margin but degrees."""
        name = "temperature_margin_celsius"
        temperature = answers.values.get("temperature_celsius")
        slowdown = self._thresholds.slowdown
        if (
            unsupported(answers.codes.get(name, 0))
            and self._thresholds.kind == ThresholdKind.ABSOLUTE
            and slowdown is not None
            and temperature is not None
        ):
            answers.values[name] = slowdown - temperature
            del answers.codes[name]
