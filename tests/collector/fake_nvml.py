"""A stand-in for the module pynvml: scripted values and error codes, no driver.

Only names that the collector uses exist; ``without`` removes some, as an older binding would.
A scripted entry is a value, an :class:`Err` (raised as the binding raises it), or a callable
with the call's arguments.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

MIB = 2**20


class NVMLError(Exception):
    """As in the binding: the code is in ``value``."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


@dataclass(frozen=True)
class Err:
    """A call or field that fails with this code."""

    code: int


def memory(total: int, used: int, free: int, reserved: int | None = None) -> SimpleNamespace:
    """Memory in MiB, as the binding's structure in bytes."""
    parts = {"total": total * MIB, "used": used * MIB, "free": free * MIB}
    if reserved is not None:
        parts["reserved"] = reserved * MIB
    return SimpleNamespace(**parts)


MODERN: dict[str, Any] = {
    "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetSerial": "1650000000001",
    "nvmlDeviceGetVbiosVersion": "96.00.74.00.01",
    "nvmlDeviceGetTemperatureV": 40,
    "nvmlDeviceGetTemperature": 40,
    "nvmlDeviceGetMarginTemperature": 47,
    "nvmlDeviceGetTemperatureThreshold": Err(3),
    "nvmlDeviceGetPowerUsage": 692_000,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetTotalEnergyConsumption": 123_456_789,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=99, memory=60),
    "nvmlDeviceGetEncoderUtilization": [0, 100_000],
    "nvmlDeviceGetDecoderUtilization": [0, 100_000],
    "nvmlDeviceGetMemoryInfo": lambda version=None: (
        memory(81559, 40000, 41080, 479) if version else memory(81559, 40479, 41080)
    ),
    "nvmlDeviceGetBAR1MemoryInfo": SimpleNamespace(bar1Used=2 * MIB, bar1Total=131072 * MIB),
    "nvmlDeviceGetClockInfo": lambda kind: {0: 1980, 1: 1980, 2: 2619, 3: 1545}[kind],
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetPerformanceState": 0,
    "nvmlDeviceGetCurrentClocksEventReasons": 4,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 4,
    "nvmlDeviceGetFanSpeed": Err(3),
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetPcieReplayCounter": 0,
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
    "nvmlDeviceGetRetiredPages": Err(3),
    "nvmlDeviceGetRetiredPagesPendingStatus": Err(3),
    "nvmlDeviceGetNvLinkState": 1,
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetMaxMigDeviceCount": 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": Err(6),
}

MODERN_FIELDS: dict[int, float | Err] = {
    82: 45,
    186: 695_000,
    74: 1_500_000_000,
    76: 0,
    269: 0,
    270: 2_500_000_000,
    271: 0,
    197: 10_000,
    198: 20_000,
    38: 1,
    45: 2,
    52: 3,
    59: 4,
    91: 18,
    193: -8,
    194: -2,
    196: 0,
    230: 0,
}


@dataclass(eq=False)
class FakeGpu:
    """One device; ``calls`` and ``fields`` override the healthy H100 of above."""

    uuid: str
    bus: str = "00000000:3B:00.0"
    calls: dict[str, Any] = field(default_factory=dict)
    fields: dict[int, Any] = field(default_factory=dict)
    everything: Err | None = None
    instances: list[FakeGpu] = field(default_factory=list)

    def answer(self, name: str, args: tuple[Any, ...]) -> Any:
        if self.everything is not None:
            raise NVMLError(self.everything.code)
        scripted = self.calls.get(name, MODERN.get(name, Err(3)))
        if name == "nvmlDeviceGetUUID":
            scripted = self.calls.get(name, self.uuid)
        elif name == "nvmlDeviceGetPciInfo":
            scripted = SimpleNamespace(busId=self.bus)
        elif name == "nvmlDeviceGetFieldValues" and name not in self.calls:
            # As numbers, or as pairs of number and scope.
            return [self._field(item if isinstance(item, int) else item[0]) for item in args[0]]
        elif name == "nvmlDeviceGetMigDeviceHandleByIndex" and self.instances:
            (number,) = args
            scripted = self.instances[number] if number < len(self.instances) else Err(6)
        result = scripted(*args) if callable(scripted) else scripted
        if isinstance(result, Err):
            raise NVMLError(result.code)
        return result

    def _field(self, number: int) -> SimpleNamespace:
        value = self.fields.get(number, MODERN_FIELDS.get(number, Err(3)))
        if isinstance(value, Err):
            return SimpleNamespace(fieldId=number, nvmlReturn=value.code, valueType=3, value=None)
        if value < 0:
            union = SimpleNamespace(siVal=value)
            return SimpleNamespace(fieldId=number, nvmlReturn=0, valueType=5, value=union)
        union = SimpleNamespace(ullVal=value)
        return SimpleNamespace(fieldId=number, nvmlReturn=0, valueType=3, value=union)


class FakeNvml:
    """The module. ``system`` scripts calls without a device, by name."""

    NVMLError = NVMLError

    def __init__(
        self,
        *gpus: FakeGpu,
        system: dict[str, Any] | None = None,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.gpus = list(gpus)
        self.system = system or {}
        self.without = without
        self.counts: Counter[str] = Counter()
        self.attached = False

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name in self.without:
            raise AttributeError(name)
        return lambda *args: self._call(name, args)

    def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        self.counts[name] += 1
        if name in self.system:
            scripted = self.system[name]
            result = scripted(*args) if callable(scripted) else scripted
            if isinstance(result, Err):
                raise NVMLError(result.code)
            if result is not None:
                return result
        if name in {"nvmlInit", "nvmlShutdown"}:
            self.attached = name == "nvmlInit"
            return None
        if name == "nvmlSystemGetNVMLVersion":
            return "13.580.1"
        if not self.attached:
            raise NVMLError(1)
        ours = {
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": self._handle,
        }
        if name in ours:
            return ours[name](*args)
        return args[0].answer(name, args[1:])

    def _handle(self, index: int) -> FakeGpu:
        gpu = self.gpus[index]
        if gpu.everything is not None:
            raise NVMLError(gpu.everything.code)
        return gpu
