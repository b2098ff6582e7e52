"""The description of the REST surface, as FastAPI makes it, with what it cannot say by itself."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from api.problems import PROBLEM_TYPE

__all__ = ["describe_problems"]

_PROBLEM = {"$ref": "#/components/schemas/Problem"}
#: What guard and bodies answer before any route is asked.
_ANY = {"400": "The request cannot be read.", "421": "The Host header is not served here."}
_CHANGE = {
    "409": "It cannot be done as things stand; or the first request with this Idempotency-Key is "
    "still under way.",
    "413": "The body is too long.",
}
_CHANGING = frozenset({"post", "put", "patch", "delete"})


def describe_problems(app: FastAPI) -> None:
    """Let the description name the answers that no route gives, and the media type of problems.

    FastAPI describes every answer with a model under the media type of the route's usual answer.
    """
    plain = app.openapi

    def openapi() -> dict[str, Any]:  # JSON
        described = plain()
        for operations in described["paths"].values():
            for method, operation in operations.items():
                told = _ANY | (_CHANGE if method in _CHANGING else {})
                for status, words in told.items():
                    content = {PROBLEM_TYPE: {"schema": dict(_PROBLEM)}}
                    operation["responses"].setdefault(
                        status, {"description": words, "content": content}
                    )
                for answer in operation["responses"].values():
                    _as_problem(answer.get("content", {}))
        return described

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _as_problem(content: dict[str, Any]) -> None:  # JSON
    if content.get("application/json", {}).get("schema") == _PROBLEM:
        content[PROBLEM_TYPE] = content.pop("application/json")
