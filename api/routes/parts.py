"""What the routes share: access to the store, bounded parameters, answers."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from datetime import datetime
from typing import Annotated, Any, get_args, get_origin

import orjson
from fastapi import Depends, Header, HTTPException, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import AwareDatetime, BeforeValidator
from pydantic_core import PydanticCustomError

from api.database import Database
from api.feed import Feed
from api.problems import Problem
from api.queries import Queries
from api.security.principal import Principal, Scope

__all__ = [
    "KNOWN_ONLY",
    "MAX_ID",
    "PROBLEMS",
    "Cursor",
    "DatabaseOf",
    "FeedOf",
    "IfMatch",
    "Limit",
    "Moment",
    "PrincipalOf",
    "QueriesOf",
    "etag_of",
    "is_fresh",
    "json_answer",
    "needs",
    "next_link",
    "only_rfc3339",
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


def _principal(request: Request) -> Principal:
    found: Principal = request.state.principal
    return found


def _store(request: Request) -> Database:
    found: Database = request.app.state.database
    return found


PrincipalOf = Annotated[Principal, Depends(_principal)]
DatabaseOf = Annotated[Database, Depends(_store)]
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


def only_rfc3339(text: object) -> object:
    """Refuse what pydantic would take besides: epoch numbers, dates, times without a zone."""
    number = isinstance(text, int | float)
    if number or (isinstance(text, str) and not _RFC3339.fullmatch(text)):
        raise PydanticCustomError(
            "rfc3339",
            "A time is written as RFC 3339 with a zone: 2026-01-31T12:00:00Z or "
            "2026-01-31T12:00:00%2B01:00 (a plus sign in an address is written %2B)",
        )
    return text


Moment = Annotated[
    AwareDatetime | None,
    BeforeValidator(only_rfc3339),
    Query(description="RFC 3339 with a zone: 2026-01-31T12:00:00Z."),
]
_SHOWN_NAME = 60
# Below this likeness a guess would only puzzle.
_NEAR = 0.5


def _only_known_parameters(request: Request) -> None:
    """Refuse parameters that would silently filter nothing.

    Those that the address does not have, as after a typo; those given twice of which one would
    win; and values that a database takes for their end.
    """
    route: APIRoute = request.scope["route"]
    known = _query_fields(route.dependant)
    given = request.query_params.multi_items()
    faults = [
        ("unknown_parameter", name, _unknown_words(name, list(known)))
        for name, _ in given
        if name not in known
    ]
    faults += [
        ("repeated_parameter", name, f"{name} may stand here once only")
        for name, times in Counter(name for name, _ in given).items()
        if times > 1 and name in known and not known[name]
    ]
    faults += [
        ("bad_character", name, f"{name[:_SHOWN_NAME]} holds a character of code 0")
        for name, value in given
        if "\0" in value or "\0" in name
    ]
    if faults:
        raise RequestValidationError(
            [
                {"loc": ("query", name[:_SHOWN_NAME]), "type": kind, "msg": words}
                for kind, name, words in faults
            ]
        )


def _query_fields(dependant: Dependant) -> dict[str, bool]:
    """Query parameters of a route, those of its dependencies included: may each be repeated."""
    found = {field.alias: _many(field.field_info.annotation) for field in dependant.query_params}
    for below in dependant.dependencies:
        found |= _query_fields(below)
    return found


def _many(annotation: Any) -> bool:
    """Whether a parameter of this type may be given several times: a list, or a list or None."""
    return any(get_origin(part) is list for part in (annotation, *get_args(annotation)))


def _unknown_words(name: str, known: list[str]) -> str:
    words = f"There is no parameter {name[:_SHOWN_NAME]} here"
    near = difflib.get_close_matches(name.lower()[:_SHOWN_NAME], known, n=1, cutoff=_NEAR)
    if near:
        return f"{words}; did you mean {near[0]}?"
    return f"{words}; there are {', '.join(known)}" if known else f"{words}; there are none"


def needs(scope: Scope) -> Any:  # FastAPI's own marker, which it does not type
    """Return the dependency that lets only those pass who have a scope."""

    def check(who: PrincipalOf) -> None:
        if not who.may(scope):
            raise HTTPException(403, f"This key lacks the scope {scope.value}.")

    return Depends(check)


def etag_of(version: int) -> str:
    """Return the strong ETag of a version."""
    return f'"{version}"'


def _if_match(
    if_match: Annotated[
        str | None,
        Header(max_length=200, description="ETag that was seen; 412 if it is another by now."),
    ] = None,
) -> int | None:
    """Return the version in If-Match; None takes any; one that no alert has never matches."""
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip().strip('"')
    return int(text) if text.isdecimal() and len(text) < 18 else -1


IfMatch = Annotated[int | None, Depends(_if_match)]


def is_fresh(request: Request, tag: str) -> bool:
    """Tell whether the client has what the ETag names: 304."""
    given = request.headers.get("if-none-match", "")
    return tag in {part.strip() for part in given.split(",")}


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
        (403, "The key lacks a scope, or a page of another site asks."),
        (429, "Too many requests; Retry-After says when to go on."),
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
