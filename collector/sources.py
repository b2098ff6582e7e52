"""Which source the settings ask for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from collector.kernel.settings import KernelLogUse
from collector.nvmlwire import ChildSettings
from collector.settings import CollectorSettings, SourceKind
from collector.source import EventSource, JobSource, Source

__all__ = [
    "child_settings",
    "open_events",
    "open_host",
    "open_jobs",
    "open_source",
    "reads_kernel_log",
]

#: The kubelet answers from memory; at the start, before any reading, it is waited for.
_FIRST_ANSWER_SECONDS = 1.0


def open_source(settings: CollectorSettings) -> Source:
    """Open the source that ``settings.source`` names.

    The live source opens even without a GPU or driver: that is a state it reports.

    Raises
    ------
    SourceError
        If a recording or fault schedule cannot be read or understood.
    """
    # Imported where chosen: a node agent need not load what reads recordings, nor the reverse.
    if settings.source == SourceKind.SIMULATED:
        from collector.simulated.fleet import SimulatedFleet  # noqa: PLC0415 - see above

        return SimulatedFleet(settings.simulated)
    if settings.source == SourceKind.REPLAY:
        from collector.replay.source import ReplaySource  # noqa: PLC0415 - see above

        return ReplaySource(settings.replay)
    if settings.source == SourceKind.DCGM:
        from collector.dcgm.source import DcgmSource  # noqa: PLC0415 - see above

        return DcgmSource(settings.dcgm, node=settings.node, expected_gpus=settings.expected_gpus)
    if settings.source == SourceKind.AMDSMI:
        from collector.amd import AmdSource, load_amdsmi  # noqa: PLC0415 - see above

        return AmdSource(load_amdsmi(), node=settings.node, expected_gpus=settings.expected_gpus)
    from collector.nvmlparent import NvmlChildSource  # noqa: PLC0415 - see above

    return NvmlChildSource(
        child_settings(settings), deadline_seconds=settings.call_deadline_seconds
    )


def child_settings(settings: CollectorSettings) -> ChildSettings:
    """Pick what the child that reads the driver has to know."""
    return ChildSettings(
        node=settings.node,
        expected_gpus=settings.expected_gpus,
        library=None if settings.nvml_library is None else str(settings.nvml_library),
        groups=settings.groups,
        slow_seconds=settings.slow_seconds,
        device_deadline_seconds=settings.device_deadline_seconds,
    )


def open_events(settings: CollectorSettings) -> EventSource | None:
    """Open the kernel log if it is that of the GPUs which the source reads, or asked for.

    A log that is missing or refused is a state that it reports, not an error.
    """
    if not reads_kernel_log(settings):
        return None
    from collector.kernel.log import open_kernel_log  # noqa: PLC0415 - see above

    return open_kernel_log(settings.kernel)


def reads_kernel_log(settings: CollectorSettings) -> bool:
    """Whether these settings let the kernel log be read."""
    use = settings.kernel.use
    wanted = use == KernelLogUse.ON or (
        use == KernelLogUse.AUTO and settings.source == SourceKind.NVML
    )
    return wanted and settings.source != SourceKind.REPLAY


def open_jobs(settings: CollectorSettings) -> JobSource | None:
    """Open what knows the jobs on the GPUs; None where the source knows them itself."""
    if settings.source in {SourceKind.SIMULATED, SourceKind.REPLAY}:
        return None
    from collector.jobs.attribution import Attribution  # noqa: PLC0415 - see above

    jobs = Attribution(settings.jobs)
    jobs.begin(time.time_ns() // 1_000_000, _FIRST_ANSWER_SECONDS)
    return jobs


def open_host(settings: CollectorSettings) -> Callable[[], Mapping[str, float]] | None:
    """Open what tells of this machine, where the GPUs that are read are in it.

    Simulated and recorded GPUs are in none, an exporter may be on another one.
    """
    if settings.source not in {SourceKind.NVML, SourceKind.AMDSMI} or not settings.host_numbers:
        return None
    from collector.nodecontext import NodeContext  # noqa: PLC0415 - see above

    context = NodeContext()
    context.values()  # the first of the two looks that a share of processor time needs
    return context.values
