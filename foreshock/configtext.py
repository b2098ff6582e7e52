"""Settings as text: what is in force, a sample file, and the table of the documentation."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from foreshock.config import DOTTED_TABLES, ENV_PREFIX, Loaded, Settings
from foreshock.secrets import MASK, is_plain_property, is_secret_name, mask_text
from foreshock.settingstree import Row, rows

__all__ = ["markdown_table", "sample_toml", "show_toml", "toml_value"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 88


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _text(value: str) -> str:
    # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(value: object) -> str:
    """Write one value as TOML.

    Examples
    --------
    >>> toml_value({"rack": "r1", "a.b": [1, 2.5, True]})
    '{ rack = "r1", "a.b" = [1, 2.5, true] }'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(str(k))} = {toml_value(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    return _text(str(value))


def _masked(name: str, value: object) -> object:
    """Hide secrets by type, by name, and inside addresses."""
    if isinstance(value, SecretStr):
        return MASK if value.get_secret_value() else ""
    if isinstance(value, BaseModel):
        return {key: _masked(key, getattr(value, key)) for key in type(value).model_fields}
    if isinstance(value, Mapping):
        return {key: _masked(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_masked(name, item) for item in value]
    if value is not None and is_secret_name(name) and not isinstance(value, (bool, int, float)):
        return MASK
    return mask_text(value) if isinstance(value, str) else value


def _masked_properties(values: Mapping[str, object]) -> dict[str, object]:
    """Show only what is known to be no secret: these are passed on to another library unread."""
    return {
        name: mask_text(str(value)) if is_plain_property(name, str(value)) else MASK
        for name, value in values.items()
    }


def _masked_item(item: BaseModel) -> dict[str, object]:
    """One table of an array: the path of a webhook's address is itself a secret in chat tools."""
    shown: dict[str, object] = {}
    for name in type(item).model_fields:
        value = getattr(item, name)
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if name.endswith("url") and isinstance(text, str) and text:
            parts = urlsplit(text)
            shown[name] = f"{parts.scheme}://{parts.hostname or ''}/{MASK}"
        else:
            shown[name] = _masked(name, value)
    return {name: value for name, value in shown.items() if value is not None}


def show_toml(loaded: Loaded) -> str:
    """Write the effective settings as TOML, secrets masked, each with where it came from."""
    source = loaded.file if loaded.file is not None else "none"
    lines = [f"# Settings file: {source}"]
    lines += _show_table(loaded.settings, "", loaded.origins)
    return "\n".join(lines) + "\n"


def _origin(dotted: str, origins: Mapping[str, str]) -> str:
    below = sorted({o for name, o in origins.items() if f"{name}.".startswith(f"{dotted}.")})
    return ", ".join(below) or "default"


def _show_table(model: BaseModel, section: str, origins: Mapping[str, str]) -> Iterator[str]:
    tables: list[tuple[str, BaseModel]] = []
    arrays: list[tuple[str, list[BaseModel]]] = []
    if section:
        yield f"\n[{section}]"
    for name in type(model).model_fields:
        value, dotted = getattr(model, name), f"{section}.{name}" if section else name
        if isinstance(value, BaseModel):
            tables.append((dotted, value))
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], BaseModel):
            arrays.append((dotted, list(value)))
        elif value is None:
            yield f"# {name} is not set"
        else:
            shown = toml_value(
                _masked_properties(value)
                if dotted in DOTTED_TABLES and isinstance(value, Mapping)
                else _masked(name, value)
            )
            yield f"{_key(name)} = {shown}  # {_origin(dotted, origins)}"
    for dotted, items in arrays:
        for item in items:
            yield f"\n[[{dotted}]]  # {_origin(dotted, origins)}"
            yield from (f"{_key(k)} = {toml_value(v)}" for k, v in _masked_item(item).items())
    for dotted, inner in tables:
        yield from _show_table(inner, dotted, origins)


def _shown_default(row: Row) -> str:
    """Return the default as TOML; an empty text where nothing is set."""
    default = row.default
    if row.required or row.found or default is None:
        return ""
    if isinstance(default, SecretStr):
        return MASK if default.get_secret_value() else '""'
    if isinstance(default, Path):
        return _text(str(default))
    return toml_value(default)


def sample_toml() -> str:
    """Write a sample file in which every setting stands with its default, commented out."""
    lines = [
        "# Settings of foreshock. Every line that starts with '#' and a name shows a default.",
        "# Searched: --config FILE, $FORESHOCK_CONFIG, ./foreshock.toml,",
        "# /etc/foreshock/foreshock.toml. The environment overrides the file:",
        f"# {ENV_PREFIX}<SECTION>__<KEY>, for example {ENV_PREFIX}BUS__PATH.",
    ]
    for section, group in groupby(rows(Settings), key=lambda row: row.section):
        if section.endswith("[]"):
            lines += ["", f"# One such table per entry:\n# [[{section.removesuffix('[]')}]]"]
        elif "[]" in section:
            lines += ["", f"# A table of the entry above:\n# [{section.replace('[]', '')}]"]
        elif section:
            lines += ["", f"[{section}]"]
        for row in group:
            lines += _sample_lines(row)
    return "\n".join(lines) + "\n"


def _sample_lines(row: Row) -> Iterator[str]:
    yield ""
    words = row.description + (" Must be set." if row.required else f" ({row.kind})")
    yield from textwrap.wrap(words, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    default = _shown_default(row)
    # Keys of an array's table are commented once more than the rest: alone they mean nothing.
    mark = "# " if "[]" in row.section else "#"
    yield f"{mark}{_key(row.name)} = {default}" if default else f"{mark}{_key(row.name)} ="


def _no_default(row: Row) -> str:
    return "required" if row.required else row.found or "not set"


def markdown_table() -> str:
    """Write the table of ``docs/configuration.md``, one row per setting."""
    lines = ["| setting | takes | default | what it does |", "|---|---|---|---|"]
    for row in rows(Settings):
        name = f"{row.section}.{row.name}" if row.section else row.name
        default = _shown_default(row)
        shown = f"`{default}`" if default else _no_default(row)
        cells = (f"`{name}`", row.kind, shown, row.description)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
