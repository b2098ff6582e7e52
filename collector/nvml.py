"""The GPUs of this node by NVML: the only module that imports pynvml.

Life of the source: not attached (the state says why, and attaching is tried again with growing
pauses) or attached. While attached every device is read on its own; only when all of them fail
alike is it one event of the host, and NVML is attached anew.

Known limit: a process keeps the library it once loaded. After a driver upgrade under a running
collector (code 18) the state stays ``version_mismatch`` until the collector is restarted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import structlog

from collector.answers import Answers, columns_of
from collector.device import Code, NvmlDoor, NvmlModule
from collector.gpu import Gpu
from collector.health import sentence_of
from collector.host import HostFiles
from collector.source import Reading
from schemas.errors import DeviceError
from schemas.sample import CollectorState, EventKind, GpuInventory, Inventory, SampleEvent

__all__ = ["NvmlSource", "load_pynvml"]

log = structlog.get_logger()

#: What devices are and offer is asked again after this many milliseconds.
REFRESH_MS = 60_000
#: Pauses between attempts to attach: doubled from the first to the last, milliseconds.
FIRST_PAUSE_MS, LAST_PAUSE_MS = 1_000, 60_000

_STATES: dict[int, CollectorState] = {
    Code.LIBRARY_NOT_FOUND: CollectorState.NO_LIBRARY,
    Code.DRIVER_NOT_LOADED: CollectorState.NO_DRIVER,
    Code.NO_PERMISSION: CollectorState.NO_PERMISSION,
    Code.LIB_RM_VERSION_MISMATCH: CollectorState.VERSION_MISMATCH,
}


def load_pynvml() -> NvmlModule:
    """Import NVIDIA's binding; this works without a GPU or driver."""
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
    """

    kind = "nvml"

    def __init__(
        self,
        nvml: NvmlModule,
        *,
        node: str,
        expected_gpus: int | None = None,
        host: HostFiles | None = None,
    ) -> None:
        self._door = NvmlDoor(nvml)
        self._node = node
        self._host = host or HostFiles()
        self._expected = expected_gpus
        self._count_pci = expected_gpus is None
        self._gpus: list[Gpu] = []
        self._count = -1
        self._relist = True
        self._attached = False
        self._state: tuple[CollectorState, int | None] = (CollectorState.OK, None)
        self._try_at = 0
        self._pause = 0
        self._refresh_at = 0
        self._driver: str | None = None
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
        answers = [gpu.read() for gpu in self._gpus]
        code = _common_failure(answers, self._gpus)
        if code is not None:
            return [self._fail(code, ts_ms)]
        self._pause = 0
        self._note_lost(answers, ts_ms)
        return [self._assemble(answers, ts_ms)]

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
        try:
            self._door.invoke("nvmlShutdown")
        except DeviceError as exc:
            log.info("nvml_shutdown_failed", nvml_error=exc.code)

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
            say = log.info if state == CollectorState.OK else log.warning
            detail = sentence_of(state, alive=True, waiting=0)
            say("collector_state_changed", state=str(state), nvml_error=code, detail=detail)
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
            log.warning("no_gpu_found", detail="The driver reports no GPU; look at nvidia-smi -L.")
        if count != self._count or self._relist or due:
            known = {gpu.uuid for gpu in self._gpus}
            self._gpus = self._find_gpus(count)
            self._count = count
            for gpu in self._gpus:
                if due or gpu.uuid not in known:
                    gpu.refresh()
        if due:
            self._refresh_at = ts_ms + REFRESH_MS
            self._count_expected()
        self._relist = False

    def _find_gpus(self, count: int) -> list[Gpu]:
        """Match handles to GPUs by UUID; a slot without a handle is a GPU we knew, if any."""
        known = {gpu.uuid: gpu for gpu in self._gpus}
        found: list[Gpu] = []
        failed: list[tuple[int, int]] = []
        for index in range(count):
            try:
                handle = self._door.invoke("nvmlDeviceGetHandleByIndex", index)
                uuid = str(self._door.invoke("nvmlDeviceGetUUID", handle))
            except DeviceError as exc:
                failed.append((index, exc.code))
                continue
            gpu = known.pop(uuid, None) or Gpu(self._door, uuid)
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

    def _note_lost(self, answers: Sequence[Answers], ts_ms: int) -> None:
        """Report a GPU lost or returned once, when it happens."""
        for gpu, answer in zip(self._gpus, answers, strict=True):
            if answer.lost != gpu.lost:
                kind = EventKind.GPU_LOST if answer.lost else EventKind.GPU_RETURNED
                gpu.lost = answer.lost
                gpu.refresh()
                log.info("gpu_lost" if gpu.lost else "gpu_returned", gpu=gpu.uuid)
                self._events.append(
                    SampleEvent(ts=ts_ms, kind=kind, gpu=gpu.uuid, pci=gpu.facts.pci)
                )
            failing = answer.failure() is not None
            self._relist = self._relist or failing

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
        for gpu, answer in zip(self._gpus, answers, strict=True):
            gpus.append(gpu.uuid)
            facts.append(replace(gpu.facts, index=gpu.index))
            rows.append(answer)
            for instance in () if answer.lost else gpu.instances:
                gpus.append(instance.uuid)
                facts.append(instance.facts)
                rows.append(instance.read())
                if rows[-1].failure() is not None:
                    self._refresh_at = 0  # removed or moved: list the instances anew
                parents[instance.uuid] = gpu.uuid
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
