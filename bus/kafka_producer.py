"""Sending to Kafka without ever waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import confluent_kafka as ck  # noqa: TID251 - this is the one door
import structlog

from bus.kafka_config import producer_config
from bus.kafka_faults import bad_property, explain
from bus.protocol import DeliveryReport, Headers
from bus.settings import KafkaSettings
from schemas.errors import BusError, BusFullError, MessageTooLargeError

__all__ = ["KafkaPublisher"]

_log = structlog.get_logger(__name__)
_PURGE_SECONDS = 1.0


class KafkaPublisher:
    """One idempotent producer. Implements :class:`bus.protocol.Publisher`.

    A client does not survive ``fork``: make it in the process that uses it.

    Raises
    ------
    ConfigError
        If a property is unknown or has a bad value.
    """

    def __init__(self, settings: KafkaSettings, client_id: str, *, durable: bool) -> None:
        self._settings = settings
        self._failure: Exception | None = None
        self._down = False
        self._losing: set[str] = set()  # topics whose losses the log has heard of
        config = producer_config(settings, client_id, durable=durable)
        config["error_cb"] = self._on_error
        try:
            self._producer = ck.Producer(config)
        except (ck.KafkaException, ValueError, TypeError) as error:
            raise bad_property(error) from error

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes,
        headers: Headers = (),
        on_delivery: Callable[[DeliveryReport], None] | None = None,
    ) -> None:
        """Take one message for delivery."""
        letter = DeliveryReport(topic=topic, key=key, value=value, headers=headers)

        def report(error: ck.KafkaError | None, message: ck.Message) -> None:
            # Raising here would surface from the C library as something no handler catches.
            try:
                self._report(letter, on_delivery, error, message)
            except Exception as failure:  # noqa: BLE001 - whatever it is, poll raises it
                self._failure = self._failure or failure

        try:
            self._producer.produce(
                topic, value=value, key=key, headers=list(headers), on_delivery=report
            )
        except BufferError:
            raise BusFullError(
                f"{len(self._producer)} messages wait for Kafka at {self._settings.bootstrap}. "
                "Poll the publisher; if that does not help, the broker is slow or away."
            ) from None
        except ck.KafkaException as error:
            cause = error.args[0]
            if cause.code() == ck.KafkaError.MSG_SIZE_TOO_LARGE:
                raise MessageTooLargeError(
                    f"A message of {len(value)} bytes is larger than {topic} takes. "
                    "Send fewer ticks per message."
                ) from error
            raise BusError(explain(self._settings, cause)) from error

    def _report(
        self,
        letter: DeliveryReport,
        on_delivery: Callable[[DeliveryReport], None] | None,
        error: ck.KafkaError | None,
        message: ck.Message,
    ) -> None:
        if error is None:
            self._down = False
            self._losing.discard(letter.topic)
            done = replace(letter, partition=message.partition(), offset=message.offset())
        else:
            done = replace(letter, error=explain(self._settings, error))
        if on_delivery is not None:
            on_delivery(done)
        elif done.error is not None and done.topic not in self._losing:
            self._losing.add(done.topic)  # an outage loses thousands: the first one is told
            _log.warning("bus_message_lost", topic=done.topic, error=done.error)

    def _on_error(self, error: ck.KafkaError) -> None:
        """Log the first of a row of faults; deliveries tell the rest."""
        if not self._down:
            self._down = True
            _log.warning("bus_producer_error", error=explain(self._settings, error))

    def poll(self) -> None:
        """Run the delivery reports that are due."""
        self._producer.poll(0)
        self._raise_failure()

    def flush(self, timeout_seconds: float) -> int:
        """Wait until everything taken is delivered or failed; return how many are neither."""
        self._producer.flush(timeout_seconds)
        self._raise_failure()
        return len(self._producer)

    def close(self, timeout_seconds: float = 5.0) -> int:
        """Flush; hand back what could not be delivered; return how many messages that were."""
        self._producer.flush(timeout_seconds)
        left = len(self._producer)
        if left:
            self._producer.purge()
            self._producer.flush(_PURGE_SECONDS)
        self._raise_failure()
        return left

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
