"""Which kinds of card offer which metric, as published captures of real cards show it.

This is documentation kept as data: the collector itself believes no table and asks every device.
"""

from __future__ import annotations

from enum import StrEnum

from collector.gpu import metrics_of
from collector.readings import SLOW_GROUPS, Group
from schemas.metrics import METRICS

__all__ = ["CARDS", "Offer", "group_of", "how_often", "offers_of", "privilege_of"]

#: The cards of the captures, oldest first, and a MIG instance of the newer ones.
CARDS = (
    "T4 (Turing)",
    "A100 (Ampere)",
    "GeForce (RTX 30, 40)",
    "L40S (Ada)",
    "H100, H200 (Hopper)",
    "B200 (Blackwell)",
    "MIG instance",
)


class Offer(StrEnum):
    """Whether a card offers a metric."""

    YES = "y"
    NO = "n"
    DERIVED = "d"  # computed from something else that the card offers
    UNSEEN = "?"  # no capture shows it


# Metric, or what its name begins with, to one letter per card. The longest beginning wins.
_OFFERS: dict[str, str] = {
    "": "yyyyyyn",
    "memory_used": "yyyyyyy",
    "memory_free": "yyyyyyy",
    "memory_total": "yyyyyyy",
    "memory_reserved": "yyyyyyy",
    "process_count": "yyyyyyy",
    "memory_temperature": "nynnyyn",
    "temperature_margin": "dddyyyn",
    "throttle_": "y?yyyyn",
    "fan_ratio": "nnynnnn",
    "fan_rpm": "nn?nnnn",
    "ecc_": "yynyyyn",
    "sram_threshold": "nynyyyn",
    "row_remap_": "nynyyyn",
    "remapped_rows": "nynyyyn",
    "retired_pages": "ynnnnnn",
    "nvlink_": "nynnyyn",
    "pcie_transmit_bytes_total": "??????n",
    "pcie_receive_bytes_total": "??????n",
    "pcie_correctable": "??????n",
    "pcie_nonfatal": "??????n",
    "pcie_fatal": "??????n",
    "power_lowest": "??????n",
    "power_mean": "??????n",
    "power_highest": "??????n",
    "gpu_utilization_lowest": "??????n",
    "gpu_utilization_mean": "??????n",
    "gpu_utilization_highest": "??????n",
    "sm_clock_lowest": "??????n",
    "sm_clock_mean": "??????n",
    "sm_clock_highest": "??????n",
    "driver_latency": "??????n",
    "bar1_": "yyyyyyn",
    # GPM begins with Hopper.
    "graphics_activity": "nnnnyyy",
    "sm_activity": "nnnnyyy",
    "sm_occupancy": "nnnnyyy",
    "tensor_activity": "nnnnyyy",
    "dram_activity": "nnnnyyy",
    "pcie_transmit_bytes_per": "nnnnyyy",
    "pcie_receive_bytes_per": "nnnnyyy",
    "nvlink_transmit_bytes_per": "nnnnyyy",
    "nvlink_receive_bytes_per": "nnnnyyy",
}

_PRIVILEGES: dict[Group, str] = {
    Group.PROCESSES: "the process table of the host (`hostPID` in a pod) to know whose they are",
    Group.PROFILING: "for MIG in a container: `NVIDIA_MIG_MONITOR_DEVICES=all`",
}


def group_of(metric: str) -> Group:
    """Return the group that a metric belongs to."""
    return next(group for group in Group if metric in metrics_of(frozenset({group})))


def offers_of(metric: str) -> tuple[Offer, ...]:
    """Return whether each of :data:`CARDS` offers a metric.

    Examples
    --------
    >>> [str(offer) for offer in offers_of("temperature_margin_celsius")]
    ['d', 'd', 'd', 'y', 'y', 'y', 'n']
    """
    if metric not in METRICS:
        raise KeyError(metric)
    begins = max((name for name in _OFFERS if metric.startswith(name)), key=len)
    return tuple(Offer(letter) for letter in _OFFERS[begins])


def privilege_of(metric: str) -> str:
    """Return what has to be granted beyond the device files, or an empty text."""
    return _PRIVILEGES.get(group_of(metric), "")


def how_often(metric: str) -> str:
    """Return ``tick`` or ``slow``: whether a metric is asked for at every reading."""
    slow = group_of(metric) in SLOW_GROUPS or metric == "nvlink_active_links"
    return "slow" if slow else "tick"
