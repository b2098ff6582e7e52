"""How much is taken at once, so that no turn of a loop is long.

A turn that is too long looks like a stuck service: it does not hear that it should end, does not
renew its claim on a partition, and does not answer for its health.
"""

from __future__ import annotations

__all__ = ["Pace"]

_FIRST = 64
_QUICK_SECONDS = 0.25
_SLOW_SECONDS = 1.0


class Pace:
    """Grows while turns are quick, shrinks when one was slow.

    Parameters
    ----------
    most
        Most messages taken at once.

    Examples
    --------
    >>> pace = Pace(512)
    >>> pace.limit
    64
    >>> pace.took(64, 0.1)
    >>> pace.limit
    128
    >>> pace.took(100, 5.0)
    >>> pace.took(0, 9.0)
    >>> pace.limit
    20
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = min(_FIRST, most)

    def took(self, records: int, seconds: float) -> None:
        """Learn from a turn: so many messages in so many seconds."""
        if records == 0:  # an idle turn says nothing of what a message costs
            return
        if seconds > _SLOW_SECONDS:
            self.limit = max(1, int(records * _SLOW_SECONDS / seconds))
        elif seconds < _QUICK_SECONDS and records >= self.limit:
            self.limit = min(self._most, 2 * self.limit)
