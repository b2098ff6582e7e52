"""Checks of what a collector stands on beside the driver: the kernel log, and the kubelet."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

from collector.jobs.kubelet import Kubelet, KubeletState
from collector.kernel.feed import FeedState
from collector.kernel.log import open_kernel_log
from collector.settings import SourceKind
from collector.sources import reads_kernel_log
from foreshock.checkups import Result, ok, warn
from foreshock.config import Loaded

__all__ = ["check_kernel_log", "check_kubelet"]

_KUBELET_SECONDS = 2.0

#: What is found, and what to do about it.
_LOG_WORDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        FeedState.NO_PERMISSION: (
            "{path} may not be read; Xids come from the driver alone, and none of a GPU that has "
            "fallen off the bus",
            "Give the collector CAP_SYSLOG (AmbientCapabilities=CAP_SYSLOG in its unit; a doctor "
            "run by hand may lack what the unit grants) and the device, or set "
            "collector.kernel.path to a log file such as /var/log/kern.log that its user may read "
            "(group adm on Debian and Ubuntu).",
        ),
        FeedState.MISSING: (
            "{path} is not there; Xids come from the driver alone, and none of a GPU that has "
            "fallen off the bus",
            "Set collector.kernel.path to the file in which this machine keeps the kernel's "
            'lines, give the container the host\'s log, or set collector.kernel.use = "off".',
        ),
        FeedState.FAILED: ("{detail}", "Set collector.kernel.path to a log that can be read."),
    }
)


def check_kernel_log(loaded: Loaded) -> Result:
    """Open the kernel log as the collector would, and read what stands in it."""
    name, settings = "kernel log", loaded.settings.collector
    if not reads_kernel_log(settings):
        why = f'collector.kernel.use is "{settings.kernel.use}", the source {settings.source}'
        return ok(name, f"none is read: {why}")
    # Without its place: the collector itself shall go on where it stopped.
    log = open_kernel_log(settings.kernel.model_copy(update={"place": None}))
    try:
        log.poll(time.time_ns() // 1_000_000)
        said = log.health()
    finally:
        log.close()
    path = settings.kernel.path
    words = _LOG_WORDS.get(str(said.get("state")))
    if words is None:
        return ok(name, f"{path} can be read")
    found, advice = words
    return warn(name, found.format(path=path, detail=str(said.get("detail")).rstrip(".")), advice)


def check_kubelet(loaded: Loaded) -> Result:
    """Ask the kubelet, where there is one, which pod was given which GPU."""
    name, settings = "kubelet", loaded.settings.collector
    if settings.source in {SourceKind.SIMULATED, SourceKind.REPLAY}:
        return ok(name, f"not asked, the source is {settings.source}")
    if not settings.jobs.pod_resources:
        return ok(name, "not asked, collector.jobs.pod_resources is false")
    now = time.time_ns() // 1_000_000
    kubelet = Kubelet(settings.jobs.socket, settings.jobs.refresh_seconds)
    try:
        kubelet.begin(now, _KUBELET_SECONDS)
        held = kubelet.holdings(now)
        said = kubelet.health()
    finally:
        kubelet.close()
    if said["state"] == KubeletState.OK:
        return ok(name, f"answers; pods hold {len(held or ())} devices")
    if said["state"] == KubeletState.ABSENT:
        return ok(name, f"none here: {settings.jobs.socket} is not there")
    advice = (
        "Run the collector as root there, or set collector.jobs.pod_resources = false; pods that "
        "use a GPU are then known by their processes alone."
    )
    return warn(name, str(said["detail"]).partition(": run")[0].rstrip("."), advice)
