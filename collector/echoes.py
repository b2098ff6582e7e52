"""One fault told twice is one event: by the driver's event set and by the kernel log.

Pure. The two tell of the same Xid some milliseconds to seconds apart, in either order. Each
telling of one side is paired with at most one of the other, so that a burst keeps its count and
nothing is lost where only one side speaks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from schemas.pci import canonical_pci
from schemas.sample import EventKind, Inventory, SampleEvent

__all__ = ["EXPORTER_ECHO_MS", "Echoes", "Origin", "placed_events"]

#: An echo comes within so many milliseconds: an event waits in NVML for the next reading, which
#: a busy driver answers within its call deadline of ten seconds.
ECHO_MS = 12_000
#: dcgm-exporter looks at its GPUs every 30 s by default, and is itself looked at now and then.
EXPORTER_ECHO_MS = 65_000


class Origin(StrEnum):
    """Who tells of an event."""

    DRIVER = "driver"
    KERNEL = "kernel"


@dataclass(slots=True)
class _Told:
    """How often one side told of a code, unpaired as yet."""

    origin: Origin
    count: int
    at_ms: int


def placed_events(events: Iterable[SampleEvent], inventory: Inventory) -> tuple[SampleEvent, ...]:
    """Name the GPU of each event that says only its PCI address, where the node lists it.

    Parameters
    ----------
    events
        As the log or the driver tells them.
    inventory
        The GPUs of the node. A MIG instance stands at the address of its parent: the parent it
        is that the kernel names.
    """
    places = {
        place: gpu.gpu
        for gpu in inventory.gpus
        if gpu.parent is None and gpu.pci and (place := canonical_pci(gpu.pci))
    }
    return tuple(
        replace(event, gpu=places.get(canonical_pci(event.pci) or ""))
        if event.gpu is None and event.pci is not None
        else event
        for event in events
    )


class Echoes:
    """Leaves out Xids that the other side has told of already.

    Parameters
    ----------
    window_ms
        How long after the first telling the second one may come, milliseconds.

    Examples
    --------
    >>> echoes = Echoes()
    >>> xid = SampleEvent(ts=0, kind="xid", gpu="GPU-1", xid=79)
    >>> len(echoes.admit(Origin.KERNEL, [xid], 1000)), len(echoes.admit(Origin.DRIVER, [xid], 1900))
    (1, 0)
    """

    def __init__(self, window_ms: int = ECHO_MS) -> None:
        self._window_ms = window_ms
        self._told: dict[tuple[str, int], _Told] = {}

    def admit(
        self, origin: Origin, events: Iterable[SampleEvent], now_ms: int
    ) -> tuple[SampleEvent, ...]:
        """Return the events to publish; a burst that was half told keeps the rest of its count.

        Parameters
        ----------
        origin
            Who tells.
        events
            Placed, so that both sides call the GPU the same.
        now_ms
            When they were heard, unix milliseconds.
        """
        edge = now_ms - self._window_ms
        self._told = {key: told for key, told in self._told.items() if told.at_ms >= edge}
        admitted = (self._rest(origin, event, now_ms) for event in events)
        return tuple(event for event in admitted if event is not None)

    def _rest(self, origin: Origin, event: SampleEvent, now_ms: int) -> SampleEvent | None:
        if event.kind != EventKind.XID or event.xid is None:
            return event
        key = (event.gpu or event.pci or "", event.xid)
        told = self._told.get(key)
        if told is None or told.origin == origin or told.count == 0:
            before = told.count if told is not None and told.origin == origin else 0
            self._told[key] = _Told(origin, before + event.count, now_ms)
            return event
        paired = min(told.count, event.count)
        told.count -= paired
        if paired == event.count:
            return None
        rest = replace(event, count=event.count - paired)
        self._told[key] = _Told(origin, rest.count, now_ms)
        return rest
