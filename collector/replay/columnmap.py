"""Column maps: a small TOML file that says what the columns of a foreign recording mean."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from collector.replay.cells import UNITS, Cell, number
from collector.replay.lines import open_error
from collector.replay.table import Layout, Recipe, Role, number_at, one
from schemas.errors import SourceError
from schemas.metrics import METRICS

__all__ = ["ColumnMap", "MapFormat", "MappedColumn", "load_map"]


# Below this likeness a guess would only puzzle.
_NEAR = 0.5


class MapFormat(StrEnum):
    """What a line of the recording is."""

    CSV = "csv"
    JSONL_WIDE = "jsonl-wide"


def _known(metric: str) -> str:
    if metric in METRICS:
        return metric
    near = difflib.get_close_matches(metric.lower(), METRICS, n=1, cutoff=_NEAR)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{metric!r} is no metric.{guess} docs/metrics.md lists all names")


class MappedColumn(BaseModel):
    """One column that carries a metric."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    metric: str = Field(description="Metric of the catalogue.")
    unit: str = Field(default="", description="Unit in the file; empty: the metric's base unit.")
    factor: float | None = Field(
        default=None, description="Factor to the base unit, instead of a unit.", gt=0
    )

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, name: str) -> str:
        return _known(name)

    @field_validator("unit")
    @classmethod
    def _known_unit(cls, unit: str) -> str:
        if unit not in UNITS:
            raise ValueError(f"{unit!r} is no unit; use one of {', '.join(filter(None, UNITS))}")
        return unit

    def recipe(self, position: int) -> Recipe:
        """Make the recipe that reads this column."""
        if self.factor is None:
            return number_at(position, self.unit)
        factor = self.factor

        def scaled(text: str) -> Cell:
            cell = number(text, "")
            return cell if cell.value is None else Cell(cell.value * factor)

        return one(position, scaled)


class ColumnMap(BaseModel):
    """What a recording's columns mean, and what it does not say itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: MapFormat = Field(
        default=MapFormat.CSV,
        description="csv, or jsonl-wide: one JSON object per tick with keys 'name:index'.",
    )
    delimiter: str = Field(default=",", description="Between the cells of a CSV.", max_length=1)
    timezone: str | None = Field(
        default=None, description="IANA zone of times that carry none, for example Europe/Berlin."
    )
    time_format: str | None = Field(
        default=None,
        description="strptime pattern; default: ISO 8601, nvidia-smi's form and unix times.",
    )
    round_seconds: float = Field(
        default=0.5,
        ge=0,
        le=60,
        description="Rows of different GPUs at most so far apart are one tick, in seconds, but "
        "never more than half the time between two rows of one GPU; 0: only equal times.",
    )
    node: str | None = Field(default=None, description="Name of the node, if no column has it.")
    model: str | None = Field(default=None, description="Model, if no column has it.")
    slowdown_celsius: float | None = Field(
        default=None,
        ge=50,
        le=130,
        description="Absolute slowdown threshold, in °C; gives the margin where none is recorded.",
    )
    roles: dict[Role, str] = Field(description="Role to the name of its column; time is required.")
    columns: dict[str, MappedColumn] = Field(description="Column to metric and unit.")
    constants: dict[str, float] = Field(
        default_factory=dict, description="Metrics with one value for every GPU, in base units."
    )
    gpus: dict[int, str] = Field(default_factory=dict, description="GPU index to UUID.")

    @field_validator("roles")
    @classmethod
    def _usable_roles(cls, roles: dict[Role, str]) -> dict[Role, str]:
        if Role.TIME not in roles:
            raise ValueError("roles.time must name the column of the time")
        return roles

    @field_validator("columns", mode="before")
    @classmethod
    def _short_form(cls, columns: object) -> object:
        if not isinstance(columns, dict):
            return columns
        return {
            name: {"metric": column} if isinstance(column, str) else column
            for name, column in columns.items()
        }

    @field_validator("constants")
    @classmethod
    def _known_constants(cls, constants: dict[str, float]) -> dict[str, float]:
        return {_known(name): value for name, value in constants.items()}

    def fits(self, header: Sequence[str]) -> bool:
        """Tell whether these column names have the time and at least one mapped column."""
        names = {cell.strip() for cell in header}
        return self.roles[Role.TIME] in names and bool(names & self.columns.keys())

    def layout(self, header: Sequence[str]) -> Layout:
        """Make the layout of a header. A column of the map that the file lacks is left out."""
        names = [cell.strip() for cell in header]
        recipes: dict[str, list[Recipe]] = {}
        labels: dict[str, list[str]] = {}
        for name, column in self.columns.items():
            if name in names:
                recipes.setdefault(column.metric, []).append(column.recipe(names.index(name)))
                labels.setdefault(column.metric, []).append(name)
        return Layout(
            header=tuple(names),
            roles={role: names.index(name) for role, name in self.roles.items() if name in names},
            recipes={metric: tuple(ways) for metric, ways in recipes.items()},
            constants=self.constants,
            labels=labels,
            slowdown_celsius=self.slowdown_celsius,
        )


def load_map(path: Path) -> ColumnMap:
    """Read a column map.

    Raises
    ------
    SourceError
        If the file cannot be read or is no valid map; the text names the key.
    """
    try:
        with path.open("rb") as file:
            return ColumnMap.model_validate(tomllib.load(file))
    except OSError as exc:
        raise open_error(path, exc) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SourceError(f"The column map {path} is no valid TOML: {exc}.") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise SourceError(f"The column map {path} is wrong at {where}: {said}.") from exc
