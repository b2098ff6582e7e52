"""Reading from Kafka as one member of a consumer group.

Traps of the client that shape this file:

* An exception that leaves a rebalance callback comes out of ``consume`` as something that no
  ``except Exception`` catches. Callbacks here store what went wrong; ``poll`` raises it.
* Start offsets count only if they are part of the (incremental) assignment made inside the
  callback; ``seek`` there fails.
* ``consume`` returns errors as messages.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import confluent_kafka as ck  # noqa: TID251 - this is the one door
import structlog

from bus.kafka_config import consumer_config
from bus.kafka_faults import (
    ALL_BROKERS_DOWN,
    AUTO_OFFSET_RESET,
    HOPELESS,
    NO_OFFSET,
    PARTITION_EOF,
    bad_property,
    explain,
)
from bus.protocol import AssignmentListener, Record, Start, TopicPartition
from bus.settings import KafkaSettings
from schemas.errors import BusUnavailableError

__all__ = ["KafkaSubscriber", "record_of"]

_log = structlog.get_logger(__name__)

_TURN_SECONDS = 0.1  # consume() waits for a full batch or this long
_ANSWER_SECONDS = 5.0  # for a question to the broker while partitions are assigned
_LONELY_SECONDS = 60.0  # without any assignment before a word in the log


def record_of(message: ck.Message) -> Record:
    """Turn a message without an error into a record."""
    _, arrived_ms = message.timestamp()
    return Record(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        arrived_ms=arrived_ms,
        key=_as_bytes(message.key()),
        value=_as_bytes(message.value()) or b"",
        headers=tuple(
            (name, _as_bytes(content) or b"") for name, content in _pairs(message.headers())
        ),
    )


class KafkaSubscriber:
    """One consumer. Implements :class:`bus.protocol.Subscriber`.

    Once its listener has raised, the reader is spent: each further ``poll`` raises the same
    error, because state and position can no longer be trusted to agree.

    Raises
    ------
    ConfigError
        If a property is unknown or has a bad value.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        group: str,
        topics: Sequence[str],
        listener: AssignmentListener | None,
        start: str,
        client_id: str,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._start = start
        self._failure: Exception | None = None
        self._hopeless: ck.KafkaError | None = None
        self._complained = False
        self.outage: str | None = None
        self._closed = False
        self._next: dict[TopicPartition, int | None] = {}  # None: not known before a record came
        self._paused: set[TopicPartition] = set()
        self._homeless: set[TopicPartition] = set()  # assigned, but without a usable position
        self._lonely_since: float | None = time.monotonic()
        self._warned: set[tuple[str, int]] = set()
        config = consumer_config(settings, client_id, group)
        config["error_cb"] = self._on_error
        config["on_commit"] = self._on_commit
        config["stats_cb"] = self._on_statistics
        try:
            self._consumer = ck.Consumer(config)
            self._consumer.subscribe(
                list(topics),
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
        except (ck.KafkaException, ValueError, TypeError) as error:
            raise bad_property(error) from error

    def poll(self, max_records: int, timeout_seconds: float) -> list[Record]:
        """Return up to ``max_records`` records; empty after ``timeout_seconds`` without any."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._raise_failure()
            remaining = max(0.0, deadline - time.monotonic())
            messages = self._consumer.consume(max_records, min(_TURN_SECONDS, remaining))
            self._raise_failure()
            self._place_homeless()
            records = [record for record in map(self._take, messages) if record is not None]
            if records or time.monotonic() >= deadline:
                self._watch()
                return records

    def _take(self, message: ck.Message) -> Record | None:
        error = message.error()
        place = TopicPartition(message.topic() or "", message.partition() or 0)
        if error is not None:
            self._heed(place, error)
            return None
        if place not in self._next:
            return None  # prefetched before the place went to another member
        record = record_of(message)
        self._next[place] = record.offset + 1
        return record

    def _heed(self, place: TopicPartition, error: ck.KafkaError) -> None:
        """Act on an error that came in place of a record."""
        code = error.code()
        if code == AUTO_OFFSET_RESET:
            self._homeless.add(place)
        elif code in HOPELESS or error.fatal():
            raise BusUnavailableError(explain(self._settings, error))
        elif code != PARTITION_EOF and (place.topic, code) not in self._warned:
            # One word per topic and kind: the client repeats it until it mends.
            self._warned.add((place.topic, code))
            _log.warning("bus_read_error", topic=place.topic, error=explain(self._settings, error))

    def _place_homeless(self) -> None:
        """Choose a start where the wanted offset is not in the log.

        It lies before the first record (retention was faster) or past the end (the topic was
        made anew). What fails is tried again at the next turn.
        """
        for place in sorted(self._homeless):
            if place in self._next:
                try:
                    self._replace(place, self._next[place])
                except ck.KafkaException as error:
                    self._heed(place, error.args[0])
                    return
            self._homeless.discard(place)

    def _replace(self, place: TopicPartition, wanted: int | None) -> None:
        low, high = self._bounds(place)
        if wanted is None:
            offset = low if self._start == Start.EARLIEST else high
        else:
            offset = min(max(wanted, low), high)
        # seek() is refused here (erroneous state): the client has stopped the partition.
        self._consumer.incremental_unassign([ck.TopicPartition(*place)])
        self._consumer.incremental_assign([ck.TopicPartition(*place, offset)])
        self._next[place] = offset
        if place in self._paused:
            self._consumer.pause([ck.TopicPartition(*place)])
        _log.warning("bus_offset_replaced", place=place, wanted=wanted, first=low, end=high)

    def _bounds(self, place: TopicPartition) -> tuple[int, int]:
        at = ck.TopicPartition(place.topic, place.partition)
        low, high = self._consumer.get_watermark_offsets(at, _ANSWER_SECONDS)
        return low, high

    def _positions(
        self, places: Sequence[TopicPartition], wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Return where each place starts: as the listener says, as committed, or by ``start``."""
        found: dict[TopicPartition, int | None] = {place: wanted.get(place) for place in places}
        open_places = [place for place, offset in found.items() if offset is None]
        if not open_places:
            return found
        try:
            asked = [ck.TopicPartition(*place) for place in open_places]
            for tp in self._consumer.committed(asked, _ANSWER_SECONDS):
                if tp.error is None and tp.offset >= 0:
                    found[TopicPartition(tp.topic, tp.partition)] = tp.offset
            for place in open_places:
                if found[place] is None:
                    low, high = self._bounds(place)
                    found[place] = low if self._start == Start.EARLIEST else high
        except ck.KafkaException as error:
            # The client asks for committed offsets itself, again and again, and reports a place
            # without one as an error in the stream.
            _log.warning("bus_position_unknown", error=explain(self._settings, error.args[0]))
        return found

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record for the group the next offset to read of each place, without waiting."""
        if not offsets:
            return
        positions = [ck.TopicPartition(*place, offset) for place, offset in offsets.items()]
        try:
            self._consumer.commit(offsets=positions, asynchronous=True)
        except ck.KafkaException as error:
            _log.warning("bus_commit_failed", error=explain(self._settings, error.args[0]))

    def lag(self) -> dict[TopicPartition, int]:
        """Count the records not yet returned by ``poll``, per assigned place, as far as known.

        From what the last fetch said of the end of the log; it asks nobody.
        """
        found = {}
        for place, position in self._next.items():
            if position is None:
                continue
            at = ck.TopicPartition(place.topic, place.partition)
            _, high = self._consumer.get_watermark_offsets(at, cached=True)
            if high >= 0:
                found[place] = max(0, high - position)
        return found

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Return no records of these places until ``resume``; keep calling ``poll``."""
        held = {place for place in places if place in self._next}
        if held:
            self._paused |= held
            self._consumer.pause([ck.TopicPartition(*place) for place in held])

    def resume(self, places: Iterable[TopicPartition]) -> None:
        """Undo ``pause``."""
        held = {place for place in places if place in self._paused}
        if held:
            self._paused -= held
            self._consumer.resume([ck.TopicPartition(*place) for place in held])

    def close(self) -> None:
        """Leave the group; ``on_revoked`` runs first for what is still assigned."""
        if self._closed:
            return
        self._closed = True
        spent = self._failure is not None
        self._consumer.close()
        if self._failure is not None and not spent:
            raise self._failure

    # What the client calls, always from inside consume() or close().

    def _on_assign(self, consumer: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self._lonely_since = None
        wanted: Mapping[TopicPartition, int] = {}
        places = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        try:
            if places and self._listener is not None and self._failure is None:
                wanted = self._listener.on_assigned(places) or {}
        except Exception as failure:  # noqa: BLE001 - whatever it is, poll raises it
            self._failure = failure
        try:
            positions = self._positions(places, wanted)
            # Also with nothing and after a failure: the client waits for the answer.
            consumer.incremental_assign(
                [
                    ck.TopicPartition(*place, ck.OFFSET_STORED if offset is None else offset)
                    for place, offset in positions.items()
                ]
            )
            self._next.update(positions)
        except Exception as failure:  # noqa: BLE001 - see above
            self._failure = self._failure or failure

    def _on_revoke(self, consumer: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        del consumer  # the client takes the partitions back by itself when this returns
        places = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        try:
            if places and self._listener is not None and self._failure is None:
                self._listener.on_revoked(places)
        except Exception as failure:  # noqa: BLE001 - see above
            self._failure = failure
        self._forget(places)

    def _on_lost(self, consumer: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        del consumer
        places = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        self._forget(places)
        try:
            if places and self._listener is not None and self._failure is None:
                self._listener.on_lost(places)
        except Exception as failure:  # noqa: BLE001 - see above
            self._failure = failure

    def _on_error(self, error: ck.KafkaError) -> None:
        if error.code() in HOPELESS or error.fatal():
            self._hopeless = error
            return
        if error.code() == ALL_BROKERS_DOWN:
            self.outage = explain(self._settings, error)
        if not self._complained:
            self._complained = True
            _log.warning("bus_consumer_error", error=explain(self._settings, error))

    def _on_statistics(self, text: str) -> None:
        """Notice that a broker is there again: nothing else says so while no record comes."""
        with contextlib.suppress(ValueError, LookupError, TypeError):
            brokers = json.loads(text)["brokers"].values()
            if self._complained and any(broker["state"] == "UP" for broker in brokers):
                self._complained, self.outage = False, None
                _log.info("bus_consumer_back")

    def _on_commit(self, error: ck.KafkaError | None, partitions: list[ck.TopicPartition]) -> None:
        del partitions
        if error is not None and error.code() != NO_OFFSET:
            # State files hold the truth; this offset only feeds lag tools and a cold start.
            _log.warning("bus_commit_failed", error=explain(self._settings, error))

    def _forget(self, places: Iterable[TopicPartition]) -> None:
        for place in places:
            self._next.pop(place, None)
            self._paused.discard(place)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._hopeless is not None:
            raise BusUnavailableError(explain(self._settings, self._hopeless))

    def _watch(self) -> None:
        """Say so once if no assignment ever comes: the new group protocol is silent about it."""
        since = self._lonely_since
        if since is not None and time.monotonic() - since > _LONELY_SECONDS:
            self._lonely_since = None
            hint = (
                "The broker may not know group.protocol=consumer (Apache Kafka 4.0 and later)."
                if self._settings.group_protocol == "consumer"
                else "The broker may be away, or the topics missing: see `foreshock topics`."
            )
            _log.warning("bus_no_assignment", seconds=_LONELY_SECONDS, hint=hint)


def _pairs(headers: Any) -> list[tuple[str, str | bytes | None]]:
    """Headers as a list; the client's type also allows a mapping, which it never returns."""
    return list(headers) if headers else []


def _as_bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
