"""The transport of a cluster: Apache Kafka 3.x or 4.x, or compatible.

Partitions by node, consumer groups as the only clustering. Nothing here waits for a broker at
start: what is sent meanwhile is queued, and handed back if the broker stays away.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from bus.kafka_admin import KafkaAdmin
from bus.kafka_consumer import KafkaSubscriber
from bus.kafka_producer import KafkaPublisher
from bus.kafka_scan import scan_topic
from bus.protocol import AssignmentListener, Record, Start, TopicDescription
from bus.settings import BusSettings

__all__ = ["KafkaBus"]


class KafkaBus:
    """One cluster. Implements :class:`bus.protocol.Bus`.

    Parameters
    ----------
    settings
        ``kafka`` and ``prefix`` count.
    """

    def __init__(self, settings: BusSettings) -> None:
        self._settings = settings.kafka
        self._prefix = settings.prefix
        self._lock = threading.Lock()
        self._admin: KafkaAdmin | None = None

    def publisher(self, *, client_id: str, durable: bool = False) -> KafkaPublisher:
        """Make a publisher; returns at once, broker or not."""
        return KafkaPublisher(self._settings, client_id, durable=durable)

    def subscriber(
        self,
        *,
        group: str,
        topics: Sequence[str],
        listener: AssignmentListener | None = None,
        start: str = Start.EARLIEST,
        client_id: str = "foreshock",
    ) -> KafkaSubscriber:
        """Join ``group`` and read ``topics`` (full names); returns at once, broker or not."""
        return KafkaSubscriber(
            self._settings,
            group=group,
            topics=topics,
            listener=listener,
            start=start,
            client_id=client_id,
        )

    def read_all(self, topic: str) -> Iterator[Record]:
        """Yield what a topic keeps now, in order within each partition."""
        return scan_topic(self._settings, topic)

    def create_topics(self) -> list[str]:
        """Create what ``schemas.topics`` declares and is missing; return the names created."""
        return self._administrator().create_topics()

    def describe_topics(self) -> list[TopicDescription]:
        """Describe those of our topics that exist, in the order of ``schemas.topics``."""
        return self._administrator().describe_topics()

    def check(self, timeout_seconds: float) -> str:
        """Return one sentence that says the cluster answers."""
        return self._administrator().check(timeout_seconds)

    def close(self) -> None:
        """Let go of the connection for administration; publishers and readers close themselves."""
        with self._lock:
            self._admin = None

    def _administrator(self) -> KafkaAdmin:
        with self._lock:
            if self._admin is None:
                self._admin = KafkaAdmin(self._settings, self._prefix)
            return self._admin
