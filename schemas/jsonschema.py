"""JSON Schema 2020-12 of the three messages, generated from the dataclasses.

Readers in other languages use the files beside this module; a test compares them with what
this generates, so that they cannot drift apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter

from schemas.alert import AlertEvent
from schemas.sample import NodeSample
from schemas.window import WindowBatch

__all__ = ["SCHEMAS", "schema_bytes", "write_all"]

SCHEMAS: dict[str, type] = {
    "node-sample": NodeSample,
    "window-batch": WindowBatch,
    "alert-event": AlertEvent,
}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_bytes(name: str) -> bytes:
    """Return the JSON Schema file of one message, ready to be written."""
    adapter: TypeAdapter[Any] = TypeAdapter(SCHEMAS[name])
    body = {"$schema": _DIALECT, "$id": f"urn:foreshock:{name}:1", **adapter.json_schema()}
    return orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


def write_all(folder: Path = Path(__file__).parent) -> None:
    """Write every schema file into ``folder``."""
    for name in SCHEMAS:
        (folder / f"{name}.schema.json").write_bytes(schema_bytes(name))
