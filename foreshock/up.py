"""``foreshock up``: all three services in one process, for a machine with GPUs and no servers."""

from __future__ import annotations

import time

from collector.source import Reading, Source
from collector.sources import open_source
from foreshock.compose import run_composed
from foreshock.config import Settings
from foreshock.run import Outcome
from schemas.errors import ConfigError
from schemas.sample import CollectorState

__all__ = ["run_up", "why_no_gpu"]

_TRY_DEMO = "To see foreshock at work without a GPU, run: foreshock demo"

_REASONS = {
    CollectorState.NO_LIBRARY: "NVIDIA's library libnvidia-ml.so.1 is not installed. "
    "Install the NVIDIA driver; in a container, start it with the NVIDIA runtime (--gpus all).",
    CollectorState.NO_DRIVER: "the NVIDIA driver is not loaded. Install it, or load it with "
    "'modprobe nvidia'.",
    CollectorState.NO_PERMISSION: "this user may not read the GPUs. Check the rights of "
    "/dev/nvidia*.",
    CollectorState.VERSION_MISMATCH: "the NVIDIA driver was updated and its old version is still "
    "loaded. Reboot, or reload the kernel modules.",
}


def why_no_gpu(readings: list[Reading]) -> str | None:
    """Say why nothing can be watched here, or None if something can.

    Parameters
    ----------
    readings
        A first reading of this node.
    """
    if any(reading.gpus for reading in readings):
        return None
    states = [reading.state for reading in readings]
    reason = next(
        (_REASONS[CollectorState(state)] for state in states if state in _REASONS),
        "the driver reports no GPU. Look at 'nvidia-smi -L' and the kernel log.",
    )
    return f"There is no GPU to watch: {reason}\n{_TRY_DEMO}"


def run_up(settings: Settings) -> Outcome:
    """Run collector, detector and api over one bus until a signal comes.

    Raises
    ------
    ConfigError
        If this machine has no GPU that can be read; the text names ``foreshock demo``.
    """
    source = open_source(settings.collector)
    try:
        _require_gpu(source)
    except BaseException:
        source.close()
        raise
    return run_composed(settings, ("collector", "detector", "api"), source=source)


def _require_gpu(source: Source) -> None:
    if source.kind != "nvml":
        return  # a simulated or recorded fleet needs no GPU
    sentence = why_no_gpu(source.read(time.time_ns() // 1_000_000))
    if sentence is not None:
        raise ConfigError(sentence)
