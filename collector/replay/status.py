"""The whole status that ``nvidia-smi -q`` prints, as text or XML: paths of names to columns.

Both forms say the same under different names. Here every name becomes the name of the column
with which ``--query-gpu`` says it, so that one reader knows units, words and absences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from collector.replay.cells import Cell, DamagedCellError, number
from collector.replay.lines import Line
from collector.replay.rounds import Booted
from collector.replay.smi import layout_of
from collector.replay.smi_columns import REASON_BITS, THROTTLE_COUNTERS
from collector.replay.table import Layout, Row, RowReader, number_at
from collector.replay.tables import Context
from collector.replay.times import TimeReader
from collector.replay.untimed import Untimed
from schemas.sample import GpuInventory, ThresholdKind, ValueStatus

__all__ = ["INSTANCE_MEMORY", "Status", "StatusRows"]

# Columns that --query-gpu does not have.
_REPLAYS, _BAR1, _LINKS_UP = "pcie.replays", "bar1.used", "nvlink.active"
_EXTRA = {
    "pcie_replay_total": (_REPLAYS, ""),
    "bar1_used_bytes": (_BAR1, "MiB"),
    "nvlink_active_links": (_LINKS_UP, ""),
}
_LINKS = "nvlink.links"
#: Names under which a document may say thresholds: slowdown, shutdown, maximum operating.
ABSOLUTE = ("limit.slowdown", "limit.shutdown", "limit.operating")
MARGINS = ("margin.slowdown", "margin.shutdown", "margin.operating")

_ECC = tuple(
    f"ecc.errors.{kind}.{life}.{place}"
    for kind in ("corrected", "uncorrected")
    for life in ("volatile", "aggregate")
    for place in ("total", "dram", "sram")
)
_COLUMNS = (
    *("timestamp", "hostname", "index", "uuid", "pci.bus_id", "name", "serial", "vbios_version"),
    *("driver_version", "mig.mode.current", "pcie.link.gen.gpumax", "pcie.link.gen.max"),
    *("pcie.link.width.max", "pcie.link.gen.current", "pcie.link.width.current"),
    *("temperature.gpu", "temperature.memory", "temperature.gpu.tlimit"),
    *("power.draw", "power.draw.average", "power.draw.instant", "enforced.power.limit"),
    *("power.limit", "power.default_limit", "utilization.gpu", "utilization.memory"),
    *("utilization.encoder", "utilization.decoder", "memory.used", "memory.free"),
    *("memory.total", "memory.reserved", "clocks.current.sm", "clocks.current.graphics"),
    *("clocks.max.sm", "clocks.max.graphics", "clocks.current.memory", "fan.speed", "pstate"),
    *("gpu_recovery_action", "remapped_rows.correctable", "remapped_rows.uncorrectable"),
    *("remapped_rows.pending", "remapped_rows.failure", "retired_pages.sbe"),
    *("retired_pages.dbe", "retired_pages.pending"),
    *(f"clocks_event_reasons.{name}" for name in REASON_BITS),
    *(f"clocks_event_reasons_counters.{name}" for name in THROTTLE_COUNTERS.values()),
    *_ECC,
    _REPLAYS,
    _BAR1,
    _LINKS_UP,
)


@dataclass(slots=True, kw_only=True)
class Status:
    """One run of ``nvidia-smi -q``.

    Parameters
    ----------
    line
        Where it begins, for complaints.
    time, driver
        As written; None where it says none.
    attached
        How many GPUs it says there are, as text; if all are listed, their order is their index.
    devices
        Column to text, one dict per GPU.
    instances
        For the place of a GPU its MIG instances: numbers and memory as text.
    """

    line: Line
    time: str | None = None
    driver: str | None = None
    attached: str | None = None
    devices: list[dict[str, str]] = field(default_factory=list)
    instances: dict[int, list[dict[str, str]]] = field(default_factory=dict)


class StatusRows:
    """Turns documents into readings.

    Parameters
    ----------
    context
        Shared by all readers of the replay.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._untimed = Untimed(context.path, context.stats)
        context.rounds.tolerance_ms = 0
        self._rows = RowReader(
            layout=_layout(),
            times=TimeReader(context.zone),
            devices=context.devices,
            node=context.node,
            model=None,
            stats=context.stats,
        )

    def readings(self, status: Status) -> Iterator[Booted]:
        """Yield what a document completes; a device that cannot be read is counted."""
        context = self._context
        time = status.time or self._untimed.next()
        ordered = status.attached == str(len(status.devices))
        for place, device in enumerate(status.devices):
            if ordered:
                device.setdefault("index", str(place))
            said = {**device, "timestamp": time, "driver_version": status.driver or ""}
            try:
                row = self._rows.read([_cell(name, said) for name in _COLUMNS])
            except ValueError as exc:
                context.damage(status.line, f"{device.get('pci.bus_id', 'a GPU')}: {exc}")
                continue
            yield from context.rounds.add(_with_links(_with_thresholds(row, device), device))
            for instance in status.instances.get(place, ()):
                part = _instance_of(row, instance)
                if part is not None:
                    yield from context.rounds.add(part)


#: What a document says of a MIG instance: name there to metric.
INSTANCE_MEMORY = {
    "total": "memory_total_bytes",
    "reserved": "memory_reserved_bytes",
    "used": "memory_used_bytes",
    "free": "memory_free_bytes",
}


def _instance_of(row: Row, instance: Mapping[str, str]) -> Row | None:
    """Make the row of a MIG instance. Documents name no UUID of it: its numbers stand for it."""
    numbers = [instance.get(name, "") for name in ("gi", "ci")]
    if not all(number.isdecimal() for number in numbers):
        return None
    cells = {}
    for name, metric in INSTANCE_MEMORY.items():
        try:
            cells[metric] = number(instance.get(name, ""), "MiB")
        except DamagedCellError:
            cells[metric] = Cell(None, ValueStatus.UNSUPPORTED)
    gpu = row.facts
    facts = GpuInventory(
        gpu=f"MIG-{gpu.gpu}/{'/'.join(numbers)}", model=gpu.model, pci=gpu.pci, parent=gpu.gpu
    )
    return replace(row, facts=facts, cells=cells)


def _layout() -> Layout:
    layout = layout_of(_COLUMNS)
    extra = {
        metric: (number_at(_COLUMNS.index(name), unit),) for metric, (name, unit) in _EXTRA.items()
    }
    return replace(layout, recipes={**layout.recipes, **extra})


def _cell(name: str, said: Mapping[str, str]) -> str:
    text = said.get(name, "")
    # Widths are written "16x".
    return text.removesuffix("x") if name.startswith("pcie.link.width") else text


def _with_links(row: Row, device: Mapping[str, str]) -> Row:
    links = device.get(_LINKS, "")
    if not links.isdecimal() or len(links) > 3:
        return row
    return replace(row, facts=replace(row.facts, nvlink_links=int(links)))


def _with_thresholds(row: Row, device: Mapping[str, str]) -> Row:
    """Add the thresholds to what the GPU is, and the margin that follows from absolute ones."""
    margins = [_degrees(device.get(name)) for name in MARGINS]
    limits = [_degrees(device.get(name)) for name in ABSOLUTE]
    kind = ThresholdKind.MARGIN if any(m is not None for m in margins) else ThresholdKind.ABSOLUTE
    slowdown, shutdown, operating = margins if kind == ThresholdKind.MARGIN else limits
    if slowdown is None and shutdown is None and operating is None:
        return row
    facts: GpuInventory = replace(
        row.facts,
        threshold_kind=kind,
        slowdown_celsius=slowdown,
        shutdown_celsius=shutdown,
        max_operating_celsius=operating,
    )
    return replace(row, facts=facts, cells=_with_margin(row, limits[0]))


def _with_margin(row: Row, slowdown: float | None) -> dict[str, Cell]:
    margin = row.cells.get("temperature_margin_celsius")
    temperature = row.cells.get("temperature_celsius")
    if (margin is not None and margin.value is not None) or slowdown is None:
        return row.cells
    if temperature is None or temperature.value is None:
        return row.cells
    return {**row.cells, "temperature_margin_celsius": Cell(slowdown - temperature.value)}


def _degrees(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return number(text, "C").value
    except DamagedCellError:
        return None
