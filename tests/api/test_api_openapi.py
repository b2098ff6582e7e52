"""The description of the REST surface is complete, and changes only on purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from api.app import create_app
from api.database import Database
from api.feed import Feed
from api.health import Readiness
from api.metrics import ApiMetrics
from api.settings import ApiSettings

SNAPSHOT = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"


@pytest.fixture
def described(sqlite_database: Database) -> dict[str, Any]:
    app = create_app(
        ApiSettings(),
        sqlite_database,
        metrics=ApiMetrics(CollectorRegistry()),
        feed=Feed(),
        readiness=Readiness(sqlite_database, {}),
    )
    found: dict[str, Any] = app.openapi()
    found["info"]["version"] = "0"
    return found


def test_the_description_is_the_one_in_the_repository(described: dict[str, Any]) -> None:
    """After a change on purpose: ``python tests/api/test_api_openapi.py``."""
    assert described == json.loads(SNAPSHOT.read_text(encoding="utf-8"))


def operations(described: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_operation_says_what_it_does_and_what_it_answers(described: dict[str, Any]) -> None:
    for name, operation in operations(described):
        assert operation.get("summary"), name
        assert operation.get("description"), name
        assert any(code.startswith("2") for code in operation["responses"]), name


def test_every_body_has_an_example(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    for name, operation in operations(described):
        if "requestBody" not in operation:
            continue
        content = operation["requestBody"]["content"]["application/json"]
        shape = content["schema"]
        referred = shape.get("$ref") or next(
            (part["$ref"] for part in shape.get("allOf", []) if "$ref" in part), ""
        )
        known = schemas.get(referred.rsplit("/", 1)[-1], {})
        assert content.get("examples") or shape.get("examples") or known.get("examples"), name


def test_every_number_of_a_request_is_bounded(described: dict[str, Any]) -> None:
    """An unbounded integer gives a store an overflow to answer with."""
    for name, operation in operations(described):
        for parameter in operation.get("parameters", []):
            shape = parameter["schema"]
            for part in [shape, *shape.get("anyOf", [])]:
                if part.get("type") == "integer":
                    assert {"minimum", "maximum"} <= set(part), (name, parameter["name"])
                if part.get("type") == "string" and "enum" not in part:
                    bounded = "maxLength" in part or "format" in part or parameter["in"] == "path"
                    assert bounded, (name, parameter["name"])


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        store = Database.open(None, Path(folder))
        shown = described.__wrapped__(store)  # type: ignore[attr-defined]  # pytest's wrapper
        SNAPSHOT.write_text(json.dumps(shown, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
        store.close()
