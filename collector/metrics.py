"""Numbers about the collector itself, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from collector.kernel.feed import FeedState
from schemas.sample import CollectorState

__all__ = ["CollectorMetrics"]

# A healthy sweep of eight GPUs takes about 14 ms; a second is already a wedged driver.
_DELAY_BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 1.0)
_READ_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class CollectorMetrics:
    """All metrics of one collector.

    Parameters
    ----------
    registry
        Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        prefix = "foreshock_collector"
        self.samples = Counter(
            f"{prefix}_samples", "GPU samples read (ticks times GPUs).", registry=registry
        )
        self.ticks_missed = Counter(
            f"{prefix}_ticks_missed",
            "Ticks skipped because reading took too long.",
            registry=registry,
        )
        self.tick_delay_seconds = Histogram(
            f"{prefix}_tick_delay_seconds",
            "How late a tick began.",
            buckets=_DELAY_BUCKETS,
            registry=registry,
        )
        self.read_seconds = Histogram(
            f"{prefix}_read_seconds",
            "Duration of one reading of the whole source.",
            buckets=_READ_BUCKETS,
            registry=registry,
        )
        self.read_errors = Counter(
            f"{prefix}_read_errors",
            "Readings that ended in an unexpected error.",
            registry=registry,
        )
        self.implausible = Counter(
            f"{prefix}_implausible_values",
            "Values refused because they are impossible, by metric.",
            ["metric"],
            registry=registry,
        )
        self.sent = Counter(
            f"{prefix}_messages_sent", "Messages that the bus took.", registry=registry
        )
        self.spooled = Counter(
            f"{prefix}_messages_spooled",
            "Messages put aside because the bus did not take or deliver them.",
            registry=registry,
        )
        self.dropped = Counter(
            f"{prefix}_messages_dropped",
            "Messages lost for good, by reason.",
            ["reason"],
            registry=registry,
        )
        self.dead_lettered = Counter(
            f"{prefix}_messages_dead_lettered",
            "Messages too large for the samples topic.",
            registry=registry,
        )
        self.spool_messages = Gauge(
            f"{prefix}_spool_messages", "Messages that wait for the bus.", registry=registry
        )
        self.spool_bytes = Gauge(
            f"{prefix}_spool_bytes", "Bytes that wait for the bus.", registry=registry
        )
        self.kernel_events = Counter(
            f"{prefix}_kernel_events",
            "Reports of the NVIDIA kernel module in the kernel log, by kind.",
            ["kind"],
            registry=registry,
        )
        self._kernel_log = Gauge(
            f"{prefix}_kernel_log_state",
            "1 for the state the kernel log is in; absent where none is read.",
            ["state"],
            registry=registry,
        )
        self._state = Gauge(
            f"{prefix}_state",
            "1 for the state the collector is in, 0 for the others.",
            ["state"],
            registry=registry,
        )
        self.set_state(CollectorState.OK)

    def set_kernel_log(self, state: str) -> None:
        """Show this state of the kernel log, and no other."""
        for known in FeedState:
            self._kernel_log.labels(state=str(known)).set(1 if known == state else 0)

    def set_state(self, state: str) -> None:
        """Show this state, and no other."""
        for known in CollectorState:
            self._state.labels(state=str(known)).set(1 if known == state else 0)
