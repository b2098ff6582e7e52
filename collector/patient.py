"""Handing recorded messages to the bus: as fast as it takes them, losing none.

A recording can wait, so nothing is spooled: a full bus is waited for, a failed delivery is sent
again.
"""

from __future__ import annotations

import threading

import structlog

from bus.protocol import DeliveryReport, Publisher
from collector.clock import Clock
from collector.metrics import CollectorMetrics
from collector.spool import Message
from schemas.errors import BusFullError, BusUnavailableError, MessageTooLargeError

__all__ = ["PatientPublisher"]

log = structlog.get_logger()

_PAUSE_SECONDS = 0.01


class PatientPublisher:
    """Sends messages, waiting where the live publisher would spool. Belongs to one thread.

    Parameters
    ----------
    publisher
        Of the bus.
    clock
        Measures the pauses.
    metrics
        Where everything is counted.
    """

    def __init__(self, publisher: Publisher, clock: Clock, metrics: CollectorMetrics) -> None:
        self._publisher = publisher
        self._clock = clock
        self._metrics = metrics
        self._failed: list[Message] = []
        self._undelivered = 0

    def send(self, message: Message, stop: threading.Event) -> None:
        """Hand over one message; wait while the bus is full, at most until told to stop."""
        while not stop.is_set():
            try:
                self._publisher.send(
                    message.topic,
                    key=message.key,
                    value=message.value,
                    headers=message.headers,
                    on_delivery=lambda report: self._on_delivery(message, report),
                )
            except BusFullError:
                self._publisher.poll()
                self._clock.sleep_until(self._clock.monotonic() + _PAUSE_SECONDS, stop)
            except MessageTooLargeError as exc:
                log.warning("message_too_large", bytes=len(message.value), reason=str(exc))
                self._metrics.dropped.labels(reason="too_large").inc()
                return
            else:
                self._undelivered += 1
                self._metrics.sent.inc()
                return

    def step(self, stop: threading.Event) -> None:
        """Run delivery reports and send again what failed."""
        self._publisher.poll()
        failed, self._failed = self._failed, []
        for message in failed:
            self.send(message, stop)

    def finish(self, timeout_seconds: float, stop: threading.Event) -> None:
        """Wait until everything is delivered.

        Raises
        ------
        BusUnavailableError
            If nothing moved for the given time.
        """
        while self._undelivered > 0 and not stop.is_set():
            before = self._undelivered
            self._publisher.flush(timeout_seconds)
            self.step(stop)
            if self._undelivered >= before:
                raise BusUnavailableError(
                    f"{self._undelivered} messages of the recording were not delivered within "
                    f"{timeout_seconds:g} s; check the bus with `foreshock doctor`"
                )

    def close(self, timeout_seconds: float) -> None:
        """Let go of the publisher."""
        self._publisher.close(timeout_seconds)

    def _on_delivery(self, message: Message, report: DeliveryReport) -> None:
        self._undelivered -= 1
        if report.error is not None:
            self._failed.append(message)
