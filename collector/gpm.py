"""GPM: how busy the parts of a GPU are, from Hopper on, also for MIG instances.

Two snapshots of the device's own counters, taken a reading apart, give ratios over the whole
time between them. Unlike DCGM's profiling this locks nobody else out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collector.answers import Answers
from collector.device import Code, NvmlDoor, unsupported
from schemas.errors import DeviceError

__all__ = ["GPM_METRICS", "Gpm"]

#: Two snapshots closer than this say nothing (nvml.h: 100 ms).
_SHORTEST_SECONDS = 0.1
_VERSION = 1
_PERCENT, _MEBI = 0.01, 2.0**20

# Metric to (nvmlGpmMetricId_t, factor to the base unit).
_IDS: dict[str, tuple[int, float]] = {
    "graphics_activity_ratio": (1, _PERCENT),
    "sm_activity_ratio": (2, _PERCENT),
    "sm_occupancy_ratio": (3, _PERCENT),
    "tensor_activity_ratio": (5, _PERCENT),
    "dram_activity_ratio": (10, _PERCENT),
    "pcie_transmit_bytes_per_second": (20, _MEBI),
    "pcie_receive_bytes_per_second": (21, _MEBI),
    "nvlink_receive_bytes_per_second": (60, _MEBI),
    "nvlink_transmit_bytes_per_second": (61, _MEBI),
}

#: Every metric that comes from GPM.
GPM_METRICS = tuple(_IDS)


@dataclass(slots=True)
class _Snapshot:
    """Where the driver writes a snapshot, and when it did last."""

    buffer: object
    at: float = float("-inf")


class Gpm:
    """The profiling counters of one GPU, or of one of its MIG instances.

    Parameters
    ----------
    instance
        GPU instance of a MIG device, None for the whole GPU.
    clock
        Monotonic seconds.
    """

    def __init__(
        self, instance: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._instance = instance
        self._clock = clock
        self._supported: bool | None = None
        self._older: _Snapshot | None = None
        self._newer: _Snapshot | None = None
        self._request: Any = None  # ctypes structure of the binding

    def probe(self) -> None:
        """Ask again whether the device offers it."""
        self._supported = None

    def read(self, door: NvmlDoor, handle: object, answers: Answers) -> None:
        """Add the ratios since the last reading; the first reading has none.

        Parameters
        ----------
        door
            Calls NVML.
        handle
            The physical GPU, also for a MIG instance.
        answers
            Where they are added.
        """
        try:
            if self._supported is None:
                self._supported = self._prepare(door, handle)
            if self._supported:
                self._measure(door, handle, answers)
                return
            code = int(Code.NOT_SUPPORTED)
        except DeviceError as exc:
            code = exc.code
            if unsupported(code):
                self._supported = False
        answers.codes.update(dict.fromkeys(_IDS, code))

    def close(self, door: NvmlDoor) -> None:
        """Give the snapshots back to the driver."""
        for snapshot in (self._older, self._newer):
            if snapshot is not None:
                try:
                    door.invoke("nvmlGpmSampleFree", snapshot.buffer)
                except DeviceError:
                    continue  # the driver is gone, and its memory with it
        self._older = self._newer = None
        self._supported = None

    def _prepare(self, door: NvmlDoor, handle: object) -> bool:
        support = door.invoke("nvmlGpmQueryDeviceSupport", handle)
        if not support.isSupportedDevice:
            return False
        if self._older is None or self._newer is None:
            self._older = _Snapshot(door.invoke("nvmlGpmSampleAlloc"))
            self._newer = _Snapshot(door.invoke("nvmlGpmSampleAlloc"))
        request = door.structure("c_nvmlGpmMetricsGet_t")
        request.version = _VERSION
        request.numMetrics = len(_IDS)
        for place, (number, _) in enumerate(_IDS.values()):
            request.metrics[place].metricId = number
        self._request = request
        return True

    def _measure(self, door: NvmlDoor, handle: object, answers: Answers) -> None:
        older, newer = self._older, self._newer
        assert older is not None  # noqa: S101 - made in _prepare, for the type checker
        assert newer is not None  # noqa: S101 - same
        now = self._clock()
        if now - newer.at < _SHORTEST_SECONDS:
            answers.codes.update(dict.fromkeys(_IDS, int(Code.STALE)))
            return
        if self._instance is None:
            door.invoke("nvmlGpmSampleGet", handle, older.buffer)
        else:
            door.invoke("nvmlGpmMigSampleGet", handle, self._instance, older.buffer)
        older.at = now
        self._older, self._newer = newer, older
        if newer.at == float("-inf"):
            answers.codes.update(dict.fromkeys(_IDS, int(Code.STALE)))
            return
        self._request.sample1, self._request.sample2 = newer.buffer, older.buffer
        self._tell(door.invoke("nvmlGpmMetricsGet", self._request), answers)

    def _tell(self, result: Any, answers: Answers) -> None:
        for place, (metric, (_, factor)) in enumerate(_IDS.items()):
            got = result.metrics[place]
            code = int(got.nvmlReturn)
            if code == 0:
                answers.values[metric] = float(got.value) * factor
            else:
                answers.codes[metric] = code
