"""Readings of a node into messages: what travels together, and what is said anew.

Pure: no clock, no input or output. Time is the event time of the readings.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from collector.source import Reading
from schemas.sample import (
    CollectorStatus,
    Inventory,
    JobRef,
    NodeSample,
    SampleEvent,
    ValueStatus,
)

__all__ = ["Batching", "NodeBatcher"]

#: Most ticks in one message, so that a long flush interval cannot make it too large.
MAX_TICKS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How messages are cut.

    Parameters
    ----------
    interval_seconds
        Time between readings as promised to consumers; None where it is not known (a
        recording), then the distance to the previous reading stands for it.
    flush_seconds
        Readings of this many seconds travel together.
    keyframe_seconds
        How often inventory and jobs are repeated.
    source
        Kind of source, for the collector's status.
    labels, expected_gpus
        From the settings; they complete the inventory. Labels of the source win.
    """

    interval_seconds: float | None
    flush_seconds: float
    keyframe_seconds: float
    source: str
    labels: dict[str, str] = field(default_factory=dict)
    expected_gpus: int | None = None


class NodeBatcher:
    """Collects the readings of one node and cuts them into messages with contiguous ``seq``.

    Parameters
    ----------
    node, boot_id
        Identity of the sender; ``seq`` counts from 0 for the pair.
    rules
        See :class:`Batching`.
    """

    def __init__(self, node: str, boot_id: str, rules: Batching) -> None:
        self.node = node
        self.boot_id = boot_id
        self._rules = rules
        self._pending: list[Reading] = []
        self._seq = 0
        self._sent_key: tuple[object, ...] | None = None
        self._last_ts: int | None = None
        self._seen_step_ms = 0.0
        self._keyframe_ts: int | None = None
        self._inventory: Inventory | None = None
        self._jobs: tuple[JobRef, ...] | None = None

    def add(self, reading: Reading) -> list[NodeSample]:
        """Take one reading; return the messages that are complete because of it."""
        ready: list[NodeSample] = []
        if self._pending and not self._continues(reading):
            ready += self.flush()
        step_ms = self._step_ms(reading)
        self._pending.append(reading)
        self._last_ts = reading.ts
        if self._urgent(reading) or self._full(step_ms):
            ready += self.flush()
        return ready

    def change(self, rules: Batching) -> list[NodeSample]:
        """Go on with other rules; return what was pending under the old ones."""
        ready = self.flush()
        self._rules = rules
        return ready

    def flush(self) -> list[NodeSample]:
        """Return what is pending as one message, or nothing."""
        if not self._pending:
            return []
        sample = self._message(self._pending)
        self._pending = []
        self._seq += 1
        return [sample]

    def _continues(self, reading: Reading) -> bool:
        last = self._pending[-1]
        return _key(reading) == _key(last) and reading.ts > last.ts

    def _urgent(self, reading: Reading) -> bool:
        return bool(reading.events) or _key(reading) != self._sent_key

    def _full(self, step_ms: float) -> bool:
        span = self._pending[-1].ts - self._pending[0].ts + step_ms
        return span >= self._rules.flush_seconds * 1000 or len(self._pending) >= MAX_TICKS

    def _step_ms(self, reading: Reading) -> float:
        if self._rules.interval_seconds is not None:
            return self._rules.interval_seconds * 1000
        if self._last_ts is not None and reading.ts > self._last_ts:
            self._seen_step_ms = reading.ts - self._last_ts
        return self._seen_step_ms

    def _message(self, readings: list[Reading]) -> NodeSample:
        last = readings[-1]
        self._sent_key = _key(last)
        values, status = _columns(readings)
        inventory, jobs = self._keyframe(last)
        events: tuple[SampleEvent, ...] = tuple(
            event for reading in readings for event in reading.events
        )
        return NodeSample(
            node=self.node,
            boot_id=self.boot_id,
            seq=self._seq,
            ts=tuple(reading.ts for reading in readings),
            gpu=last.gpus,
            m=values,
            collector=self._status(last),
            status=status,
            events=events,
            jobs=jobs,
            inventory=inventory,
            parents=last.parents,
            host=_last_host(readings),
        )

    def _status(self, last: Reading) -> CollectorStatus:
        rules = self._rules
        return CollectorStatus(
            state=last.state,
            nvml_error=last.nvml_error,
            interval_seconds=rules.interval_seconds or self._seen_step_ms / 1000 or 1.0,
            flush_seconds=rules.flush_seconds,
            source=rules.source,
        )

    def _keyframe(self, last: Reading) -> tuple[Inventory | None, tuple[JobRef, ...] | None]:
        """Inventory and jobs if they changed, or if it is time to repeat them."""
        inventory = self._complete(last.inventory)
        steady = replace(inventory, uptime_seconds=None)  # grows all the time, is no change
        due = (
            self._keyframe_ts is None
            or not 0 <= last.ts - self._keyframe_ts < self._rules.keyframe_seconds * 1000
        )
        changed = steady != self._inventory
        jobs = last.jobs if due or last.jobs != self._jobs else None
        if due or changed:
            self._keyframe_ts = last.ts if due else self._keyframe_ts
        self._inventory = steady
        self._jobs = last.jobs
        return (inventory if due or changed else None), jobs

    def _complete(self, found: Inventory) -> Inventory:
        """Add what the settings say; a heartbeat that knows nothing repeats what was known."""
        if found == Inventory() and self._inventory is not None:
            return self._inventory
        rules = self._rules
        expected = found.expected_gpus if rules.expected_gpus is None else rules.expected_gpus
        return replace(found, labels={**rules.labels, **found.labels}, expected_gpus=expected)


def _key(reading: Reading) -> tuple[object, ...]:
    """Return what must be equal in all readings of one message."""
    return (reading.gpus, reading.parents, reading.state, reading.nvml_error)


def _last_host(readings: list[Reading]) -> dict[str, float] | None:
    """Return the newest numbers of the machine, None if no reading has any."""
    found = [reading.host for reading in readings if reading.host is not None]
    return dict(found[-1]) if found else None


def _columns(
    readings: list[Reading],
) -> tuple[dict[str, list[float | None]], dict[str, dict[str, str]]]:
    width = len(readings[0].gpus)
    names = dict.fromkeys(name for reading in readings for name in reading.values)
    blank: list[float | None] = [None] * width
    values: dict[str, list[float | None]] = {}
    status: dict[str, dict[str, str]] = {}
    for name in names:
        column: list[float | None] = []
        codes: dict[str, str] = {}
        for tick, reading in enumerate(readings):
            column += reading.values.get(name, blank)
            for position, code in reading.status.get(name, {}).items():
                codes[str(tick * width + position)] = code
        if _worth_sending(column, codes):
            values[name] = column
            if codes:
                status[name] = codes
    return values, status


def _worth_sending(column: list[float | None], codes: dict[str, str]) -> bool:
    """Tell whether a column says more than "unsupported on the whole node", which absence says."""
    if any(value is not None for value in column):
        return True
    return any(code != ValueStatus.UNSUPPORTED for code in codes.values())
