"""What the routes share: access to the store, bounded parameters, answers."""

from __future__ import annotations

import difflib
import re
from datetime import datetime
from typing import Annotated, Any

import orjson
from fastapi import Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import AwareDatetime, BeforeValidator
from pydantic_core import PydanticCustomError

from api.feed import Feed
from api.problems import Problem
from api.queries import Queries

__all__ = [
    "KNOWN_ONLY",
    "MAX_ID",
    "PROBLEMS",
    "Cursor",
    "FeedOf",
    "Limit",
    "Moment",
    "QueriesOf",
    "json_answer",
    "next_link",
    "unix_ms",
]

#: Largest id accepted: what JSON readers in every language can hold.
MAX_ID = 2**53


def _queries(request: Request) -> Queries:
    queries: Queries = request.app.state.queries
    return queries


def _feed(request: Request) -> Feed:
    feed: Feed = request.app.state.feed
    return feed


QueriesOf = Annotated[Queries, Depends(_queries)]
FeedOf = Annotated[Feed, Depends(_feed)]
Limit = Annotated[int, Query(ge=1, le=500, description="Most entries on a page.")]
Cursor = Annotated[
    str | None, Query(max_length=300, description="next_cursor of the page before this one.")
]
# RFC 3339, section 5.6; letters in either case.
_RFC3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})", re.ASCII | re.IGNORECASE
)


def _only_rfc3339(text: object) -> object:
    """Refuse what pydantic would take besides: epoch numbers, dates, times without a zone."""
    if isinstance(text, str) and not _RFC3339.fullmatch(text):
        raise PydanticCustomError(
            "rfc3339",
            "A time is written as RFC 3339 with a zone: 2026-01-31T12:00:00Z or "
            "2026-01-31T12:00:00%2B01:00 (a plus sign in an address is written %2B)",
        )
    return text


Moment = Annotated[
    AwareDatetime | None,
    BeforeValidator(_only_rfc3339),
    Query(description="RFC 3339 with a zone: 2026-01-31T12:00:00Z."),
]
_SHOWN_NAME = 60
# Below this likeness a guess would only puzzle.
_NEAR = 0.5


def _only_known_parameters(request: Request) -> None:
    """Refuse parameters that the address does not have: a filter with a typo filters nothing."""
    route: APIRoute = request.scope["route"]
    known = [field.alias for field in route.dependant.query_params]
    unknown = [name for name in request.query_params if name not in known]
    if not unknown:
        return
    raise RequestValidationError(
        [
            {
                "loc": ("query", name[:_SHOWN_NAME]),
                "type": "unknown_parameter",
                "msg": _unknown_words(name, known),
            }
            for name in unknown
        ]
    )


def _unknown_words(name: str, known: list[str]) -> str:
    words = f"There is no parameter {name[:_SHOWN_NAME]} here"
    near = difflib.get_close_matches(name.lower()[:_SHOWN_NAME], known, n=1, cutoff=_NEAR)
    if near:
        return f"{words}; did you mean {near[0]}?"
    return f"{words}; there are {', '.join(known)}" if known else f"{words}; there are none"


#: Dependencies of every router under /v1.
KNOWN_ONLY = [Depends(_only_known_parameters)]

PROBLEMS: dict[int | str, dict[str, Any]] = {  # FastAPI's own type for extra answers
    code: {
        "model": Problem,
        "description": text,
        "content": {"application/problem+json": {}},
    }
    for code, text in (
        (401, "The API key is missing or wrong."),
        (421, "The Host header is not served here."),
        (422, "A parameter cannot be used."),
        (503, "The store cannot answer now."),
    )
}


def json_answer(body: object, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    """Answer JSON. orjson directly: half the time of FastAPI's own encoding for 500 alerts."""
    return Response(
        orjson.dumps(body), status_code=status, media_type="application/json", headers=headers
    )


def next_link(request: Request, cursor: str | None) -> dict[str, str]:
    """Return the Link header to the next page; empty on the last one."""
    if cursor is None:
        return {}
    url = request.url.include_query_params(cursor=cursor)
    # Path and query only: behind a proxy we do not know our own name.
    return {"link": f'<{url.path}?{url.query}>; rel="next"'}


def unix_ms(moment: datetime | None) -> int | None:
    """Convert an aware date-time to unix milliseconds."""
    return None if moment is None else round(moment.timestamp() * 1000)
