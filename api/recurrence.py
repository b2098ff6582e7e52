"""Windows that come back: weekdays, a wall-clock start, a duration, an IANA zone.

The start follows the wall clock of the zone over daylight-saving changes; the duration is time
that passes. A start that the clock skips is taken as if the clock had not been put forward yet
(02:30 becomes 03:30); of a start that comes twice the first counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

__all__ = ["WEEKDAYS", "Recurrence", "zone_of"]

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEK_MINUTES = 7 * 24 * 60


def zone_of(name: str) -> ZoneInfo:
    """Return a zone by its IANA name.

    Raises
    ------
    ValueError
        If there is none of this name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("the zone is no IANA name such as Europe/Paris") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A weekly window.

    Parameters
    ----------
    weekdays
        Days on which it starts, words of :data:`WEEKDAYS`.
    start
        Wall-clock time at which it starts, ``HH:MM``.
    duration_minutes
        How long it lasts, 1 minute to 7 days.
    zone
        IANA name.

    Examples
    --------
    >>> nightly = Recurrence(weekdays=("sun",), start="01:00", duration_minutes=180,
    ...                      zone="Europe/Paris")
    >>> from datetime import datetime
    >>> at = datetime.fromisoformat("2026-03-29T02:30:00+00:00")  # 04:30 by the new wall clock
    >>> nightly.covers(round(at.timestamp() * 1000))
    True
    """

    weekdays: tuple[str, ...]
    start: str
    duration_minutes: int
    zone: str

    def __post_init__(self) -> None:
        if not self.weekdays or not set(self.weekdays) <= set(WEEKDAYS):
            raise ValueError(f"weekdays are some of {', '.join(WEEKDAYS)}")
        if not 1 <= self.duration_minutes <= _WEEK_MINUTES:
            raise ValueError(f"duration_minutes is 1 to {_WEEK_MINUTES}")
        _time_of(self.start)
        zone_of(self.zone)

    def covers(self, unix_ms: int) -> bool:
        """Tell whether a moment lies in one of the windows."""
        return any(begin <= unix_ms < end for begin, end in self._windows(unix_ms))

    def end_of_window(self, unix_ms: int) -> int | None:
        """Return when the window that covers a moment ends, or None."""
        ends = [end for begin, end in self._windows(unix_ms) if begin <= unix_ms < end]
        return max(ends, default=None)

    def _windows(self, unix_ms: int) -> Iterator[tuple[int, int]]:
        """Give the windows that may cover a moment, as unix milliseconds."""
        zone = zone_of(self.zone)
        today = datetime.fromtimestamp(unix_ms / 1000, UTC).astimezone(zone).date()
        # A day more than the duration: a window may begin on the evening before.
        for back in range(self.duration_minutes // (24 * 60) + 2):
            day = today - timedelta(days=back)
            if WEEKDAYS[day.weekday()] in self.weekdays:
                begin = _instant(day, _time_of(self.start), zone)
                yield begin, begin + self.duration_minutes * 60_000


def _instant(day: date, wall: time, zone: ZoneInfo) -> int:
    moment = datetime.combine(day, wall).replace(tzinfo=zone, fold=0)
    return round(moment.astimezone(UTC).timestamp() * 1000)


def _time_of(text: str) -> time:
    hours, _, minutes = text.partition(":")
    if not (len(hours) == 2 and len(minutes) == 2 and (hours + minutes).isdecimal()):
        raise ValueError("start is written HH:MM")
    try:
        return time(int(hours), int(minutes))
    except ValueError:
        raise ValueError("start is a time of day, 00:00 to 23:59") from None
