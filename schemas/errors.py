"""Every error that foreshock raises on purpose, as one tree.

A caller that can do nothing better catches :class:`ForeshockError` and shows its text:
each message is a sentence that says what happened and, where it helps, what to do.
"""

from __future__ import annotations

__all__ = [
    "BusError",
    "BusFullError",
    "BusUnavailableError",
    "ConfigError",
    "DataDirError",
    "DecodeError",
    "DeviceError",
    "ForeshockError",
    "MessageTooLargeError",
    "SnapshotError",
    "SourceError",
    "StoreError",
]


class ForeshockError(Exception):
    """Base of all errors that foreshock raises on purpose."""


class DecodeError(ForeshockError):
    """A message breaks the contract and goes to the dead-letter topic.

    Parameters
    ----------
    reason
        Short fixed word for headers and metrics, for example ``not_json`` or ``bad_length``.
    detail
        Sentence that shows the offending field and value.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class ConfigError(ForeshockError):
    """The settings cannot be used; the message names the key."""


class DataDirError(ForeshockError):
    """The data directory cannot be used: locked, full, read-only or of a newer version."""


class BusError(ForeshockError):
    """The transport failed."""


class BusFullError(BusError):
    """The transport takes no more for now; nothing was taken."""


class BusUnavailableError(BusError):
    """The transport cannot be used and will not mend by itself."""


class MessageTooLargeError(BusError):
    """The message is larger than the transport ever takes."""


class DeviceError(ForeshockError):
    """A reading or a device failed.

    Parameters
    ----------
    code
        NVML return code (nvml.h, ``nvmlReturn_t``), for example 15 for GPU_IS_LOST.
    message
        The driver's own words.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"NVML error {code}: {message}")
        self.code = code


class SourceError(ForeshockError):
    """A source of samples cannot be opened or understood."""


class SnapshotError(ForeshockError):
    """A snapshot is damaged or of an unknown format."""


class StoreError(ForeshockError):
    """The alert store failed."""
