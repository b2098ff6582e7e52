"""PCI addresses: one device, many spellings.

NVML writes ``00000000:3B:00.0``, sysfs ``0000:3b:00.0``, the kernel log ``PCI:0000:3b:00``. They
are compared as numbers, never as text or by prefix.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["canonical_pci", "count_nvidia_gpus"]

_ADDRESS = re.compile(
    r"(?:PCI:)?(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.IGNORECASE
)
_NVIDIA = 0x10DE
# Display controllers: VGA-compatible (consumer boards) and 3D controller (data-centre boards).
_GPU_CLASSES = frozenset({0x0300, 0x0302})


def canonical_pci(text: str) -> str | None:
    """Write an address as ``dddd:bb:dd.f`` in small letters; None if it is no PCI address.

    A missing domain or function is 0. A domain beyond 16 bits keeps as many digits as it needs.

    Examples
    --------
    >>> canonical_pci("00000000:3B:00.0"), canonical_pci("PCI:0000:3b:00")
    ('0000:3b:00.0', '0000:3b:00.0')
    >>> canonical_pci("0000000F:01:00.0")
    '000f:01:00.0'
    >>> canonical_pci("GPU 3") is None
    True
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


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
