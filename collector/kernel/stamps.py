"""The prefix of a log line: when it was written, and by whom.

Only what the kernel itself wrote counts. A line of another program that quotes the kernel, or
that a user wrote into ``/dev/kmsg``, is foreign.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

import orjson

__all__ = ["Prefixes", "Stamped"]

# /dev/kmsg: "priority,sequence,microseconds since boot,flags;text" (kernel, Documentation/ABI).
_KMSG = re.compile(r"(\d{1,4}),(\d{1,20}),(\d{1,20}),[^;]{0,64};(.*)", re.DOTALL)
_DECODED = re.compile(r"(\w{3,8})\s*:\w{3,7}\s*:\s(.*)", re.DOTALL)
_PRIORITY = re.compile(r"<(\d{1,3})>(.*)", re.DOTALL)
_SINCE_BOOT = re.compile(r"\[\s*(\d{1,12}\.\d{1,9})\]\s(.*)", re.DOTALL)
_WORDS = re.compile(r"\[(\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\]\s(.*)", re.DOTALL)
_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\s(.*)", re.DOTALL
)
# rsyslog, and journalctl -o short or short-precise.
_SYSLOG = re.compile(r"(\w{3} [ \d]\d \d\d:\d\d:\d\d)(?:\.(\d{1,6}))?\s(.*)", re.DOTALL)
# journalctl -o short-unix.
_UNIX = re.compile(r"(\d{9,11})\.(\d{6})\s(.*)", re.DOTALL)
_TAG = re.compile(r"\S{1,255} kernel: ?(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")
_FACILITY_BITS = 3
_AHEAD_MS = 2 * 86_400_000  # further ahead than clocks and zones explain: it was last year


class Stamped(NamedTuple):
    """A message of the kernel; ``ts`` (unix ms) is None where the line carries no time.

    ``seq`` is the record's number in ``/dev/kmsg``, None elsewhere.
    """

    ts: int | None
    message: str
    seq: int | None = None


@dataclass(slots=True, kw_only=True)
class Prefixes:
    """Takes prefixes off lines, in all forms in which kernel logs are written.

    Parameters
    ----------
    zone
        Of times that carry none; None: the zone of this machine.

    Examples
    --------
    >>> Prefixes().take("[12345.5] NVRM: hello", now_ms=0, boot_ms=1000)
    Stamped(ts=12346500, message='NVRM: hello', seq=None)
    >>> Prefixes().take("Jan  6 10:00:00 node7 trainer[9]: NVRM: quoted", now_ms=0, boot_ms=0)
    """

    zone: tzinfo | None = None

    def take(self, line: str, *, now_ms: int, boot_ms: int | None) -> Stamped | None:
        """Return message and time, or None if another program than the kernel wrote the line.

        Parameters
        ----------
        line
            One line or record.
        now_ms
            Gives the year of times that have none, unix milliseconds.
        boot_ms
            When this machine was booted, for times since boot; None if that is not known.
        """
        match = _KMSG.match(line)
        if match is not None:
            return _record(match, boot_ms)
        if line.startswith("{"):
            return _journal(line)
        for pattern, own in ((_PRIORITY, _kernel_priority), (_DECODED, _kernel_facility)):
            match = pattern.match(line)
            if match is not None:
                if not own(match[1]):
                    return None
                line = match[2]
        return self._timed(line, now_ms, boot_ms)

    def _timed(self, line: str, now_ms: int, boot_ms: int | None) -> Stamped | None:
        match = _ISO.match(line)
        if match is not None:
            # dmesg --time-format=iso writes no tag.
            bare = match[2].startswith(("NVRM: ", "nvidia-nvswitch"))
            ts = self._moment(match[1], now_ms)
            return Stamped(ts, match[2]) if bare else _tagged(ts, match[2])
        match = _SYSLOG.match(line)
        if match is not None:
            ts = self._moment(match[1], now_ms)
            if ts is not None and match[2]:
                ts += int(match[2].ljust(6, "0")) // 1000
            return _tagged(ts, match[3])
        match = _UNIX.match(line)
        if match is not None:
            return _tagged(1000 * int(match[1]) + int(match[2]) // 1000, match[3])
        match = _SINCE_BOOT.match(line)
        if match is not None:
            tag = _TAG.match(match[2])
            said = match[2] if tag is None else tag[1]
            return Stamped(_since_boot(float(match[1]), boot_ms), said)
        match = _WORDS.match(line)
        if match is not None:
            return Stamped(self._moment(match[1], now_ms), match[2])
        return Stamped(None, line)

    def _moment(self, text: str, now_ms: int) -> int | None:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return self._wordy(text, now_ms)
        return self._unix_ms(moment)

    def _wordy(self, text: str, now_ms: int) -> int | None:
        """Read ``Mon Jan  6 10:00:00 2025``, or ``Jan  6 10:00:00`` of the past year."""
        now = datetime.fromtimestamp(now_ms / 1000, tz=UTC)
        forms = (text, "%a %b %d %H:%M:%S %Y"), (f"{now.year} {text}", "%Y %b %d %H:%M:%S")
        for said, form in forms:
            try:
                moment = datetime.strptime(said, form)  # noqa: DTZ007 - the zone follows
            except ValueError:
                continue
            ts = self._unix_ms(moment)
            if form.startswith("%Y") and ts > now_ms + _AHEAD_MS:
                ts = self._unix_ms(moment.replace(year=now.year - 1))
            return ts
        return None

    def _unix_ms(self, moment: datetime) -> int:
        if moment.tzinfo is None and self.zone is not None:
            moment = moment.replace(tzinfo=self.zone)
        return round(moment.timestamp() * 1000)  # without a zone: that of this machine


def _tagged(ts: int | None, text: str) -> Stamped | None:
    """Take host and tag off; None unless the kernel is the tag."""
    tag = _TAG.match(text)
    if tag is None:
        return None
    inner = _SINCE_BOOT.match(tag[1])
    return Stamped(ts, inner[2] if inner is not None else tag[1])


def _journal(line: str) -> Stamped | None:
    """Read one entry of ``journalctl -o json``; None unless the kernel wrote it."""
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(entry, dict) or entry.get("_TRANSPORT") != "kernel":
        return None
    message, written = entry.get("MESSAGE"), entry.get("__REALTIME_TIMESTAMP", "")
    if not isinstance(message, str):
        return None
    known = isinstance(written, str) and written.isdecimal()
    return Stamped(int(written) // 1000 if known else None, message)


def _record(match: re.Match[str], boot_ms: int | None) -> Stamped | None:
    if not _kernel_priority(match[1]):
        return None
    # Lines after the first are "KEY=value" about the device; a line end in the text is escaped.
    text = match[4].partition("\n")[0]
    text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    return Stamped(_since_boot(int(match[3]) / 1e6, boot_ms), text, int(match[2]))


def _kernel_priority(text: str) -> bool:
    """Tell whether facility 0 wrote it: what a user writes into the log gets another one."""
    return int(text) >> _FACILITY_BITS == 0


def _kernel_facility(word: str) -> bool:
    return word == "kern"


def _since_boot(seconds: float, boot_ms: int | None) -> int | None:
    return None if boot_ms is None else boot_ms + round(seconds * 1000)
