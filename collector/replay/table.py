"""From the cells of one line to one row about one GPU: what both kinds of table share.

A layout says where things stand: roles (time, node, index ...) by position, and for each
metric the recipes that may give it, best first. nvidia-smi and the column maps make layouts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from collector.replay.cells import LOST, RESET_REQUIRED, Cell, absence, number
from collector.replay.identity import Devices
from collector.replay.stats import ColumnTally, ReplayStats
from collector.replay.times import TimeReader
from schemas.metrics import METRICS, Metric
from schemas.sample import GpuInventory, ThresholdKind, ValueStatus

__all__ = ["Layout", "Recipe", "Role", "Row", "RowReader", "number_at", "one"]

Recipe = Callable[[Sequence[str]], Cell]

# The field-230 code for "reset the GPU" (nvml.h, nvmlDeviceGpuRecoveryAction_t).
_ACTION_RESET = 1.0
_MAX_FACTS = 4096
# Different cells remembered per column.
_REMEMBERED = 1024


class Role(StrEnum):
    """What a column says besides metrics."""

    TIME = "time"
    NODE = "node"
    GPU_INDEX = "gpu_index"
    GPU_UUID = "gpu_uuid"
    PCI = "pci"
    MODEL = "model"
    SERIAL = "serial"
    VBIOS = "vbios"
    DRIVER = "driver"
    JOB = "job"
    MIG_MODE = "mig_mode"
    PCIE_GENERATION_MAX = "pcie_generation_max"
    PCIE_WIDTH_MAX = "pcie_width_max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where things stand in a line.

    Parameters
    ----------
    header
        Names of the columns; a line with another number of cells is damaged.
    roles
        Position of each role's column.
    recipes
        For each metric the ways to get it, best first.
    constants
        Metrics that have one value for every GPU, in base units.
    slowdown_celsius
        Absolute slowdown threshold of the GPUs, or None where unknown.
    labels
        For each metric the names of the columns behind its recipes, in the same order; where a
        recipe has none, the metric's name stands for it.
    uuids
        What a UUID must look like; another text there is damage. None takes any.
    """

    header: tuple[str, ...]
    roles: Mapping[Role, int]
    recipes: Mapping[str, tuple[Recipe, ...]]
    constants: Mapping[str, float] = field(default_factory=dict)
    slowdown_celsius: float | None = None
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    uuids: re.Pattern[str] | None = None

    def label(self, metric: str, way: int) -> str:
        """Name the column behind one recipe of a metric."""
        names = self.labels.get(metric, ())
        return names[way] if way < len(names) else metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One GPU at one time. ``cells`` has an entry for every metric of the layout."""

    node: str
    ts: int
    facts: GpuInventory
    cells: dict[str, Cell]
    driver: str | None = None
    job: str | None = None

    @property
    def lost(self) -> bool:
        """Whether the driver says that the GPU is lost."""
        return any(cell.status == LOST for cell in self.cells.values())


def one(position: int, convert: Callable[[str], Cell]) -> Recipe:
    """Make the recipe that converts one cell; most cells repeat, so they are remembered."""
    remembered = lru_cache(maxsize=_REMEMBERED)(convert)
    return lambda cells: remembered(cells[position])


def number_at(position: int, unit: str) -> Recipe:
    """Make the recipe that reads a number in ``unit`` unless the cell names its own."""
    return one(position, lambda text: number(text, unit))


@dataclass(slots=True, kw_only=True)
class RowReader:
    """Read rows of one layout.

    Parameters
    ----------
    layout
        Where things stand.
    times
        Reader of event times.
    devices
        Who is who.
    node, model
        For rows that do not say it.
    stats
        Counts implausible values.
    """

    layout: Layout
    times: TimeReader
    devices: Devices
    node: str
    model: str | None
    stats: ReplayStats
    _facts: dict[tuple[str | None, ...], GpuInventory] = field(default_factory=dict)
    _plan: tuple[tuple[Metric, tuple[tuple[Recipe, ColumnTally], ...]], ...] = ()

    def __post_init__(self) -> None:
        """Look the metrics up once."""
        layout, column = self.layout, self.stats.column
        self._plan = tuple(
            (
                METRICS[name],
                tuple((way, column(layout.label(name, i), name)) for i, way in enumerate(ways)),
            )
            for name, ways in layout.recipes.items()
        )

    def read(self, cells: Sequence[str]) -> Row:
        """Read one line's cells.

        Raises
        ------
        ValueError
            If the line is damaged.
        """
        if len(cells) != len(self.layout.header):
            raise ValueError(f"has {len(cells)} columns, expected {len(self.layout.header)}")
        ts = self.times.read(cells[self.layout.roles[Role.TIME]])
        values = {metric.name: self._cell(metric, cells, ways) for metric, ways in self._plan}
        for metric, value in self.layout.constants.items():
            values.setdefault(metric, Cell(value))
        self._derive(values)
        node = self._said(cells, Role.NODE) or self.node
        return Row(
            node=node,
            ts=ts,
            facts=self._device(node, cells),
            cells=values,
            driver=self._said(cells, Role.DRIVER),
            job=self._said(cells, Role.JOB),
        )

    def _cell(
        self, metric: Metric, cells: Sequence[str], ways: tuple[tuple[Recipe, ColumnTally], ...]
    ) -> Cell:
        first: Cell | None = None
        for recipe, tally in ways:
            cell = recipe(cells)
            if cell.value is not None:
                tally.values += 1
                if metric.low <= cell.value <= metric.high:
                    return cell
                self.stats.implausible += 1
                tally.refuse(cell.value)
                cell = Cell(None, ValueStatus.IMPLAUSIBLE)
            first = first or cell
        return first or Cell(None, ValueStatus.UNSUPPORTED)

    def _derive(self, values: dict[str, Cell]) -> None:
        if any(cell.status == RESET_REQUIRED for cell in values.values()):
            action = values.get("recovery_action")
            if action is None or not action.value:  # absent, null or 0: the words say more
                values["recovery_action"] = Cell(_ACTION_RESET)
        slowdown = self.layout.slowdown_celsius
        temperature = values.get("temperature_celsius")
        margin = values.get("temperature_margin_celsius")
        if slowdown is None or temperature is None or temperature.value is None:
            return
        if margin is None or margin.value is None:
            values["temperature_margin_celsius"] = Cell(slowdown - temperature.value)

    def _said(self, cells: Sequence[str], role: Role) -> str | None:
        position = self.layout.roles.get(role)
        if position is None or absence(cells[position]) is not None:
            return None
        return cells[position].strip()

    def _device(self, node: str, cells: Sequence[str]) -> GpuInventory:
        said = {role: self._said(cells, role) for role in _FACTS if role in self.layout.roles}
        key = (node, *said.values())
        facts = self._facts.get(key)
        if facts is None:
            facts = self._new_facts(node, said)
            # A GPU that says only its place is whoever was seen there last: not to be kept.
            if said.get(Role.GPU_UUID) or said.get(Role.MODEL) or self.model:
                if len(self._facts) >= _MAX_FACTS:  # facts that never settle are noise
                    self._facts.clear()
                self._facts[key] = facts
        return facts

    def _new_facts(self, node: str, said: Mapping[Role, str | None]) -> GpuInventory:
        index = _whole(said.get(Role.GPU_INDEX))
        uuid = said.get(Role.GPU_UUID)
        if uuid is not None and self.layout.uuids and not self.layout.uuids.match(uuid):
            raise ValueError(f"{uuid[:40]!r} is no UUID of a GPU")
        model = said.get(Role.MODEL) or self.model
        pci = said.get(Role.PCI)
        mig = said.get(Role.MIG_MODE)
        slowdown = self.layout.slowdown_celsius
        return GpuInventory(
            gpu=self.devices.identify(node, uuid=uuid, pci=pci, index=index, model=model),
            index=index,
            model=model,
            pci=pci,
            serial=said.get(Role.SERIAL),
            vbios=said.get(Role.VBIOS),
            mig_mode=None if mig is None else mig.lower() == "enabled",
            threshold_kind=None if slowdown is None else ThresholdKind.ABSOLUTE,
            slowdown_celsius=slowdown,
            pcie_generation_max=_whole(said.get(Role.PCIE_GENERATION_MAX)),
            pcie_width_max=_whole(said.get(Role.PCIE_WIDTH_MAX)),
        )


#: Of an index, a width or a generation; what has more is none.
_MOST_DIGITS = 6
_FACTS = (
    Role.GPU_INDEX,
    Role.GPU_UUID,
    Role.PCI,
    Role.MODEL,
    Role.SERIAL,
    Role.VBIOS,
    Role.MIG_MODE,
    Role.PCIE_GENERATION_MAX,
    Role.PCIE_WIDTH_MAX,
)


def _whole(text: str | None) -> int | None:
    """Read a small whole number; the units and signs of other tools make the line damaged."""
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise ValueError(f"{text[:40]!r} is no whole number")
    return int(text)
