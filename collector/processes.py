"""Which processes use a GPU: three lists of the driver made one, and checked.

The layout of the structure changed between driver branches under an unchanged name (the first
R535 drivers write 32 bytes where the binding reads 24): every entry behind the first is then
shifted, a process id where memory should be. A list with one impossible entry is refused whole.
"""

from __future__ import annotations

from typing import Any

from collector.answers import Answers
from collector.device import Code, NvmlDoor, unsupported
from schemas.errors import DeviceError

__all__ = ["Processes"]

#: Kernels number processes below this (``PID_MAX_LIMIT`` on 64 bits).
PID_LIMIT = 4_194_304
_METRIC = "process_count"
# Clients of the sharing server stand in a list of their own or in the first: merged by id.
_CALLS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


class Processes:
    """The processes of one device."""

    def __init__(self) -> None:
        self._absent: set[str] = set()

    def probe(self) -> None:
        """Forget which lists are not offered."""
        self._absent.clear()

    def read(
        self, door: NvmlDoor, handle: object, answers: Answers, *, total_bytes: float | None
    ) -> tuple[int, ...] | None:
        """Count the processes; return their ids, or None where they are not known.

        Parameters
        ----------
        door, handle
            Whom to ask.
        answers
            Where ``process_count`` is added.
        total_bytes
            Memory of the card: no process uses more.
        """
        pids: set[int] = set()
        code = int(Code.NOT_SUPPORTED)
        heard = False
        for name in _CALLS:
            if name in self._absent:
                continue
            try:
                found = door.invoke(name, handle)
            except DeviceError as exc:
                if unsupported(exc.code):
                    self._absent.add(name)
                    continue
                code = exc.code
                break  # half a list would be a wrong one
            if not all(_possible(process, total_bytes) for process in found):
                code = int(Code.IMPLAUSIBLE)
                break
            heard = True
            pids.update(int(process.pid) for process in found)
        else:
            if heard:
                answers.values[_METRIC] = float(len(pids))
                return tuple(sorted(pids))
        answers.codes[_METRIC] = code
        return None


def _possible(process: Any, total_bytes: float | None) -> bool:
    used = process.usedGpuMemory  # None where a container may not know
    return 0 < int(process.pid) < PID_LIMIT and (
        used is None or total_bytes is None or float(used) <= total_bytes
    )
