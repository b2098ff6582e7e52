"""PCI addresses: one device, many spellings.

NVML writes ``00000000:3B:00.0``, sysfs ``0000:3b:00.0``, the kernel log ``PCI:0000:3b:00``. They
are compared as numbers, never as text or by prefix.
"""

from __future__ import annotations

import re

__all__ = ["canonical_pci"]

_ADDRESS = re.compile(
    r"(?:PCI:)?(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.IGNORECASE
)


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
