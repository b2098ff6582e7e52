"""The kernel log as events: read, understood, joined into few records, remembered."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from collector.host import HostFiles
from collector.kernel.feed import Feed, FeedState, Place, load_place, save_place
from collector.kernel.kmsg import KmsgFeed
from collector.kernel.lines import Fact, MessageReader, is_of_interest
from collector.kernel.settings import KernelLogSettings
from collector.kernel.stamps import Prefixes
from collector.kernel.tail import FileFeed
from schemas.sample import EventKind, SampleEvent

__all__ = ["KernelLog", "open_kernel_log"]

log = structlog.get_logger()

# The place is written when an event was handed on, else at most so often: a busy log is no
# reason to write to the disk four times a second.
_SAVE_MS = 30_000
#: A message without a number that follows its own Xid 79 so soon is the same fall.
_SAME_FALL_MS = 10_000
_OFF_BUS_XID = 79


@dataclass(frozen=True, slots=True)
class _Heard:
    """A fact and when it happened, unix milliseconds."""

    ts: int
    fact: Fact


class KernelLog:
    """Source of events from one log. Belongs to one thread, but for :meth:`health`.

    Parameters
    ----------
    feed
        The log.
    host
        Says how long this machine is up, for times since boot.
    prefixes
        Reads the beginnings of lines.
    place
        File that keeps how far the log was read; None keeps it in memory only.
    history_seconds
        How old lines may be that stood in the log before it was first read, seconds.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        host: HostFiles | None = None,
        prefixes: Prefixes | None = None,
        place: Path | None = None,
        history_seconds: float = 600.0,
    ) -> None:
        self._feed = feed
        self._host = host or HostFiles()
        self._prefixes = prefixes or Prefixes()
        self._messages = MessageReader()
        self._place_file = place
        self._history_ms = 1000.0 * history_seconds
        self._kept: Place | None = None
        self._due = False
        self._save_at = 0
        self._now = 0
        self._state: FeedState | None = None
        self._events = 0
        self._falls: dict[str, int] = {}

    def poll(self, ts_ms: int) -> list[SampleEvent]:
        """Return what the kernel reported since the last call; equal reports as one record."""
        self._now = ts_ms
        lines = [line for line in self._feed.lines() if is_of_interest(line)]
        self._tell_state()
        if not lines:
            return []
        uptime = self._host.read_uptime()
        boot_ms = None if uptime is None else ts_ms - round(uptime * 1000)
        heard = [found for line in lines for found in self._understand(line, ts_ms, boot_ms)]
        events = _joined(self._one_fall_each(heard))
        self._events += sum(event.count for event in events)
        self._due = self._due or bool(events)
        return events

    def ears(self) -> tuple[int, ...] | None:
        """Return the descriptor that says when there is something; None for a log that cannot."""
        # Any: an ability that only some logs have.
        ask: Any = getattr(self._feed, "ears", None)
        told: tuple[int, ...] | None = None if ask is None else ask()
        return told

    def settle(self) -> None:
        """Remember how far the log was read."""
        if self._place_file is None or not (self._due or self._now >= self._save_at):
            return
        place = self._feed.place
        self._save_at, self._due = self._now + _SAVE_MS, False
        if place == self._kept:
            return
        try:
            save_place(self._place_file, place)
        except OSError as exc:
            log.warning("kernel_log_place_not_kept", reason=str(exc))
        self._kept = place

    def health(self) -> Mapping[str, object]:
        """Return state, a sentence, and what was counted."""
        return {
            "state": str(self._feed.state),
            "detail": self._feed.detail,
            "events": self._events,
            "malformed": self._messages.malformed,
            "lost": self._feed.lost,
        }

    def close(self) -> None:
        """Remember the place and let go of the log."""
        self._due = True
        self.settle()
        self._feed.close()

    def _tell_state(self) -> None:
        state = self._feed.state
        if state != self._state:
            say = log.info if state == FeedState.READING else log.warning
            say("kernel_log_state_changed", state=str(state), detail=self._feed.detail)
            self._state = state

    def _understand(self, line: str, now_ms: int, boot_ms: int | None) -> Iterable[_Heard]:
        stamped = self._prefixes.take(line, now_ms=now_ms, boot_ms=boot_ms)
        if stamped is None:
            return
        for message in stamped.message.split("\n"):
            fact = self._messages.read(message)
            if fact is None:
                continue
            if self._feed.history and not self._recent(stamped.ts, now_ms):
                continue
            # A clock ahead of ours, or none: it is heard now.
            yield _Heard(now_ms if stamped.ts is None else min(stamped.ts, now_ms), fact)

    def _recent(self, ts: int | None, now_ms: int) -> bool:
        return ts is not None and ts >= now_ms - self._history_ms

    def _one_fall_each(self, heard: Iterable[_Heard]) -> Iterable[_Heard]:
        """Leave out the message without a number where Xid 79 has just said the same."""
        for item in heard:
            fact = item.fact
            if fact.kind == EventKind.XID and fact.code == _OFF_BUS_XID:
                self._falls[fact.pci] = item.ts
            elif fact.kind == EventKind.KERNEL:
                fell = self._falls.get(fact.pci)
                if fell is not None and abs(item.ts - fell) <= _SAME_FALL_MS:
                    continue
                self._falls[fact.pci] = item.ts
            yield item


def _joined(heard: Iterable[_Heard]) -> list[SampleEvent]:
    """Join equal reports: a dying job leaves thousands of lines in a second."""
    events: dict[tuple[object, ...], SampleEvent] = {}
    for item in heard:
        fact = item.fact
        key = _likeness(fact)
        known = events.get(key)
        events[key] = _event(item) if known is None else replace(known, count=known.count + 1)
    return list(events.values())


def _likeness(fact: Fact) -> tuple[object, ...]:
    """Return what two reports must have in common to be one record with a count.

    NVLink reports of one code name themselves fatal or not; that must not be lost in a count.
    """
    fatal = "Nonfatal" if "Nonfatal" in fact.message else "Fatal" in fact.message
    return fact.kind, fact.code, fact.pci, fact.gpu_instance, fact.compute_instance, fatal


def _event(item: _Heard) -> SampleEvent:
    fact = item.fact
    return SampleEvent(
        ts=item.ts,
        kind=fact.kind,
        pci=fact.pci,
        xid=fact.code,
        message=fact.message,
        pid=fact.pid,
        process=fact.process,
        gpu_instance=fact.gpu_instance,
        compute_instance=fact.compute_instance,
    )


def open_kernel_log(settings: KernelLogSettings, host: HostFiles | None = None) -> KernelLog:
    """Open the log that the settings name. It may be missing or refused: that is a state."""
    host = host or HostFiles()
    place = load_place(settings.place)
    feed: Feed
    if _is_device(settings.path):
        feed = KmsgFeed(settings.path, boot_id=host.read_boot_id(), place=place)
    else:
        feed = FileFeed(settings.path, place=place)
    zone = None if settings.timezone is None else ZoneInfo(settings.timezone)
    return KernelLog(
        feed,
        host=host,
        prefixes=Prefixes(zone=zone),
        place=settings.place,
        history_seconds=settings.history_seconds,
    )


def _is_device(path: Path) -> bool:
    try:
        return stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        return path == Path("/dev/kmsg")
