"""Handing messages to the bus without ever waiting for it.

What the bus refuses or fails to deliver goes to the spool, and comes back, oldest first and
after the live messages, once the bus has acknowledged a live one. After an outage every node
waits its own share of a minute first: thousands of nodes return at the same moment.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import structlog

from bus.protocol import DeliveryReport, Publisher
from collector.metrics import CollectorMetrics
from collector.settings import SpoolSettings
from collector.spool import Message, Spool, Waiting
from schemas.errors import BusFullError, DataDirError, MessageTooLargeError

__all__ = ["SamplePublisher"]

log = structlog.get_logger()

_CUT_BYTES = 65_536  # of a message that is too large even for the dead-letter topic


class SamplePublisher:
    """Sends live messages, spools what fails, drains the spool. Belongs to one thread.

    Parameters
    ----------
    publisher
        Of the bus.
    spool
        Where messages wait.
    dead_letters
        Full name of the dead-letter topic.
    node
        Decides this node's share of the pause after an outage.
    settings
        Pause and rate of draining.
    metrics
        Where everything is counted.
    """

    def __init__(
        self,
        publisher: Publisher,
        spool: Spool,
        *,
        dead_letters: str,
        node: str,
        settings: SpoolSettings,
        metrics: CollectorMetrics,
    ) -> None:
        self._publisher = publisher
        self._spool = spool
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._factor = settings.drain_factor
        self._pause = settings.jitter_seconds * (zlib.crc32(node.encode()) % 1000) / 1000
        self._on_way: dict[int, Message] = {}
        self._draining: set[int] = set()
        self._drained_to = 0
        self._next_id = 0
        self._live = 0
        self._now_ms = 0
        self._healthy = True
        self._acked = False
        self._drain_from: float | None = None

    @property
    def healthy(self) -> bool:
        """Whether the bus took and delivered the last live message."""
        return self._healthy

    @property
    def waiting(self) -> int:
        """How many messages wait in the spool."""
        return len(self._spool)

    def send(self, message: Message, now_ms: int) -> None:
        """Hand a live message to the bus, or to the spool. Never raises, never waits."""
        self._now_ms = now_ms
        self._live += 1
        number = self._next_id
        self._next_id += 1
        self._on_way[number] = message
        try:
            self._hand_over(message, lambda report: self._on_live(number, report))
        except BusFullError as exc:
            del self._on_way[number]
            self._note_failure(str(exc))
            self._put_aside(message)
        except MessageTooLargeError as exc:
            del self._on_way[number]
            self._bury(message, str(exc))
        else:
            self._metrics.sent.inc()

    def step(self, now: float, now_ms: int) -> None:
        """Run delivery reports, then drain a little if the bus is well.

        Parameters
        ----------
        now, now_ms
            Monotonic seconds and unix milliseconds.
        """
        self._now_ms = now_ms
        self._publisher.poll()
        live, self._live = self._live, 0
        if len(self._spool) > 0:
            self._drain(now, live * self._factor)
            self._count_dropped(self._spool.drop_old(now_ms), "age")
        self._metrics.spool_messages.set(len(self._spool))
        self._metrics.spool_bytes.set(self._spool.size_bytes)

    def close(self, timeout_seconds: float, now_ms: int) -> None:
        """Deliver what is on its way; what is not delivered in time waits in the spool."""
        self._now_ms = now_ms
        self._publisher.close(timeout_seconds)
        for message in list(self._on_way.values()):
            self._put_aside(message)
        self._on_way.clear()
        if len(self._spool) > 0:
            log.warning("messages_left_in_spool", messages=len(self._spool))
        self._spool.close()

    def _hand_over(self, message: Message, report: Callable[[DeliveryReport], None]) -> None:
        self._publisher.send(
            message.topic,
            key=message.key,
            value=message.value,
            headers=message.headers,
            on_delivery=report,
        )

    def _on_live(self, number: int, report: DeliveryReport) -> None:
        message = self._on_way.pop(number, None)
        if message is None:
            return
        if report.error is None:
            self._note_ack()
        else:
            self._note_failure(report.error)
            self._put_aside(message)

    def _drain(self, now: float, budget: int) -> None:
        if not self._acked:
            return
        if self._drain_from is None:
            self._drain_from = now + self._pause
        if now < self._drain_from:
            return
        for waiting in self._spool.oldest(budget, after=self._drained_to):
            if not self._send_again(waiting):
                return

    def _send_again(self, waiting: Waiting) -> bool:
        place = waiting.place
        if place in self._draining:
            return True
        self._draining.add(place)
        try:
            self._hand_over(waiting.message, lambda report: self._on_drained(place, report))
        except BusFullError as exc:
            self._draining.discard(place)
            self._note_failure(str(exc))
            return False
        except MessageTooLargeError as exc:
            self._draining.discard(place)
            self._spool.remove(place)
            self._bury(waiting.message, str(exc))
        else:
            self._drained_to = place
        return True

    def _on_drained(self, place: int, report: DeliveryReport) -> None:
        self._draining.discard(place)
        if report.error is None:
            self._spool.remove(place)
            return
        self._drained_to = min(self._drained_to, place - 1)
        self._note_failure(report.error)

    def _put_aside(self, message: Message) -> None:
        try:
            dropped = self._spool.append(message, self._now_ms)
        except DataDirError as exc:
            log.warning("spool_failed", reason=str(exc))
            self._count_dropped(1, "disk")
            return
        self._metrics.spooled.inc()
        self._count_dropped(dropped, "bound")

    def _bury(self, message: Message, reason: str) -> None:
        """Send a message that is too large to the dead-letter topic, whole or cut. No retry."""
        self._metrics.dead_lettered.inc()
        log.warning("message_too_large", topic=message.topic, bytes=len(message.value))
        headers = (
            *message.headers,
            ("dlq_reason", b"too_large"),
            ("dlq_detail", reason.encode()),
            ("dlq_topic", message.topic.encode()),
        )
        for value in (message.value, message.value[:_CUT_BYTES]):
            try:
                self._publisher.send(
                    self._dead_letters, key=message.key, value=value, headers=headers
                )
            except MessageTooLargeError:
                continue
            except BusFullError:
                break
            return
        self._count_dropped(1, "too_large")

    def _count_dropped(self, count: int, reason: str) -> None:
        if count > 0:
            self._metrics.dropped.labels(reason=reason).inc(count)

    def _note_failure(self, reason: str) -> None:
        if self._healthy:
            log.warning("bus_unavailable", reason=reason)
        self._healthy = False
        self._acked = False
        self._drain_from = None

    def _note_ack(self) -> None:
        if not self._healthy:
            log.info("bus_available", waiting=len(self._spool))
        self._healthy = True
        self._acked = True
