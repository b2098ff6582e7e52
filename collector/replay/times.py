"""Event times of recordings, in the many ways in which they are written.

A time without a zone is read in the zone of the settings. When clocks are set back, an hour of
such times comes twice; the order of the rows tells the two apart.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

__all__ = ["MAX_TS_MS", "MIN_TS_MS", "TimeReader"]

# What the contract takes: years 2000 to 2100.
MIN_TS_MS = 946_684_800_000
MAX_TS_MS = 4_102_444_800_000
_NUMBER = re.compile(r"\d{9,19}(\.\d+)?$")
# Unix times of 2000..2100 in seconds, ms, µs and ns do not overlap: 1e9, 1e12, 1e15, 1e18.
_UNIX_SCALES = ((1e11, 1000.0), (1e14, 1.0), (1e17, 1e-3), (float("inf"), 1e-6))
_SHOWN = 40
_FORMS = (
    "none of the forms 2025-01-06T10:00:00.123Z (ISO 8601, with or without a zone), "
    "2025/01/06 10:00:00.123 (nvidia-smi), Mon Jan  6 10:00:00 2025, and unix seconds, "
    "milliseconds, microseconds or nanoseconds; another form needs time_format in a column map"
)
# nvidia-smi writes slashes, its text form names of days and months.
_WORDS = "%a %b %d %H:%M:%S %Y"


class TimeReader:
    """Read the times of one file.

    Parameters
    ----------
    zone
        IANA name of the zone of times that carry none.
    pattern
        A ``strptime`` pattern, or None to recognise ISO 8601, nvidia-smi's
        ``2025/01/06 10:00:00.123`` and unix seconds, milliseconds, microseconds, nanoseconds.

    Examples
    --------
    >>> TimeReader("Europe/Berlin").read("2025/01/06 10:00:00.123")
    1736154000123
    >>> TimeReader("UTC").read("1736154000.5")
    1736154000500
    """

    def __init__(self, zone: str, pattern: str | None = None) -> None:
        self._zone = ZoneInfo(zone)
        self._pattern = pattern
        self._last = 0
        self._text: str | None = None

    def read(self, text: str) -> int:
        """Return unix milliseconds.

        Raises
        ------
        ValueError
            If the text is no time, or none between the years 2000 and 2100.
        """
        if text == self._text:  # all GPUs of one tick
            return self._last
        ts = self._parse(text)
        if not MIN_TS_MS <= ts <= MAX_TS_MS:
            raise ValueError(f"the time {text!r} lies outside the years 2000 to 2100")
        self._text, self._last = text, ts
        return ts

    def _parse(self, text: str) -> int:
        if self._pattern is not None:
            return self._unix_ms(_by_pattern(text, self._pattern))
        if _NUMBER.match(text):
            number = float(text)
            return round(number * next(scale for top, scale in _UNIX_SCALES if number < top))
        try:
            moment = datetime.fromisoformat(text.replace("/", "-"))
        except ValueError:
            moment = _by_words(text)
        return self._unix_ms(moment)

    def _unix_ms(self, moment: datetime) -> int:
        if moment.tzinfo is not None:
            return _to_ms(moment)
        local = moment.replace(tzinfo=self._zone)
        first = _to_ms(local)
        if first >= self._last:
            return first
        # Behind the row before: perhaps the second of two equal hours (PEP 495).
        second = _to_ms(local.replace(fold=1))
        return second if second >= self._last else first


def _by_pattern(text: str, pattern: str) -> datetime:
    try:
        return datetime.strptime(text, pattern)  # noqa: DTZ007 - the caller knows the zone
    except ValueError as exc:
        raise ValueError(
            f"the time {text[:_SHOWN]!r} has not the form {pattern!r}, the time_format of the map"
        ) from exc


def _by_words(text: str) -> datetime:
    try:
        return datetime.strptime(text, _WORDS)  # noqa: DTZ007 - the caller knows the zone
    except ValueError as exc:
        raise ValueError(f"the time {text[:_SHOWN]!r} has {_FORMS}") from exc


def _to_ms(moment: datetime) -> int:
    utc = moment.astimezone(UTC)
    return round(utc.timestamp() * 1000)
