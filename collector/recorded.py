"""The loop over a recording, which carries its own time: as fast as the bus takes it."""

from __future__ import annotations

import threading

import structlog

from collector.admission import Admission
from collector.clock import Clock
from collector.orders import Pulse
from collector.patient import PatientPublisher
from collector.replay.stats import ReplayStats
from collector.source import Source

__all__ = ["publish_recording"]

log = structlog.get_logger()

_CLOSE_SECONDS = 5.0  # for the last messages, within the ten seconds a service has to end
_FINISH_SECONDS = 60.0  # without any progress, at the end of a recording


def _tell(source: Source) -> None:
    """Log what a recording came to: a service has no table at the end."""
    stats: ReplayStats | None = getattr(source, "stats", None)
    if stats is None:
        return
    say = log.warning if stats.damaged or stats.implausible else log.info
    say(
        "recording_read",
        rows=stats.rows,
        readings=stats.readings,
        damaged_lines=stats.damaged,
        refused_values=stats.implausible,
        dropped_rows=stats.backwards + stats.duplicates,
        remarks=stats.remarks,
    )


def publish_recording(
    source: Source,
    publisher: PatientPublisher,
    admission: Admission,
    clock: Clock,
    pulse: Pulse,
    stop: threading.Event,
) -> None:
    """Read a recording to its end, or until told to stop; source and publisher are closed.

    Raises
    ------
    BusUnavailableError
        If the end of the recording cannot be delivered.
    """
    try:
        while not stop.is_set() and not source.exhausted:
            for reading in source.read(clock.unix_ms()):
                boot_id: str | None = getattr(source, "boot_id", None)
                for message in admission.admit(reading, boot_id):
                    publisher.send(message, stop)
            publisher.step(stop)
            pulse.beat()
        for message in admission.flush():
            publisher.send(message, stop)
        publisher.finish(_FINISH_SECONDS, stop)
        _tell(source)
    finally:
        publisher.close(_CLOSE_SECONDS)
        source.close()
