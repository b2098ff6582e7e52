"""``foreshock up``: all three services in one process, for a machine with GPUs and no servers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence

from collector.source import Reading, Source
from collector.sources import open_source
from foreshock.compose import SERVICES, run_composed
from foreshock.config import Settings
from foreshock.preflight import require_free_ports, require_right_settings
from foreshock.run import Outcome
from foreshock.service import Service
from schemas.errors import ConfigError
from schemas.sample import CollectorState

__all__ = ["open_gpus", "run_up", "web_address", "why_no_gpu"]

_TRY_DEMO = "To see foreshock at work without a GPU, run: foreshock demo"

_LISTEN_SECONDS = 60.0  # an api that takes longer has failed, and the log says so

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


def open_gpus(settings: Settings) -> Source:
    """Open what the collector will read, having made sure that ``up`` can work at all.

    Raises
    ------
    ConfigError
        If the settings contradict each other, a port is taken, or this machine has no GPU that
        can be read; the last one names ``foreshock demo``. Nothing has been started or written.
    """
    require_right_settings(settings, tuple(SERVICES))
    source = open_source(settings.collector)
    try:
        _require_gpu(source)
        require_free_ports(settings, tuple(SERVICES))
    except BaseException:
        source.close()
        raise
    return source


def _require_gpu(source: Source) -> None:
    if source.kind != "nvml":
        return  # a simulated or recorded fleet needs no GPU
    sentence = why_no_gpu(source.read(time.time_ns() // 1_000_000))
    if sentence is not None:
        raise ConfigError(sentence)


def run_up(
    settings: Settings, source: Source, *, reload: Callable[[], Settings] | None = None
) -> Outcome:
    """Run collector, detector and api over one bus until a signal comes.

    Parameters
    ----------
    settings
        The effective settings.
    source
        What :func:`open_gpus` returned; closed at the end.
    reload
        Loads the settings anew on SIGHUP.
    """
    return run_composed(settings, tuple(SERVICES), source=source, beside=_announce, reload=reload)


def _announce(services: Sequence[Service]) -> None:
    """Print where the page is as soon as the api answers there."""
    from api.service import ApiService  # noqa: PLC0415 - `doctor` loads this module without it

    def wait_and_print() -> None:
        for service in services:
            if isinstance(service, ApiService) and service.wait_until_listening(_LISTEN_SECONDS):
                address = service.address
                if address is not None:
                    sys.stdout.write(f"Open {web_address(*address)}\n")
                    sys.stdout.flush()

    threading.Thread(target=wait_and_print, name="announce", daemon=True).start()


def web_address(host: str, port: int) -> str:
    """Return the address of the page for a browser on this machine.

    Examples
    --------
    >>> web_address("0.0.0.0", 8600), web_address("::1", 8600)
    ('http://127.0.0.1:8600/', 'http://[::1]:8600/')
    """
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not listened on
    return f"http://[{near}]:{port}/" if ":" in near else f"http://{near}:{port}/"
