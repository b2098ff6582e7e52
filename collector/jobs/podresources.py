"""Which pod was given which device: the answer of the kubelet's pod-resources API, version v1.

Pure. Of the messages only what names pods, containers and devices is read; fields by number, as
protocol buffers write them, and every other field is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["LIST_METHOD", "Holding", "MalformedAnswerError", "holdings_of"]

LIST_METHOD = "/v1.PodResourcesLister/List"

# ListPodResourcesResponse: pod_resources = 1.
# PodResources: name = 1, namespace = 2, containers = 3.
# ContainerResources: name = 1, devices = 2. ContainerDevices: resource_name = 1, device_ids = 2.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: NVIDIA's device plugin offers a shared GPU several times, as ``UUID::0``, ``UUID::1`` …
_REPLICA = "::"


class MalformedAnswerError(ValueError):
    """The bytes are no such message."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A container of a pod was given a device.

    Parameters
    ----------
    device
        As the device plugin names it: UUID of a GPU or a MIG instance.
    namespace, pod, container
        Names.
    """

    device: str
    namespace: str
    pod: str
    container: str

    @property
    def job(self) -> str:
        """Name of the job: ``namespace/pod``."""
        return f"{self.namespace}/{self.pod}"


def holdings_of(answer: bytes) -> tuple[Holding, ...]:
    r"""Read the answer to ``List``.

    Returns
    -------
    tuple of Holding
        Each once, in the order of the answer. A shared GPU is held by several.

    Raises
    ------
    MalformedAnswerError
        If the bytes are no such message.

    Examples
    --------
    >>> device = b"\x0a\x03gpu" + b"\x12\x08GPU-a::1"
    >>> container = b"\x0a\x01c" + b"\x12" + bytes([len(device)]) + device
    >>> pod = b"\x0a\x01p" + b"\x12\x01n" + b"\x1a" + bytes([len(container)]) + container
    >>> holdings_of(b"\x0a" + bytes([len(pod)]) + pod)
    (Holding(device='GPU-a', namespace='n', pod='p', container='c'),)
    """
    found: dict[Holding, None] = {}
    for pod in _parts(answer, 1):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in _parts(pod, 3):
            inside = _text(container, 1)
            for devices in _parts(container, 2):
                for device in _parts(devices, 2):
                    plain = _decoded(device).partition(_REPLICA)[0]
                    found[Holding(plain, namespace, name, inside)] = None
    return tuple(found)


def _parts(data: bytes, number: int) -> list[bytes]:
    """Return what stands under one field number, strings and messages alike."""
    return [value for at, value in _fields(data) if at == number]


def _text(data: bytes, number: int) -> str:
    return _decoded((_parts(data, number) or [b""])[-1])


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise MalformedAnswerError("a name is not UTF-8") from exc


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each field that has a length; skip the numbers."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _BYTES:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise MalformedAnswerError("a field is longer than its message")
            yield key >> 3, data[at : at + size]
            at += size
        elif kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        else:
            raise MalformedAnswerError(f"no such kind of field: {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of up to ten bytes; return it and where the next field begins."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise MalformedAnswerError("a number is cut")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise MalformedAnswerError("a number does not end")
