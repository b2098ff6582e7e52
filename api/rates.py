"""How many requests each may send: one token bucket per key or address, in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Rates"]

_BURST_SECONDS = 5.0
_MOST_BUCKETS = 10_000


class Rates:
    """Token buckets. Safe to share between threads.

    Parameters
    ----------
    per_second
        Requests on average.
    clock
        Monotonic seconds.
    burst_seconds
        So many seconds' worth may come at once.

    Examples
    --------
    >>> rates = Rates(1.0, clock=lambda: 0.0)
    >>> [rates.take("me") for _ in range(6)]
    [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    """

    def __init__(
        self,
        per_second: float,
        clock: Callable[[], float] = time.monotonic,
        burst_seconds: float = _BURST_SECONDS,
    ) -> None:
        self._per_second = per_second
        self._burst = max(1.0, per_second * burst_seconds)
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, who: str) -> float:
        """Count one request; return how many seconds it comes too early, or 0."""
        now = self._clock()
        with self._lock:
            tokens, at = self._buckets.get(who, (self._burst, now))
            tokens = min(self._burst, tokens + (now - at) * self._per_second)
            allowed = tokens >= 1
            if len(self._buckets) >= _MOST_BUCKETS and who not in self._buckets:
                self._buckets.clear()  # forgiving for a moment is better than growing for ever
            self._buckets[who] = (tokens - allowed, now)
        return 0.0 if allowed else (1 - tokens) / self._per_second

    def header(self, wait_seconds: float) -> str:
        """Return the value of the header RateLimit for who has used everything up."""
        return f'"default";r=0;t={max(1, round(wait_seconds))}'
