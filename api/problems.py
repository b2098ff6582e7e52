"""Errors of the HTTP surface as RFC 9457 problem documents.

They say what is wrong with which part of the request; they never repeat a value, which may be
a secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from api.rendering import problem_page, wants_page
from schemas.errors import DataDirError, StoreError

__all__ = ["PROBLEM_TYPE", "Problem", "ProblemError", "install", "problem_body", "request_id_of"]

PROBLEM_TYPE = "application/problem+json"
# Faults whose text has commas between words of ours and repeats no value.
_LISTS_OF_OURS = frozenset(
    {
        "bad_character",
        "endpoint_invalid",
        "enum",
        "literal_error",
        "repeated_parameter",
        "unknown_parameter",
    }
)
_log = structlog.get_logger(__name__)


class ProblemError(BaseModel):
    """One fault of a request."""

    pointer: str = Field(description="Where: query/limit, path/alert_id, header/last-event-id.")
    code: str = Field(description="Fixed word for programs.")
    message: str = Field(description="Sentence for people.")


class Problem(BaseModel):
    """RFC 9457 problem document."""

    type: str = Field(default="about:blank", description="Kind of problem.")
    title: str = Field(description="Short text of the status.")
    status: int = Field(description="HTTP status.")
    detail: str = Field(description="What happened and what to do.")
    request_id: str = Field(description="Also in the server's log.")
    errors: list[ProblemError] = Field(default_factory=list, description="Faults, one by one.")


def problem_body(
    status: int, detail: str, errors: Sequence[Mapping[str, str]] = (), request_id: str = ""
) -> bytes:
    """Encode a problem document."""
    return orjson.dumps(
        {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": detail,
            "request_id": request_id or secrets.token_hex(8),
            "errors": list(errors),
        }
    )


def _respond(
    status: int,
    detail: str,
    errors: Sequence[Mapping[str, str]] = (),
    headers: Mapping[str, str] | None = None,
    request_id: str = "",
) -> Response:
    return Response(
        problem_body(status, detail, errors, request_id),
        status_code=status,
        media_type=PROBLEM_TYPE,
        headers=dict(headers or {}),
    )


def request_id_of(request: Request) -> str:
    """Return the id of a request: in the answer's header, its problem and the log."""
    found: str = getattr(request.state, "request_id", "")
    return found or secrets.token_hex(8)


def _in_alertmanagers_words(request: Request) -> bool:
    """Tell whether the address is Alertmanager's: its clients read an error as a JSON text."""
    return request.url.path.startswith("/api/v2/")


def _sentence(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        orjson.dumps(text),
        status_code=status,
        media_type="application/json",
        headers=dict(headers or {}),
    )


def install(app: FastAPI) -> None:
    """Answer the expected errors with problem documents; the guard answers the others."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StoreError, _store)
    app.add_exception_handler(DataDirError, _store)


def _http(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)  # noqa: S101 - registered for this class only
    if _in_alertmanagers_words(request):
        return _sentence(exc.status_code, exc.detail, exc.headers)
    is_page = not request.url.path.startswith("/v1/")
    if is_page and wants_page(request.headers.get("accept", "")):
        html = problem_page(
            exc.status_code,
            exc.detail,
            request_id=request_id_of(request),
            version=request.app.version,
        )
        return HTMLResponse(html, status_code=exc.status_code, headers=dict(exc.headers or {}))
    return _respond(
        exc.status_code, exc.detail, headers=exc.headers, request_id=request_id_of(request)
    )


def _invalid(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)  # noqa: S101 - registered for this class only
    errors = [
        {
            "pointer": "/".join(str(part) for part in fault["loc"]),
            "code": str(fault["type"]),
            "message": _message(fault),
        }
        for fault in exc.errors()
    ]
    said = " ".join(f"{fault['pointer']}: {_ended(fault['message'])}" for fault in errors)
    if _in_alertmanagers_words(request):
        return _sentence(400, f"The request cannot be used. {said}")
    return _respond(
        422, f"The request cannot be used. {said}", errors, request_id=request_id_of(request)
    )


def _ended(sentence: str) -> str:
    """Close a sentence that is not closed yet."""
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."


# Any: pydantic's description of a fault.
def _message(fault: Mapping[str, Any]) -> str:
    text = str(fault["msg"])
    if fault["type"] in _LISTS_OF_OURS:
        return text
    # What stands behind a comma may quote the value.
    return text.partition(",")[0]


def _store(request: Request, exc: Exception) -> Response:
    request_id = request_id_of(request)
    _log.error("request_failed", request_id=request_id, error=str(exc))
    return _respond(
        503,
        "The alert store cannot answer now; /readyz says why.",
        headers={"retry-after": "5"},
        request_id=request_id,
    )
