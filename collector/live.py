"""The loop over a live source: once per tick of a steady clock, never standing still."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

import structlog

from collector.admission import Admission, Beside
from collector.clock import Clock, SystemClock, Ticker
from collector.hearing import Hearing
from collector.metrics import CollectorMetrics
from collector.nvmlparent import NvmlChildSource
from collector.orders import Orders, Pulse
from collector.publishing import SamplePublisher
from collector.reading import DirectReader, Reader, SourceReader, ThreadReader
from collector.settings import CollectorSettings, SourceKind
from collector.source import Reading, Source
from collector.sources import child_settings
from collector.spool import Message
from schemas.sample import CollectorState

__all__ = ["LiveLoop", "reader_of"]

log = structlog.get_logger()

_POLL_SECONDS = 1.0  # delivery reports are looked at this often even between slow ticks
_HEAR_SECONDS = 0.25  # and who cannot call is asked so often: no hard fact waits for a tick
_STEP_MS = 1_000  # a wall clock this far from the beat was set, not merely drifting
#: What takes effect between two ticks; the rest of the settings with the next start.
_CHANGEABLE = (
    *("interval_seconds", "flush_seconds", "keyframe_seconds", "call_deadline_seconds"),
    *("device_deadline_seconds", "groups", "slow_seconds", "release_seconds"),
)


def reader_of(source: Source, clock: Clock) -> Reader:
    """Return how a source is asked: only a driver or a server can hang."""
    if isinstance(source, NvmlChildSource):
        return SourceReader(source, clock)
    if source.kind in {SourceKind.NVML, SourceKind.DCGM, SourceKind.AMDSMI}:
        return ThreadReader(source, clock)
    return DirectReader(source)


class LiveLoop:
    """Reads at a steady beat and publishes. Belongs to one thread.

    Parameters
    ----------
    source, reader
        What is read, and how it is asked.
    settings
        How often, and what may change while it runs.
    clock
        Time.
    admission, hearing, beside
        What becomes of a reading, and what is heard between two.
    publisher
        Takes the messages.
    metrics
        Where everything is counted.
    orders, pulse
        What other threads want and want to know.
    """

    def __init__(
        self,
        source: Source,
        reader: Reader,
        settings: CollectorSettings,
        *,
        clock: Clock,
        admission: Admission,
        hearing: Hearing,
        beside: Beside,
        publisher: SamplePublisher,
        metrics: CollectorMetrics,
        orders: Orders,
        pulse: Pulse,
    ) -> None:
        self._source = source
        self._reader = reader
        self._settings = settings
        self._clock = clock
        self._admission = admission
        self._hearing = hearing
        self._beside = beside
        self._publisher = publisher
        self._metrics = metrics
        self._orders = orders
        self._pulse = pulse
        self._begun = 0.0
        self._overdue = False
        self._failing = False

    def run(self, stop: threading.Event) -> None:
        """Beat until told to stop, or until nothing will come again."""
        clock = self._clock
        ticker = Ticker(self._settings.interval_seconds, start=clock.monotonic())
        last: float | None = None
        anchor_ms = clock.unix_ms() - round(clock.monotonic() * 1000)
        while not stop.is_set():
            tick = ticker.next(clock.monotonic())
            if tick.missed:
                self._metrics.ticks_missed.inc(tick.missed)
            if self._sleep(tick.due, stop):
                return
            wanted = self._orders.take_settings()
            if wanted is not None:
                start = self._adopt(wanted, last, tick.due)
                ticker = Ticker(self._settings.interval_seconds, start=start)
                continue
            last = tick.due
            self._metrics.tick_delay_seconds.observe(max(0.0, clock.monotonic() - tick.due))
            if abs(clock.unix_ms() - clock.monotonic() * 1000 - anchor_ms) > _STEP_MS:
                log.warning("wall_clock_was_set")
                anchor_ms = clock.unix_ms() - round(clock.monotonic() * 1000)
            readings = self._collect(anchor_ms + round(tick.due * 1000), ticker.due, stop)
            self._pulse.beat()
            boot_id: str | None = getattr(self._source, "boot_id", None)
            for reading in readings:
                self._publish(self._admission.admit(reading, boot_id))
            self._hear()
            self._publisher.step(clock.monotonic(), clock.unix_ms())
            if self._source.exhausted:
                return

    def let_go(self) -> None:
        """Close the source, unless closing would hang in the same driver as the last call."""
        reader = self._reader
        hangs = isinstance(reader, ThreadReader) and not reader.close()
        if hangs or (reader.busy and not isinstance(reader, SourceReader)):
            log.warning("driver_call_left_behind")
            return
        self._source.close()

    def _adopt(self, wanted: CollectorSettings, last: float | None, due: float) -> float:
        """Take over new settings between two ticks; return when the next tick is due."""
        interval = wanted.interval_seconds
        if last is not None and interval != self._settings.interval_seconds:
            due = max(last + interval, self._clock.monotonic())
        self._settings = self._settings.model_copy(
            update={name: getattr(wanted, name) for name in _CHANGEABLE}
        )
        self._pulse.interval_seconds = interval
        self._publish(self._admission.change(self._settings))
        if isinstance(self._source, NvmlChildSource):
            self._source.change(child_settings(self._settings), wanted.call_deadline_seconds)
        log.info("settings_changed", interval_seconds=interval, groups=wanted.groups)
        return due

    def _release_if_asked(self) -> None:
        if not self._orders.take_release():
            return
        source = self._source
        if not isinstance(source, NvmlChildSource):
            log.warning("nothing_to_release", source=source.kind)
        elif source.released:
            source.take_back()
        else:
            source.release(self._settings.release_seconds)

    def _sleep(self, due: float, stop: threading.Event) -> bool:
        """Wait for the tick, looking at delivery reports on long waits; True if told to stop."""
        while True:
            if self._doze(due, stop):
                return True
            moment = self._pulse.beat()
            self._release_if_asked()
            if moment >= due or self._orders.waiting:
                return False
            self._hear()
            self._publisher.step(self._clock.monotonic(), self._clock.unix_ms())

    def _doze(self, due: float, stop: threading.Event) -> bool:
        """Wait until something may have been told, a second at most; True if told to stop."""
        clock = self._clock
        now = clock.monotonic()
        ears = self._hearing.ears() if self._hearing.listens else None
        if ears and isinstance(clock, SystemClock) and self._admission.knows(self._settings.node):
            return clock.listen_until(min(due, now + _POLL_SECONDS), stop, ears)
        asks = self._hearing.listens and ears is None
        piece = _HEAR_SECONDS if asks else _POLL_SECONDS
        return clock.sleep_until(min(due, now + piece), stop)

    def _collect(self, ts_ms: int, next_due: float, stop: threading.Event) -> list[Reading]:
        """Read, or continue a reading that hangs; after the deadline say that it does."""
        clock, reader = self._clock, self._reader
        if reader.busy:
            self._metrics.ticks_missed.inc()
        else:
            self._begun = clock.monotonic()
            reader.begin(ts_ms)
        deadline = self._begun + self._settings.call_deadline_seconds
        try:
            readings = self._await(min(next_due, max(deadline, clock.monotonic())), stop)
        except Exception:
            # A source promises not to raise. If it does all the same, the node must not fall
            # silent: the next tick is another attempt.
            self._metrics.read_errors.inc()
            if not self._failing:
                log.exception("reading_failed")
            self._failing = True
            self._overdue = False
            return self._heartbeats(ts_ms, CollectorState.BLIND)
        if readings is None:
            return self._hanging(ts_ms, deadline)
        self._metrics.read_seconds.observe(clock.monotonic() - self._begun)
        self._failing = False
        if self._overdue:  # its time stamp lies behind the heartbeats sent meanwhile
            self._overdue = False
            log.info("driver_responds_again")
            readings = [replace(item, ts=max(ts_ms, item.ts)) for item in readings]
        return readings

    def _await(self, until: float, stop: threading.Event) -> list[Reading] | None:
        """Wait for the readings; a driver that hangs must not keep the kernel's words back."""
        if not self._hearing.reads_log:
            return self._reader.result(until, stop)
        while True:
            now = self._clock.monotonic()
            readings = self._reader.result(min(until, now + _HEAR_SECONDS), stop)
            if readings is not None or stop.is_set() or self._clock.monotonic() >= until:
                return readings
            self._hear()

    def _hear(self) -> None:
        """Publish at once, without a reading of the GPUs, what driver and kernel tell."""
        node = self._settings.node
        if not self._admission.knows(node):
            return
        now = self._clock.unix_ms()
        heard = self._hearing.fresh(now, self._beside.listed(node, now).inventory)
        if heard:
            self._publish(self._admission.tell(node, heard, now))
        self._hearing.settle()

    def _hanging(self, ts_ms: int, deadline: float) -> list[Reading]:
        if self._clock.monotonic() < deadline:
            return []
        if not self._overdue:
            log.warning("driver_unresponsive", seconds=self._settings.call_deadline_seconds)
        self._overdue = True
        return self._heartbeats(ts_ms, CollectorState.UNRESPONSIVE)

    def _heartbeats(self, ts_ms: int, state: CollectorState) -> list[Reading]:
        """Say only that we are there, for every node known, without asking the source."""
        nodes = self._admission.nodes or [self._settings.node]
        return [Reading(node=node, ts=ts_ms, state=state) for node in nodes]

    def _publish(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._publisher.send(message, self._clock.unix_ms())
