"""Prometheus metrics of the api, in a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schemas.errors import ForeshockError

__all__ = ["COMPATIBLE_WITH", "AlertCounts", "ApiMetrics"]

#: The version of Alertmanager whose API this is; its tools compare it with their own.
COMPATIBLE_WITH = "0.25.0"

AlertCounts = Mapping[tuple[str, str, str], int]


class ApiMetrics:
    """Counters of ingest, delivery and HTTP."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._alerts: _AlertGauge | None = None
        self.events = Counter(
            "foreshock_api_alert_events",
            "Alert events read from the bus, by what became of them.",
            ["outcome"],
            registry=registry,
        )
        self.ingest_errors = Counter(
            "foreshock_api_ingest_errors",
            "Batches of alert events that could not be stored and were tried again.",
            registry=registry,
        )
        self.ingest_lag = Gauge(
            "foreshock_api_ingest_lag",
            "Alert events on the bus that have not been read.",
            registry=registry,
        )
        self.attempts = Counter(
            "foreshock_api_delivery_attempts",
            "Attempts to deliver a notification, by endpoint and result.",
            ["endpoint", "result"],
            registry=registry,
        )
        self.dead = Counter(
            "foreshock_api_dead_deliveries",
            "Notifications given up, by endpoint; /v1/deliveries?state=dead says why.",
            ["endpoint"],
            registry=registry,
        )
        self.attempt_seconds = Histogram(
            "foreshock_api_delivery_seconds",
            "Duration of one delivery attempt.",
            ["endpoint"],
            registry=registry,
        )
        self.delivery_errors = Counter(
            "foreshock_api_delivery_errors",
            "Failures of the delivery loop itself, not of a receiver.",
            registry=registry,
        )
        self.renewals = Counter(
            "foreshock_api_renewals",
            "Pushes of what still fires to an Alertmanager, by endpoint and result.",
            ["endpoint", "result"],
            registry=registry,
        )
        self.pings = Counter(
            "foreshock_api_pings",
            "Signs of life sent, failed, or withheld because something does not work.",
            ["name", "result"],
            registry=registry,
        )
        self.requests = Counter(
            "foreshock_api_requests", "HTTP requests by status.", ["status"], registry=registry
        )
        self.streams = Gauge(
            "foreshock_api_streams", "Event streams that are open.", registry=registry
        )

        built = Gauge(
            "alertmanager_build_info",
            "The version of Alertmanager whose API is served, for its clients.",
            ["version"],
            registry=registry,
        )
        built.labels(version=COMPATIBLE_WITH).set(1)

    def watch_alerts(self, count: Callable[[], AlertCounts]) -> None:
        """Show ``foreshock_alerts`` from the store at each scrape."""
        if self._alerts is not None:
            self.registry.unregister(self._alerts)
        self._alerts = _AlertGauge(count)
        self.registry.register(self._alerts)


class _AlertGauge(Collector):
    def __init__(self, count: Callable[[], AlertCounts]) -> None:
        self._count = count

    def describe(self) -> Iterable[Metric]:
        """Name the metric without asking the store."""
        yield self._family()

    def collect(self) -> Iterable[Metric]:
        """Count the alerts; a store that cannot be read gives no sample rather than zero."""
        family = self._family()
        try:
            counts = self._count()
        except ForeshockError:
            return
        for labels, number in sorted(counts.items()):
            family.add_metric(labels, number)
        yield family

    @staticmethod
    def _family() -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "foreshock_alerts",
            "Alerts in the store.",
            labels=["state", "severity", "family"],
        )
