"""The driver's own sample buffers: lowest, mean and highest between two readings.

The driver samples power, utilisation and clocks many times a second into rings; reading them
costs one call and shows what a reading once a second misses. The newest time stamp of each ring
is remembered, so that no sample is counted twice.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Any

from collector.answers import Answers
from collector.device import Code, NvmlDoor, unsupported
from schemas.errors import DeviceError

__all__ = ["RING_METRICS", "Rings"]

_CALL = "nvmlDeviceGetSamples"
#: At the first reading a ring may hold a minute; only its last second is told.
_FIRST_WINDOW_US = 1_000_000
# nvmlSample_t: time stamp in microseconds, value; of the value types only these occur.
_SAMPLE = struct.Struct("=QQ")
_TYPE_DOUBLE, _TYPE_UNSIGNED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    """One ring: nvmlSamplingType_t, the metrics it feeds, and the way to the base unit."""

    number: int
    metrics: tuple[str, str, str]
    factor: float


def _ring(number: int, name: str, unit: str, factor: float) -> _Ring:
    lowest, mean, highest = (f"{name}_{which}_{unit}" for which in ("lowest", "mean", "highest"))
    return _Ring(number=number, metrics=(lowest, mean, highest), factor=factor)


_RINGS = (
    _ring(0, "power", "watts", 1e-3),
    _ring(1, "gpu_utilization", "ratio", 1e-2),
    _ring(5, "sm_clock", "hertz", 1e6),
)

#: Every metric that comes from a ring.
RING_METRICS = tuple(metric for ring in _RINGS for metric in ring.metrics)


class Rings:
    """The rings of one device."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._absent: set[int] = set()

    def probe(self) -> None:
        """Forget which rings are not offered."""
        self._absent.clear()

    def read(self, door: NvmlDoor, handle: object, answers: Answers) -> None:
        """Add what the rings gathered since the last reading."""
        for ring in _RINGS:
            if ring.number in self._absent:
                _fail(ring, int(Code.NOT_SUPPORTED), answers)
                continue
            try:
                kind, samples = door.invoke(
                    _CALL, handle, ring.number, self._seen.get(ring.number, 0)
                )
            except DeviceError as exc:
                # "Not found" is a ring without news, not a device without the ring.
                code = Code.STALE if exc.code == Code.NOT_FOUND else exc.code
                if unsupported(code) or exc.code == Code.INVALID_ARGUMENT:
                    code = Code.NOT_SUPPORTED
                    self._absent.add(ring.number)
                _fail(ring, int(code), answers)
                if code == Code.GPU_IS_LOST:
                    return
                continue
            self._tell(ring, kind, samples, answers)

    def _tell(self, ring: _Ring, kind: int, samples: Any, answers: Answers) -> None:
        pairs = _pairs(kind, samples)
        since = self._seen.get(ring.number)
        newest = max((at for at, _ in pairs), default=0)
        edge = newest - _FIRST_WINDOW_US if since is None else since
        fresh = [value for at, value in pairs if at > edge]
        if not fresh:
            _fail(ring, int(Code.STALE), answers)
            return
        self._seen[ring.number] = newest
        lowest, mean, highest = ring.metrics
        answers.values[lowest] = min(fresh) * ring.factor
        answers.values[mean] = sum(fresh) / len(fresh) * ring.factor
        answers.values[highest] = max(fresh) * ring.factor


def _fail(ring: _Ring, code: int, answers: Answers) -> None:
    for metric in ring.metrics:
        answers.codes[metric] = code


def _pairs(kind: int, samples: Any) -> list[tuple[int, float]]:
    """Time stamps and values. The binding cuts its array into objects that share its memory."""
    array = getattr(samples[0], "_b_base_", None) if samples else None
    if not isinstance(array, ctypes.Array):
        return [(int(item.timeStamp), float(_member(kind, item))) for item in samples]
    read = _SAMPLE.unpack_from
    pairs = [read(array, _SAMPLE.size * place) for place in range(len(samples))]
    if kind == _TYPE_DOUBLE:
        return [(at, struct.unpack("=d", raw.to_bytes(8, "little"))[0]) for at, raw in pairs]
    mask = 0xFFFFFFFF if kind == _TYPE_UNSIGNED else 0xFFFFFFFFFFFFFFFF
    return [(at, float(raw & mask)) for at, raw in pairs]


def _member(kind: int, item: Any) -> float:
    value = item.sampleValue
    if kind == _TYPE_DOUBLE:
        return float(value.dVal)
    return float(value.uiVal if kind == _TYPE_UNSIGNED else value.ullVal)
