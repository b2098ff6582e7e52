"""From the series of one scrape to devices: whose a number is, and whether it is one at all."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from collector.dcgm.exposition import Series
from collector.dcgm.names import DCGM_BLANKS, SUMMED, XID_FIELD, reason_bit, wire_name
from collector.replay.identity import Devices
from schemas.metrics import METRICS, plausible
from schemas.sample import GpuInventory, JobRef, ValueStatus

__all__ = ["Device", "devices_of", "is_useful", "jobs_of"]

# What belongs to a MIG instance; everything else that carries an instance's label is the GPU's,
# repeated for each of its instances.
_OF_INSTANCE = frozenset(
    {
        *("memory_used_bytes", "memory_free_bytes", "memory_total_bytes", "memory_reserved_bytes"),
        *("graphics_activity_ratio", "sm_activity_ratio", "sm_occupancy_ratio"),
        *("tensor_activity_ratio", "dram_activity_ratio"),
        *("pcie_transmit_bytes_per_second", "pcie_receive_bytes_per_second"),
        *("nvlink_transmit_bytes_per_second", "nvlink_receive_bytes_per_second"),
    }
)
_ABSENT = {"", "[N/A]", "N/A"}


@dataclass(slots=True, kw_only=True)
class Device:
    """One GPU or MIG instance of one scrape.

    Parameters
    ----------
    facts
        What it is.
    node
        Host that the series name, or None.
    values
        Metric to number, in base units; None where the exporter has a blank.
    status
        Metric to code where the value is None.
    xid
        Last Xid that the exporter shows; 0 for none, None where it shows none.
    reasons
        Clock event reasons that are series of their own, as a mask; None where there are none.
    pods
        (namespace, pod, container) that the series name.
    """

    facts: GpuInventory
    node: str | None = None
    driver: str | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)
    xid: int | None = None
    reasons: int | None = None
    pods: dict[tuple[str, str, str], None] = field(default_factory=dict)


def is_useful(series: Series) -> bool:
    """Tell whether a sample is about a GPU's metric, Xid or clock event reason."""
    name = series.name
    return (
        wire_name(name) is not None
        or name.upper().endswith(XID_FIELD)
        or reason_bit(name) is not None
    )


def devices_of(series: Iterable[Series], known: Devices, node: str) -> list[Device]:
    """Sort samples by device.

    Parameters
    ----------
    series
        One scrape.
    known
        Gives ids to GPUs without a UUID.
    node
        Where the samples name no host.

    Returns
    -------
    list of Device
        GPUs before their MIG instances, otherwise in the order of the scrape.
    """
    found: dict[str, Device] = {}
    infos: dict[str, dict[str, str]] = {}
    for one in series:
        if one.name == "nvidia_smi_gpu_info":
            infos[one.labels.get("uuid", "")] = one.labels
        elif is_useful(one):
            _take(found, one, known, node)
    for device in found.values():
        _describe(device, infos)
        if device.reasons is not None:
            device.values.setdefault("clock_event_reasons", float(device.reasons))
    return sorted(found.values(), key=lambda device: device.facts.parent is not None)


def jobs_of(devices: Iterable[Device]) -> tuple[JobRef, ...] | None:
    """Return the pods on the devices; None where the exporter names none at all."""
    members: dict[tuple[str, str, str], list[str]] = {}
    for device in devices:
        for pod in device.pods:
            members.setdefault(pod, []).append(device.facts.gpu)
    if not members:
        return None
    return tuple(
        JobRef(
            gpus=tuple(gpus),
            job=f"{namespace}/{pod}" if namespace else pod,
            project=namespace or None,
            container=container or None,
        )
        for (namespace, pod, container), gpus in members.items()
    )


def _take(found: dict[str, Device], one: Series, known: Devices, node: str) -> None:
    labels = {name.lower(): value for name, value in one.labels.items()}
    gpu = _device(found, labels, known, node)
    device = gpu
    named = wire_name(one.name)
    instance = labels.get("gpu_i_id", "")
    if instance:
        part = _instance(found, gpu, labels, instance)
        if named is not None and named[0] in _OF_INSTANCE:
            device = part
        _note_pod(part, labels)
    else:
        _note_pod(gpu, labels)
    if named is not None:
        _keep(device, named[0], one.value, named[1])
        return
    bit = reason_bit(one.name)
    if bit is not None:
        device.reasons = (device.reasons or 0) | (bit if one.value == 1.0 else 0)
    elif math.isfinite(one.value) and one.value not in DCGM_BLANKS:
        device.xid = int(one.value)


def _device(found: dict[str, Device], labels: dict[str, str], known: Devices, node: str) -> Device:
    host = labels.get("hostname") or None
    index = labels.get("gpu", "")
    pci = labels.get("pci_bus_id") or None
    uuid = labels.get("uuid") or None
    if uuid is not None and not uuid.startswith(("GPU-", "MIG-")):
        uuid = f"GPU-{uuid}"
    model = labels.get("modelname") or None
    number = int(index) if index.isdecimal() and len(index) < 6 else None
    gpu = known.identify(host or node, uuid=uuid, pci=pci, index=number, model=model)
    device = found.get(gpu)
    if device is None:
        facts = GpuInventory(gpu=gpu, index=number, model=model, pci=pci)
        driver = labels.get("dcgm_fi_driver_version") or None
        device = found[gpu] = Device(facts=facts, node=host, driver=driver)
    return device


def _instance(found: dict[str, Device], gpu: Device, labels: dict[str, str], number: str) -> Device:
    # The form in which drivers before R470 name instances.
    name = f"MIG-{gpu.facts.gpu}/{number}/0"
    part = found.get(name)
    if part is None:
        facts = GpuInventory(
            gpu=name,
            index=gpu.facts.index,
            model=gpu.facts.model,
            pci=gpu.facts.pci,
            parent=gpu.facts.gpu,
            mig_profile=labels.get("gpu_i_profile") or None,
        )
        part = found[name] = Device(facts=facts, node=gpu.node, driver=gpu.driver)
    return part


def _note_pod(device: Device, labels: dict[str, str]) -> None:
    pod = labels.get("pod") or labels.get("exported_pod")
    if pod:
        namespace = labels.get("namespace") or labels.get("exported_namespace") or ""
        container = labels.get("container") or labels.get("exported_container") or ""
        device.pods[namespace, pod, container] = None


def _keep(device: Device, metric: str, value: float, factor: float) -> None:
    """Keep the first number of a metric; sums are added up; blanks and nonsense are gaps."""
    before = device.values.get(metric)
    if before is not None and metric not in SUMMED:
        return
    if not math.isfinite(value) or value in DCGM_BLANKS:
        _gap(device, metric, ValueStatus.UNSUPPORTED)
        return
    scaled = value * factor if factor >= 1.0 else value / round(1.0 / factor)
    if metric in SUMMED and before is not None:
        scaled += before
    if not plausible(METRICS[metric], scaled):
        _gap(device, metric, ValueStatus.IMPLAUSIBLE)
        return
    device.values[metric] = scaled
    device.status.pop(metric, None)


def _gap(device: Device, metric: str, status: ValueStatus) -> None:
    if device.values.get(metric) is None:
        device.values[metric] = None
        device.status.setdefault(metric, status)


def _describe(device: Device, infos: dict[str, dict[str, str]]) -> None:
    """Add what nvidia_gpu_exporter says of the GPU in a series of its own."""
    info = infos.get(device.facts.gpu.removeprefix("GPU-"))
    if info is None and len(infos) == 1:
        info = next(iter(infos.values()))
    if info is None:
        return
    said = {name: text for name, text in info.items() if text not in _ABSENT}
    model, driver = said.get("name"), said.get("driver_version")
    facts = device.facts
    device.facts = GpuInventory(
        gpu=facts.gpu,
        index=facts.index,
        model=facts.model or model,
        pci=facts.pci or said.get("pci_bus_id"),
        parent=facts.parent,
        mig_profile=facts.mig_profile,
        vbios=said.get("vbios_version"),
    )
    device.driver = device.driver or driver
