"""What the node says about itself without the driver: boot, uptime, driver file, PCI bus."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from collector.pci import count_nvidia_gpus

__all__ = ["HostFiles"]

_VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFiles:
    """Where the kernel keeps these facts; each may be missing.

    Parameters
    ----------
    boot_id
        UUID that the kernel draws at every boot.
    uptime
        Seconds since boot, first word.
    driver_version
        Text of the loaded NVIDIA kernel module, readable while NVML is not.
    pci_devices
        Folder with one entry per PCI device.
    """

    boot_id: Path = Path("/proc/sys/kernel/random/boot_id")
    uptime: Path = Path("/proc/uptime")
    driver_version: Path = Path("/proc/driver/nvidia/version")
    pci_devices: Path = Path("/sys/bus/pci/devices")

    def read_boot_id(self) -> str:
        """Return the kernel's boot id, or a new UUID where the kernel has none."""
        return _text(self.boot_id) or str(uuid.uuid4())

    def read_uptime(self) -> float | None:
        """Return seconds since boot, or None."""
        words = (_text(self.uptime) or "").split()
        try:
            return float(words[0])
        except (IndexError, ValueError):
            return None

    def read_driver_version(self) -> str | None:
        """Return the version of the loaded kernel module, for example ``550.90.07``, or None."""
        match = _VERSION.search(_text(self.driver_version) or "")
        return match.group(1) if match else None

    def count_gpus(self) -> int | None:
        """Count the GPUs on the PCI bus; None where the bus says nothing."""
        return count_nvidia_gpus(self.pci_devices)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None
