"""Walks settings classes: which fields there are, of what kind, and what they say of themselves."""

from __future__ import annotations

import socket
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

__all__ = [
    "FOUND",
    "Row",
    "is_mapping",
    "is_structured",
    "item_models",
    "kind_in_words",
    "model_at",
    "model_of",
    "rows",
    "setting_names",
    "strip_optional",
]


#: What makes a default that differs between machines, to its name in words: documents and
#: samples must be the same everywhere.
FOUND: Mapping[object, str] = types.MappingProxyType({socket.gethostname: "the host name"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting.

    Parameters
    ----------
    section
        Dotted name of the table, empty at the top, ``[]`` behind it for an array of tables.
    name
        Key inside the table.
    kind
        What it takes, in words.
    default
        Default value; :data:`pydantic_core.PydanticUndefined` where one must be given.
    description
        The field's own sentence.
    found
        What a default that the machine itself gives is, in words; empty for any other.
    """

    section: str
    name: str
    kind: str
    default: object
    description: str
    found: str = ""

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is PydanticUndefined


def _members(annotation: Any) -> list[Any]:
    """Members of a union, without None; a list of the type itself for anything else."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        found = [_members(part) for part in get_args(annotation) if part is not types.NoneType]
        return [one for part in found for one in part]
    return [annotation]


def strip_optional(annotation: Any) -> Any:
    """Return ``X`` for ``X | None`` and for ``Annotated[X, ...]``, else the annotation."""
    members = _members(annotation)
    return members[0] if len(members) == 1 else annotation


def model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the settings class that an annotation names, or None."""
    inner = strip_optional(annotation)
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def is_mapping(annotation: Any) -> bool:
    """Whether it is a table with free keys."""
    return get_origin(strip_optional(annotation)) in (dict, Mapping)


def item_models(annotation: Any) -> list[type[BaseModel]]:
    """Return the settings classes of the items of a list, empty for anything else."""
    inner = strip_optional(annotation)
    if get_origin(inner) not in (list, tuple, Sequence):
        return []
    members = [member for part in get_args(inner) for member in _members(part)]
    return [part for part in members if isinstance(part, type) and issubclass(part, BaseModel)]


def is_structured(annotation: Any) -> bool:
    """Whether a value is more than one plain string or number: a list, table or class."""
    origins = (list, tuple, set, frozenset, dict, Sequence, Mapping)
    return get_origin(annotation) in origins or model_of(annotation) is not None


def model_at(model: type[BaseModel], path: Sequence[str]) -> type[BaseModel] | None:
    """Return the settings class at a dotted place, going into the items of lists too."""
    current: type[BaseModel] | None = model
    items: list[type[BaseModel]] = []
    for part in path:
        if items:  # an index, or the tag of a union: the item that has the most in common
            current, items = items[0], [] if part.isdecimal() and len(items) == 1 else items
            continue
        if current is None or part not in current.model_fields:
            return None
        annotation = current.model_fields[part].annotation
        current, items = model_of(annotation), item_models(annotation)
    return current


def kind_in_words(annotation: Any) -> str:
    """Say what a setting takes.

    Examples
    --------
    >>> kind_in_words(Literal["a", "b"]), kind_in_words(int | None), kind_in_words(dict[str, str])
    ('"a" or "b"', 'integer', 'table')
    """
    members = _members(annotation)
    if len(members) > 1:
        return " or ".join(dict.fromkeys(kind_in_words(member) for member in members))
    inner = members[0]
    if get_origin(inner) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(inner))
    if get_origin(inner) in (list, tuple, set, frozenset, Sequence):
        return "list"
    if get_origin(inner) in (dict, Mapping):
        return "table"
    if isinstance(inner, type) and issubclass(inner, Enum):
        return " or ".join(f'"{choice.value}"' for choice in inner)
    words = {bool: "true or false", int: "integer", float: "number", SecretStr: "text, secret"}
    return words.get(inner, "text")


def rows(model: type[BaseModel], section: str = "") -> Iterator[Row]:
    """Yield every setting of a class, plain ones before tables, as TOML wants it."""
    later: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        dotted = f"{section}.{name}" if section else name
        inner = model_of(field.annotation)
        items = item_models(field.annotation)
        if inner is not None:
            later.append((dotted, inner))
        elif items:
            later += [(f"{dotted}[]", item) for item in items]
        else:
            yield Row(
                section=section,
                name=name,
                kind=kind_in_words(field.annotation),
                default=field.get_default(call_default_factory=True),
                description=field.description or "",
                found=FOUND.get(field.default_factory, ""),
            )
    for dotted, inner in later:
        yield from rows(inner, dotted)


def setting_names(table: Mapping[str, object], above: str = "") -> Iterator[str]:
    """Yield the dotted name of every value in nested tables."""
    for key, value in table.items():
        dotted = f"{above}.{key}" if above else key
        if isinstance(value, Mapping) and value:
            yield from setting_names(value, dotted)
        else:
            yield dotted
