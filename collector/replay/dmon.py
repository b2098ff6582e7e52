"""The monitor modes: ``nvidia-smi dmon`` and ``dcgmi dmon``, columns of text under a header.

Columns of nvidia-smi are those of its own help; DCGM's short names are the tags of its fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from collector.replay.lines import Line
from collector.replay.rounds import Booted
from collector.replay.smi import layout_of
from collector.replay.table import Layout, Role, RowReader, number_at
from collector.replay.tables import Context
from collector.replay.times import TimeReader
from collector.replay.untimed import Untimed
from schemas.metrics import METRICS

__all__ = ["Dmon", "is_dmon_header"]

#: Column to (metric, unit), in lower case.
_SMI: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "pwr": ("power_watts", "W"),
        "gtemp": ("temperature_celsius", "C"),
        "temp": ("temperature_celsius", "C"),
        "mtemp": ("memory_temperature_celsius", "C"),
        "sm": ("gpu_utilization_ratio", "%"),
        "mem": ("memory_utilization_ratio", "%"),
        "enc": ("encoder_utilization_ratio", "%"),
        "dec": ("decoder_utilization_ratio", "%"),
        "mclk": ("memory_clock_hertz", "MHz"),
        "pclk": ("sm_clock_hertz", "MHz"),
        "fb": ("memory_used_bytes", "MiB"),
        "bar1": ("bar1_used_bytes", "MiB"),
        "sbecc": ("ecc_corrected_total", ""),
        "dbecc": ("ecc_uncorrected_total", ""),
        "pci": ("pcie_replay_total", ""),
    }
)
_DCGM: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "gputl": ("gpu_utilization_ratio", "%"),
        "mcutl": ("memory_utilization_ratio", "%"),
        "enutl": ("encoder_utilization_ratio", "%"),
        "deutl": ("decoder_utilization_ratio", "%"),
        "tmptr": ("temperature_celsius", "C"),
        "mmtmp": ("memory_temperature_celsius", "C"),
        "power": ("power_watts", "W"),
        "totec": ("energy_joules_total", "mJ"),
        "smclk": ("sm_clock_hertz", "MHz"),
        "mmclk": ("memory_clock_hertz", "MHz"),
        "fbusd": ("memory_used_bytes", "MiB"),
        "fbfre": ("memory_free_bytes", "MiB"),
        "fbttl": ("memory_total_bytes", "MiB"),
        "gract": ("graphics_activity_ratio", ""),
        "smact": ("sm_activity_ratio", ""),
        "smocc": ("sm_occupancy_ratio", ""),
        "tenso": ("tensor_activity_ratio", ""),
        "drama": ("dram_activity_ratio", ""),
        "pcitx": ("pcie_transmit_bytes_per_second", ""),
        "pcirx": ("pcie_receive_bytes_per_second", ""),
    }
)
_DATE, _TIME = "date", "time"
_ENTITY = re.compile(r"GPU\s+(\d+)\b")
_UNITS_LINE = re.compile(r"(?:idx|id|yyyymmdd|hh:mm:ss)\b", re.IGNORECASE)
_DAY = re.compile(r"(\d{4})(\d\d)(\d\d)$")


def _names(text: str) -> list[str]:
    return text.strip().lstrip("#").lower().split()


def is_dmon_header(text: str) -> bool:
    """Tell whether a line names the columns of a monitor mode.

    Examples
    --------
    >>> is_dmon_header("# gpu    pwr  gtemp  mtemp     sm"), is_dmon_header("#Entity  TMPTR POWER")
    (True, True)
    >>> is_dmon_header("# gpu         pid   type     sm    mem"), is_dmon_header("gpu, power")
    (False, False)
    """
    names = _names(text)
    if "pid" in names or "," in text or not names:
        return False
    smi = text.lstrip().startswith("#") and "gpu" in names and bool(_SMI.keys() & set(names))
    return smi or (names[0] == "entity" and bool(_DCGM.keys() & set(names)))


@dataclass(slots=True, kw_only=True)
class Dmon:
    """Rows of a monitor mode; headers are taken wherever they stand again."""

    context: Context

    def readings(self, lines: Iterable[Line]) -> Iterator[Booted]:
        """Yield the readings."""
        context = self.context
        context.rounds.tolerance_ms = 0
        columns: _Columns | None = None
        for line in lines:
            text = line.text
            if not text.strip() or _UNITS_LINE.match(text.strip().lstrip("# ")):
                continue
            if is_dmon_header(text):
                context.stats.headers += 1
                names = _names(text)
                if columns is None or columns.names != names:
                    columns = _Columns(names, context)
            elif columns is None:
                context.damage(line, "stands before the names of the columns")
            elif text.startswith("#"):
                continue
            else:
                yield from self._row(columns, line)

    def _row(self, columns: _Columns, line: Line) -> Iterator[Booted]:
        try:
            cells = columns.cells(line.text)
            row = columns.rows.read(cells)
        except ValueError as exc:
            self.context.damage(line, str(exc))
            return
        yield from self.context.rounds.add(row)


class _Columns:
    """The columns of one header, and the moment of rows that carry none."""

    def __init__(self, names: list[str], context: Context) -> None:
        self.names = names
        self._of_dcgm = names[0] == "entity"
        self._untimed = Untimed(context.path, context.stats)
        self._timed = _TIME in names and _DATE in names
        self._moment = ""
        self._seen: set[str] = set()
        self.rows = RowReader(
            layout=_layout(names, self._of_dcgm),
            times=TimeReader(context.zone),
            devices=context.devices,
            node=context.node,
            model=None,
            stats=context.stats,
        )

    def cells(self, text: str) -> list[str]:
        """Split a row into cells: time, index, then the columns of the header.

        Raises
        ------
        ValueError
            If it has another number of cells, or names no GPU.
        """
        if self._of_dcgm:
            match = _ENTITY.match(text.strip())
            if match is None:
                raise ValueError(f"is no row of a GPU: {text.strip()[:40]!r}")
            rest = text.strip()[match.end() :].split()
            index, cells = match[1], ["", *rest]
        else:
            cells = text.split()
            index = cells[self.names.index("gpu")] if len(cells) == len(self.names) else ""
        if len(cells) != len(self.names):
            raise ValueError(f"has {len(cells)} cells instead of {len(self.names)}")
        return [self._when(index, cells), index, *cells]

    def _when(self, index: str, cells: list[str]) -> str:
        if self._timed:
            day = _DAY.match(cells[self.names.index(_DATE)])
            if day is None:
                raise ValueError("has no date of the form 20250131")
            return f"{day[1]}-{day[2]}-{day[3]} {cells[self.names.index(_TIME)]}"
        if index in self._seen or not self._moment:  # the GPU comes again: the next sweep
            self._seen.clear()
            self._moment = self._untimed.next()
        self._seen.add(index)
        return self._moment


def _layout(names: list[str], of_dcgm: bool) -> Layout:
    known = _DCGM if of_dcgm else _SMI
    recipes = {}
    labels = {}
    for place, name in enumerate(names):
        metric, unit = known.get(name, ("", ""))
        if metric in METRICS:
            recipes[metric] = (number_at(place + 2, unit),)
            labels[metric] = (name,)
    return replace(
        layout_of(()),
        header=("time", "index", *names),
        roles={Role.TIME: 0, Role.GPU_INDEX: 1},
        recipes=recipes,
        labels=labels,
    )
