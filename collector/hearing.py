"""What is told between two readings: by the driver's event set and by the kernel log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from collector.echoes import EXPORTER_ECHO_MS, Echoes, Origin, placed_events
from collector.metrics import CollectorMetrics
from collector.settings import SourceKind
from collector.source import EventSource, Reading, Source
from schemas.sample import Inventory, SampleEvent

__all__ = ["Hearing"]


class Hearing:
    """Listens to both and passes on each event once. Belongs to the loop's thread.

    Parameters
    ----------
    source
        What is read; some sources are told of events between two readings.
    log
        The kernel log, or None.
    metrics
        Where what the kernel tells is counted.
    """

    def __init__(self, source: Source, log: EventSource | None, metrics: CollectorMetrics) -> None:
        # Any: an ability that only some sources have, see Source.
        self._heard: Any = getattr(source, "heard", None)
        self._log = log
        self._told = [*([] if self._heard is None else [source]), *([] if log is None else [log])]
        self._metrics = metrics
        self._echoes = Echoes(EXPORTER_ECHO_MS) if source.kind == SourceKind.DCGM else Echoes()

    @property
    def reads_log(self) -> bool:
        """Whether there is a kernel log: it is listened to also while a reading is waited for."""
        return self._log is not None

    @property
    def listens(self) -> bool:
        """Whether anything is told between two readings."""
        return self._log is not None or self._heard is not None

    def ears(self) -> tuple[int, ...] | None:
        """Return descriptors that have something to read when something is told.

        None where one can only ask now and then: a text log, a log that cannot be opened yet, a
        driver that is being read.
        """
        found: tuple[int, ...] = ()
        for told in self._told:
            # Any: an ability that only some have, see Source.
            ask: Any = getattr(told, "ears", None)
            ears: tuple[int, ...] | None = None if ask is None else ask()
            if ears is None:
                return None
            found += ears
        return found

    def fresh(self, now_ms: int, inventory: Inventory) -> tuple[SampleEvent, ...]:
        """Return what was told since the last call. Never waits.

        Parameters
        ----------
        now_ms
            Unix milliseconds.
        inventory
            The GPUs of the node: turns PCI addresses into UUIDs.
        """
        told = () if self._heard is None else tuple(self._heard())
        heard = self._echoes.admit(Origin.DRIVER, told, now_ms) if told else ()
        if self._log is None:
            return heard
        lines = self._log.poll(now_ms)
        if lines:
            placed = placed_events(lines, inventory)
            admitted = self._echoes.admit(Origin.KERNEL, placed, now_ms)
            for event in admitted:
                self._metrics.kernel_events.labels(kind=event.kind).inc(event.count)
            heard += admitted
        return heard

    def settle(self) -> None:
        """Learn that what was told has been handed on."""
        if self._log is not None:
            self._log.settle()
            self._metrics.set_kernel_log(str(self._log.health().get("state")))

    def untold(self, reading: Reading) -> Reading:
        """Leave out of a reading the events that the kernel has told already."""
        if self._log is None or not reading.events:
            return reading
        events = placed_events(reading.events, reading.inventory)
        return replace(reading, events=self._echoes.admit(Origin.DRIVER, events, reading.ts))

    def health(self) -> Mapping[str, object]:
        """Return the state of the kernel log, by name; empty where none is read."""
        return {} if self._log is None else {"kernel_log": dict(self._log.health())}

    def close(self) -> None:
        """Let go of the log."""
        if self._log is not None:
            self._log.close()
