"""Events that the driver tells by itself: an Xid is known within milliseconds, not at a tick."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from collector.device import Code, NvmlDoor, unsupported
from schemas.errors import DeviceError
from schemas.sample import EventKind, SampleEvent

__all__ = ["EventWatch", "Watched"]

_XID = 0x8
# nvmlEventType bits besides the Xid, in words. Single-bit errors (0x1) are left out: a storm of
# thousands a second would bury everything, and the counter tells their rate.
_WORDS: dict[int, str] = {
    0x2: "double-bit ECC error",
    0x200: "storm of single-bit ECC errors",
    0x400: "memory page or row retired",
    0x800: "retirement of a memory page or row failed",
    0x1000: "poisoned data consumed, not fatal",
    0x2000: "poisoned data consumed, fatal",
    0x4000: "GPU unavailable",
    0x8000: "recovery action changed",
}
_WANTED = _XID | sum(_WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A GPU whose events are wanted."""

    handle: Any  # of the binding; its number identifies the device in an event
    uuid: str
    pci: str | None

    @property
    def number(self) -> int:
        """What identifies the device behind the handle."""
        return _number(self.handle)


class EventWatch:
    """The driver's event set.

    Parameters
    ----------
    door
        Calls NVML.
    now_ms
        Wall time, unix milliseconds: NVML's events carry no time.
    """

    def __init__(
        self, door: NvmlDoor, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self._door = door
        self._now_ms = now_ms
        self._set: Any = None
        self._gpus: dict[int, Watched] = {}

    @property
    def watching(self) -> bool:
        """Whether any event can come."""
        return bool(self._gpus)

    def watch(self, gpus: Sequence[Watched]) -> None:
        """Register for the events of these GPUs, instead of those before.

        A GPU that offers no events is left out; one that fails to register does not keep the
        others from it.
        """
        self.close()
        try:
            self._set = self._door.invoke("nvmlEventSetCreate")
        except DeviceError:
            return
        for gpu in gpus:
            try:
                offered = self._door.invoke("nvmlDeviceGetSupportedEventTypes", gpu.handle)
                if offered & _WANTED:
                    self._door.invoke(
                        "nvmlDeviceRegisterEvents", gpu.handle, offered & _WANTED, self._set
                    )
                    self._gpus[gpu.number] = gpu
            except DeviceError:
                continue

    def wait(self, timeout_ms: int) -> SampleEvent | None:
        """Wait for the next event, at most so long.

        Raises
        ------
        DeviceError
            If the driver takes no question about events any more: watch anew.
        """
        try:
            data = self._door.invoke("nvmlEventSetWait", self._set, timeout_ms)
        except DeviceError as exc:
            if exc.code == Code.TIMEOUT:
                return None
            raise
        return self._event(data)

    def close(self) -> None:
        """Give the set back."""
        taken, self._set = self._set, None
        self._gpus = {}
        if taken is not None:
            try:
                self._door.invoke("nvmlEventSetFree", taken)
            except DeviceError as exc:
                if not unsupported(exc.code):
                    return  # the driver is gone, and the set with it

    def _event(self, data: Any) -> SampleEvent | None:
        gpu = self._gpus.get(_number(data.device))
        if gpu is None:
            return None
        kind, content = int(data.eventType), int(data.eventData)
        if kind == _XID:
            return SampleEvent(
                ts=self._now_ms(),
                kind=EventKind.XID,
                gpu=gpu.uuid,
                pci=gpu.pci,
                xid=content,
                message=f"NVML: Xid {content}",
            )
        words = _WORDS.get(kind, f"event 0x{kind:x}")
        return SampleEvent(
            ts=self._now_ms(),
            kind=EventKind.KERNEL,
            gpu=gpu.uuid,
            pci=gpu.pci,
            message=f"NVML: {words} ({content})",
        )


def _number(handle: Any) -> int:
    """Return the pointer behind a handle: the same device, the same number."""
    if isinstance(handle, ctypes._Pointer):  # noqa: SLF001 - the base of every pointer type
        return ctypes.cast(handle, ctypes.c_void_p).value or 0
    return id(handle)
