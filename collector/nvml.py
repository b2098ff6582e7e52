"""The GPUs of this node by NVML: the only module that imports pynvml.

Life of the source: not attached (the state says why, and attaching is tried again with growing
pauses) or attached. While attached every device is read on its own; only when all of them fail
alike is it one event of the host, and NVML is attached anew.

A process keeps the library it once loaded, and a call that hangs takes its thread with it: the
agent therefore runs this source in a child process (``collector/nvmlparent.py``) that it can kill
and start anew.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

from collector.answers import Answers, columns_of
from collector.device import Code, NvmlDoor, NvmlModule
from collector.facts import text_of
from collector.gpu import ALL_GROUPS, Gpu
from collector.health import sentence_of
from collector.host import HostFiles
from collector.nvmlevents import EventWatch, Watched
from collector.readings import Group
from collector.source import Reading
from collector.sweep import DirectSweep, Hung, Sweep
from schemas.errors import DeviceError
from schemas.pci import canonical_pci
from schemas.sample import CollectorState, EventKind, GpuInventory, Inventory, SampleEvent

__all__ = ["NvmlSource", "Say", "load_pynvml"]

#: What devices are and offer is asked again after this many milliseconds.
REFRESH_MS = 60_000
#: Pauses between attempts to attach: doubled from the first to the last, milliseconds.
FIRST_PAUSE_MS, LAST_PAUSE_MS = 1_000, 60_000

#: A masked UUID: some virtual machines and captures hand out nothing but zeros.
_BLANK = re.compile(r"GPU-0{8}(?:-0+)*")

_STATES: dict[int, CollectorState] = {
    Code.LIBRARY_NOT_FOUND: CollectorState.NO_LIBRARY,
    Code.DRIVER_NOT_LOADED: CollectorState.NO_DRIVER,
    Code.NO_PERMISSION: CollectorState.NO_PERMISSION,
    Code.LIB_RM_VERSION_MISMATCH: CollectorState.VERSION_MISMATCH,
}


class Say(Protocol):
    """Writes a line of the log."""

    def __call__(self, level: str, event: str, /, **facts: object) -> None:
        """Say what happened."""
        ...


def _say(level: str, event: str, /, **facts: object) -> None:
    # Here rather than above: the child that reads the driver says it to its parent instead.
    import structlog  # noqa: PLC0415 - see above

    getattr(structlog.get_logger(), level)(event, **facts)


def load_pynvml(library: Path | None = None) -> NvmlModule:
    """Import NVIDIA's binding; this works without a GPU or driver.

    Parameters
    ----------
    library
        Where ``libnvidia-ml.so.1`` lies, if not where the system looks for libraries.
    """
    if library is not None:
        import ctypes  # noqa: PLC0415 - for this alone

        # The binding asks for the library by name and is given the one that is loaded. Where it
        # cannot be loaded the binding says so, and that is a state.
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(library))
    # Here rather than above: only a live collector needs to load it.
    import pynvml  # noqa: PLC0415, TID251 - this is the one door

    return cast("NvmlModule", pynvml)


class NvmlSource:
    """Source of the GPUs of this node.

    Parameters
    ----------
    nvml
        The module ``pynvml`` or a stand-in with the same names.
    node
        Name of the node.
    expected_gpus
        How many GPUs there should be; None counts them on the PCI bus.
    host
        Where the kernel keeps what is known without the driver.
    groups
        Which metrics are read.
    slow_seconds
        How often what moves slowly is asked for; 0 asks at every reading.
    sweep
        How the devices are gone through.
    known, lost
        What was known before, as after a restart: a GPU that is lost keeps its identity.
    say
        Writes the log.
    before_detach
        Called before NVML is shut down: whoever waits in it has to come out.
    """

    kind = "nvml"

    def __init__(
        self,
        nvml: NvmlModule,
        *,
        node: str,
        expected_gpus: int | None = None,
        host: HostFiles | None = None,
        groups: frozenset[Group] = ALL_GROUPS,
        slow_seconds: float = 0.0,
        sweep: Sweep | None = None,
        known: Inventory = Inventory(),  # noqa: B008 - frozen
        lost: Sequence[str] = (),
        say: Say = _say,
        before_detach: Callable[[], None] = lambda: None,
    ) -> None:
        self._door = NvmlDoor(nvml)
        self._groups = groups
        self._slow_ms = round(slow_seconds * 1000)
        self._slow_at = 0
        self._sweep: Sweep = sweep or DirectSweep()
        self._say = say
        self._before_detach = before_detach
        self._node = node
        self._host = host or HostFiles()
        self._expected = known.expected_gpus if expected_gpus is None else expected_gpus
        self._count_pci = expected_gpus is None
        self._gpus = [Gpu(self._door, facts.gpu, groups, facts) for facts in known.gpus]
        for gpu in self._gpus:
            gpu.lost = gpu.uuid in lost
        #: Grows with every new list of handles; whoever watches events then registers anew.
        self.listings = 0
        self._count = -1
        self._relist = True
        self._attached = False
        self._state: tuple[CollectorState, int | None] = (CollectorState.OK, None)
        self._try_at = 0
        self._pause = 0
        self._refresh_at = 0
        self._driver = known.driver_version
        self._library: str | None = None
        self._events: list[SampleEvent] = []

    @property
    def exhausted(self) -> bool:
        """Never: GPUs have no end."""
        return False

    def close(self) -> None:
        """Detach from the driver."""
        if self._attached:
            self._detach()

    def read(self, ts_ms: int) -> list[Reading]:
        """Read every GPU, or say why none can be read. Never raises for the driver's sake."""
        if not self._attached and not self._attach(ts_ms):
            return [self._blind(ts_ms)]
        try:
            self._list_gpus(ts_ms)
        except DeviceError as exc:
            return [self._fail(exc.code, ts_ms)]
        answers = self._read_gpus(ts_ms)
        code = _common_failure(answers, self._gpus)
        if code == Code.TIMEOUT:  # detaching would hang as well
            self._set_state(CollectorState.UNRESPONSIVE, None)
            return [self._blind(ts_ms)]
        if code is not None:
            return [self._fail(code, ts_ms)]
        self._pause = 0
        self._note_lost(answers, ts_ms)
        return [self._assemble(answers, ts_ms)]

    def change(self, groups: frozenset[Group], slow_seconds: float) -> None:
        """Read other metrics, or those that move slowly more or less often, from now on."""
        self._slow_ms = round(slow_seconds * 1000)
        self._slow_at = 0
        if groups != self._groups:
            self._groups = groups
            for gpu in self._gpus:
                gpu.change(groups)

    def watched(self) -> tuple[EventWatch, list[Watched]]:
        """Return an event set for the GPUs that have a handle, not yet registered."""
        gpus = [
            Watched(handle=gpu.handle, uuid=gpu.uuid, pci=gpu.facts.pci)
            for gpu in self._gpus
            if gpu.handle is not None and not gpu.lost
        ]
        return EventWatch(self._door), gpus

    def _read_gpus(self, ts_ms: int) -> list[Answers]:
        slow = not self._slow_at - self._slow_ms < ts_ms < self._slow_at
        if slow:
            self._slow_at = ts_ms + self._slow_ms
        results = self._sweep.each(
            [(gpu.index, gpu) for gpu in self._gpus], lambda gpu: gpu.read(slow=slow)
        )
        return [
            gpu.failing(int(Code.TIMEOUT)) if isinstance(result, Hung) else result
            for gpu, result in zip(self._gpus, results, strict=True)
        ]

    # -- attaching ---------------------------------------------------------------------------

    def _attach(self, ts_ms: int) -> bool:
        # Also tried when the wall clock was set back far behind the next attempt.
        if ts_ms < self._try_at <= ts_ms + LAST_PAUSE_MS:
            return False
        try:
            self._door.invoke("nvmlInit")
        except DeviceError as exc:
            self._note_versions(ts_ms)
            self._count_expected()
            self._fail(exc.code, ts_ms)
            return False
        self._attached = True
        self._count = -1
        self._relist = True
        self._refresh_at = 0
        self._set_state(CollectorState.OK, None)
        self._note_versions(ts_ms)
        return True

    def _detach(self) -> None:
        self._attached = False
        self._before_detach()
        for gpu in self._gpus:
            gpu.close()
        try:
            self._door.invoke("nvmlShutdown")
        except DeviceError as exc:
            self._say("info", "nvml_shutdown_failed", nvml_error=exc.code)

    def _fail(self, code: int, ts_ms: int) -> Reading:
        """Turn blind for this code and plan the next attempt to attach."""
        if self._attached:
            self._detach()
        self._pause = min(max(self._pause * 2, FIRST_PAUSE_MS), LAST_PAUSE_MS)
        self._try_at = ts_ms + self._pause
        self._set_state(_STATES.get(code, CollectorState.BLIND), code)
        return self._blind(ts_ms)

    def _set_state(self, state: CollectorState, code: int | None) -> None:
        if (state, code) != self._state:
            level = "info" if state == CollectorState.OK else "warning"
            detail = sentence_of(state, alive=True, waiting=0)
            self._say(
                level, "collector_state_changed", state=str(state), nvml_error=code, detail=detail
            )
        self._state = (state, code)

    def _note_versions(self, ts_ms: int) -> None:
        """Learn the versions; without NVML the driver's from the kernel module itself."""
        driver = self._version("nvmlSystemGetDriverVersion") or self._host.read_driver_version()
        if driver is not None and self._driver not in {None, driver}:
            message = f"driver changed from {self._driver} to {driver}"
            self._events.append(
                SampleEvent(ts=ts_ms, kind=EventKind.DRIVER_CHANGED, message=message)
            )
        self._driver = driver or self._driver
        self._library = self._version("nvmlSystemGetNVMLVersion") or self._library

    def _version(self, name: str) -> str | None:
        try:
            version = self._door.invoke(name)
        except DeviceError:
            return None
        return version.decode(errors="replace") if isinstance(version, bytes) else str(version)

    def _count_expected(self) -> None:
        if self._count_pci:
            # A GPU that left the bus must not lower what is expected of the node.
            self._expected = max(self._expected or 0, self._host.count_gpus() or 0) or None

    # -- listing -----------------------------------------------------------------------------

    def _list_gpus(self, ts_ms: int) -> None:
        """List devices anew when their number changed, one is lost, or a minute passed."""
        count = int(self._door.invoke("nvmlDeviceGetCount"))
        due = not self._refresh_at - REFRESH_MS <= ts_ms < self._refresh_at
        if count == 0 != self._count:
            detail = "The driver reports no GPU; look at nvidia-smi -L."
            self._say("warning", "no_gpu_found", detail=detail)
        if count != self._count or self._relist or due:
            known = {gpu.uuid for gpu in self._gpus}
            self._gpus = self._find_gpus(count)
            self._count = count
            self.listings += 1
            stale = [gpu for gpu in self._gpus if due or gpu.uuid not in known]
            self._sweep.each([(gpu.index, gpu) for gpu in stale], Gpu.refresh)
        if due:
            self._refresh_at = ts_ms + REFRESH_MS
            self._count_expected()
        self._relist = False

    def _find_gpus(self, count: int) -> list[Gpu]:
        """Match handles to GPUs by UUID; a slot without a handle is a GPU we knew, if any."""
        known = {gpu.uuid: gpu for gpu in self._gpus}
        found: list[Gpu] = []
        failed: list[tuple[int, int]] = []
        opened = self._sweep.each([(index, index) for index in range(count)], self._open)
        for index, result in enumerate(opened):
            if isinstance(result, Hung):
                failed.append((index, int(Code.TIMEOUT)))
                continue
            if isinstance(result, DeviceError):
                failed.append((index, result.code))
                continue
            handle, uuid = result
            gpu = known.pop(uuid, None) or Gpu(self._door, uuid, self._groups)
            gpu.attach(handle, index)
            found.append(gpu)
        for index, code in failed:
            absent = sorted(known.values(), key=lambda gpu: (gpu.index != index, not gpu.lost))
            if absent:
                absent[0].detach(code)
                found.append(known.pop(absent[0].uuid))
        if failed and not found:
            raise DeviceError(failed[0][1], "no GPU can be opened")
        return sorted(found, key=lambda gpu: gpu.index)

    def _open(self, index: int) -> tuple[object, str] | DeviceError:
        try:
            handle = self._door.invoke("nvmlDeviceGetHandleByIndex", index)
            uuid = str(self._door.invoke("nvmlDeviceGetUUID", handle))
        except DeviceError as exc:
            return exc
        return handle, self._key(handle, uuid)

    def _key(self, handle: object, uuid: str) -> str:
        """Return the identity: the UUID; where it is blank, the node and the PCI address."""
        if uuid and not _BLANK.fullmatch(uuid):
            return uuid
        try:
            info = self._door.invoke("nvmlDeviceGetPciInfo", handle)
        except DeviceError:
            return uuid
        address = text_of(info.busId) or ""
        return f"GPU-{self._node}-{canonical_pci(address) or address}"

    def _note_lost(self, answers: Sequence[Answers], ts_ms: int) -> None:
        """Report a GPU lost or returned once, when it happens."""
        for gpu, answer in zip(self._gpus, answers, strict=True):
            if answer.lost != gpu.lost:
                kind = EventKind.GPU_LOST if answer.lost else EventKind.GPU_RETURNED
                gpu.lost = answer.lost
                if not gpu.lost:
                    gpu.refresh()
                self._say("info", "gpu_lost" if gpu.lost else "gpu_returned", gpu=gpu.uuid)
                self._events.append(
                    SampleEvent(ts=ts_ms, kind=kind, gpu=gpu.uuid, pci=gpu.facts.pci)
                )
            code = answer.failure()
            # A GPU that hangs is asked again when its call comes back, not listed anew.
            self._relist = self._relist or (code is not None and code != Code.TIMEOUT)

    # -- readings ----------------------------------------------------------------------------

    def _blind(self, ts_ms: int) -> Reading:
        state, code = self._state
        return Reading(
            node=self._node,
            ts=ts_ms,
            state=state,
            nvml_error=code,
            events=self._take_events(),
            inventory=self._inventory([gpu.facts for gpu in self._gpus]),
        )

    def _assemble(self, answers: list[Answers], ts_ms: int) -> Reading:
        gpus: list[str] = []
        facts: list[GpuInventory] = []
        rows: list[Answers] = []
        parents: dict[str, str] = {}
        pids: dict[str, tuple[int, ...] | None] = {}
        for gpu, answer in zip(self._gpus, answers, strict=True):
            gpus.append(gpu.uuid)
            same = gpu.facts.index == gpu.index
            facts.append(gpu.facts if same else replace(gpu.facts, index=gpu.index))
            rows.append(answer)
            pids[gpu.uuid] = gpu.pids
            for instance, part in gpu.parts:
                gpus.append(instance.uuid)
                facts.append(instance.facts)
                rows.append(part)
                if part.failure() is not None:
                    self._refresh_at = 0  # removed or moved: list the instances anew
                parents[instance.uuid] = gpu.uuid
                pids[instance.uuid] = instance.pids
        values, status = columns_of(rows)
        return Reading(
            node=self._node,
            ts=ts_ms,
            gpus=tuple(gpus),
            values=values,
            status=status,
            events=self._take_events(),
            inventory=self._inventory(facts),
            parents=parents,
            pids={uuid: found for uuid, found in pids.items() if found is not None} or None,
        )

    def _take_events(self) -> tuple[SampleEvent, ...]:
        events, self._events = tuple(self._events), []
        return events

    def _inventory(self, facts: list[GpuInventory]) -> Inventory:
        return Inventory(
            gpus=tuple(facts),
            expected_gpus=self._expected,
            driver_version=self._driver,
            nvml_version=self._library,
            uptime_seconds=self._host.read_uptime(),
        )


def _common_failure(answers: Sequence[Answers], gpus: Sequence[Gpu]) -> int | None:
    """Return the code if all devices failed alike: a fault of the host, not of a GPU.

    A lost GPU (15) is a fault of that GPU, unless several were lost at the very same tick.
    """
    codes = {answer.failure() for answer in answers}
    if len(codes) != 1:
        return None
    code = codes.pop()
    fresh = sum(1 for gpu in gpus if not gpu.lost)
    if code == Code.GPU_IS_LOST and (len(gpus) == 1 or fresh < len(gpus)):
        return None
    return code
