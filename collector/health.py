"""The collector's state in a sentence that says what to do."""

from __future__ import annotations

from schemas.sample import CollectorState

__all__ = ["sentence_of"]

_SENTENCES: dict[str, str] = {
    CollectorState.OK: "The GPUs are being read.",
    CollectorState.NO_DRIVER: "The NVIDIA driver is not loaded; load it, the collector "
    "will notice.",
    CollectorState.NO_LIBRARY: "The NVIDIA library (libnvidia-ml.so.1) was not found; install the "
    "driver, or give the container access to it.",
    CollectorState.NO_PERMISSION: "The driver refuses access; run the collector with access to "
    "/dev/nvidiactl and /dev/nvidia*.",
    CollectorState.VERSION_MISMATCH: "Driver and library have different versions after an upgrade; "
    "reload the driver or reboot; the collector will notice.",
    CollectorState.BLIND: "No GPU answers; the collector keeps trying to reach the driver.",
    CollectorState.UNRESPONSIVE: "The driver does not answer; look for hung driver calls in the "
    "kernel log, the node probably needs a reboot.",
    CollectorState.STOPPING: "The collector is stopping.",
    CollectorState.RELEASED: "The GPUs are let go of for a reset; send SIGUSR1 again to take them "
    "back at once.",
}


def sentence_of(state: str, *, alive: bool, waiting: int) -> str:
    """Say how the collector is.

    Parameters
    ----------
    state
        One of :class:`~schemas.sample.CollectorState`.
    alive
        Whether its loop turns.
    waiting
        Messages that wait for the bus.
    """
    if not alive:
        return "The collector is not reading: it has not started, has ended, or hangs."
    text = _SENTENCES.get(state, f"The source says {state}.")
    return f"{text} {waiting} messages wait for the bus to return." if waiting > 0 else text
