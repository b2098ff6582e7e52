"""The detector's own Prometheus metrics."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["DetectorMetrics"]


class DetectorMetrics:
    """Counters and gauges of one detector process.

    Parameters
    ----------
    registry
        Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.records = Counter(
            "foreshock_detector_records",
            "Messages read, by topic.",
            ["topic"],
            registry=registry,
        )
        self.events = Counter(
            "foreshock_detector_events",
            "What happened to messages: accepted, duplicate, late, lost_messages, dead_letters, "
            "gpu_samples, windows, clock_back, gpus_moved, engine_errors.",
            ["event"],
            registry=registry,
        )
        self.alerts = Counter(
            "foreshock_detector_alerts",
            "Alert events published.",
            ["family", "kind", "severity", "state"],
            registry=registry,
        )
        self.open_alerts = Gauge(
            "foreshock_detector_open_alerts",
            "Episodes that are open now, by topic.",
            ["topic"],
            registry=registry,
        )
        self.lag = Gauge(
            "foreshock_detector_lag_records",
            "Messages not yet read, over the partitions of this process.",
            ["topic"],
            registry=registry,
        )
        self.partitions = Gauge(
            "foreshock_detector_partitions",
            "Partitions that this process has.",
            ["topic"],
            registry=registry,
        )
        self.loop_seconds = Histogram(
            "foreshock_detector_loop_seconds",
            "Time to process one batch.",
            ["topic"],
            registry=registry,
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
        )
        self.checkpoint_seconds = Histogram(
            "foreshock_detector_checkpoint_seconds",
            "Time to flush, save the state and commit.",
            ["topic"],
            registry=registry,
            buckets=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
        )
        self.state_fresh = Counter(
            "foreshock_detector_state_fresh",
            "Arrays of a snapshot that did not fit and started fresh.",
            registry=registry,
        )

    def count(self, counts: Mapping[str, int]) -> None:
        """Add counts by event."""
        for event, number in counts.items():
            if number > 0:
                self.events.labels(event).inc(number)
