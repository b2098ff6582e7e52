"""Says in plain words what is wrong with a setting, and which one was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from foreshock.settingstree import item_models, model_at, model_of, rows

__all__ = [
    "ENV_PREFIX",
    "did_you_mean",
    "env_name",
    "explain",
    "explain_value",
    "meant_settings",
    "meant_variables",
    "toml_name",
]

ENV_PREFIX = "FORESHOCK_"

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# How alike two names must be, from 0 to 1; difflib's own advice is 0.6, which for whole
# variables, all of which begin alike, is anything.
_ALIKE = 0.85

#: Pydantic's type of fault to a sentence without a subject, filled in with the fault's context.
_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "bool_parsing": "must be true or false",
        "bool_type": "must be true or false",
        "dict_type": "must be a table",
        "model_type": "must be a table",
        "model_attributes_type": "must be a table",
        "enum": "must be {expected}",
        "literal_error": "must be {expected}",
        "float_parsing": "must be a number",
        "float_type": "must be a number",
        "finite_number": "must be a finite number",
        "int_from_float": "must be a whole number",
        "int_parsing": "must be a whole number",
        "int_type": "must be a whole number",
        "greater_than": "must be more than {gt}",
        "greater_than_equal": "must be at least {ge}",
        "less_than": "must be less than {lt}",
        "less_than_equal": "must be at most {le}",
        "list_type": "must be a list",
        "tuple_type": "must be a list",
        "path_type": "must be a path in quotes",
        "string_type": "must be text in quotes",
        "string_pattern_mismatch": "must match the pattern {pattern}",
        "string_too_long": "must have at most {max_length} characters",
        "string_too_short": "must have at least {min_length} characters",
        "missing": "is not given, and has no default",
    }
)


def env_name(dotted: str) -> str:
    """Return the variable of a setting.

    Examples
    --------
    >>> env_name("api.port")
    'FORESHOCK_API__PORT'
    """
    return ENV_PREFIX + dotted.replace(".", "__").upper()


def toml_name(loc: Sequence[str], root: type[BaseModel]) -> str:
    """Write the place of a setting as it stands in the file.

    Parameters
    ----------
    loc
        Names from the outermost table inwards; entries of lists by their number from 0.
    root
        The class of all settings.
    """
    for depth, part in enumerate(loc):
        if part.isdecimal() and item_models(_annotation(loc[:depth], root)):
            inner = ".".join(loc[depth + 1 :])
            entry = f"entry {int(part) + 1} of [[{'.'.join(loc[:depth])}]]"
            return f"{inner} in {entry}" if inner else entry
    return ".".join(part if _BARE_KEY.fullmatch(part) else f'"{part}"' for part in loc)


def _annotation(loc: Sequence[str], root: type[BaseModel]) -> Any:
    parent = model_at(root, loc[:-1])
    field = parent.model_fields.get(loc[-1]) if parent is not None and loc else None
    return field.annotation if field is not None else None


def meant_settings(key: str, above: Sequence[str], root: type[BaseModel]) -> list[str]:
    """Find what was probably meant by an unknown key: beside it, else in every section."""
    model = model_at(root, above)
    if model is None:
        return []
    beside = difflib.get_close_matches(key, model.model_fields, n=1)
    if beside:
        return [toml_name((*above, beside[0]), root)]
    return [
        f"{section}.{key}"
        for section, field in root.model_fields.items()
        if (inner := model_of(field.annotation)) is not None and key in inner.model_fields
    ]


def meant_variables(name: str, known: Sequence[str], root: type[BaseModel]) -> list[str]:
    """Find the variables that were probably meant by one that is no setting.

    Parameters
    ----------
    name
        The variable, for example ``FORESHOCK_API_PORT``.
    known
        Sections that its beginning names rightly, for example ``("api",)``.
    root
        The class of all settings.
    """
    flat = {variable.replace("__", "_"): variable for variable in _variables(root)}
    one = flat.get(name.replace("__", "_"))  # "_" for "__" is what people write first
    if one is not None:
        return [one]
    key = name.removeprefix(ENV_PREFIX).lower().split("__")[len(known)]
    meant = [env_name(dotted) for dotted in meant_settings(key, known, root)]
    return meant or [flat[near] for near in difflib.get_close_matches(name, flat, 1, _ALIKE)]


def _variables(root: type[BaseModel]) -> Iterator[str]:
    for row in rows(root):
        if not row.section.endswith("[]"):
            yield env_name(f"{row.section}.{row.name}" if row.section else row.name)


def did_you_mean(names: Sequence[str]) -> str:
    """Return the question with a space before it; nothing if there is nothing to ask."""
    return f" Did you mean {' or '.join(names)}?" if names else ""


def explain(
    exc: ValidationError, origins: Mapping[str, str], file: Path | None, root: type[BaseModel]
) -> str:
    """Turn pydantic's faults into one sentence each.

    Parameters
    ----------
    exc
        What the validation found.
    origins
        Dotted name of each given value to where it came from.
    file
        The settings file, if there is one.
    root
        The class of all settings.
    """
    faults = exc.errors(include_url=False, include_input=True)
    return "\n".join(_explain_one(fault, origins, file, root) for fault in faults)


def _explain_one(
    fault: Any, origins: Mapping[str, str], file: Path | None, root: type[BaseModel]
) -> str:
    # Any: pydantic's ErrorDetails is a TypedDict whose loc mixes str and int.
    loc = tuple(str(part) for part in fault["loc"])
    name, origin = toml_name(loc, root), _place_of(".".join(loc), origins, file)
    if fault["type"] == "extra_forbidden":
        meant = meant_settings(loc[-1], loc[:-1], root)
        return f"Unknown setting {name} in {origin}.{did_you_mean(meant)}"
    # The value itself is not shown: it may be a secret.
    is_array = item_models(_annotation(loc, root)) != []
    wrong = _what_is_wrong(fault, is_array=is_array, dotted=".".join(loc))
    subject = f"The setting {name} in {origin}" if name else f"Something in {origin}"
    return f"{subject} {wrong}."


def explain_value(exc: ValidationError) -> str:
    """Say in one sentence per fault which value a command cannot use."""
    lines = []
    for fault in exc.errors(include_url=False, include_input=True):
        name = ".".join(str(part) for part in fault["loc"]) or "A value"
        lines.append(f"{name} {_what_is_wrong(fault, is_array=False, dotted=name)}.")
    return "\n".join(lines)


def _what_is_wrong(fault: Any, *, is_array: bool, dotted: str) -> str:
    kind, context = fault["type"], fault.get("ctx", {})
    if is_array and kind in ("tuple_type", "list_type"):
        return f"must be a list of tables: write [[{dotted}]], with two brackets, before each"
    if kind == "too_short":
        length, least = context["actual_length"], context["min_length"]
        what = "entries" if isinstance(fault["input"], (list, tuple)) else "characters"
        return f"is too short: it has {length} {what}, it must have at least {least}"
    if kind == "too_long":
        return f"is too long: it may have at most {context['max_length']} entries"
    if kind == "value_error":
        return f"is wrong: {context['error']}"
    words = _WORDS.get(kind)
    return words.format_map(context) if words else f"is wrong: {fault['msg']}"


def _place_of(name: str, origins: Mapping[str, str], file: Path | None) -> str:
    """Say where a wrong value came from: given itself, inside another, or through its parts."""
    inside = [place for key, place in origins.items() if f"{name}.".startswith(f"{key}.")]
    parts = [place for key, place in origins.items() if key.startswith(f"{name}." if name else "")]
    return next(iter(inside + parts), str(file or "the settings"))
