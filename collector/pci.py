"""The PCI bus: how many NVIDIA GPUs a node should have."""

from __future__ import annotations

from pathlib import Path

__all__ = ["count_nvidia_gpus"]

_NVIDIA = 0x10DE
# Display controllers: VGA-compatible (consumer boards) and 3D controller (data-centre boards).
_GPU_CLASSES = frozenset({0x0300, 0x0302})


def count_nvidia_gpus(devices: Path) -> int | None:
    """Count NVIDIA display controllers in a sysfs folder of PCI devices.

    Parameters
    ----------
    devices
        Normally ``/sys/bus/pci/devices``.

    Returns
    -------
    int or None
        None where the folder does not exist or lists no such device: a virtual machine without
        a PCI bus says nothing about how many GPUs there should be.
    """
    try:
        entries = sorted(devices.iterdir())
    except OSError:
        return None
    found = sum(1 for entry in entries if _is_gpu(entry))
    return found if found > 0 else None


def _is_gpu(entry: Path) -> bool:
    try:
        vendor = int((entry / "vendor").read_text(), 16)
        kind = int((entry / "class").read_text(), 16) >> 8
    except (OSError, ValueError):
        return False
    return vendor == _NVIDIA and kind in _GPU_CLASSES
