"""Recorded scrapes of an exporter: Prometheus text, one or many, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collector.dcgm.exposition import Damaged, Series, read_series
from collector.dcgm.scrape import Device, devices_of, is_useful
from collector.replay.cells import Cell
from collector.replay.lines import Line
from collector.replay.rounds import Booted
from collector.replay.table import Row
from collector.replay.tables import Context
from collector.replay.untimed import Untimed

__all__ = ["PromText", "is_prom_line"]

Key = tuple[str, tuple[tuple[str, str], ...]]


def is_prom_line(text: str) -> bool:
    """Tell whether a line is a sample that this reader can use."""
    return any(isinstance(one, Series) and is_useful(one) for one in read_series([text]))


@dataclass(slots=True, kw_only=True)
class PromText:
    """Prometheus text. A series that comes again, or a new time stamp, begins the next scrape."""

    context: Context

    def readings(self, lines: Iterable[Line]) -> Iterator[Booted]:
        """Yield the readings."""
        self.context.rounds.tolerance_ms = 0
        untimed = Untimed(self.context.path, self.context.stats)
        scrape: dict[Key, Series] = {}
        ts: int | None = None
        for line in lines:
            for one in read_series([line.text]):
                if isinstance(one, Damaged):
                    self.context.damage(line, one.reason)
                    continue
                key = (one.name, tuple(sorted(one.labels.items())))
                if key in scrape or (one.ts is not None and ts is not None and one.ts != ts):
                    yield from self._scrape(scrape, ts, untimed)
                    scrape, ts = {}, None
                scrape[key] = one
                ts = one.ts if ts is None else ts
        yield from self._scrape(scrape, ts, untimed)

    def _scrape(
        self, scrape: dict[Key, Series], ts: int | None, untimed: Untimed
    ) -> Iterator[Booted]:
        context = self.context
        devices = devices_of(scrape.values(), context.devices, context.node)
        if not devices:
            return
        moment = int(untimed.next()) if ts is None else ts
        for device in devices:
            yield from context.rounds.add(_row(device, moment, context.node))


def _row(device: Device, ts: int, node: str) -> Row:
    cells = {
        metric: Cell(value, None if value is not None else device.status.get(metric))
        for metric, value in device.values.items()
    }
    namespace, pod, _ = next(iter(device.pods), ("", "", ""))
    return Row(
        node=device.node or node,
        ts=ts,
        facts=device.facts,
        cells=cells,
        driver=device.driver,
        job=(f"{namespace}/{pod}" if namespace else pod) or None,
    )
