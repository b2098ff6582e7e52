"""Between the loop and other threads: orders that wait for their turn, and the pulse."""

from __future__ import annotations

import threading

from collector.clock import Clock
from collector.settings import CollectorSettings

__all__ = ["Orders", "Pulse"]

_ALIVE_INTERVALS = 3.0
_ALIVE_SECONDS = 10.0


class Orders:
    """New settings, and the wish that the GPUs be let go of. Safe from any thread."""

    def __init__(self) -> None:
        self._wanted: CollectorSettings | None = None
        self._release = threading.Event()

    @property
    def waiting(self) -> bool:
        """Whether new settings wait to be taken over."""
        return self._wanted is not None

    def change(self, settings: CollectorSettings) -> None:
        """Let these settings be taken over between two ticks."""
        self._wanted = settings

    def release(self) -> None:
        """Let the GPUs be let go of, or taken back."""
        self._release.set()

    def take_settings(self) -> CollectorSettings | None:
        """Return new settings once, None if there are none."""
        wanted, self._wanted = self._wanted, None
        return wanted

    def take_release(self) -> bool:
        """Tell once that the GPUs shall be let go of, or taken back."""
        asked = self._release.is_set()
        if asked:
            self._release.clear()
        return asked


class Pulse:
    """Whether the loop turns. Safe from any thread.

    Parameters
    ----------
    clock
        Of the loop.
    interval_seconds
        Usual time between two beats.
    """

    def __init__(self, clock: Clock, interval_seconds: float) -> None:
        self._clock = clock
        self._beat: float | None = None
        self.interval_seconds = interval_seconds

    def beat(self) -> float:
        """Note that the loop turns; return the moment, monotonic seconds."""
        moment = self._beat = self._clock.monotonic()
        return moment

    @property
    def alive(self) -> bool:
        """Whether there was a beat within three intervals, or ten seconds if that is longer."""
        beat = self._beat
        patience = max(_ALIVE_INTERVALS * self.interval_seconds, _ALIVE_SECONDS)
        return beat is not None and self._clock.monotonic() - beat < patience
