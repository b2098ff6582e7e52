"""Which source the settings ask for."""

from __future__ import annotations

from collector.nvml import NvmlSource, load_pynvml
from collector.settings import CollectorSettings, SourceKind
from collector.source import Source

__all__ = ["open_source"]


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
    return NvmlSource(load_pynvml(), node=settings.node, expected_gpus=settings.expected_gpus)
