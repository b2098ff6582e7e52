"""Sends what the workers say, so that nothing is lost when the bus is full or away.

A message that was refused or failed waits here and is sent again, before anything newer. A
checkpoint is allowed only when nothing waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import structlog

from bus.protocol import DeliveryReport, Publisher
from detector.worker import Outgoing
from schemas.errors import BusError, BusFullError, MessageTooLargeError

__all__ = ["Sender"]

_log = structlog.get_logger()
_PAUSE_SECONDS = 0.05


class Sender:
    """Order-keeping sender over one publisher.

    Parameters
    ----------
    publisher
        Belongs to the thread that calls this object.
    prefix
        Of topic names.
    """

    def __init__(self, publisher: Publisher, prefix: str) -> None:
        self._publisher = publisher
        self._prefix = prefix
        self._waiting: deque[Outgoing] = deque()
        #: Failed after they were taken: they go before what waits.
        self._again: deque[Outgoing] = deque()
        self.refused = 0
        self._failing = False

    def send(self, messages: list[Outgoing], stop: threading.Event) -> None:
        """Send all messages; while the bus is full, wait, and give up only when told to stop."""
        self._waiting.extend(messages)
        self._drain(stop)

    def _drain(self, stop: threading.Event) -> None:
        while self._again or self._waiting:
            queue = self._again or self._waiting
            message = queue[0]
            try:
                self._offer(message)
            except BusFullError:
                self._publisher.poll()
                if stop.wait(_PAUSE_SECONDS):
                    return
                continue
            except MessageTooLargeError as exc:
                self.refused += 1
                _log.error("message_too_large", topic=message.topic.name, reason=str(exc))
            queue.popleft()
        self._publisher.poll()

    def _offer(self, message: Outgoing) -> None:
        self._publisher.send(
            message.topic.full_name(self._prefix),
            key=message.key,
            value=message.value,
            headers=message.headers,
            on_delivery=self._reporter(message),
        )

    def _reporter(self, message: Outgoing) -> Callable[[DeliveryReport], None]:
        def report(delivered: DeliveryReport) -> None:
            if delivered.error is not None:
                self._again.append(message)
            # One line at each change: an outage fails thousands of messages.
            if delivered.error is not None and not self._failing:
                _log.warning("delivery_failed", topic=delivered.topic, reason=delivered.error)
            elif delivered.error is None and self._failing:
                _log.info("delivery_works_again", topic=delivered.topic)
            self._failing = delivered.error is not None

        return report

    def settle(self, timeout_seconds: float, stop: threading.Event) -> bool:
        """Deliver everything; return whether that succeeded within the time."""
        try:
            left = self._publisher.flush(timeout_seconds)
            if self._waits():
                self._drain(stop)
                left = self._publisher.flush(timeout_seconds)
        except BusError as exc:
            _log.warning("flush_failed", reason=str(exc))
            return False
        return left == 0 and not self._waits()

    def _waits(self) -> bool:
        return bool(self._again or self._waiting)

    def close(self) -> None:
        """Let go of the publisher."""
        self._publisher.close()
