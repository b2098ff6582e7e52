"""Time that starts in the past, runs fast, and becomes the real time when it has caught up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["CATCH_UP_SECONDS", "ScaledClock"]

#: Wall seconds after which simulated time has caught up with the real one.
CATCH_UP_SECONDS = 180.0


class ScaledClock:
    """A collector clock that runs ``speed`` times as fast until it meets now.

    Simulated time begins ``(speed - 1) * catch_up`` seconds before now, so that after
    ``catch_up`` wall seconds both are equal; from then on it runs at the real pace.

    Parameters
    ----------
    speed
        Simulated seconds per wall second before the meeting, >= 1.
    catch_up_seconds
        Wall seconds until the meeting, >= 0.
    wall, elapsed
        Unix seconds and monotonic seconds of the machine.

    Examples
    --------
    >>> clock = ScaledClock(10.0, catch_up_seconds=180.0, wall=lambda: 2000.0, elapsed=lambda: 7.0)
    >>> clock.unix_ms()
    380000
    """

    def __init__(
        self,
        speed: float,
        *,
        catch_up_seconds: float = CATCH_UP_SECONDS,
        wall: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        if speed < 1.0:
            raise ValueError(f"speed must be 1 or more, got {speed}")
        self._speed = speed
        self._catch_up = catch_up_seconds
        self._wall = wall
        self._elapsed = elapsed
        self._began: float | None = None
        self._start_ms = self._first_ms()

    def start(self) -> None:
        """Let time run from now on; before that it stands still at its beginning."""
        self._start_ms = self._first_ms()
        self._began = self._elapsed()

    def _first_ms(self) -> int:
        return round((self._wall() - (self._speed - 1.0) * self._catch_up) * 1000)

    @property
    def start_ms(self) -> int:
        """Simulated time at the beginning, unix milliseconds."""
        return self._start_ms

    @property
    def speed(self) -> float:
        """Simulated seconds per wall second at this moment."""
        return self._speed if self.wall_seconds() < self._catch_up else 1.0

    def wall_seconds(self) -> float:
        """Wall seconds since the start."""
        return 0.0 if self._began is None else self._elapsed() - self._began

    def monotonic(self) -> float:
        """Return simulated seconds since the start."""
        wall = self.wall_seconds()
        return min(wall, self._catch_up) * self._speed + max(wall - self._catch_up, 0.0)

    def unix_ms(self) -> int:
        """Return simulated time, unix milliseconds."""
        return self._start_ms + round(self.monotonic() * 1000)

    def sleep_until(self, moment: float, stop: threading.Event) -> bool:
        """Wait until ``monotonic()`` reaches ``moment``; return True at once if ``stop`` is set."""
        return stop.wait(max(0.0, self._wall_at(moment) - self.wall_seconds()))

    def _wall_at(self, moment: float) -> float:
        fast = self._catch_up * self._speed
        return min(moment, fast) / self._speed + max(moment - fast, 0.0)
