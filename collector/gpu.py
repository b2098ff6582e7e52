"""One GPU behind NVML: what it is (inventory), what it says at a tick, its MIG instances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collector.answers import Answers, read_fields, read_rows
from collector.device import Call, Code, NvmlDoor, call, unsupported
from collector.readings import MEMORY_ROWS, ROWS
from schemas.errors import DeviceError
from schemas.pci import canonical_pci
from schemas.sample import GpuInventory, ThresholdKind

__all__ = ["Gpu", "MigInstance"]

# Fields: shutdown, slowdown and GPU-maximum margins, and the number of NVLinks.
_SHUTDOWN_TLIMIT, _SLOWDOWN_TLIMIT, _GPU_MAX_TLIMIT, _LINK_COUNT = 193, 194, 196, 91
# nvmlTemperatureThresholds_t
_SHUTDOWN, _SLOWDOWN, _GPU_MAX = 0, 1, 3
_MIG_ENABLED = 1
_METRICS = frozenset({*(row.metric for row in ROWS), "nvlink_active_links"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Temperature limits: degrees, or margins below the limit (then mostly negative)."""

    kind: ThresholdKind | None = None
    shutdown: float | None = None
    slowdown: float | None = None
    maximum: float | None = None


class MigInstance:
    """One MIG instance: memory of its own, nothing else that NVML offers per instance."""

    def __init__(self, door: NvmlDoor, handle: object, uuid: str, parent: Gpu) -> None:
        self._door = door
        self._handle = handle
        self._parent = parent
        self._skip: set[str] = set()
        self.uuid = uuid
        name = _optional(door, handle, call("nvmlDeviceGetName"))
        _, found, profile = (_text(name) or "").partition("MIG ")
        self.profile = profile if found else None

    def read(self) -> Answers:
        """Read the instance's memory."""
        return read_rows(self._door, self._handle, MEMORY_ROWS, self._skip)

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


class Gpu:
    """One physical GPU, known by its UUID; handle and index may change under it.

    Parameters
    ----------
    door
        Calls NVML.
    uuid
        Identity.
    """

    def __init__(self, door: NvmlDoor, uuid: str) -> None:
        self._door = door
        self._handle: object | None = None
        self._skip: set[str] = set()
        self._offered: frozenset[str] = _METRICS
        self._thresholds = Thresholds()
        self._failed = int(Code.UNKNOWN)
        self.uuid = uuid
        self.index = 0
        self.lost = False
        self.facts = GpuInventory(gpu=uuid)
        self.instances: tuple[MigInstance, ...] = ()

    def attach(self, handle: object, index: int) -> None:
        """Use this handle from now on."""
        self._handle = handle
        self.index = index

    def detach(self, code: int) -> None:
        """Have no handle: everything fails with ``code`` until attached again."""
        self._handle = None
        self._failed = code

    def read(self) -> Answers:
        """Read everything; what fails has its code, and a lost GPU fails with 15 throughout."""
        if self._handle is None:
            return self._all_failed(self._failed)
        answers = read_rows(self._door, self._handle, ROWS, self._skip)
        if not answers.lost:
            self._read_links(answers)
        if answers.lost:
            return self._all_failed(int(Code.GPU_IS_LOST))
        self._derive_margin(answers)
        self._offered = frozenset(
            {*answers.values, *(m for m, code in answers.codes.items() if not unsupported(code))}
        )
        return answers

    def refresh(self) -> None:
        """Ask again what the GPU is and offers: at the start, every minute, after a change.

        A GPU that does not answer at all keeps the facts known of it.
        """
        if self._handle is None or not self._answers():
            return
        self._skip.clear()
        mode = self._fact("nvmlDeviceGetMigMode")
        mig = None if mode is None else mode[0] == _MIG_ENABLED
        self._thresholds = self._read_thresholds()
        self.facts = GpuInventory(
            gpu=self.uuid,
            index=self.index,
            model=_text(self._fact("nvmlDeviceGetName")),
            pci=self._pci(),
            serial=_text(self._fact("nvmlDeviceGetSerial")),
            vbios=_text(self._fact("nvmlDeviceGetVbiosVersion")),
            mig_mode=mig,
            threshold_kind=self._thresholds.kind,
            slowdown_celsius=self._thresholds.slowdown,
            shutdown_celsius=self._thresholds.shutdown,
            max_operating_celsius=self._thresholds.maximum,
            nvlink_links=self._link_count(),
            pcie_generation_max=self._fact("nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_width_max=self._fact("nvmlDeviceGetMaxPcieLinkWidth"),
        )
        self.instances = self._list_instances() if mig else ()

    def _answers(self) -> bool:
        try:
            self._door.invoke("nvmlDeviceGetUUID", self._handle)
            self._door.invoke("nvmlDeviceGetName", self._handle)
        except DeviceError as exc:
            return unsupported(exc.code)
        return True

    def _all_failed(self, code: int) -> Answers:
        return Answers({}, dict.fromkeys(self._offered or _METRICS, code))

    # Any: ctypes structures of the binding.
    def _fact(self, name: str, *args: int) -> Any:
        return _optional(self._door, self._handle, call(name, *args))

    def _pci(self) -> str | None:
        info = self._fact("nvmlDeviceGetPciInfo")
        text = _text(getattr(info, "busId", None))
        return None if text is None else canonical_pci(text) or text

    def _read_thresholds(self) -> Thresholds:
        """Margins where the device states them (Ada, Hopper and later), else degrees."""
        margins = self._fields(_SHUTDOWN_TLIMIT, _SLOWDOWN_TLIMIT, _GPU_MAX_TLIMIT)
        if any(value is not None for value in margins):
            return _thresholds(ThresholdKind.MARGIN, *margins)
        found = [
            self._fact("nvmlDeviceGetTemperatureThreshold", which)
            for which in (_SHUTDOWN, _SLOWDOWN, _GPU_MAX)
        ]
        degrees = [None if value is None else _signed(value) for value in found]
        if all(value is None for value in degrees):
            return Thresholds()
        # A negative threshold cannot be a temperature to slow down at: it is a margin.
        negative = any(value is not None and value < 0 for value in degrees)
        kind = ThresholdKind.MARGIN if negative else ThresholdKind.ABSOLUTE
        return _thresholds(kind, *degrees)

    def _fields(self, *ids: int) -> list[float | None]:
        try:
            answers = read_fields(self._door, self._handle, ids)
        except DeviceError:
            return [None] * len(ids)
        found = [answers.get(field) for field in ids]
        return [_signed(value) if isinstance(value, float) else None for value in found]

    def _link_count(self) -> int | None:
        (count,) = self._fields(_LINK_COUNT)
        return None if count is None else int(count)

    def _read_links(self, answers: Answers) -> None:
        """Count the NVLinks that are up; a GPU without links does not offer the metric."""
        links = self.facts.nvlink_links or 0
        name = "nvlink_active_links"
        if links == 0 or name in self._skip:
            answers.codes[name] = int(Code.NOT_SUPPORTED)
            return
        try:
            states = [
                self._door.invoke("nvmlDeviceGetNvLinkState", self._handle, link)
                for link in range(links)
            ]
        except DeviceError as exc:
            answers.codes[name] = exc.code
            if unsupported(exc.code):
                self._skip.add(name)
            return
        answers.values[name] = float(sum(1 for state in states if state == 1))

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

    def _list_instances(self) -> tuple[MigInstance, ...]:
        count = self._fact("nvmlDeviceGetMaxMigDeviceCount") or 0
        found = []
        for number in range(count):
            handle = self._fact("nvmlDeviceGetMigDeviceHandleByIndex", number)
            uuid = (
                None
                if handle is None
                else _text(_optional(self._door, handle, call("nvmlDeviceGetUUID")))
            )
            if handle is not None and uuid is not None:
                found.append(MigInstance(self._door, handle, uuid, self))
        return tuple(found)


def _thresholds(
    kind: ThresholdKind, shutdown: float | None, slowdown: float | None, maximum: float | None
) -> Thresholds:
    return Thresholds(kind=kind, shutdown=shutdown, slowdown=slowdown, maximum=maximum)


# Any: see above.
def _optional(door: NvmlDoor, handle: object, question: Call) -> Any:
    """Ask for a fact; None if it cannot be had. The reason does not matter for an inventory."""
    try:
        return door.ask(handle, question)
    except DeviceError:
        return None


def _text(value: object) -> str | None:
    """Text of the binding, which older versions return as bytes."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    text = str(value).strip("\x00 ") if value is not None else ""
    return text or None


def _signed(value: float) -> float:
    """Undo the wrap of a negative number that was handed over as unsigned 32 bits."""
    return value - 2.0**32 if value >= 2.0**31 else float(value)
