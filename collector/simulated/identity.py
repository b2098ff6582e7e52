"""Who the simulated GPUs are: names, addresses and inventory, all derived from the seed."""

from __future__ import annotations

import hashlib
import uuid

from collector.simulated.settings import SimulatedSettings
from schemas.sample import GpuInventory, Inventory, ThresholdKind

__all__ = ["gpu_uuid", "job_id", "node_inventory", "node_name", "pci_address"]

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "foreshock.simulated")
#: Bus numbers in the manner of an eight-GPU SXM board; boards with more go on above them.
_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
_DRIVER = "590.48.01"
_NVML = "13.590.48.01"


def node_name(node: int) -> str:
    """Name of the node at position ``node``, from 0.

    Examples
    --------
    >>> node_name(0)
    'sim-01'
    """
    return f"sim-{node + 1:02d}"


def gpu_uuid(seed: int, node: int, gpu: int) -> str:
    """UUID of one GPU; the same seed and place give the same UUID."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{seed}/{node}/{gpu}')}"


def pci_address(gpu: int) -> str:
    """PCI address in the driver's long form.

    Examples
    --------
    >>> pci_address(0)
    '00000000:1B:00.0'
    """
    bus = _BUSES[gpu] if gpu < len(_BUSES) else 0xE0 + gpu - len(_BUSES)
    return f"00000000:{bus:02X}:00.0"


def job_id(seed: int, node: int, number: int) -> str:
    """Id of the ``number``-th job of a node, in the manner of a batch scheduler.

    Examples
    --------
    >>> job_id(1, 0, 1)
    'train-100101'
    """
    return f"train-{100_000 * max(seed % 10, 1) + 100 * (node + 1) + number}"


def _serial(seed: int, node: int, gpu: int) -> str:
    digest = hashlib.sha256(f"{seed}/{node}/{gpu}".encode()).digest()
    return f"165{int.from_bytes(digest[:8], 'big') % 10**10:010d}"


def node_inventory(
    settings: SimulatedSettings, node: int, present: tuple[int, ...], uptime_seconds: float
) -> Inventory:
    """Describe one node.

    Parameters
    ----------
    settings
        Fleet settings.
    node
        Position of the node.
    present
        Indices of the GPUs that the driver lists. The expected number stays the full one.
    uptime_seconds
        Seconds since the node's boot.
    """
    return Inventory(
        gpus=tuple(_gpu_inventory(settings, node, gpu) for gpu in present),
        expected_gpus=settings.gpus,
        driver_version=_DRIVER,
        nvml_version=_NVML,
        uptime_seconds=uptime_seconds,
        labels={"cluster": "simulated", "rack": f"rack-{node // 4 + 1}"},
    )


def _gpu_inventory(settings: SimulatedSettings, node: int, gpu: int) -> GpuInventory:
    # Margins as captured on H100: slowdown -2, shutdown -8, maximum operating 0 (87 °C).
    return GpuInventory(
        gpu=gpu_uuid(settings.seed, node, gpu),
        index=gpu,
        model=settings.model,
        pci=pci_address(gpu),
        serial=_serial(settings.seed, node, gpu),
        vbios="96.00.74.00.01",
        mig_mode=False,
        threshold_kind=ThresholdKind.MARGIN,
        slowdown_celsius=-2.0,
        shutdown_celsius=-8.0,
        max_operating_celsius=0.0,
        nvlink_links=18,
        pcie_generation_max=5,
        pcie_width_max=16,
    )
